"""Room for stages to run: a fixed number of places, shared fairly. A step gives its place back while it waits for
something else, and lets others in between two batches once it has held the place for a while."""

import asyncio
from collections import deque
from collections.abc import Callable

from penstock.worker.fair_queue import FairQueue, FlowKey

QUICK_S = 1.0
"""A document that has used no more than this goes before others of its owner."""
MOMENT_S = 0.001
QUANTUM_S = 0.5
"""How long a step may hold its place before it lets others in."""

Turn = asyncio.Future[None]
"""A request for a place; done once the place is granted."""


class Slots:
    def __init__(self, size: int, clock: Callable[[], float]) -> None:
        self.size = size
        self._clock = clock
        self._free = size
        self._first: deque[Turn] = deque()
        self._turns: FairQueue[Turn] = FairQueue(QUICK_S)

    @property
    def is_full(self) -> bool:
        return self._free == 0

    async def enter(self, flow: FlowKey | None) -> None:
        """Wait for a place. None: before all other requests."""
        if self._free:
            self._free -= 1
            return
        turn = self.ask(flow)
        try:
            await turn
        except asyncio.CancelledError:
            self.withdraw(flow, turn)
            raise

    def ask(self, flow: FlowKey | None) -> Turn:
        """Request a place. Whoever gives up waiting for the answer withdraws the request."""
        turn: Turn = asyncio.get_running_loop().create_future()
        if self._free:
            self._free -= 1
            turn.set_result(None)
        elif flow is None:
            self._first.append(turn)
        else:
            self._turns.add(flow, turn)
        return turn

    def withdraw(self, flow: FlowKey | None, turn: Turn) -> None:
        """Give up a request, or the place if it was granted already."""
        if turn.done() and not turn.cancelled():
            self.leave()
            return
        turn.cancel()
        if flow is not None:
            self._turns.remove(flow, turn)

    def leave(self) -> None:
        """Pass the place on to the next request."""
        turn = self._next()
        if turn is None:
            self._free += 1
        else:
            turn.set_result(None)

    async def stay(self, flow: FlowKey) -> "SlotHold":
        """The caller ends the stay."""
        await self.enter(flow)
        return SlotHold(self, flow, self._clock)

    def used(self, flow: FlowKey, seconds: float) -> None:
        # While nobody waits, a moment is not worth counting: every step of every small document comes through here.
        if seconds >= MOMENT_S or self._turns:
            self._turns.used(flow, seconds)

    @property
    def is_wanted(self) -> bool:
        return bool(self._first or self._turns)

    def _next(self) -> Turn | None:
        while self._first:
            turn = self._first.popleft()
            if not turn.done():
                return turn
        while self._turns:
            turn = self._turns.pop()
            if not turn.done():
                return turn
        return None


class SlotHold:
    """The place of one step, which it does not hold while it waits or lets others in."""

    def __init__(self, room: Slots, flow: FlowKey, clock: Callable[[], float]) -> None:
        """The place is held already."""
        self._room = room
        self._flow = flow
        self._clock = clock
        self._since: float | None = clock()
        """When the place was taken; None while it is not held."""
        self._turn: Turn | None = None
        """The request for the place, from `ask_back` to `come_back`. It may have been granted."""
        self._ended = False

    @property
    def is_out(self) -> bool:
        """Whether `come_back` has anything to do."""
        return self._since is None and not self._ended

    @property
    def is_over(self) -> bool:
        """Whether others should have their turn."""
        return self._since is not None and self._room.is_wanted and self._clock() - self._since >= QUANTUM_S

    def end(self) -> None:
        self._ended = True
        self.step_out()

    def step_out(self) -> None:
        """Give the place back, or withdraw the request for it."""
        if self._since is not None:
            self._count()
            self._room.leave()
        elif self._turn is not None:
            turn, self._turn = self._turn, None
            self._room.withdraw(self._flow, turn)

    def ask_back(self) -> None:
        """Request the place again without waiting for it."""
        if self.is_out and self._turn is None:
            self._turn = self._room.ask(self._flow)

    async def come_back(self) -> None:
        """Hold the place again. Several tasks of one step may ask for it: it has one place all the same."""
        while self.is_out:
            self.ask_back()
            turn = self._turn
            assert turn is not None
            if not turn.done():
                try:
                    await asyncio.wait([turn])
                except asyncio.CancelledError:
                    self.step_out()
                    raise
            if self._turn is turn:
                self._turn = None
                self._since = self._clock()

    async def give_way(self) -> None:
        """Let the next request have this place, and wait for another; if this step is next itself, it stays."""
        if self._since is None:
            return
        self._count()
        self.ask_back()
        self._room.leave()
        await self.come_back()

    def _count(self) -> None:
        assert self._since is not None
        self._room.used(self._flow, self._clock() - self._since)
        self._since = None
