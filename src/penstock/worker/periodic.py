"""Periodic work of a worker: steps that are due, leases of dead workers, new workflows, and maintenance."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from penstock.errors import StorageError
from penstock.ledger.database.liveness import Liveness
from penstock.ledger.engine import leasing, steps_vacuum, work
from penstock.worker.claiming import Claiming
from penstock.worker.heartbeat import reap
from penstock.worker.running import Running
from penstock.worker.services import WorkerServices

Chore = Callable[[], Awaitable[object]]
"""A periodic task. It returns a true value if other workers may have waited for its result."""

UPKEEP_S = 2.0
SWEEP_AGAIN_S = 600.0
SOON_S = 0.02
"""The shortest time until the next check for steps that are due."""


class Periodic:
    def __init__(
        self,
        services: WorkerServices,
        liveness: Liveness,
        running: Running,
        claiming: Claiming,
        chores: Sequence[Chore],
    ) -> None:
        self._services = services
        self._liveness = liveness
        self._running = running
        self._claiming = claiming
        self._chores = chores

    async def run(self) -> None:
        services, runtime = self._services, self._services.runtime
        next_reap = runtime.clock()
        while not self._running.stopping:
            try:
                services.backed_off.clear()
                due_in = await services.ledger.read(work.due_in)
                if due_in is not None and due_in <= 0:
                    moved = await services.ledger.write(leasing.DUE, 100)
                    if moved:
                        self._running.wake()
                if runtime.clock() >= next_reap:
                    next_reap = runtime.clock() + min(UPKEEP_S, services.lease_s / 4)
                    await self._run_chores()
            except Exception as error:
                services.fail(error)
                return
            rest = next_reap - runtime.clock()
            await runtime.wait(services.backed_off, rest if due_in is None else min(rest, max(due_in, SOON_S)))

    async def _run_chores(self) -> None:
        await self.reap()
        if await self._claiming.learn():
            self._running.wake()
        if await self._services.targets.refresh():
            self._running.wake()
        await self._do(self._services.sampler.sample)
        for chore in self._chores:
            if await self._do(chore):
                self._running.wake()
                self._services.ledger.notify_others()

    async def _do(self, chore: Chore) -> bool:
        """Run one chore. An error of the chore is logged and does not stop the worker; an error of the storage does."""
        try:
            return bool(await chore())
        except (asyncio.CancelledError, StorageError):
            raise
        except BaseException as error:
            self._services.notices.fails("upkeep", error, "The work goes on")
            return False

    async def reap(self) -> None:
        services, held = self._services, frozenset(self._running.heartbeat.leases)
        if await reap(
            services.ledger, self._liveness, services.worker, held, services.policy.crashes, services.metrics
        ):
            self._running.wake()

    async def sweep(self) -> None:
        ledger = self._services.ledger
        while ledger.database.dialect == "postgres":
            await self._services.runtime.sleep(UPKEEP_S)
            try:
                if await ledger.read(steps_vacuum.is_due):
                    await steps_vacuum.sweep_up(ledger.database)
            except Exception:
                # This database user may lack the right to vacuum. Then another one has to do it.
                await self._services.runtime.sleep(SWEEP_AGAIN_S)
