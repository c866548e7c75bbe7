"""A worker: claims steps, runs them side by side, keeps their leases, and hands everything over when told to stop."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from penstock import foreign
from penstock.errors import PenstockError, StorageError, TableFailed
from penstock.ledger.database import waking
from penstock.ledger.database.liveness import Liveness
from penstock.ledger.engine import claims, leasing, locks, resource_keys, sweeping, targets, work
from penstock.ledger.engine.documents import Live
from penstock.model.nouns import DocumentId, Lease, Owner, RunId, Step, StepId, Token, Workflow
from penstock.runtime import shielded
from penstock.worker.context import Context, RunState, begin, load
from penstock.worker.execute import EMBED, INDEX, ROOM, Bench, execute, settle
from penstock.worker.indexing import Indexer
from penstock.worker.lease import Heart, reap
from penstock.worker.look import InHand, in_hand
from penstock.worker.pools import REST, Place, Pool, Pools, newcomers
from penstock.workflows.load import decode
from penstock.workflows.read import OPEN_KINDS

T = TypeVar("T")
Chore = Callable[[], Awaitable[object]]
"""Something to do now and then. What it answers is true if others may have waited for that."""
Done = Callable[[], Awaitable[bool]]


class Courier(Protocol):
    """Who delivers events while we work."""

    on_idle: Callable[[], None]

    async def run(self) -> None: ...

    async def is_idle(self) -> bool: ...

    def wake(self) -> None: ...

    def stop(self, at_once: bool = False) -> None: ...

    async def finish(self) -> None: ...


IDLE_S = 0.2
"""Between two looks whether the work that a call is about has ended, by whoever's hand."""
POLL_S = 5.0
"""Between two claims that nobody asked for: the safety net of waking."""
UPKEEP_S = 2.0
LOOKS_AT_ALL = 30
"""Looks at new snapshots, one of which is at all of them."""
SWEEP_AGAIN_S = 600.0
SOON_S = 0.02
"""Where a look found something due: until the next one."""
WARM_UP_AFTER_S = 0.1
LINGER_S = 0.003
STOP_S = 1.0
"""How long running steps may look for the end of their batch before they are stopped in its middle."""
DOOR_S = 0.25
"""Where no place was left for so long, newcomers are let in besides:"""
DOOR_AT_ONCE = 16
DOOR_LOOK = 256
"""among the next so many steps of each kind."""
INDEX_GROUP = 64
CARRIED = 128
"""Runs whose chunks and vectors wait in memory for the index step."""


class Worker:
    def __init__(
        self,
        bench: Bench,
        liveness: Liveness,
        *,
        slots: int,
        chores: Sequence[Chore] = (),
        courier: Courier | None = None,
    ) -> None:
        """`slots`: runs in hand; more than run at once (`bench.slots`), so that a commit waits for nobody's work. Typed
        pools (`bench.pools`) hold no more than they run: what they cannot begin is for others."""
        self.bench = bench
        self.stopping = False
        self._liveness = liveness
        self._chores = chores
        self._courier = courier
        if courier is not None:
            courier.on_idle = self.wake
        bench.fail = self._fail
        self._indexer = Indexer(bench)
        self._heart = Heart(
            bench.ledger, liveness, bench.worker, bench.lease_s, self._on_lost, self._on_hanging, self._fail
        )
        self._tasks: set[asyncio.Task[Any]] = set()
        self._contexts: dict[StepId, tuple[Context, asyncio.Task[Any]]] = {}
        self._wake = asyncio.Event()
        self._claimed_once = False
        self._workflows: dict[str, Workflow] = {}
        self._carried: dict[RunId, RunState] = {}
        self._pools = Pools(bench.pools or {REST: slots}, (*bench.stages, *OPEN_KINDS))
        self._keyed_lanes: set[str] = set()
        """Those with resource keys, besides INDEX, which has loops of its own."""
        self._learned_until, self._looks = 0.0, 0
        self._learned: set[str] = set()
        """Snapshots whose pools and keys we know."""
        self._wake_index = [asyncio.Event() for _ in range(self._pools.groups(INDEX))]
        self._ears = waking.ears(bench.ledger.database)
        self._fatal: BaseException | None = None
        self.steps_done = 0
        self.touched: dict[Owner, set[DocumentId]] = {}
        self.told_to_stop = False
        """By a person or the system, not by its own end."""

    async def run(self, done: Done | None) -> None:
        """Work until `done` says so (None: for ever), the budget is spent, or `stop` is called. Raises what no step is
        to blame for."""
        await self._heart.start()
        loops: list[asyncio.Task[None]] = []
        delivering: asyncio.Task[None] | None = None
        try:
            await self._reap()
            # Whoever starts a worker may have mended what failed, or wants to hear now what does.
            await self.bench.ledger.write(targets.TRY_ALL, None)
            await self._learn()
            delivering = asyncio.create_task(self._contained(self._deliver_loop()))
            others = [self._listen_loop(), self._upkeep_loop(), self._sweep_loop(), self._warm_up(at_once=done is None)]
            others += [self._door_loop(), *(self._index_loop(bell) for bell in self._wake_index)]
            loops += [asyncio.create_task(self._contained(loop)) for loop in others]
            await self._claim_loop(done)
        finally:
            self.stop()
            await asyncio.gather(self._drain(), self._end_deliveries(delivering))
            for loop in loops:
                loop.cancel()
            await asyncio.gather(*loops, return_exceptions=True)
            self._ears.close()
            await self._leave()
        if self._fatal is not None:
            raise self._fatal

    async def _contained(self, loop: Awaitable[None]) -> None:
        """A loop that ends before its time ends the worker, whatever it raised: nobody else does its work."""
        try:
            await loop
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            self._fail(error)

    @property
    def _lanes(self) -> tuple[str, ...]:
        """All that we can claim."""
        index = (INDEX,) if self._pools.of(INDEX) is not None else ()
        return (*(lane for pool in self._pools.claiming for lane in pool.lanes), *index)

    async def _learn(self) -> bool:
        """Which pools and resource keys the workflows of the ledger name. Whether we work on something new from now
        on."""
        before = (self._lanes, len(self._keyed_lanes))
        # A clock that was set back hides what is new: now and then we read them all.
        since = self._learned_until if self._looks % LOOKS_AT_ALL else 0.0
        self._looks += 1
        found, self._learned_until = await self.bench.ledger.read(work.snapshots, since)
        new = [body for digest, body in found.items() if digest not in self._learned]
        self._learned |= set(found)
        for body in new:
            for step in decode(body).steps:
                if step.pool not in (None, INDEX):
                    self._pools.learn([step.lane])
                if step.lane != INDEX and (step.resource_key is not None or step.kind == INDEX):
                    self._keyed_lanes.add(step.lane)
        return before != (self._lanes, len(self._keyed_lanes))

    async def _warm_up(self, at_once: bool) -> None:
        """Load models and libraries while the first documents are read, or (`at_once`) before any comes. What dies of
        that is nobody's crash: a suspect does not begin before."""
        runtime = self.bench.runtime
        try:
            if at_once or (await self.bench.ledger.read(work.left)).anything:
                # Loading takes the interpreter for itself: first the parser processes should have something to do.
                await runtime.sleep(WARM_UP_AFTER_S)
                await asyncio.gather(*(self._warm_up_kind(kind) for kind in (EMBED, INDEX) if kind in self._lanes))
        finally:
            self.bench.warm.set()

    async def _warm_up_kind(self, kind: str) -> None:
        ports = self.bench.ports
        if kind == EMBED:
            await ports.embedder.warm_up()
        else:
            index = await self.bench.runtime.run_blocking("index", lambda: ports.index)
            await index.warm_up()

    def stop(self) -> None:
        """Claim nothing more; running steps flush at the end of their batch and are released."""
        self.stopping = True
        for ctx, _ in self._contexts.values():
            ctx.stopping = True
        if self._courier is not None:
            self._courier.stop(at_once=self.told_to_stop or self._fatal is not None)
        self.wake()

    def in_hand(self) -> list[InHand]:
        """The documents that are being worked on, the longest first."""
        working = (ctx for ctx, _ in self._contexts.values() if not ctx.ended)
        return [in_hand(ctx) for ctx in working if ctx.has_checkpoint or ctx.waiting_on not in (None, ROOM)]

    def wake(self) -> None:
        """There is work, or there may be."""
        self._wake.set()

    async def _listen_loop(self) -> None:
        """Wake when others made work in our lanes."""
        while not self.stopping:
            try:
                await self._ears.open()
                while True:
                    await self._ears.change()
                    if self._courier is not None:
                        self._courier.wake()
                    waiting = self._ears.rings_for_work or bool(
                        await self.bench.ledger.read(waking.claimable, self._lanes)
                    )
                    if waiting:
                        self.wake()
            except Exception:
                # Till we can hear again we look ourselves, now and then.
                await self.bench.runtime.sleep(POLL_S)

    async def _claim_loop(self, done: Done | None) -> None:
        while not self.stopping:
            self._wake.clear()
            claimed = await self._claim()
            # After it: what is new is seldom for the index.
            for bell in self._wake_index:
                bell.set()
            if claimed:
                continue
            if await self._is_over(done):
                return
            limit = self.bench.runtime.clock() + POLL_S
            while not self._wake.is_set() and self.bench.runtime.clock() < limit:
                await self._sleep(self._wake, POLL_S if done is None else IDLE_S)
                if not self._wake.is_set() and await self._is_over(done):
                    return

    async def _is_over(self, done: Done | None) -> bool:
        if done is None:
            # Nobody will ask what became of them, and there is no end to them.
            self.touched.clear()
            self.bench.record.tally.news.clear()
            return False
        if (not self._tasks and await done() and await self._is_told()) or self.bench.budget.spent:
            return True
        if self._tasks or not self.bench.sayings.anything:
            return False
        error = await self.bench.ledger.read(targets.held_up)
        if error is not None:
            # Whoever waits for the end of this call should hear now what it waits for.
            self._fail(StorageError(f"{error.rstrip('.')}. What is done is kept; the rest waits for it"))
        return error is not None

    async def _is_told(self) -> bool:
        """Whoever is to be told of what happened has been, as far as it is due."""
        return self._courier is None or await self._courier.is_idle()

    async def _deliver_loop(self) -> None:
        if self._courier is not None:
            await self._courier.run()

    async def _end_deliveries(self, delivering: "asyncio.Task[None] | None") -> None:
        if self._courier is not None and delivering is not None:
            await asyncio.wait({delivering})
            await self._courier.finish()

    def _told_of(self, ctx: Context) -> None:
        """Something happened to the step: it is in the outbox if somebody wants to hear it."""
        if self._courier is not None and ctx.state.workflow.lifecycle_events:
            self._courier.wake()

    async def _claim(self) -> bool:
        pools = self._pools.claiming
        free, size = (sum(pool.free for pool in pools), sum(pool.size for pool in pools))
        if free and free < size // 2:
            # Several documents often end together: one claim for them is cheaper than one for each.
            await self.bench.runtime.sleep(LINGER_S)
        if self.bench.pools is not None:
            # A claim that finds nothing would hold places for a moment that steps of runs in hand could go on in.
            waiting = await self.bench.ledger.read(waking.claimable, self._lanes)
            pools = [pool for pool in pools if waiting.intersection(pool.lanes)]
        if self.stopping:
            return False
        found: dict[StepId, Live | None] = {}
        asking = [self._claim_for(pool, found) for pool in pools if pool.free > 0]
        answers = [await asking[0]] if len(asking) == 1 else await asyncio.gather(*asking)
        groups = [group for answer in answers for group in answer]
        if not groups:
            return False
        self._claimed_once = True
        await self._begin(groups, found)
        return True

    async def _begin(self, groups: Sequence[Sequence[Step]], found: Mapping[StepId, Live | None]) -> None:
        """Work on what was claimed; its places are counted already."""
        for step in (step for group in groups for step in group):
            self._heart.leases[step.lease.step_id] = step.lease
        single = [group[0] for group in groups if group[0].kind != INDEX]
        states = iter(await self._states(single, found) if single else [])
        for group in groups:
            place = Place(self._pools, group[0].lane)
            pooled = group[0].kind == INDEX
            work = self._index_in(group, place) if pooled else self._work(group[0], next(states), place)
            task = asyncio.create_task(work)
            self._tasks.add(task)
            task.add_done_callback(self._ended)

    async def _door_loop(self) -> None:
        """Long runs may hold all places for minutes. Owners who have nothing in hand, and small documents, do not wait
        for their end: rooms and parser processes are shared."""
        seen: dict[str, int] = {}
        while not self.stopping:
            await self.bench.runtime.sleep(DOOR_S)
            for pool in self._pools.claiming:
                if pool.free <= 0 and seen.get(pool.name) == pool.left and not self.stopping:
                    # A task of its own: at a stop, what it claims is handed over as all else is.
                    task = asyncio.create_task(self._let_in(pool))
                    self._tasks.add(task)
                    task.add_done_callback(self._ended)
                    await asyncio.wait([task])
                seen[pool.name] = pool.left

    async def _let_in(self, pool: Pool) -> None:
        bench = self.bench
        lanes = [lane for lane in pool.lanes if bench.budget.fits(lane)]
        owners = {ctx.step.owner for ctx, _ in self._contexts.values()}
        waiting = await bench.ledger.read(claims.waiting, lanes, DOOR_LOOK)
        wanted = newcomers(waiting, owners, min(DOOR_AT_ONCE, pool.beyond))
        if not wanted or self.stopping:
            return
        pool.held += len(wanted)
        claimed: list[claims.Claimed] = []
        try:
            request = claims.ClaimThese(bench.worker, tuple(wanted), Token(bench.runtime.token()), bench.lease_s)
            claimed = await self._measured(pool.name, bench.ledger.write(claims.CLAIM_THESE, request))
        finally:
            pool.held -= len(wanted) - len(claimed)
        await self._begin([[one.step] for one in claimed], {one.step.lease.step_id: one.document for one in claimed})

    async def _states(self, steps: Sequence[Step], found: Mapping[StepId, Live | None]) -> list[RunState | None]:
        """Of claimed steps. What a run begins with came with its claim."""
        if all(s.position == 0 and s.snapshot in self._workflows and s.lease.step_id in found for s in steps):
            return [begin(found[step.lease.step_id], self._workflows[step.snapshot]) for step in steps]
        return await self.bench.ledger.read(load, steps, self._workflows)

    async def _claim_for(self, pool: Pool, found: dict[StepId, Live | None]) -> list[list[Step]]:
        """Fill the pool, with what has a resource key first. Its free places are taken while the claim is under way:
        nobody else moves in. What one lock lets in together comes together and has one place."""
        bench = self.bench
        lanes = tuple(lane for lane in pool.lanes if not self._claimed_once or bench.budget.fits(lane))
        if not lanes:
            return []
        groups: list[list[Step]] = []
        free = pool.free
        pool.held += free
        try:
            for lane in sorted(self._keyed_lanes.intersection(lanes)):
                while len(groups) < free and (group := await self._claim_keyed(lane, pool.name)):
                    groups.append(group)
            if len(groups) < free:
                token = Token(bench.runtime.token())
                request = claims.ClaimRequest(bench.worker, lanes, free - len(groups), token, bench.lease_s)
                claimed = await self._measured(pool.name, bench.ledger.write(claims.CLAIM, request))
                groups += [[one.step] for one in claimed]
                found |= {one.step.lease.step_id: one.document for one in claimed}
        finally:
            pool.held -= free - len(groups)
        return groups

    async def _claim_keyed(self, lane: str, pool: str) -> list[Step]:
        """A free lock with the steps behind it, all of one index or one of a workflow's own key."""
        bench = self.bench
        token = Token(bench.runtime.token())
        claim = claims.KeyedClaim(bench.worker, lane, INDEX_GROUP, token, bench.lease_s)
        steps = await self._measured(pool, bench.ledger.write(claims.CLAIM_KEYED, claim))
        for step in steps:
            assert step.lease.resource_key is not None
            self._heart.locks[step.lease.resource_key] = token
        return steps

    async def _let_go(self, lease: Lease, failed: TableFailed | None = None) -> None:
        """Of the lock that came with the claim, if one did; `failed`: and leave its table alone for a while."""
        if lease.resource_key is not None:
            self._heart.locks.pop(lease.resource_key, None)
            if failed is not None:
                await shielded(self._pause(lease.resource_key, lease.token, failed))
                return
            self.bench.sayings.works(lease.resource_key)
            await shielded(self.bench.ledger.write(locks.RELEASE, (lease.resource_key, lease.token)))
            if lease.resource_key.startswith(resource_keys.OWN_KEYS):
                self.wake()
                self.bench.ledger.wake_others()

    async def _pause(self, key: str, token: Token, error: TableFailed) -> None:
        bench = self.bench
        pause = targets.Pause(key, token, foreign.sentence(error), bench.runtime.random(), error.retry_after)
        hold = await bench.ledger.write(targets.PAUSE, pause)
        if hold is not None:
            bench.metrics.incr("index_failed")
            bench.sayings.fails(key, error, "Its documents wait", hold.held_s)
            bench.backed_off.set()

    async def _measured(self, pool: str, claim: Awaitable[list[T]]) -> list[T]:
        metrics, clock = self.bench.metrics, self.bench.runtime.clock
        began = clock()
        metrics.incr("claim_attempts", pool=pool)
        try:
            steps = await claim
        except Exception:
            metrics.incr("claim_error", pool=pool)
            raise
        finally:
            metrics.observe("claim_duration", clock() - began, pool=pool)
        if steps:
            metrics.incr("claim_success", len(steps), pool=pool)
        else:
            metrics.incr("claim_idle", pool=pool)
        return steps

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        self.wake()
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fail(error)

    async def _work(self, step: Step, state: RunState | None, place: Place) -> None:
        """A run, step after step, for as long as each next one is claimed with the completion of the one before."""
        try:
            if state is None:
                self._forget(step.lease.step_id)
                await self.bench.ledger.write(leasing.DROP, step.lease)
                self.bench.metrics.incr("claim_lost_race", pool=self._pools.name(step.lane))
                await self._let_go(step.lease)
                return
            ctx: Context | None = self.bench.context(step, state)
            while ctx is not None:
                ctx = await self._work_on(ctx, place)
        finally:
            place.leave()

    async def _index_in(self, steps: Sequence[Step], place: Place) -> None:
        failed: TableFailed | None = None
        try:
            failed = await self._index_group(steps)
        finally:
            place.leave()
            await self._let_go(steps[0].lease, failed)

    async def _work_on(self, ctx: Context, place: Place) -> Context | None:
        self._enter(ctx)
        following: Context | None = None
        try:
            following = await execute(self.bench, ctx, lambda lane: not self.stopping and place.reach(lane))
            self.steps_done += 1
            if place.refused:
                self.bench.ledger.wake_others()
        except BaseException as error:
            await self._settle(ctx, error)
        finally:
            self._leave_step(ctx)
            await self._let_go(ctx.step.lease)
            if place.move(following is not None):
                self.wake()
        if following is not None:
            self._heart.leases[following.step.lease.step_id] = following.step.lease
        elif not ctx.lost:
            self._carry(ctx)
        return following

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
        self._heart.leases[ctx.step.lease.step_id] = ctx.step.lease
        self._heart.vitals[ctx.step.lease.step_id] = ctx.vital
        ctx.task = task
        self._contexts[ctx.step.lease.step_id] = (ctx, task)
        self.bench.record.started(ctx)
        self._told_of(ctx)

    def _leave_step(self, ctx: Context) -> None:
        self._told_of(ctx)
        ctx.count()
        self._forget(ctx.step.lease.step_id)

    def _forget(self, step: StepId) -> None:
        self._heart.leases.pop(step, None)
        self._heart.vitals.pop(step, None)
        self._contexts.pop(step, None)

    async def _settle(self, ctx: Context, error: BaseException) -> None:
        """What became of the step goes into the ledger even while we are being cancelled."""
        await shielded(settle(self.bench, ctx, error))

    def _fail(self, error: BaseException) -> None:
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
                entry[0].lose("heartbeat")
                if entry[0].step.kind != INDEX:
                    entry[1].cancel()

    def _on_hanging(self, steps: set[StepId]) -> None:
        """They work without progress for longer than their workflow allows: end them, so that they are tried again."""
        for step in steps:
            ctx, task = self._contexts.get(step, (None, None))
            if ctx is None or task is None or ctx.lost or ctx.finishing or not ctx.vital.overdue:
                continue
            if ctx.step.kind != INDEX or not ctx.timed_out:
                # Steps of an index group share a task, which then settles all of them: it must not be cancelled twice.
                task.cancel()
            ctx.timed_out = True

    async def _index_loop(self, bell: asyncio.Event) -> None:
        while not self.stopping:
            bell.clear()
            try:
                if not await self._index_once():
                    await self._sleep(bell, POLL_S)
            except Exception as error:
                self._fail(error)

    async def _index_once(self) -> bool:
        bench = self.bench
        if self._claimed_once and not bench.budget.fits(INDEX):
            return False
        steps = await self._claim_keyed(INDEX, INDEX)
        groups = [steps] if steps else await self._claim_unlocked()
        if not groups:
            return False
        self._claimed_once = True
        tasks = [asyncio.create_task(self._index_group(group)) for group in groups]
        self._tasks.update(tasks)
        try:
            # What they raise, `_ended` finds: this loop does not end with a group that was cancelled.
            await asyncio.wait(tasks)
        finally:
            await asyncio.wait(tasks)
            for task, group in zip(tasks, groups, strict=True):
                done = not task.cancelled() and task.exception() is None
                await self._let_go(group[0].lease, task.result() if done else None)
                self._ended(task)
        return True

    async def _claim_unlocked(self) -> list[list[Step]]:
        """Index steps without a lock, where the index takes many writers: one group for each table."""
        bench = self.bench
        if not bench.ports.many_writers:
            return []
        request = claims.ClaimRequest(bench.worker, (INDEX,), INDEX_GROUP, Token(bench.runtime.token()), bench.lease_s)
        groups: dict[tuple[str, str, int], list[Step]] = {}
        for one in await self._measured(INDEX, bench.ledger.write(claims.CLAIM, request)):
            place = ("", 0) if one.document is None else (one.document[0].collection, one.document[1].index_version)
            groups.setdefault((one.step.owner, *place), []).append(one.step)
        return list(groups.values())

    async def _index_group(self, steps: Sequence[Step]) -> TableFailed | None:
        for step in steps:
            self._heart.leases[step.lease.step_id] = step.lease
        carried = [self._carried.pop(step.run_id, None) for step in steps]
        cold = [step for step, state in zip(steps, carried, strict=True) if state is None]
        loaded = iter(await self.bench.ledger.read(load, cold, self._workflows) if cold else [])
        states = [state or next(loaded) for state in carried]
        contexts = [self.bench.context(step, s) for step, s in zip(steps, states, strict=True) if s is not None]
        for step, state in zip(steps, states, strict=True):
            if state is None:
                await self.bench.ledger.write(leasing.DROP, step.lease)
                self.bench.metrics.incr("claim_lost_race", pool=INDEX)
        for ctx in contexts:
            self._enter(ctx)
        failed: TableFailed | None = None
        try:
            if contexts:
                failed = await self._indexer.run(contexts)
                self.steps_done += 0 if failed is not None else len(contexts)
            return failed
        finally:
            for ctx in contexts:
                self._told_of(ctx)
                ctx.count()
            for step in steps:
                self._forget(step.lease.step_id)

    async def _upkeep_loop(self) -> None:
        """Backed-off steps that are due, leases of the dead, purges whose grace is over."""
        bench, runtime = self.bench, self.bench.runtime
        next_reap = runtime.clock()
        while not self.stopping:
            try:
                bench.backed_off.clear()
                due_in = await bench.ledger.read(work.due_in)
                if due_in is not None and due_in <= 0:
                    moved = await bench.ledger.write(leasing.DUE, 100)
                    if moved:
                        self.wake()
                if runtime.clock() >= next_reap:
                    next_reap = runtime.clock() + min(UPKEEP_S, bench.lease_s / 4)
                    await self._reap()
                    if await self._learn():
                        self.wake()
                    for chore in self._chores:
                        if await self._do(chore):
                            self.wake()
                            bench.ledger.wake_others()
            except Exception as error:
                self._fail(error)
                return
            rest = next_reap - runtime.clock()
            if bench.sayings.take_due():
                self.wake()
            if (paused_for := bench.sayings.due_in) is not None:
                rest = min(rest, paused_for)
            await self._sleep(bench.backed_off, rest if due_in is None else min(rest, max(due_in, SOON_S)))

    async def _do(self, chore: Chore) -> bool:
        """Nothing waits for it but what it is about: no worker ends because of that."""
        try:
            return bool(await chore())
        except (asyncio.CancelledError, StorageError):
            raise
        except BaseException as error:
            self.bench.sayings.fails("upkeep", error, "The work goes on")
            return False

    async def _sweep_loop(self) -> None:
        ledger = self.bench.ledger
        while ledger.database.dialect == "postgres":
            await self.bench.runtime.sleep(UPKEEP_S)
            try:
                if await ledger.read(sweeping.is_due):
                    await sweeping.sweep_up(ledger.database)
            except Exception:
                # It may not be ours to sweep; then it is somebody else's to do.
                await self.bench.runtime.sleep(SWEEP_AGAIN_S)

    async def _reap(self) -> None:
        bench = self.bench
        held = frozenset(self._heart.leases)
        if await reap(bench.ledger, self._liveness, bench.worker, held, bench.policy.crashes, bench.metrics):
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
        await self.bench.runtime.wait(event, seconds)
