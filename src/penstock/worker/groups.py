"""Steps that are executed in groups: claimed together, written in batches, settled one by one. A step that cannot be
written fails alone. A suspect is executed alone."""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

import msgspec

from penstock.errors import BudgetSpent, LeaseLost, PenstockError, Permanent, RowRefused, TableFailed
from penstock.ledger.database import notifier
from penstock.ledger.engine import checkpoints
from penstock.stages import base
from penstock.worker.context import Context
from penstock.worker.execute import complete, settle
from penstock.worker.hosting import GroupHost, Member
from penstock.worker.opening import open_artifact
from penstock.worker.services import SLOT, WorkerServices, is_suspect

TURN_S = 2.0
"""How long a group may write while steps of its kind wait for another target."""


class Group:
    """One group of steps. The caller that claimed it releases the lock that came with it."""

    def __init__(
        self, services: WorkerServices, stage: base.GroupedStage, host: GroupHost, contexts: Sequence[Context]
    ) -> None:
        self._services = services
        self._stage = stage
        self._host = host
        self._contexts = contexts
        self._queue = contexts[0].step.queue
        self._target: Any = None
        self._failed: TableFailed | None = None

    async def run(self) -> TableFailed | None:
        """Execute the group. Return the error if the target should not be used for a while, else None."""
        limiting = asyncio.create_task(self._limit_time())
        try:
            await self._run()
        finally:
            limiting.cancel()
            await asyncio.wait([limiting])
        return self._failed

    async def _limit_time(self) -> None:
        """Stop the group after TURN_S if steps wait for another target, because targets are written one after the
        other. Batches that have not begun are released, and a long document continues after its next claim."""
        with suppress(PenstockError):
            while True:
                await self._services.runtime.sleep(TURN_S)
                if await self._services.ledger.read(notifier.claimable, [self._queue]):
                    for ctx in self._contexts:
                        ctx.stopping = True
                    return

    async def _run(self) -> None:
        try:
            self._target = await self._host.open(self._contexts)
            members = await self._weighed(await self._host.announce(self._contexts))
        except BaseException as error:
            await self._settle(self._contexts, error)
            return
        suspects = [member for member in members if is_suspect(member.ctx.step)]
        batches = list(self._batches([member for member in members if not is_suspect(member.ctx.step)]))
        for member in members:
            member.ctx.waiting(SLOT)
        for number, batch in enumerate(batches):
            # Each claim writes at least one batch, whatever the budget (I7).
            if (number and self._is_over(self._contexts)) or self._failed is not None:
                await self._release(batch)
                continue
            await self._write_in_slot(batch)
        if suspects and self._failed is not None:
            await self._release(suspects)
        elif suspects:
            await self._write_alone(suspects, begun=bool(batches))
        if self._failed is None:
            await self._host.finish(self._contexts, self._target)

    async def _settle(self, contexts: Sequence[Context], error: BaseException) -> None:
        if isinstance(error, TableFailed) and contexts:
            self._failed = error
        await asyncio.gather(*(settle(self._services, ctx, error) for ctx in contexts))

    def _is_over(self, contexts: Sequence[Context]) -> bool:
        return any(ctx.stopping for ctx in contexts) or not self._services.budget.fits(self._stage.kind)

    async def _release(self, batch: Sequence[Member]) -> None:
        await self._settle([member.ctx for member in batch], BudgetSpent("handed over between two batches"))

    async def _write_alone(self, suspects: list[Member], *, begun: bool) -> None:
        """Write suspects one by one, with nothing else running. A whole group of suspects acquires all slots once, not
        once for each step."""
        left = list(suspects)
        try:
            async with self._services.all_slots(suspects[0].ctx):
                while left:
                    member = left[0]
                    if begun and self._is_over([member.ctx for member in left]):
                        break
                    begun = True
                    with suppress(LeaseLost):
                        await self._services.run_exclusively(member.ctx)
                        await self._write([member])
                        self._measure(member.ctx.began)
                    left.pop(0)
            await self._release(left)
        except BaseException as error:
            await self._settle_waiting(left, error)

    async def _write_in_slot(self, batch: list[Member]) -> None:
        try:
            async with self._services.slot(batch[0].ctx):
                began = batch[0].ctx.began
                for member in batch:
                    member.ctx.waiting(None)
                    member.ctx.began = began
                await self._write(batch)
                self._measure(began)
        except BaseException as error:
            await self._settle_waiting(batch, error)

    def _measure(self, began: float) -> None:
        self._services.budget.measure(self._stage.kind, self._services.runtime.clock() - began)

    async def _settle_waiting(self, batch: Sequence[Member], error: BaseException) -> None:
        """Settle the steps of a batch that was stopped while it waited for a slot, or whose leases are lost."""
        waiting = [member.ctx for member in batch if not member.ctx.finishing]
        await self._settle(waiting, error)
        if isinstance(error, asyncio.CancelledError) and not any(ctx.timed_out for ctx in waiting):
            raise error

    async def _weighed(self, members: Sequence[Member]) -> list[Member]:
        """Return the steps whose weight is known. A step without one fails alone."""
        good: list[Member] = []
        for member in members:
            try:
                self._stage.weigh(member.ctx)
                good.append(member)
            except Permanent as error:
                await settle(self._services, member.ctx, error)
        return good

    def _batches(self, members: Sequence[Member]) -> Iterator[list[Member]]:
        batch: list[Member] = []
        weight = 0
        for member in members:
            one = self._stage.weigh(member.ctx)
            # A step that its target refused before is in a batch of its own: it may be the cause.
            alone = member.ctx.step.refused > 0
            if batch and (alone or weight + one > self._stage.most()):
                yield batch
                batch, weight = [], 0
            batch.append(member)
            weight = self._stage.most() if alone else weight + one
        if batch:
            yield batch

    async def _write(self, group: list[Member]) -> None:
        batch = [member for member in group if not member.ctx.lost]
        alone = self._stage.alone
        if alone is not None and len(batch) == 1 and self._stage.weigh(batch[0].ctx) > self._stage.most():
            await self._write_heavy(batch[0], alone)
            return
        began = self._services.runtime.clock()
        loaded = await asyncio.gather(*(self._stage.load(member.ctx) for member in batch), return_exceptions=True)
        good: list[tuple[Member, Any]] = []
        for member, one in zip(batch, loaded, strict=True):
            if isinstance(one, BaseException):
                await settle(self._services, member.ctx, one)
            else:
                good.append((member, one))
        if not good:
            return
        written = await self._write_or_halve(good)
        weight = sum(self._stage.weigh(member.ctx) for member in written)
        self._services.record.counters.worked(self._stage.kind, weight, began, self._services.runtime.clock())
        await asyncio.gather(*(self._complete(member.ctx) for member in written))

    async def _write_or_halve(self, batch: Sequence[tuple[Member, Any]]) -> list[Member]:
        """Write the batch at once. If the write fails because of its content, write each half, so that a step does not
        fail because of other steps. Return the steps that were written."""
        members = [member for member, _ in batch]
        try:
            await self._stage.run_group(self._target, members, [loaded for _, loaded in batch])
        except BaseException as error:
            is_for_all = isinstance(error, (PenstockError, asyncio.CancelledError)) and not isinstance(
                error, RowRefused
            )
            if is_for_all:
                await self._settle([member.ctx for member in members], error)
                return []
            if len(batch) == 1:
                await self._settle([members[0].ctx], error)
                return []
            # The failed write may have left rows. Writing by id avoids duplicates.
            again = [(Member(member.ctx, True), loaded) for member, loaded in batch]
            half = len(again) // 2
            return [*await self._write_or_halve(again[:half]), *await self._write_or_halve(again[half:])]
        return members

    async def _write_heavy(self, member: Member, alone: base.Alone) -> None:
        ctx = member.ctx
        try:
            opened = await open_artifact(self._services, ctx, alone.fingerprint(ctx))
            await ctx.begin(opened.artifact, alone.codec)
            await alone.run(self._target, member)
            flush = await ctx.checkpoint.close()
            cursor = msgspec.json.encode(flush.cursor).decode()
            output = checkpoints.Output(opened.artifact.id, cursor, 0, 0, "{}", ())
        except BaseException as error:
            await self._settle([ctx], error)
            return
        await self._complete(ctx, output)

    async def _complete(self, ctx: Context, output: checkpoints.Output | None = None) -> None:
        """Complete the step. The next step of its run is not claimed with it: it may belong to another group."""
        try:
            result = self._stage.result(ctx)
            await complete(self._services, ctx, result, result.end, output, lambda queue: False)
        except Exception as error:
            await settle(self._services, ctx, error)
