"""Index steps, many at a time: claimed through the lock of their table, written as one commit, flipped together."""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import suppress

import msgspec

from penstock.artifacts.fingerprints import fingerprint
from penstock.artifacts.segments import JSON_ITEMS
from penstock.errors import BudgetSpent, LeaseLost, PenstockError, Permanent, Transient
from penstock.indexes.base import IndexTable, Verify
from penstock.ledger import checkpoints, documents, generations, locks, queue
from penstock.model.nouns import Token
from penstock.model.states import DocumentStatus
from penstock.stages import index as stage
from penstock.worker.context import Context
from penstock.worker.execute import INDEX, ROOM, Bench, flip, is_suspect, open_artifact, settle

Entry = stage.Entry[Context]

COMPACT_EVERY = 64
"""Commits to a table between two compactions by one worker."""


class Indexer:
    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self._bound: set[tuple[str, str]] = set()
        self._commits: dict[str, int] = {}

    async def run(self, contexts: Sequence[Context]) -> None:
        """A group of steps behind one lock, which the caller holds and releases."""
        first = contexts[0]
        key, token = first.step.lease.resource_key, first.step.lease.token
        assert key is not None
        verify = self.verifier(key, token)
        try:
            await self._bind(first)
            table = await self._bench.ports.index.table(
                first.step.owner, first.document.collection, first.generation.index_version
            )
            entries = await self._with_chunks(await self._announce(contexts))
        except BaseException as error:
            await asyncio.gather(*(settle(self._bench, ctx, error) for ctx in contexts))
            return
        suspects = [entry for entry in entries if is_suspect(entry.ctx.step)]
        batches = list(_batches([entry for entry in entries if not is_suspect(entry.ctx.step)]))
        for entry in entries:
            entry.ctx.waiting(ROOM)
        for number, batch in enumerate(batches):
            # Every claim does at least one batch, whatever the budget (I7).
            if number and self._is_over(contexts):
                await self._hand_over(batch)
                continue
            await self._write_in_room(batch, table, verify)
        if suspects:
            await self._write_alone(suspects, table, verify, begun=bool(batches))
        began = self._bench.runtime.clock()
        await self._tidy(key, table, verify)
        self._bench.record.tally.worked("index", 0, began, self._bench.runtime.clock())

    def _is_over(self, contexts: Sequence[Context]) -> bool:
        return any(ctx.stopping for ctx in contexts) or not self._bench.budget.fits("index")

    async def _hand_over(self, batch: Sequence[Entry]) -> None:
        handed = BudgetSpent("handed over between two commits")
        await asyncio.gather(*(settle(self._bench, entry.ctx, handed) for entry in batch))

    async def _write_alone(self, suspects: list[Entry], table: IndexTable, verify: Verify, *, begun: bool) -> None:
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
                        await self._write([entry], table, verify)
                        self._bench.budget.measure("index", self._bench.runtime.clock() - entry.ctx.began)
                    left.pop(0)
            await self._hand_over(left)
        except BaseException as error:
            await self._settle_waiting(left, error)

    async def _write_in_room(self, batch: list[Entry], table: IndexTable, verify: Verify) -> None:
        try:
            async with self._bench.room(batch[0].ctx):
                began = batch[0].ctx.began
                for entry in batch:
                    entry.ctx.waiting(None)
                    entry.ctx.began = began
                await self._write(batch, table, verify)
                self._bench.budget.measure("index", self._bench.runtime.clock() - began)
        except BaseException as error:
            await self._settle_waiting(batch, error)

    async def _settle_waiting(self, batch: Sequence[Entry], error: BaseException) -> None:
        """Stopped while they waited for room, or no longer ours."""
        waiting = [entry.ctx for entry in batch if not entry.ctx.finishing]
        await asyncio.gather(*(settle(self._bench, ctx, error) for ctx in waiting))
        if not isinstance(error, PenstockError) and not any(ctx.timed_out for ctx in waiting):
            raise error

    def verifier(self, key: str, token: Token) -> Verify:
        async def verify() -> None:
            if not await self._bench.ledger.read(locks.held, key, token):
                raise LeaseLost(f"the lock {key} belongs to somebody else now")

        return verify

    async def _bind(self, ctx: Context) -> None:
        """One embedder a collection: vectors of two models cannot be compared."""
        place = (ctx.step.owner, ctx.document.collection)
        if place in self._bound:
            return
        embedder = self._bench.ports.embedder
        bound = await self._bench.ledger.write(documents.BIND, (*place, embedder.fingerprint, embedder.dimensions))
        if bound is not None and bound.embedder != embedder.fingerprint:
            raise Permanent(
                f"collection {place[1]!r} was embedded with {bound.embedder}, not {embedder.fingerprint}: go back to "
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

    async def _write(self, group: list[Entry], table: IndexTable, verify: Verify) -> None:
        batch = [entry for entry in group if not entry.ctx.lost]
        if len(batch) == 1 and stage.chunk_count(batch[0].ctx) > stage.COMMIT_ROWS:
            await self._write_large(batch[0], table, verify)
            return
        began = self._bench.runtime.clock()
        loaded = await asyncio.gather(*(stage.all_rows(entry.ctx) for entry in batch), return_exceptions=True)
        good = [(entry, rows) for entry, rows in zip(batch, loaded, strict=True) if not isinstance(rows, BaseException)]
        for entry, rows in zip(batch, loaded, strict=True):
            if isinstance(rows, BaseException):
                await settle(self._bench, entry.ctx, rows)
        if not good:
            return
        try:
            await stage.write_small([entry for entry, _ in good], [rows for _, rows in good], table, verify)
        except BaseException as error:
            await asyncio.gather(*(settle(self._bench, entry.ctx, error) for entry, _ in good))
            return
        count = sum(len(rows.chunks) for _, rows in good)
        self._bench.record.tally.worked("index", count, began, self._bench.runtime.clock())
        await asyncio.gather(*(self._flip(entry.ctx) for entry, _ in good))

    async def _write_large(self, entry: Entry, table: IndexTable, verify: Verify) -> None:
        ctx = entry.ctx
        try:
            receipt = fingerprint("index", ctx.step.generation_id, ctx.generation.index_version)
            opened = await open_artifact(self._bench, ctx, receipt)
            ctx.begin(opened.artifact, JSON_ITEMS)
            await stage.write_large(entry, table, verify)
            flush = await ctx.checkpoint.close()
            cursor = msgspec.json.encode(flush.cursor).decode()
            output = checkpoints.Output(opened.artifact.id, cursor, 0, 0, "{}", ())
        except BaseException as error:
            await settle(self._bench, ctx, error)
            return
        await self._flip(ctx, output)

    async def _flip(self, ctx: Context, output: checkpoints.Output | None = None) -> None:
        ctx.finishing = True
        meta = {"rows": stage.chunk_count(ctx)}
        item = flip(ctx, DocumentStatus.COMPLETED, msgspec.json.encode(meta).decode(), output)
        if not await self._bench.ledger.write(queue.FLIP, item):
            ctx.lose("complete")
        else:
            self._bench.record.completed(ctx, meta, DocumentStatus.COMPLETED)

    async def _tidy(self, key: str, table: IndexTable, verify: Verify) -> None:
        """Keep the text index current, and now and then compact, while the lock is ours anyway."""
        self._commits[key] = self._commits.get(key, 0) + 1
        try:
            await table.optimize(verify)
            if self._commits[key] % COMPACT_EVERY == 0:
                await table.compact(verify)
        except (LeaseLost, Transient):
            # Another time: the documents are done.
            return


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
