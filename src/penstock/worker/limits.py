"""Calls of providers within their limits. The slots and permits of a worker are leased from the ledger, several at
once, so that a call does not cost a transaction."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from penstock.config_providers import TargetConfig
from penstock.errors import OutOfQuota, RateLimited
from penstock.ledger.database.store import Ledger
from penstock.ledger.engine import limits
from penstock.ledger.engine.limits import Grant
from penstock.ledger.engine.pacing import Known
from penstock.metrics.base import Metrics
from penstock.model.nouns import WorkerId
from penstock.runtime import Runtime
from penstock.worker.paid import PaidWork

T = TypeVar("T")

CALLS = 8
"""Calls in flight of a target that has no setting, for all workers together."""
KNOWN_CALLS = {"azure_documents": 3}
"""The same for targets whose providers allow fewer."""
LEASE_S = 15.0
"""A worker that does not renew its slots for this long loses them."""
RENEW_S = 0.5
"""Time between two renewals while calls are made. A worker learns so that others need slots."""
SPARE_S = 0.5
"""Slots that are not used for this long are given back."""
STALE_S = 1.0
"""A permit that was not used for this long after its time is void."""
AGAIN = 5
"""How often a call that is refused is repeated here. After that its step waits for the target, as in an outage."""
PATIENCE_S = 30.0
"""If the target asks for a longer pause, the step waits for it, as in an outage."""

LIMIT = "limit"
"""What a step waits on until the limits of its provider allow the next call."""


@dataclass(eq=False)
class _Waiter:
    tokens: int
    started: "asyncio.Future[None]"


@dataclass
class _Permit:
    start: float
    tokens: int


@dataclass(eq=False)
class _Target:
    """What this worker has leased of a target. Times are those of the clock of this process."""

    name: str
    known: Known
    slots: int = 0
    in_use: int = 0
    accepted: int = 0
    early: int = 0
    """How many of the running calls were reported as accepted."""
    paced: bool = True
    """Whether calls need permits."""
    permits: deque[_Permit] = field(default_factory=deque)
    waiters: deque[_Waiter] = field(default_factory=deque)
    held_until: float = 0.0
    ask_at: float = 0.0
    """When to ask for more slots or permits."""
    valid_until: float = 0.0
    renew_at: float = 0.0
    idle_since: float | None = None
    wanted_elsewhere: bool = False
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    task: "asyncio.Task[None] | None" = None


class CallLimits:
    """The limits of all targets, for one worker."""

    def __init__(
        self,
        ledger: Ledger,
        runtime: Runtime,
        worker: WorkerId,
        metrics: Metrics,
        settings: Mapping[str, TargetConfig],
        paid: PaidWork,
        fail: Callable[[BaseException], None],
    ) -> None:
        """`fail` is called with an error of the ledger while no call waits for its answer."""
        self._ledger = ledger
        self._runtime = runtime
        self._worker = worker
        self._metrics = metrics
        self._settings = settings
        self._paid = paid
        self._fail = fail
        self._targets: dict[str, _Target] = {}
        self._stated: dict[str, tuple[float | None, float | None]] = {}

    async def call(
        self,
        target: str,
        function: Callable[[], Awaitable[T]],
        *,
        tokens: int = 0,
        paid: bool = False,
        waiting: Callable[[str | None], None] | None = None,
    ) -> T:
        """See `Calls.call`. `waiting` is called with LIMIT if the call has to wait, and with None when it begins."""
        known = self._of(target)
        refused = 0
        while True:
            await self._start(known, tokens, waiting)
            try:
                if not paid:
                    return await self._run(known, function)
                return await self._paid.finish(lambda: self._run(known, function))
            except RateLimited as error:
                refused += 1
                held_s = known.held_until - self._runtime.clock()
                if isinstance(error, OutOfQuota) or held_s > PATIENCE_S or refused >= AGAIN:
                    raise

    async def _run(self, known: _Target, function: Callable[[], Awaitable[T]]) -> T:
        """Make the call. The caller has a slot, which is free afterwards. A refusal is recorded here, because a paid
        call may be refused after its step was cancelled."""
        try:
            result = await function()
            if known.early:
                known.early -= 1
            else:
                known.accepted += 1
            return result
        except RateLimited as error:
            if not isinstance(error, OutOfQuota):
                await self._refused(known, error)
            raise
        finally:
            known.in_use -= 1
            known.changed.set()

    def accepted(self, target: str) -> None:
        known = self._of(target)
        known.accepted += 1
        known.early = min(known.early + 1, known.in_use)
        known.changed.set()

    async def stated(
        self, target: str, *, requests_per_minute: float | None = None, tokens_per_minute: float | None = None
    ) -> None:
        stated = (requests_per_minute, tokens_per_minute)
        if stated != (None, None) and self._stated.get(target) != stated:
            self._stated[target] = stated
            await self._ledger.write(limits.STATE, limits.Stated(target, *stated))

    async def close(self) -> None:
        """Stop the tasks. The slots are freed when the worker leaves."""
        tasks = [known.task for known in self._targets.values() if known.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _of(self, name: str) -> _Target:
        if name not in self._targets:
            self._targets[name] = _Target(name, known_limits(self._settings, name))
        return self._targets[name]

    async def _start(self, known: _Target, tokens: int, waiting: Callable[[str | None], None] | None) -> None:
        """Wait until a call may start. The caller then has a slot."""
        waiter = _Waiter(tokens, asyncio.get_running_loop().create_future())
        known.waiters.append(waiter)
        self._dispatch(known)
        self._give_up(known)
        if not waiter.started.done():
            if known.task is None or known.task.done():
                known.task = asyncio.create_task(self._tend(known))
            known.changed.set()
            if waiting is not None:
                waiting(LIMIT)
        try:
            await waiter.started
        except asyncio.CancelledError:
            if waiter in known.waiters:
                known.waiters.remove(waiter)
            elif not waiter.started.cancelled() and waiter.started.exception() is None:
                known.in_use -= 1
                known.changed.set()
            raise
        if waiting is not None:
            waiting(None)

    def _dispatch(self, known: _Target) -> float | None:
        """Start the calls that may start now. Return the time of the next permit, if a call waits only for that."""
        now = self._runtime.clock()
        while known.permits and known.permits[0].start < now - STALE_S:
            known.permits.popleft()
        while known.waiters and known.in_use < known.slots and now < known.valid_until and now >= known.held_until:
            if known.waiters[0].started.done():
                # Its caller was cancelled, and has not run since then.
                known.waiters.popleft()
                continue
            if known.paced:
                if not known.permits or known.permits[0].tokens < known.waiters[0].tokens:
                    return None
                if known.permits[0].start > now:
                    return known.permits[0].start
                known.permits.popleft()
            known.in_use += 1
            waiter = known.waiters.popleft()
            waiter.started.set_result(None)
        return None

    def _give_up(self, known: _Target) -> None:
        """If the target asks for a long pause, no call waits for it here: the steps wait for it, as in an outage."""
        held_s = known.held_until - self._runtime.clock()
        if held_s <= PATIENCE_S:
            return
        said = f"{known.name.partition(':')[0]} asks for a pause of {held_s:,.0f} s"
        for waiter in known.waiters:
            if not waiter.started.done():
                waiter.started.set_exception(RateLimited(said, retry_after=held_s))
        known.waiters.clear()

    async def _tend(self, known: _Target) -> None:
        """Lease and renew while calls wait or slots are held."""
        try:
            while True:
                known.changed.clear()
                next_start = self._dispatch(known)
                now = self._runtime.clock()
                known.idle_since = None if known.waiters or known.in_use else known.idle_since or now
                if self._must_ask(known, now):
                    await self._ask(known)
                    if known.slots == known.in_use == 0 and not known.waiters:
                        return
                    continue
                until = [known.renew_at, *([next_start] if next_start is not None else [])]
                if known.waiters and (known.ask_at > now):
                    until.append(known.ask_at)
                if known.idle_since is not None:
                    until.append(known.idle_since + SPARE_S)
                await self._runtime.wait(known.changed, max(0.001, min(until) - now))
        except Exception as error:
            known.slots = 0
            for waiter in known.waiters:
                if not waiter.started.done():
                    waiter.started.set_exception(error)
            known.waiters.clear()
            self._fail(error)

    def _must_ask(self, known: _Target, now: float) -> bool:
        if now >= known.renew_at:
            return True
        if not known.waiters:
            spare = known.slots > known.in_use
            idle = known.idle_since is not None and now >= known.idle_since + SPARE_S
            return spare and (idle or known.wanted_elsewhere)
        if now < max(known.ask_at, known.held_until):
            return False
        needs_slot = known.in_use >= known.slots and known.slots < known.known.calls
        needs_permit = known.paced and known.in_use < known.slots and len(known.permits) < len(known.waiters)
        usable = known.permits and known.permits[0].tokens >= known.waiters[0].tokens
        return needs_slot or (needs_permit and not usable)

    async def _ask(self, known: _Target) -> None:
        accepted, known.accepted = known.accepted, 0
        tokens = tuple(waiter.tokens for waiter in list(known.waiters)[len(known.permits) : limits.PERMITS])
        wanted = min(known.known.calls, known.in_use + len(known.waiters))
        asked_at = self._runtime.clock()
        grant = await self._ledger.write(
            limits.LEASE,
            limits.Request(known.name, self._worker, known.known, known.in_use, wanted, LEASE_S, accepted, tokens),
        )
        now = self._runtime.clock()
        known.valid_until = asked_at + LEASE_S
        known.renew_at = now + RENEW_S
        self._take(known, grant, tokens, now)

    def _take(self, known: _Target, grant: Grant, tokens: tuple[int, ...], now: float) -> None:
        known.slots, known.wanted_elsewhere = grant.slots, grant.wanted_elsewhere
        known.paced = grant.starts is not None
        if grant.held_s > 0:
            known.held_until = now + grant.held_s
            known.permits = deque(permit for permit in known.permits if permit.start >= known.held_until)
        for start, count in zip(grant.starts or (), tokens, strict=False):
            known.permits.append(_Permit(now + start, count))
        # Without a free slot or a permit, ask again later; others may need the same, so not all at the same time.
        short = known.in_use >= grant.slots or not grant.starts
        pause = 0.05 + 0.1 * self._runtime.random() if known.in_use >= grant.slots else grant.ready_s
        known.ask_at = now + pause if short and known.waiters else now
        self._give_up(known)

    async def _refused(self, known: _Target, error: RateLimited) -> None:
        """Record that the target refused a request."""
        accepted, known.accepted = known.accepted, 0
        known.permits.clear()
        known.paced = True
        refusal = limits.Refusal(known.name, known.known, self._runtime.random(), error.retry_after, accepted)
        held_s = await self._ledger.write(limits.REFUSE, refusal)
        known.permits.clear()
        known.held_until = max(known.held_until, self._runtime.clock() + held_s)
        self._give_up(known)
        self._metrics.incr("call_throttled", target=known.name.partition(":")[0])


def known_limits(settings: Mapping[str, TargetConfig], target: str) -> Known:
    """The limits of a target in the settings: under its name, or that of its provider."""
    kind = target.partition(":")[0]
    chosen = settings.get(target) or settings.get(kind) or TargetConfig()
    calls = chosen.calls or KNOWN_CALLS.get(kind, CALLS)
    return Known(calls, chosen.requests_per_minute, chosen.tokens_per_minute)


class StepCalls:
    """The calls of one step. Its `status` says when it waits for a limit."""

    def __init__(self, limits: CallLimits, waiting: Callable[[str | None], None]) -> None:
        self._limits = limits
        self._waiting = waiting

    async def call(
        self, target: str, function: Callable[[], Awaitable[T]], *, tokens: int = 0, paid: bool = False
    ) -> T:
        return await self._limits.call(target, function, tokens=tokens, paid=paid, waiting=self._waiting)

    def accepted(self, target: str) -> None:
        self._limits.accepted(target)

    async def stated(
        self, target: str, *, requests_per_minute: float | None = None, tokens_per_minute: float | None = None
    ) -> None:
        await self._limits.stated(target, requests_per_minute=requests_per_minute, tokens_per_minute=tokens_per_minute)
