"""What a worker does now and then: steps that are due, leases of dead workers, new workflows, and upkeep."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from penstock.errors import StorageError
from penstock.ledger.database.liveness import Liveness
from penstock.ledger.engine import leasing, sweeping, work
from penstock.worker.bench import Bench
from penstock.worker.claiming import Claiming
from penstock.worker.lease import reap
from penstock.worker.running import Running

Chore = Callable[[], Awaitable[object]]
"""Something to do now and then. What it answers is true if others may have waited for that."""

UPKEEP_S = 2.0
SWEEP_AGAIN_S = 600.0
SOON_S = 0.02
"""Where a look found something due: until the next one."""


class Periodic:
    def __init__(
        self, bench: Bench, liveness: Liveness, running: Running, claiming: Claiming, chores: Sequence[Chore]
    ) -> None:
        self._bench = bench
        self._liveness = liveness
        self._running = running
        self._claiming = claiming
        self._chores = chores

    async def run(self) -> None:
        bench, runtime = self._bench, self._bench.runtime
        next_reap = runtime.clock()
        while not self._running.stopping:
            try:
                bench.backed_off.clear()
                due_in = await bench.ledger.read(work.due_in)
                if due_in is not None and due_in <= 0:
                    moved = await bench.ledger.write(leasing.DUE, 100)
                    if moved:
                        self._running.wake()
                if runtime.clock() >= next_reap:
                    next_reap = runtime.clock() + min(UPKEEP_S, bench.lease_s / 4)
                    await self._look_around()
            except Exception as error:
                bench.fail(error)
                return
            rest = next_reap - runtime.clock()
            await runtime.wait(bench.backed_off, rest if due_in is None else min(rest, max(due_in, SOON_S)))

    async def _look_around(self) -> None:
        await self.reap()
        if await self._claiming.learn():
            self._running.wake()
        if await self._bench.targets.refresh():
            self._running.wake()
        for chore in self._chores:
            if await self._do(chore):
                self._running.wake()
                self._bench.ledger.notify_others()

    async def _do(self, chore: Chore) -> bool:
        """Nothing waits for it but what it is about: no worker ends because of that."""
        try:
            return bool(await chore())
        except (asyncio.CancelledError, StorageError):
            raise
        except BaseException as error:
            self._bench.sayings.fails("upkeep", error, "The work goes on")
            return False

    async def reap(self) -> None:
        bench, held = self._bench, frozenset(self._running.heart.leases)
        if await reap(bench.ledger, self._liveness, bench.worker, held, bench.policy.crashes, bench.metrics):
            self._running.wake()

    async def sweep(self) -> None:
        ledger = self._bench.ledger
        while ledger.database.dialect == "postgres":
            await self._bench.runtime.sleep(UPKEEP_S)
            try:
                if await ledger.read(sweeping.is_due):
                    await sweeping.sweep_up(ledger.database)
            except Exception:
                # It may not be ours to sweep; then it is somebody else's to do.
                await self._bench.runtime.sleep(SWEEP_AGAIN_S)
