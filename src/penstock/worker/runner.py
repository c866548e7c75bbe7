"""Executes what was claimed: a run step after step, or a group of steps behind one lock."""

import asyncio
from collections.abc import Mapping, Sequence

from penstock.errors import TableFailed
from penstock.ledger.engine import leasing
from penstock.ledger.engine.documents import Live
from penstock.model.nouns import RunId, Step, StepId, Workflow
from penstock.runtime import shielded
from penstock.stages.registry import GROUPED
from penstock.worker.claiming import Claiming, Found
from penstock.worker.context import Context, RunState, begin, load
from penstock.worker.execute import execute
from penstock.worker.groups import Group, Host
from penstock.worker.indexing import Indexer
from penstock.worker.pools import Place
from penstock.worker.running import Running
from penstock.worker.services import INDEX, WorkerServices

STOP_CHECK_S = 0.1
CACHED_RUNS = 128
"""How many runs keep their chunks and vectors in memory for the index step."""


class StepRunner:
    def __init__(self, services: WorkerServices, running: Running, claiming: Claiming) -> None:
        self._services = services
        self._running = running
        self._claiming = claiming
        self._indexer = Indexer(services)
        self._hosts: dict[str, Host] = {INDEX: self._indexer}
        self._workflows: dict[str, Workflow] = {}
        self._cached_states: dict[RunId, RunState] = {}

    async def begin(self, groups: Sequence[Sequence[Step]], found: Found) -> None:
        """Start the execution of claimed steps. Their places are counted already."""
        for step in (step for group in groups for step in group):
            self._running.hold(step.lease)
        single = [group[0] for group in groups if group[0].kind not in GROUPED]
        states = iter(await self._states(single, found) if single else [])
        for group in groups:
            place = Place(self._claiming.pools, group[0].queue)
            if group[0].kind in GROUPED:
                self._running.start(self._work_as_group(group, place))
            else:
                self._running.start(self._work(group[0], next(states), place))

    async def _states(self, steps: Sequence[Step], found: Mapping[StepId, Live | None]) -> list[RunState | None]:
        """Return the states of claimed steps. For the first step of a run, the claim has already read the document."""
        if all(s.position == 0 and s.snapshot in self._workflows and s.lease.step_id in found for s in steps):
            return [begin(found[step.lease.step_id], self._workflows[step.snapshot]) for step in steps]
        return await self._services.ledger.read(load, steps, self._workflows)

    async def _work(self, step: Step, state: RunState | None, place: Place) -> None:
        """Execute a run step after step, while each next step is claimed together with the completion of the one
        before."""
        try:
            if state is None:
                self._running.forget(step.lease.step_id)
                self._services.targets.dropped(step)
                await self._drop(step, self._claiming.pools.name(step.queue))
                await self._claiming.release_lock(step.lease)
                return
            ctx: Context | None = self._services.context(step, state)
            while ctx is not None:
                ctx = await self._work_on(ctx, place)
        finally:
            place.leave()

    async def _drop(self, step: Step, pool: str) -> None:
        """Drop a claimed step whose document was deleted meanwhile."""
        await self._services.ledger.write(leasing.DROP, step.lease)
        self._services.metrics.incr("claim_lost_race", pool=pool)

    async def _work_on(self, ctx: Context, place: Place) -> Context | None:
        running = self._running
        running.enter(ctx)
        following: Context | None = None
        try:
            following = await execute(self._services, ctx, lambda queue: not running.stopping and place.reach(queue))
            running.steps_done += 1
            if place.refused:
                self._services.ledger.notify_others()
        except BaseException as error:
            await running.settle(ctx, error)
        finally:
            running.leave(ctx)
            await self._end_probe(ctx)
            await self._claiming.release_lock(ctx.step.lease)
            if place.move(following is not None):
                running.wake()
        if following is not None:
            running.hold(following.step.lease)
        elif not ctx.lost:
            self._cache_state(ctx)
        return following

    async def _end_probe(self, ctx: Context) -> None:
        if self._services.targets.anything and await shielded(self._services.targets.ended(ctx)):
            self._running.wake()

    def _cache_state(self, ctx: Context) -> None:
        """Keep small artifacts in memory (a few megabytes at most) if the index step comes next. With another step in
        between they are not kept: another worker may execute it and make artifacts that this state does not contain."""
        upcoming = ctx.state.workflow.steps[ctx.step.position + 1 : ctx.step.position + 2]
        if not ctx.completed or not upcoming or upcoming[0].kind != INDEX:
            self._cached_states.pop(ctx.step.run_id, None)
            return
        kept = {step.name for step in ctx.state.workflow.steps if step.kind in ("chunk", "embed")}
        made = {artifact.id for name, artifact in ctx.state.artifacts.items() if name in kept}
        ctx.state.items = {artifact: items for artifact, items in ctx.state.items.items() if artifact in made}
        # A state of an earlier attempt lacks the artifacts that were made since.
        self._cached_states.pop(ctx.step.run_id, None)
        if ctx.state.items:
            self._cached_states[ctx.step.run_id] = ctx.state
            if len(self._cached_states) > CACHED_RUNS:
                self._cached_states.pop(next(iter(self._cached_states)))

    async def execute_index_steps(self) -> bool:
        """Claim a group of index steps, or one group for each table without a lock, and wait until they end. Return
        whether there was one."""
        if self._claiming.claimed_once and not self._services.budget.fits(INDEX):
            return False
        if not self._services.targets.open((INDEX,)):
            return False
        steps = await self._claiming.claim_keyed(INDEX, INDEX)
        groups = [steps] if steps else await self._claiming.claim_unlocked()
        if not groups:
            return False
        self._claiming.claimed_once = True
        tasks = [self._running.start(self._work_as_group(group, None)) for group in groups]
        try:
            # `Running.ended` handles their errors. A cancelled group does not end this loop.
            await asyncio.wait(tasks)
        finally:
            await asyncio.wait(tasks)
        return True

    async def refresh_tables(self) -> None:
        """Make searches in the tables that were written fast, unless the worker is stopped meanwhile."""
        refreshing = asyncio.create_task(self._indexer.refresh(self._running.heartbeat))
        while not refreshing.done() and not self._running.stopping:
            await asyncio.wait({refreshing}, timeout=STOP_CHECK_S)
        refreshing.cancel()
        await asyncio.gather(refreshing, return_exceptions=True)

    async def _work_as_group(self, steps: Sequence[Step], place: Place | None) -> None:
        failed: TableFailed | None = None
        try:
            failed = await self._execute_group(steps)
        finally:
            if place is not None:
                place.leave()
            await self._claiming.release_lock(steps[0].lease, failed)

    async def _execute_group(self, steps: Sequence[Step]) -> TableFailed | None:
        running, kind = self._running, steps[0].kind
        for step in steps:
            running.hold(step.lease)
        contexts = await self._contexts(steps)
        for ctx in contexts:
            ctx.grouped = True
            running.enter(ctx)
        failed: TableFailed | None = None
        try:
            if contexts:
                failed = await Group(self._services, GROUPED[kind], self._hosts[kind], contexts).run()
                running.steps_done += 0 if failed is not None else len(contexts)
            return failed
        finally:
            for ctx in contexts:
                running.leave(ctx)
            for step in steps:
                running.forget(step.lease.step_id)
            for ctx in contexts:
                await self._end_probe(ctx)

    async def _contexts(self, steps: Sequence[Step]) -> list[Context]:
        cached = [self._cached_states.pop(step.run_id, None) for step in steps]
        uncached = [step for step, state in zip(steps, cached, strict=True) if state is None]
        loaded = iter(await self._services.ledger.read(load, uncached, self._workflows) if uncached else [])
        contexts: list[Context] = []
        for step, kept in zip(steps, cached, strict=True):
            state = kept or next(loaded)
            if state is None:
                self._services.targets.dropped(step)
                await self._drop(step, INDEX)
            else:
                contexts.append(self._services.context(step, state))
        return contexts
