"""Probes: one step at a time tests whether a target works again."""

from penstock.ledger.engine import targets
from penstock.worker.claiming import Claiming
from penstock.worker.runner import StepRunner
from penstock.worker.running import Running
from penstock.worker.services import WorkerServices

REST_S = 60.0
"""Time between two checks while no target is away."""


class Probing:
    def __init__(self, services: WorkerServices, running: Running, claiming: Claiming, runner: StepRunner) -> None:
        self._services = services
        self._running = running
        self._claiming = claiming
        self._runner = runner

    async def run(self) -> None:
        known, runtime = self._services.targets, self._services.runtime
        while not self._running.stopping:
            known.changed.clear()
            if await known.close_answered():
                self._running.wake()
            for name in known.take_due():
                await self._try(name)
            due_in = known.due_in
            await runtime.wait(known.changed, REST_S if due_in is None else max(0.0, due_in))

    async def _try(self, name: str) -> None:
        if name.startswith(targets.LOCKED):
            # The next claim takes the lock of the target and tests the target.
            self._running.wake()
            return
        if self._running.stopping:
            return
        claimed = await self._services.targets.probe(name, self._claiming.queues, self._services.lease_s)
        pool = self._claiming.pools.of(claimed.step.queue) if claimed is not None else None
        if claimed is None or pool is None:
            return
        pool.held += 1
        lease = claimed.step.lease
        if lease.resource_key is not None:
            self._running.heartbeat.locks[lease.resource_key] = lease.token
        await self._runner.begin([[claimed.step]], {lease.step_id: claimed.document})
