"""A worker, from its start to its end: it claims steps, executes them concurrently, and releases them when it is told
to stop."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from penstock.errors import PenstockError, StorageError
from penstock.ledger.database import notifier
from penstock.ledger.database.liveness import Liveness
from penstock.ledger.engine import work
from penstock.model.nouns import DocumentId, Owner
from penstock.stages.base import GroupedStage, Stage
from penstock.worker.admission import Admission
from penstock.worker.claiming import Claiming
from penstock.worker.company import Company
from penstock.worker.context import Context
from penstock.worker.counters import DocumentInProgress
from penstock.worker.periodic import Chore, Periodic
from penstock.worker.pools import REST, Pools
from penstock.worker.probing import Probing
from penstock.worker.runner import StepRunner
from penstock.worker.running import Running
from penstock.worker.services import WorkerServices
from penstock.workflows.read import OPEN_KINDS

Done = Callable[[], Awaitable[bool]]


class EventDispatcher(Protocol):
    """Delivers events while the worker runs."""

    on_idle: Callable[[], None]
    has_webhooks: bool

    async def run(self) -> None: ...

    async def is_idle(self) -> bool: ...

    def wake(self) -> None: ...

    def stop(self, at_once: bool = False) -> None: ...

    async def finish(self) -> None: ...


IDLE_S = 0.2
"""Time between two checks whether the work of a call has ended, because any worker may have done it."""
POLL_S = 5.0
"""Time between two claims without a notification."""
WARM_UP_AFTER_S = 0.1
IDLE_CHECK_S = 0.5
IDLE_CHECKS = 3
"""After this many checks without a running step, a worker does what its groups left for such a time."""


class Worker:
    def __init__(
        self,
        services: WorkerServices,
        liveness: Liveness,
        *,
        slots: int,
        chores: Sequence[Chore] = (),
        dispatcher: EventDispatcher | None = None,
    ) -> None:
        """`slots` is the number of places for claimed runs. There are more than `services.slots`, which execute at the
        same time, so that the next step is ready while another one commits. Typed pools (`services.pools`) claim no
        more than they execute: other workers can take the rest."""
        self.services = services
        self.told_to_stop = False
        """Whether a user or the system stopped the worker, in contrast to the end of its work."""
        self._dispatcher = dispatcher
        if dispatcher is not None:
            dispatcher.on_idle = self.wake
        services.fail = self._fail
        self._fatal: BaseException | None = None
        self._running = Running(services, liveness, self._has_news)
        kinds = (*services.stages, *OPEN_KINDS)
        gathering = [kind for kind, stage in services.stages.items() if stage.gathers]
        small = dict.fromkeys(gathering, services.company) if services.company and services.pools is None else {}
        sizes = services.pools or {REST: slots, **dict.fromkeys(small, slots)}
        pools = Pools(sizes, kinds, tuple(services.grouped), small)
        self.more_expected: Callable[[], bool] = lambda: False
        """Whether the caller is about to submit more documents."""
        company = Company(services, self._running, pools)
        services.gatherers.more_within = lambda: company.more_within(self.more_expected())
        self._claiming = Claiming(services, self._running, pools)
        self._runner = StepRunner(services, self._running, self._claiming)
        self._admission = Admission(services, self._running, self._claiming, self._runner)
        self._probing = Probing(services, self._running, self._claiming, self._runner)
        self._periodic = Periodic(services, liveness, self._running, self._claiming, chores)
        self._listener = notifier.listener(services.ledger.database)

    @property
    def stopping(self) -> bool:
        return self._running.stopping

    @property
    def steps_done(self) -> int:
        return self._running.steps_done

    @property
    def touched(self) -> dict[Owner, set[DocumentId]]:
        return self._running.touched

    @property
    def is_busy(self) -> bool:
        """Whether the worker executes a step now."""
        return bool(self._running.contexts)

    def in_hand(self) -> list[DocumentInProgress]:
        """Return the documents that are being worked on, in the order in which their steps began."""
        return self._running.documents_in_progress()

    def wake(self) -> None:
        """Claim soon, because there may be new work."""
        self._running.wake()

    def stop(self) -> None:
        """Claim nothing more. Running steps flush at the end of their batch and are released."""
        self._running.stop()
        if self._dispatcher is not None:
            self._dispatcher.stop(at_once=self.told_to_stop or self._fatal is not None)

    async def run(self, done: Done | None) -> None:
        """Work until `done` returns true (None: without end), the budget is spent, or `stop` is called. Raises the
        error that stopped the worker, if any."""
        await self._running.heartbeat.start()
        loops: list[asyncio.Task[None]] = []
        delivering: asyncio.Task[None] | None = None
        try:
            await self._periodic.reap()
            await self.services.targets.start()
            await self._claiming.learn()
            delivering = asyncio.create_task(self._run_loop(self._deliver()))
            others = [self._listen(), self._periodic.run(), self._periodic.sweep(), self._admission.run()]
            others += [self._probing.run(), self._finish_when_idle(), self._warm_up(at_once=done is None)]
            loops += [asyncio.create_task(self._run_loop(loop)) for loop in others]
            await self._claim_loop(done)
            if not self.stopping and not self.services.budget.spent:
                await self._runner.finish_work()
        finally:
            self.stop()
            await asyncio.gather(self._running.drain(), self._end_deliveries(delivering))
            for loop in loops:
                loop.cancel()
            await asyncio.gather(*loops, return_exceptions=True)
            await self.services.paid_work.close()
            await self.services.calls.close()
            self._listener.close()
            await self._leave()
        if self._fatal is not None:
            raise self._fatal

    async def _run_loop(self, loop: Awaitable[None]) -> None:
        """Run a loop. If it raises, stop the worker, because nothing else does the work of that loop."""
        try:
            await loop
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        """Stop the worker because of an error that no document caused. All stored work is kept."""
        if self._fatal is None:
            self._fatal = error
        self.stop()

    # the loops

    async def _claim_loop(self, done: Done | None) -> None:
        wanted, runtime = self._running.wanted, self.services.runtime
        while not self.stopping:
            wanted.clear()
            self._running.may_find_work = True
            groups, found = await self._claiming.claim()
            self._running.may_find_work = bool(groups)
            if groups:
                await self._runner.begin(groups, found)
                continue
            if await self._is_over(done):
                return
            limit = runtime.clock() + POLL_S
            while not wanted.is_set() and runtime.clock() < limit:
                await runtime.wait(wanted, POLL_S if done is None else IDLE_S)
                if not wanted.is_set() and await self._is_over(done):
                    return

    async def _is_over(self, done: Done | None) -> bool:
        if done is None:
            # A worker without an end would collect these without limit, and nothing reads them.
            self.touched.clear()
            self.services.record.counters.news.clear()
            return False
        busy = bool(self._running.tasks)
        if (not busy and await done() and await self._is_delivered()) or self.services.budget.spent:
            return True
        error = None if self._running.tasks else await self.services.targets.blocking_error()
        if error is not None:
            # The caller waits for the end of this call: report the target now.
            self._fail(StorageError(f"{error.rstrip('.')}. Completed work is kept; the rest waits for it"))
        return error is not None

    async def _finish_when_idle(self) -> None:
        """Do what the groups left for a time without work, when there was nothing to do for a while."""
        idle = 0
        while not self.stopping:
            await self.services.runtime.sleep(IDLE_CHECK_S)
            idle = 0 if self._running.tasks else idle + 1
            if idle == IDLE_CHECKS:
                await self._runner.finish_work()

    async def _listen(self) -> None:
        """Wake the worker when others insert work that it can claim."""
        while not self.stopping:
            try:
                await self._listener.open()
                while True:
                    await self._listener.change()
                    if self._dispatcher is not None:
                        self._dispatcher.wake()
                    waiting = self._listener.hears_only_work or bool(
                        await self.services.ledger.read(notifier.claimable, self._claiming.open_queues)
                    )
                    if waiting:
                        self.wake()
            except Exception:
                # Until notifications work again, the claim loop polls.
                await self.services.runtime.sleep(POLL_S)

    async def _warm_up(self, at_once: bool) -> None:
        """Load models and libraries while the first documents are read, or (`at_once`) before any arrives. Suspects
        wait for the end, so that a crash while loading is not counted against a step."""
        try:
            if at_once or (await self.services.ledger.read(work.left)).anything:
                # Loading blocks the interpreter. The parser processes should have work before it begins.
                await self.services.runtime.sleep(WARM_UP_AFTER_S)
                services = self.services
                known: list[Stage | GroupedStage] = [*services.stages.values(), *services.grouped.values()]
                loading = [
                    stage.warm_up(services.ports, services.runtime)
                    for stage in known
                    if stage.warm_up is not None and stage.kind in self._claiming.queues
                ]
                await asyncio.gather(*loading)
        finally:
            self.services.warm.set()

    # events

    def _has_news(self, ctx: Context) -> None:
        """Wake the dispatcher if somebody may want to be told what happened."""
        if self._dispatcher is not None and (ctx.state.workflow.lifecycle_events or self._dispatcher.has_webhooks):
            self._dispatcher.wake()

    async def _is_delivered(self) -> bool:
        """Whether all events that are due were delivered."""
        return self._dispatcher is None or await self._dispatcher.is_idle()

    async def _deliver(self) -> None:
        if self._dispatcher is not None:
            await self._dispatcher.run()

    async def _end_deliveries(self, delivering: "asyncio.Task[None] | None") -> None:
        if self._dispatcher is not None and delivering is not None:
            await asyncio.wait({delivering})
            await self._dispatcher.finish()

    async def _leave(self) -> None:
        await self.services.sampler.write()
        measured = {k: v for k, v in self.services.budget.paces.items() if k in self.services.budget.measured}
        try:
            if measured:
                await self.services.ledger.write(work.KEEP_PACES, measured)
        except PenstockError as error:
            self._fatal = self._fatal or error
        finally:
            await self._running.heartbeat.stop()
