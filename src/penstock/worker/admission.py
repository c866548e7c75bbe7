"""Admission: while long runs occupy all places of a pool, claim quick steps of other owners in addition."""

import asyncio

from penstock.ledger.engine import claims
from penstock.worker.claiming import Claiming
from penstock.worker.pools import Pool, additional_steps
from penstock.worker.runner import StepRunner
from penstock.worker.running import Running
from penstock.worker.services import WorkerServices

FULL_S = 0.25
"""Additional steps are claimed if no place became free for this long."""
AT_ONCE = 16
LOOK = 256
"""How many of the next waiting steps of each queue are considered."""


class Admission:
    def __init__(self, services: WorkerServices, running: Running, claiming: Claiming, runner: StepRunner) -> None:
        self._services = services
        self._running = running
        self._claiming = claiming
        self._runner = runner

    async def run(self) -> None:
        """Claim additional steps while all places of a pool stay occupied. Long runs may occupy them for minutes.
        Owners without a running step, and small documents, need not wait for their end: slots and parser processes are
        shared."""
        left: dict[str, int] = {}
        while not self._running.stopping:
            await self._services.runtime.sleep(FULL_S)
            for pool in self._claiming.pools.claiming:
                stays_full = pool.free <= 0 and left.get(pool.name) == pool.left
                if stays_full and not pool.grouped and not self._running.stopping:
                    # In a separate task, so that a stop releases what it claims like all other steps.
                    await asyncio.wait([self._running.start(self._admit(pool))])
                left[pool.name] = pool.left

    async def _admit(self, pool: Pool) -> None:
        services = self._services
        queues = [queue for queue in services.targets.open(pool.queues) if services.budget.fits(queue)]
        owners = self._running.owners()
        waiting = await services.ledger.read(claims.waiting, queues, LOOK)
        wanted = additional_steps(waiting, owners, min(AT_ONCE, pool.additional))
        if not wanted or self._running.stopping:
            return
        claimed = await self._claiming.claim_these(pool, wanted)
        await self._runner.begin(
            [[one.step] for one in claimed], {one.step.lease.step_id: one.document for one in claimed}
        )
