"""What index steps need from the ledger and the index: one embedder for each index version, the record that rows are
being written, the fence, and maintenance of the table while its lock is held."""

import asyncio
from collections.abc import Sequence
from typing import Any

from penstock.embedders.base import Model
from penstock.errors import BudgetSpent, LeaseLost, LockHeld, Permanent, Transient
from penstock.indexes.base import Fence, Index, TableId
from penstock.ledger.engine import generations, index_versions, locks
from penstock.model.nouns import Token
from penstock.stages.base import Member
from penstock.stages.index import INDEX, Target
from penstock.worker.context import Context
from penstock.worker.heartbeat import Heartbeat
from penstock.worker.holding import hold
from penstock.worker.hosting import GroupHost
from penstock.worker.services import WorkerServices
from penstock.worker.small_artifacts import drop_small
from penstock.worker.tables import GuardedTable, opened

COMPACT_EVERY = 64
"""How many groups one worker writes to a table between two compactions."""
MAINTAIN_AGAIN_S = 60.0
"""How long maintenance of a table is not tried again after it failed."""


REFRESH_ROWS = 500
"""How many rows must be outside the text indexes of a table before they are updated while there is nothing else to do.
A search reads such rows one by one, at 15 ms per thousand."""


class Indexer(GroupHost):
    def __init__(self, services: WorkerServices) -> None:
        super().__init__(services)
        self._written: dict[str, tuple[TableId, int]] = {}
        """Tables with new rows since their last `refresh`, and their dimensions, by the key of their lock."""
        self._bound: dict[TableId, Index] = {}
        self._commits: dict[str, int] = {}
        self._maintain_after: dict[str, float] = {}

    async def open(self, contexts: Sequence[Context]) -> Target:
        """Open the table of a group. An error here concerns all of its steps."""
        first = contexts[0]
        locked = first.step.lease.resource_key is not None
        fence = self.fence(_key(first), first.step.lease.token) if locked else self.lease_fence(contexts)
        place = TableId(first.step.owner, first.document.collection, first.generation.index_version)
        index = await self._bind(first, place)
        if index.traits.single_writer and not locked:
            raise Permanent(
                f"the index of collection {place.collection!r} needs a lock, and the worker that embedded the document "
                "has another index in its settings: give all workers the same settings, then retry the document",
                reason="index_setting",
            )
        table = await opened(index, place, _model(first).dimensions)
        return Target(table, fence)

    async def finish(self, contexts: Sequence[Context], target: Any) -> None:
        """Maintain the table after the group was written, and drop artifacts that are not kept."""
        began = self._services.runtime.clock()
        assert isinstance(target, Target)
        assert isinstance(target.table, GuardedTable)
        first = contexts[0]
        if first.step.lease.resource_key is not None:
            place = TableId(first.step.owner, first.document.collection, first.generation.index_version)
            self._written[_key(first)] = place, _model(first).dimensions
        await self._maintain(_key(first), target.table, target.fence)
        await drop_small(self._services, contexts)
        self._services.record.counters.worked(INDEX.kind, 0, began, self._services.runtime.clock())

    async def idle(self, heartbeat: Heartbeat) -> None:
        """Update the text indexes of the tables that this worker has written, so that searches are fast at once. A
        table whose lock another process holds is left to that process."""
        for key, (place, dimensions) in list(self._written.items()):
            self._written.pop(key, None)
            services = self._services
            try:
                async with hold(services.ledger, heartbeat, key, services.lease_s, 0.0, _no_reap, "text index") as held:
                    table = await opened(await services.ports.index.of(place), place, dimensions)
                    await table.refresh(held.verify, REFRESH_ROWS)
            except (LockHeld, LeaseLost, Transient):
                continue
            except asyncio.CancelledError:
                raise
            except Exception as error:
                # Searches work without it, only slower.
                self._services.notices.fails(_maintenance_of(key), error, "New text is found a little slower")

    def fence(self, key: str, token: Token) -> Fence:
        async def fence() -> None:
            if not await self._services.ledger.read(locks.held, key, token):
                raise LeaseLost(f"the lock {key} now belongs to another worker")

        return fence

    def lease_fence(self, contexts: Sequence[Context]) -> Fence:
        """Return the fence for a table with many writers. There is no lock: the leases of the steps must still be
        valid. If some are lost, the other steps of the group are released and claimed again."""

        async def fence() -> None:
            open_ = [ctx for ctx in contexts if not ctx.finishing]
            held = await self._services.ledger.read(locks.leased, [ctx.step.lease for ctx in open_])
            gone = [ctx for ctx in open_ if ctx.step.lease.step_id not in held]
            for ctx in gone:
                ctx.mark_lost("work")
            if gone:
                raise BudgetSpent(f"{len(gone)} steps of this group belong to another worker now")

        return fence

    async def _bind(self, ctx: Context, place: TableId) -> Index:
        """Bind the index version to the embedder, and return the index that it is in. Vectors of two models cannot be
        compared, so a version has one embedder."""
        if place in self._bound:
            return self._bound[place]
        model = _model(ctx)
        setting = str(ctx.params.get("embedder") or ctx.ports.embedder_setting) or None
        binding = index_versions.Binding(
            *(ctx.step.owner, place.collection, place.version, model.fingerprint, model.dimensions),
            *(model.former_names, setting, ctx.ports.index_name or None),
        )
        bound = await self._services.ledger.write(index_versions.BIND, binding)
        if bound is not None and bound.embedder != model.fingerprint:
            raise Permanent(
                f"collection {place[1]!r} was embedded with {bound.embedder}, not {model.fingerprint}: go back to "
                f"that embedder, or run `penstock reindex --collection {place[1]}`",
                reason="embedder_changed",
            )
        index = ctx.ports.index.at(None if bound is None else bound.store)
        self._bound[place] = index
        return index

    async def announce(self, contexts: Sequence[Context]) -> list[Member[Context]]:
        """Record in the ledger that rows will be written, before the first one is."""
        ledger = self._services.ledger
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
            self._services.metrics.incr("claim_lost_race", gone, pool=INDEX.kind)
        return [Member(ctx, resumed) for ctx, resumed in zip(contexts, answers, strict=True) if resumed is not None]

    async def _maintain(self, key: str, table: GuardedTable, fence: Fence) -> None:
        """Update the text index, and compact the table from time to time, while the lock is held."""
        self._commits[key] = self._commits.get(key, 0) + 1
        clock = self._services.runtime.clock
        if clock() < self._maintain_after.get(key, 0.0):
            return
        try:
            await table.optimize(fence)
            if self._commits[key] % COMPACT_EVERY == 0:
                await table.compact(fence)
        except (LeaseLost, Transient):
            # The documents are complete. The next group tries again.
            return
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            # The documents are complete here too: a table accepts rows even if its text index cannot be updated.
            self._maintain_after[key] = clock() + MAINTAIN_AGAIN_S
            self._services.notices.fails(_maintenance_of(key), error, "New text is found a little slower")
        else:
            self._services.notices.works(_maintenance_of(key))


def _model(ctx: Context) -> Model:
    return ctx.ports.embedder_for(ctx.params).model


async def _no_reap() -> int:
    return 0


def _key(ctx: Context) -> str:
    """Return the key of the table of a group, with or without a lock."""
    place = (ctx.step.owner, ctx.document.collection, ctx.generation.index_version)
    return ctx.step.lease.resource_key or locks.index_key(*place)


def _maintenance_of(key: str) -> str:
    return f"{key}, text index and compaction"
