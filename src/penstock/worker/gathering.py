"""Calls that serve several steps. Each step adds its items and receives the results for them."""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from penstock.errors import Away, CostSpent, Transient
from penstock.net.providers import ProvidersOf
from penstock.runtime import Runtime
from penstock.stages.base import Gather, Limits, Ports

WAIT_S = 0.005
"""How long items wait for items of other steps if a call could be made immediately."""
LOOK_S = 0.05
"""How often it is checked whether items of other steps may still come."""
ENOUGH = 256
"""A call with this many items waits for no more."""


@dataclass(eq=False)
class Part:
    """The items of one step."""

    items: Sequence[Any]
    size: int
    answer: "asyncio.Future[Any]"
    begins: Callable[[], None]
    came: float


class Gatherer:
    """Makes one call for the items of many steps. A call is made when it is full, or when no more items will come soon,
    or when its first items have waited for `gather_s`; but never more than `calls` at a time. Under load, calls are
    therefore full."""

    def __init__(
        self,
        gather: Gather,
        limits: Limits,
        ports: Ports,
        runtime: Runtime,
        calls: int,
        providers: ProvidersOf,
        gather_s: float = 0.0,
        more_within: Callable[[], float] = lambda: 0.0,
    ) -> None:
        """`more_within`: for how many seconds after the last items other steps of the worker may still add some."""
        self._gather_s = max(gather_s, WAIT_S)
        self._more_within = more_within
        self._gather = gather
        self._providers = providers
        self._limits = limits
        self._ports = ports
        self._runtime = runtime
        self._most = calls
        self._waiting: deque[Part] = deque()
        self._quiet_s = 0.0
        """For how long none has arrived. Checks are counted, not the clock: while the process gets no CPU time, others
        cannot arrive either."""
        self._calls: dict[asyncio.Task[None], list[Part]] = {}
        self._timer: asyncio.Task[None] | None = None

    async def add(self, items: Sequence[Any], begins: Callable[[], None]) -> Any:
        """Return the result for these items, which are never split between two calls. `begins` is called when the call
        is made."""
        size = sum(map(self._gather.size, items))
        answer = asyncio.get_running_loop().create_future()
        part = Part(items, size, answer, begins, self._runtime.clock())
        self._waiting.append(part)
        self._quiet_s = 0.0
        self._make_calls()
        try:
            return await answer
        except asyncio.CancelledError:
            self._give_up(part)
            raise

    def _give_up(self, part: Part) -> None:
        """Cancel a call if no step waits for its result any more: it may cost money."""
        part.answer.cancel()
        with suppress(ValueError):
            self._waiting.remove(part)
        for task, parts in self._calls.items():
            if part in parts and all(one.answer.done() for one in parts):
                task.cancel()

    def _make_calls(self) -> None:
        while self._waiting and len(self._calls) < self._most:
            count = self._fitting()
            waited = self._runtime.clock() - self._waiting[0].came
            patience = self._gather_s if self._quiet_s < self._more_within() else WAIT_S
            if count == len(self._waiting) and not self._is_full(count) and waited < patience:
                if self._timer is None:
                    self._timer = asyncio.create_task(self._wait(min(LOOK_S, patience - waited)))
                return
            parts = [self._waiting.popleft() for _ in range(count)]
            for part in parts:
                part.begins()
            task = asyncio.create_task(self._call(parts))
            self._calls[task] = parts
            task.add_done_callback(self._ended)

    async def _wait(self, seconds: float) -> None:
        await self._runtime.sleep(seconds)
        self._timer = None
        self._quiet_s += seconds
        self._make_calls()

    def _ended(self, task: "asyncio.Task[None]") -> None:
        for part in self._calls.pop(task):
            part.answer.cancel()
        self._make_calls()

    def _fitting(self) -> int:
        """How many of the waiting parts fit into one call. The first one always does."""
        items = size = count = 0
        for part in self._waiting:
            items, size = items + len(part.items), size + part.size
            if count and (items > self._limits.items or size > (self._limits.size or size)):
                break
            count += 1
        return count

    def _is_full(self, count: int) -> bool:
        return sum(len(self._waiting[i].items) for i in range(count)) >= min(ENOUGH, self._limits.items)

    async def _call(self, parts: Sequence[Part]) -> None:
        """Make the call. If it fails, repeat it for each half, so that only the steps whose items are the cause fail.
        If the target is away or the money is spent, all parts fail."""
        parts = [part for part in parts if not part.answer.done()]
        if not parts:
            return
        items = [item for part in parts for item in part.items]
        try:
            answer = await self._gather.call(self._ports, self._runtime, self._providers, items)
            if len(answer) != len(items):
                raise Transient(f"{len(items)} items were sent, but {len(answer)} were returned", reason="bad_answer")
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            if len(parts) > 1 and not isinstance(error, Away | CostSpent):
                await self._call(parts[: len(parts) // 2])
                await self._call(parts[len(parts) // 2 :])
                return
            for part in parts:
                if not part.answer.done():
                    part.answer.set_exception(error)
            return
        start = 0
        for part in parts:
            end = start + len(part.items)
            if not part.answer.done():
                part.answer.set_result(answer[start:end])
            start = end


class Gatherers:
    """The gatherers of a worker, one for each `Gather`."""

    def __init__(self, ports: Ports, runtime: Runtime, calls: int, providers: ProvidersOf, gather_s: float) -> None:
        self.providers = providers
        self._ports = ports
        self._runtime = runtime
        self._calls = calls
        self._gather_s = gather_s
        self.more_within: Callable[[], float] = lambda: 0.0
        """For how many seconds after the last items other steps may still add some."""
        self._made: dict[Gather, Gatherer | None] = {}

    def of(self, gather: Gather) -> Gatherer | None:
        """Return the gatherer, or None if each step makes its own calls."""
        if gather not in self._made:
            limits = gather.limits(self._ports)
            made = None
            if limits is not None:
                made = Gatherer(
                    gather,
                    limits,
                    self._ports,
                    self._runtime,
                    self._calls,
                    self.providers,
                    self._gather_s,
                    lambda: self.more_within(),
                )
            self._made[gather] = made
        return self._made[gather]
