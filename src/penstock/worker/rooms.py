"""Room for stages to run: so many at once, shared fairly. Who has been there for a while lets others in between two
batches."""

import asyncio
from collections import deque
from collections.abc import Callable

from penstock.worker.turns import Flow, Turns

QUICK_S = 1.0
"""A document that has had no more than this goes before others of its owner."""
MOMENT_S = 0.001
QUANTUM_S = 0.5
"""How long a step may stay before it lets others in."""


class Room:
    def __init__(self, size: int, clock: Callable[[], float]) -> None:
        self.size = size
        self._clock = clock
        self._free = size
        self._first: deque[asyncio.Future[None]] = deque()
        self._turns: Turns[asyncio.Future[None]] = Turns(QUICK_S)

    @property
    def is_full(self) -> bool:
        return self._free == 0

    async def enter(self, flow: Flow | None) -> None:
        """Wait for a place. None: before all others who wait."""
        if self._free:
            self._free -= 1
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if flow is None:
            self._first.append(turn)
        else:
            self._turns.add(flow, turn)
        await self._granted(flow, turn)

    def leave(self) -> None:
        """The place goes to whoever is next."""
        turn = self._next()
        if turn is None:
            self._free += 1
        else:
            turn.set_result(None)

    async def stay(self, flow: Flow) -> "Stay":
        """Whoever calls this ends the stay."""
        await self.enter(flow)
        return Stay(self, flow, self._clock)

    def used(self, flow: Flow, seconds: float) -> None:
        # While nobody waits, a moment is not worth counting: every step of every small document comes through here.
        if seconds >= MOMENT_S or self._turns:
            self._turns.used(flow, seconds)

    async def change_over(self, flow: Flow) -> None:
        """Let whoever is next have this place, and wait for another; if we are next ourselves, stay."""
        mine: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._turns.add(flow, mine)
        self.leave()
        await self._granted(flow, mine)

    @property
    def is_wanted(self) -> bool:
        return bool(self._first or self._turns)

    async def _granted(self, flow: Flow | None, turn: "asyncio.Future[None]") -> None:
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.leave()
            elif flow is not None:
                self._turns.remove(flow, turn)
            raise

    def _next(self) -> "asyncio.Future[None] | None":
        while self._first:
            turn = self._first.popleft()
            if not turn.done():
                return turn
        while self._turns:
            turn = self._turns.pop()
            if not turn.done():
                return turn
        return None


class Stay:
    """A place that a step holds, but for the moments in which it lets others in."""

    def __init__(self, room: Room, flow: Flow, clock: Callable[[], float]) -> None:
        self._room = room
        self._flow = flow
        self._clock = clock
        self._since: float | None = clock()

    def end(self) -> None:
        if self._since is not None:
            self._room.used(self._flow, self._clock() - self._since)
            self._since = None
            self._room.leave()

    @property
    def is_over(self) -> bool:
        """Whether others should have their turn."""
        return self._since is not None and self._room.is_wanted and self._clock() - self._since >= QUANTUM_S

    async def give_way(self) -> None:
        if self._since is None:
            return
        self._room.used(self._flow, self._clock() - self._since)
        self._since = None
        await self._room.change_over(self._flow)
        self._since = self._clock()
