"""A worker: claims steps, runs them side by side, keeps their leases, and hands everything over when told to stop."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from penstock.errors import PenstockError, StorageError
from penstock.ledger import locks, queue, work
from penstock.ledger.liveness import Liveness
from penstock.model.nouns import DocumentId, Lease, Owner, RunId, Step, StepId, Token, Workflow
from penstock.worker.context import Context, RunState, load
from penstock.worker.execute import INDEX, Bench, execute, settle
from penstock.worker.indexing import Indexer
from penstock.worker.lease import Heart, reap
from penstock.worker.look import InHand, in_hand
from penstock.workflows.read import OPEN_KINDS

Chore = Callable[[], Awaitable[object]]

IDLE_S = 0.2
WARM_UP_AFTER_S = 0.1
LINGER_S = 0.003
STOP_S = 1.0
"""How long running steps may look for the end of their batch before they are stopped in its middle."""
INDEX_GROUP = 64
CARRIED = 128
"""Runs whose chunks and vectors wait in memory for the index step."""


class Worker:
    def __init__(self, bench: Bench, liveness: Liveness, *, slots: int, chores: Sequence[Chore] = ()) -> None:
        """`slots`: runs in hand; more than run at once (`bench.slots`), so that a commit waits for nobody's work."""
        self.bench = bench
        self.stopping = False
        self._liveness = liveness
        self._slots = slots
        self._chores = chores
        self._indexer = Indexer(bench)
        self._heart = Heart(bench.ledger, liveness, bench.worker, bench.lease_s, self._on_lost)
        self._tasks: set[asyncio.Task[None]] = set()
        self._contexts: dict[StepId, tuple[Context, asyncio.Task[None]]] = {}
        self._wake = asyncio.Event()
        self._wake_index = asyncio.Event()
        self._claimed_once = False
        self._workflows: dict[str, Workflow] = {}
        self._carried: dict[RunId, RunState] = {}
        self._kinds: tuple[str, ...] = (*bench.stages, *OPEN_KINDS)
        self._fatal: Exception | None = None
        self.steps_done = 0
        self.touched: dict[Owner, set[DocumentId]] = {}
        self.told_to_stop = False
        """By a person or the system, not by its own end."""

    async def run(self, done: Callable[[], Awaitable[bool]]) -> None:
        """Work until `done` says so, the budget is spent, or `stop` is called. Raises what no step is to blame for."""
        await self._heart.start()
        loops: list[asyncio.Task[None]] = []
        try:
            await self._reap()
            loops += [asyncio.create_task(f()) for f in (self._warm_up, self._index_loop, self._upkeep_loop)]
            await self._claim_loop(done)
        finally:
            self.stop()
            await self._drain()
            for loop in loops:
                loop.cancel()
            await asyncio.gather(*loops, return_exceptions=True)
            await self._leave()
        if self._fatal is not None:
            raise self._fatal

    async def _warm_up(self) -> None:
        """Load models and libraries while the first documents are read. What dies of that is nobody's crash: a suspect
        does not begin before."""
        ports, runtime = self.bench.ports, self.bench.runtime
        try:
            if (await self.bench.ledger.read(work.left)).anything:
                # Loading takes the interpreter for itself: first the parser processes should have something to do.
                await runtime.sleep(WARM_UP_AFTER_S)
                index = await runtime.run_blocking("index", lambda: ports.index)
                await asyncio.gather(ports.embedder.warm_up(), index.warm_up())
        except Exception as error:
            self._fail(error)
        finally:
            self.bench.warm.set()

    def stop(self) -> None:
        """Claim nothing more; running steps flush at the end of their batch and are released."""
        self.stopping = True
        for ctx, _ in self._contexts.values():
            ctx.stopping = True
        self.wake()

    def in_hand(self) -> list[InHand]:
        """The documents that are being worked on, the longest first."""
        working = (ctx for ctx, _ in self._contexts.values() if not ctx.ended)
        return [in_hand(ctx) for ctx in working if ctx.has_checkpoint or ctx.waiting_on]

    def wake(self) -> None:
        """There is work, or there may be."""
        self._wake.set()
        self._wake_index.set()

    async def _claim_loop(self, done: Callable[[], Awaitable[bool]]) -> None:
        while not self.stopping:
            self._wake.clear()
            claimed = await self._claim()
            if claimed:
                continue
            if not self._tasks and await done():
                return
            if self.bench.budget.spent:
                return
            await self._sleep(self._wake, IDLE_S)

    async def _claim(self) -> bool:
        free = self._slots - len(self._tasks)
        if free and free < self._slots // 2:
            # Several documents often end together: one claim for them is cheaper than one for each.
            await self.bench.runtime.sleep(LINGER_S)
            free = self._slots - len(self._tasks)
        kinds = tuple(k for k in self._kinds if not self._claimed_once or self.bench.budget.fits(k))
        if free <= 0 or not kinds or self.stopping:
            return False
        token = Token(self.bench.runtime.token())
        request = queue.ClaimRequest(self.bench.worker, kinds, free, token, self.bench.lease_s)
        steps = await self.bench.ledger.write(queue.CLAIM, request)
        if not steps:
            return False
        self._claimed_once = True
        for step in steps:
            self._heart.leases[step.lease.step_id] = step.lease
        states = await self.bench.ledger.read(load, steps, self._workflows)
        for step, state in zip(steps, states, strict=True):
            if state is None:
                self._heart.leases.pop(step.lease.step_id, None)
                await self.bench.ledger.write(queue.DROP, step.lease)
                continue
            task = asyncio.create_task(self._work(step, state))
            self._tasks.add(task)
            task.add_done_callback(self._ended)
        return True

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self.wake()
        if not task.cancelled() and isinstance(error := task.exception(), Exception):
            self._fail(error)

    async def _work(self, step: Step, state: RunState) -> None:
        """A run, step after step, for as long as each next one is claimed with the completion of the one before."""
        ctx: Context | None = self.bench.context(step, state)
        while ctx is not None:
            self._enter(ctx)
            following: Context | None = None
            try:
                following = await execute(self.bench, ctx, chain=not self.stopping)
                self.steps_done += 1
            except BaseException as error:
                await self._settle(ctx, error)
            finally:
                self._leave_step(ctx)
            if following is not None:
                self._heart.leases[following.step.lease.step_id] = following.step.lease
            elif not ctx.lost:
                self._carry(ctx)
            ctx = following

    def _carry(self, ctx: Context) -> None:
        """What is small stays in memory for the index step, which comes soon; a few megabytes at most."""
        made = {a.id for name, a in ctx.state.artifacts.items() if name in self._kept_for_index(ctx)}
        ctx.state.items = {artifact: items for artifact, items in ctx.state.items.items() if artifact in made}
        if ctx.state.items:
            self._carried[ctx.step.run_id] = ctx.state
            if len(self._carried) > CARRIED:
                self._carried.pop(next(iter(self._carried)))

    @staticmethod
    def _kept_for_index(ctx: Context) -> set[str]:
        return {step.name for step in ctx.state.workflow.steps if step.kind in ("chunk", "embed")}

    def _enter(self, ctx: Context) -> None:
        task = asyncio.current_task()
        assert task is not None
        ctx.stopping = self.stopping
        self.touched.setdefault(ctx.step.owner, set()).add(ctx.step.document_id)
        ctx.on_waiting = self._on_waiting
        self._heart.leases[ctx.step.lease.step_id] = ctx.step.lease
        self._contexts[ctx.step.lease.step_id] = (ctx, task)
        self.bench.record.started(ctx)

    def _leave_step(self, ctx: Context) -> None:
        ctx.count()
        self._heart.leases.pop(ctx.step.lease.step_id, None)
        self._contexts.pop(ctx.step.lease.step_id, None)

    def _on_waiting(self, ctx: Context) -> None:
        self._heart.waiting[ctx.step.lease.step_id] = ctx.waiting_on

    async def _settle(self, ctx: Context, error: BaseException) -> None:
        """What became of the step goes into the ledger even while we are being cancelled."""
        await asyncio.shield(settle(self.bench, ctx, error))
        if isinstance(error, StorageError):
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        """No document is to blame: stop working, keep everything."""
        if self._fatal is None:
            self._fatal = error
        self.stop()

    def _on_lost(self, leases: set[Lease]) -> None:
        """Cancelled, superseded or reaped: stop spending on it now."""
        for lease in leases:
            entry = self._contexts.get(lease.step_id)
            if entry is None or entry[0].step.lease != lease:
                continue
            if not entry[0].lost and not entry[0].finishing:
                entry[0].lost = True
                if entry[0].step.kind != INDEX:
                    entry[1].cancel()

    async def _index_loop(self) -> None:
        while not self.stopping:
            self._wake_index.clear()
            try:
                if not await self._index_once():
                    await self._sleep(self._wake_index, IDLE_S)
            except Exception as error:
                self._fail(error)

    async def _index_once(self) -> bool:
        bench = self.bench
        if self._claimed_once and not bench.budget.fits(INDEX):
            return False
        token = Token(bench.runtime.token())
        claim = queue.KeyedClaim(bench.worker, INDEX, INDEX_GROUP, token, bench.lease_s)
        steps = await bench.ledger.write(queue.CLAIM_KEYED, claim)
        if not steps:
            return False
        self._claimed_once = True
        key = steps[0].lease.resource_key
        assert key is not None
        self._heart.locks[key] = token
        task = asyncio.create_task(self._index_group(steps))
        self._tasks.add(task)
        try:
            await asyncio.shield(task)
        finally:
            await asyncio.wait([task])
            self._heart.locks.pop(key, None)
            await asyncio.shield(bench.ledger.write(locks.RELEASE, (key, token)))
            self._ended(task)
        return True

    async def _index_group(self, steps: Sequence[Step]) -> None:
        for step in steps:
            self._heart.leases[step.lease.step_id] = step.lease
        carried = [self._carried.pop(step.run_id, None) for step in steps]
        cold = [step for step, state in zip(steps, carried, strict=True) if state is None]
        loaded = iter(await self.bench.ledger.read(load, cold, self._workflows) if cold else [])
        states = [state or next(loaded) for state in carried]
        contexts = [self.bench.context(step, s) for step, s in zip(steps, states, strict=True) if s is not None]
        for step, state in zip(steps, states, strict=True):
            if state is None:
                await self.bench.ledger.write(queue.DROP, step.lease)
        for ctx in contexts:
            self._enter(ctx)
        try:
            if contexts:
                await self._indexer.run(contexts)
                self.steps_done += len(contexts)
        finally:
            for ctx in contexts:
                ctx.count()
            for step in steps:
                self._heart.leases.pop(step.lease.step_id, None)
                self._contexts.pop(step.lease.step_id, None)

    async def _upkeep_loop(self) -> None:
        """Backed-off steps that are due, leases of the dead, purges whose grace is over."""
        runtime = self.bench.runtime
        next_reap = runtime.clock()
        while not self.stopping:
            try:
                if await self.bench.ledger.write(queue.DUE, 100):
                    self.wake()
                if runtime.clock() >= next_reap:
                    next_reap = runtime.clock() + min(2.0, self.bench.lease_s / 4)
                    await self._reap()
                    for chore in self._chores:
                        await chore()
            except Exception as error:
                self._fail(error)
                return
            await runtime.sleep(IDLE_S)

    async def _reap(self) -> None:
        bench = self.bench
        held = frozenset(self._heart.leases)
        if await reap(bench.ledger, self._liveness, bench.worker, held, bench.policy.crashes):
            self.wake()

    async def _drain(self) -> None:
        """Let running steps reach the end of their batch; stop those that take longer in the middle of it."""
        if self._tasks:
            await asyncio.wait(list(self._tasks), timeout=STOP_S)
        ending = {task for ctx, task in self._contexts.values() if ctx.finishing and ctx.step.kind != INDEX}
        for task in self._tasks - ending:
            task.cancel()
        if self._tasks:
            await asyncio.wait(list(self._tasks))

    async def _leave(self) -> None:
        measured = {k: v for k, v in self.bench.budget.paces.items() if k in self.bench.budget.measured}
        try:
            if measured:
                await self.bench.ledger.write(work.KEEP_PACES, measured)
        except PenstockError as error:
            self._fatal = self._fatal or error
        finally:
            await self._heart.stop()

    async def _sleep(self, event: asyncio.Event, seconds: float) -> None:
        waiter = asyncio.ensure_future(event.wait())
        timer = asyncio.ensure_future(self.bench.runtime.sleep(seconds))
        try:
            await asyncio.wait({waiter, timer}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            waiter.cancel()
            timer.cancel()
