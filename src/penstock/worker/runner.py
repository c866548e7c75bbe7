"""Executes what was claimed: a run step after step, or a group of steps."""

import asyncio
from collections.abc import Mapping, Sequence

from penstock.errors import TableFailed
from penstock.ledger.engine import leasing
from penstock.ledger.engine.documents import Live
from penstock.model.nouns import RunId, Step, StepId, Workflow
from penstock.runtime import shielded
from penstock.worker.claiming import Claiming, Found
from penstock.worker.context import Context, RunState, begin, load
from penstock.worker.execute import execute
from penstock.worker.groups import Group
from penstock.worker.hosting import GroupHost
from penstock.worker.hosts import HOSTS
from penstock.worker.pools import Place
from penstock.worker.running import Running
from penstock.worker.services import WorkerServices

STOP_CHECK_S = 0.1
CACHED_RUNS = 128
"""How many runs keep small artifacts in memory for a grouped step."""


class StepRunner:
    def __init__(self, services: WorkerServices, running: Running, claiming: Claiming) -> None:
        self._services = services
        self._running = running
        self._claiming = claiming
        self._hosts = {kind: HOSTS.get(kind, GroupHost)(services) for kind in services.grouped}
        self._workflows: dict[str, Workflow] = {}
        self._cached_states: dict[RunId, RunState] = {}

    async def begin(self, groups: Sequence[Sequence[Step]], found: Found) -> None:
        """Start the execution of claimed steps. Their places are counted already."""
        for step in (step for group in groups for step in group):
            self._running.hold(step.lease)
        grouped = self._services.grouped
        single = [group[0] for group in groups if group[0].kind not in grouped]
        states = iter(await self._states(single, found) if single else [])
        for group in groups:
            place = Place(self._claiming.pools, group[0].queue)
            if group[0].kind in grouped:
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
            following = await execute(
                self._services, ctx, lambda queue: not running.stopping and place.reach(queue, ctx.generation.size)
            )
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
        """Keep small artifacts in memory (a few megabytes at most) if a grouped step that reads them comes next. With
        another step in between they are not kept: another worker may execute it and make artifacts that this state does
        not contain."""
        upcoming = ctx.state.workflow.steps[ctx.step.position + 1 : ctx.step.position + 2]
        stage = self._services.grouped.get(upcoming[0].kind) if upcoming else None
        if not ctx.completed or stage is None:
            self._cached_states.pop(ctx.step.run_id, None)
            return
        kept = {step.name for step in ctx.state.workflow.steps if step.kind in stage.inputs}
        made = {artifact.id for name, artifact in ctx.state.artifacts.items() if name in kept}
        ctx.state.items = {artifact: items for artifact, items in ctx.state.items.items() if artifact in made}
        # A state of an earlier attempt lacks the artifacts that were made since.
        self._cached_states.pop(ctx.step.run_id, None)
        if ctx.state.items:
            self._cached_states[ctx.step.run_id] = ctx.state
            if len(self._cached_states) > CACHED_RUNS:
                self._cached_states.pop(next(iter(self._cached_states)))

    async def finish_work(self) -> None:
        """Do what the groups left for a time without work, unless the worker is stopped meanwhile."""
        finishing = asyncio.create_task(self._finish_work())
        while not finishing.done() and not self._running.stopping:
            await asyncio.wait({finishing}, timeout=STOP_CHECK_S)
        finishing.cancel()
        await asyncio.gather(finishing, return_exceptions=True)

    async def _finish_work(self) -> None:
        for host in self._hosts.values():
            await host.idle(self._running.heartbeat)

    async def _work_as_group(self, steps: Sequence[Step], place: Place) -> None:
        failed: TableFailed | None = None
        try:
            failed = await self._execute_group(steps)
        finally:
            place.leave()
            await self._claiming.release_lock(steps[0].lease, failed)

    async def _execute_group(self, steps: Sequence[Step]) -> TableFailed | None:
        running, kind = self._running, steps[0].kind
        contexts = await self._contexts(steps)
        for ctx in contexts:
            ctx.grouped = True
            running.enter(ctx)
        failed: TableFailed | None = None
        try:
            if contexts:
                failed = await Group(self._services, self._services.grouped[kind], self._hosts[kind], contexts).run()
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
                await self._drop(step, self._claiming.pools.name(step.queue))
            else:
                contexts.append(self._services.context(step, state))
        return contexts
