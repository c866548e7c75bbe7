"""Company: whether steps of a worker may still add items to a common call that is not full."""

import math

from penstock.model.nouns import StepDefinition
from penstock.worker.context import Context
from penstock.worker.pools import BRIEF_DOCUMENT, Pools
from penstock.worker.running import Running
from penstock.worker.services import SLOT, WorkerServices

AT_WORK = (None, SLOT, "parser")
"""What a step may wait on and soon go on. One that waits on anything else may wait for the very call that would wait
for it."""
QUIET_S = 2.0
"""A call waits for steps of larger documents only as long as some arrive within this time: they may take long."""


class Company:
    def __init__(self, services: WorkerServices, running: Running, pools: Pools) -> None:
        self._running = running
        self._pools = pools
        self._gathering = tuple(kind for kind, stage in services.stages.items() if stage.gathers)

    def more_within(self, more_expected: bool) -> float:
        """For how many seconds after the last items steps may still add some: those that are about to be submitted
        (`more_expected`) or claimed, and those that are executed and have not added any. Steps of small documents are
        worth the longest wait."""
        running = self._running
        if running.stopping:
            return 0.0
        if (more_expected or running.may_find_work or running.wanted.is_set()) and self._has_room():
            return math.inf
        coming = [ctx for ctx, _ in running.contexts.values() if not ctx.joined and self._will_arrive(ctx)]
        if any(ctx.generation.size <= BRIEF_DOCUMENT for ctx in coming):
            return math.inf
        return QUIET_S if coming else 0.0

    def _has_room(self) -> bool:
        pools = [self._pools.of(kind) for kind in self._gathering]
        return any(pool is not None and pool.free > 0 for pool in pools)

    def _will_arrive(self, ctx: Context) -> bool:
        """Whether the run of this step goes on to one that gathers, which has a place in its pool."""
        position = ctx.step.position
        ahead = (one for one in ctx.state.workflow.steps[position:] if self._gathers(one))
        step = next(ahead, None)
        if step is None or ctx.waiting_on not in AT_WORK:
            return False
        pool, own = self._pools.of(step.queue), self._pools.of(ctx.step.queue)
        return pool is not None and (pool is own or pool.admits(ctx.generation.size))

    def _gathers(self, step: StepDefinition) -> bool:
        return step.method is None and step.kind in self._gathering
