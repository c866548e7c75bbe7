"""Index steps, many at a time: claimed through the lock of their table, written as one commit, flipped together."""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import suppress

import msgspec

from penstock.artifacts.fingerprints import fingerprint
from penstock.artifacts.segments import JSON_ITEMS
from penstock.errors import BudgetSpent, LeaseLost, PenstockError, Permanent, TableFailed, Transient
from penstock.indexes.base import Fence, IndexRows, TableId
from penstock.ledger.database import notifier
from penstock.ledger.engine import checkpoints, flips, generations, index_versions, locks
from penstock.model.nouns import Token
from penstock.model.states import DocumentStatus
from penstock.stages import index as stage
from penstock.worker.bench import INDEX, ROOM, Bench, is_suspect
from penstock.worker.context import Context
from penstock.worker.execute import flip, settle
from penstock.worker.opening import open_artifact
from penstock.worker.tables import GuardedTable, opened

Entry = stage.Entry[Context]
Loaded = tuple[Entry, IndexRows]

COMPACT_EVERY = 64
"""Commits to a table between two compactions by one worker."""
TURN_S = 2.0
"""How long a group may write while others wait for another table."""
TIDY_AGAIN_S = 60.0
"""After one that failed."""


class Indexer:
    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self._bound: set[tuple[str, str, int]] = set()
        self._commits: dict[str, int] = {}
        self._failed: dict[str, TableFailed] = {}
        """Of the groups that are being worked on, by key."""
        self._tidy_after: dict[str, float] = {}

    async def run(self, contexts: Sequence[Context]) -> TableFailed | None:
        """A group of steps behind one lock, which the caller holds and releases. The answer says whether the table is
        to be left alone for a while."""
        taking_turns = asyncio.create_task(self._take_turns(contexts))
        try:
            return await self._run(contexts)
        finally:
            taking_turns.cancel()
            await asyncio.wait([taking_turns])

    async def _take_turns(self, contexts: Sequence[Context]) -> None:
        """Tables are written one after the other. Where steps wait for another one, a long group hands over what it has
        not begun, and a long document goes on at its next turn."""
        with suppress(PenstockError):
            while True:
                await self._bench.runtime.sleep(TURN_S)
                if await self._bench.ledger.read(notifier.claimable, [INDEX]):
                    for ctx in contexts:
                        ctx.stopping = True
                    return

    async def _run(self, contexts: Sequence[Context]) -> TableFailed | None:
        first = contexts[0]
        key, token = _key(first), first.step.lease.token
        locked = first.step.lease.resource_key is not None
        fence = self.fence(key, token) if locked else self.lease_fence(contexts)
        self._failed.pop(key, None)
        try:
            await self._bind(first)
            place = TableId(first.step.owner, first.document.collection, first.generation.index_version)
            table = await opened(self._bench.ports.index, place, self._bench.ports.embedder.model.dimensions)
            entries = await self._with_chunks(await self._announce(contexts))
        except BaseException as error:
            await self._settle(contexts, error)
            return self._failed.pop(key, None)
        suspects = [entry for entry in entries if is_suspect(entry.ctx.step)]
        batches = list(_batches([entry for entry in entries if not is_suspect(entry.ctx.step)]))
        for entry in entries:
            entry.ctx.waiting(ROOM)
        for number, batch in enumerate(batches):
            # Every claim does at least one batch, whatever the budget (I7).
            if (number and self._is_over(contexts)) or key in self._failed:
                await self._hand_over(batch)
                continue
            await self._write_in_room(batch, table, fence)
        if suspects and key in self._failed:
            await self._hand_over(suspects)
        elif suspects:
            await self._write_alone(suspects, table, fence, begun=bool(batches))
        if key not in self._failed:
            began = self._bench.runtime.clock()
            await self._tidy(key, table, fence)
            self._bench.record.tally.worked("index", 0, began, self._bench.runtime.clock())
        return self._failed.pop(key, None)

    async def _settle(self, contexts: Sequence[Context], error: BaseException) -> None:
        if isinstance(error, TableFailed) and contexts:
            self._failed[_key(contexts[0])] = error
        await asyncio.gather(*(settle(self._bench, ctx, error) for ctx in contexts))

    def _is_over(self, contexts: Sequence[Context]) -> bool:
        return any(ctx.stopping for ctx in contexts) or not self._bench.budget.fits("index")

    async def _hand_over(self, batch: Sequence[Entry]) -> None:
        await self._settle([entry.ctx for entry in batch], BudgetSpent("handed over between two commits"))

    async def _write_alone(self, suspects: list[Entry], table: GuardedTable, fence: Fence, *, begun: bool) -> None:
        """One by one, and nobody beside them. A whole group of them may have died twice with its worker: they clear the
        rooms once, not each for itself."""
        left = list(suspects)
        try:
            async with self._bench.all_rooms(suspects[0].ctx):
                while left:
                    entry = left[0]
                    if begun and self._is_over([entry.ctx for entry in left]):
                        break
                    begun = True
                    with suppress(LeaseLost):
                        await self._bench.go_alone(entry.ctx)
                        await self._write([entry], table, fence)
                        self._bench.budget.measure("index", self._bench.runtime.clock() - entry.ctx.began)
                    left.pop(0)
            await self._hand_over(left)
        except BaseException as error:
            await self._settle_waiting(left, error)

    async def _write_in_room(self, batch: list[Entry], table: GuardedTable, fence: Fence) -> None:
        try:
            async with self._bench.room(batch[0].ctx):
                began = batch[0].ctx.began
                for entry in batch:
                    entry.ctx.waiting(None)
                    entry.ctx.began = began
                await self._write(batch, table, fence)
                self._bench.budget.measure("index", self._bench.runtime.clock() - began)
        except BaseException as error:
            await self._settle_waiting(batch, error)

    async def _settle_waiting(self, batch: Sequence[Entry], error: BaseException) -> None:
        """Stopped while they waited for room, or no longer ours."""
        waiting = [entry.ctx for entry in batch if not entry.ctx.finishing]
        await self._settle(waiting, error)
        if isinstance(error, asyncio.CancelledError) and not any(ctx.timed_out for ctx in waiting):
            raise error

    def fence(self, key: str, token: Token) -> Fence:
        async def fence() -> None:
            if not await self._bench.ledger.read(locks.held, key, token):
                raise LeaseLost(f"the lock {key} belongs to somebody else now")

        return fence

    def lease_fence(self, contexts: Sequence[Context]) -> Fence:
        """For a table with many writers: there is no lock, and the leases of the steps must still be ours. If some are
        lost, the others of the group are released and claimed again."""

        async def fence() -> None:
            open_ = [ctx for ctx in contexts if not ctx.finishing]
            held = await self._bench.ledger.read(locks.leased, [ctx.step.lease for ctx in open_])
            gone = [ctx for ctx in open_ if ctx.step.lease.step_id not in held]
            for ctx in gone:
                ctx.lose("work")
            if gone:
                raise BudgetSpent(f"{len(gone)} steps of this group belong to somebody else now")

        return fence

    async def _bind(self, ctx: Context) -> None:
        """One embedder a version: vectors of two models cannot be compared."""
        place = (ctx.step.owner, ctx.document.collection, ctx.generation.index_version)
        if place in self._bound:
            return
        model = self._bench.ports.embedder.model
        binding = index_versions.Binding(*place, model.fingerprint, model.dimensions, model.former_names)
        bound = await self._bench.ledger.write(index_versions.BIND, binding)
        if bound is not None and bound.embedder != model.fingerprint:
            raise Permanent(
                f"collection {place[1]!r} was embedded with {bound.embedder}, not {model.fingerprint}: go back to "
                "that embedder, or put the documents into another collection",
                reason="embedder_changed",
            )
        self._bound.add(place)

    async def _announce(self, contexts: Sequence[Context]) -> list[Entry]:
        """Say in the ledger that rows are coming, before the first one does."""
        ledger = self._bench.ledger
        answers = await asyncio.gather(
            *(
                ledger.write(
                    generations.WRITE,
                    generations.Writing(ctx.step.lease.step_id, ctx.step.lease.token, ctx.step.generation_id),
                )
                for ctx in contexts
            )
        )
        gone = sum(resumed is None for resumed in answers)
        if gone:
            self._bench.metrics.incr("claim_lost_race", gone, pool=INDEX)
        return [
            stage.Entry(ctx, resumed) for ctx, resumed in zip(contexts, answers, strict=True) if resumed is not None
        ]

    async def _with_chunks(self, entries: Sequence[Entry]) -> list[Entry]:
        """A run that comes here without chunks fails alone, not with the others of its group."""
        good: list[Entry] = []
        for entry in entries:
            try:
                stage.chunk_count(entry.ctx)
                good.append(entry)
            except Permanent as error:
                await settle(self._bench, entry.ctx, error)
        return good

    async def _write(self, group: list[Entry], table: GuardedTable, fence: Fence) -> None:
        batch = [entry for entry in group if not entry.ctx.lost]
        if len(batch) == 1 and stage.chunk_count(batch[0].ctx) > stage.COMMIT_ROWS:
            await self._write_large(batch[0], table, fence)
            return
        began = self._bench.runtime.clock()
        loaded = await asyncio.gather(*(stage.all_rows(entry.ctx) for entry in batch), return_exceptions=True)
        good = [(entry, rows) for entry, rows in zip(batch, loaded, strict=True) if not isinstance(rows, BaseException)]
        for entry, rows in zip(batch, loaded, strict=True):
            if isinstance(rows, BaseException):
                await settle(self._bench, entry.ctx, rows)
        if not good:
            return
        written = await self._write_small(good, table, fence)
        count = sum(len(rows.chunks) for _, rows in written)
        self._bench.record.tally.worked("index", count, began, self._bench.runtime.clock())
        await asyncio.gather(*(self._flip(entry.ctx) for entry, _ in written))

    async def _write_small(self, group: list[Loaded], table: GuardedTable, fence: Fence) -> list[Loaded]:
        """In one commit. If that fails because of what is in it, in one for each: a document must not fail for its
        neighbours."""
        try:
            await stage.write_small([entry for entry, _ in group], [rows for _, rows in group], table, fence)
        except (PenstockError, asyncio.CancelledError) as error:
            await self._settle([entry.ctx for entry, _ in group], error)
            return []
        except BaseException as error:
            if len(group) == 1:
                await self._settle([group[0][0].ctx], error)
                return []
            # Nobody knows what the failed commit has left: by id, nothing is written twice.
            alone = [await self._write_small([(Entry(entry.ctx, True), rows)], table, fence) for entry, rows in group]
            return [one for written in alone for one in written]
        return group

    async def _write_large(self, entry: Entry, table: GuardedTable, fence: Fence) -> None:
        ctx = entry.ctx
        try:
            receipt = fingerprint("index", ctx.step.generation_id, ctx.generation.index_version)
            opened = await open_artifact(self._bench, ctx, receipt)
            await ctx.begin(opened.artifact, JSON_ITEMS)
            await stage.write_large(entry, table, fence)
            flush = await ctx.checkpoint.close()
            cursor = msgspec.json.encode(flush.cursor).decode()
            output = checkpoints.Output(opened.artifact.id, cursor, 0, 0, "{}", ())
        except BaseException as error:
            await self._settle([ctx], error)
            return
        await self._flip(ctx, output)

    async def _flip(self, ctx: Context, output: checkpoints.Output | None = None) -> None:
        ctx.finishing = True
        meta = {"rows": stage.chunk_count(ctx)}
        item = flip(ctx, DocumentStatus.COMPLETED, msgspec.json.encode(meta).decode(), output)
        try:
            took = await self._bench.ledger.write(flips.FLIP, item)
        except Exception as error:
            await settle(self._bench, ctx, error)
            return
        if not took:
            ctx.lose("complete")
        else:
            self._bench.record.completed(ctx, meta, DocumentStatus.COMPLETED)

    async def _tidy(self, key: str, table: GuardedTable, fence: Fence) -> None:
        """Keep the text index current, and now and then compact, while the lock is ours anyway."""
        self._commits[key] = self._commits.get(key, 0) + 1
        clock = self._bench.runtime.clock
        if clock() < self._tidy_after.get(key, 0.0):
            return
        try:
            await table.optimize(fence)
            if self._commits[key] % COMPACT_EVERY == 0:
                await table.compact(fence)
        except (LeaseLost, Transient):
            # Another time: the documents are done.
            return
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            # The same: a table whose text index cannot be kept current takes rows all the same.
            self._tidy_after[key] = clock() + TIDY_AGAIN_S
            self._bench.sayings.fails(_tidying(key), error, "New text is found a little slower")
        else:
            self._bench.sayings.works(_tidying(key))


def _key(ctx: Context) -> str:
    """What a group of steps has in common: the key of its table, whether that has a lock or not."""
    place = (ctx.step.owner, ctx.document.collection, ctx.generation.index_version)
    return ctx.step.lease.resource_key or locks.index_key(*place)


def _tidying(key: str) -> str:
    return f"{key}, text index and compaction"


def _batches(entries: Sequence[Entry]) -> Iterator[list[Entry]]:
    """Commits of at most COMMIT_ROWS rows."""
    batch: list[Entry] = []
    rows = 0
    for entry in entries:
        count = stage.chunk_count(entry.ctx)
        if batch and rows + count > stage.COMMIT_ROWS:
            yield batch
            batch, rows = [], 0
        batch.append(entry)
        rows += count
    if batch:
        yield batch
