"""Slots: permissions to run a stage, shared fairly. A step releases its slot while it waits for something else. Between
two batches, a step that has held its slot for QUANTUM_S lets waiting requests go first."""

import asyncio
from collections import deque
from collections.abc import Callable

from penstock.worker.fair_queue import FairQueue, FlowKey

QUICK_S = 1.0
"""A document that has used at most this many seconds comes before other documents of its owner."""
MOMENT_S = 0.001
QUANTUM_S = 0.5
"""How long a step may hold its slot while others wait."""

Turn = asyncio.Future[None]
"""A request for a slot. It is done when the slot is granted."""


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
        """Wait for a slot. If `flow` is None, the request comes before all others."""
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
        """Request a slot without waiting. A caller that no longer wants the slot calls `withdraw`."""
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
        """Withdraw a request, or release the slot if it was granted already."""
        if turn.done() and not turn.cancelled():
            self.leave()
            return
        turn.cancel()
        if flow is not None:
            self._turns.remove(flow, turn)

    def leave(self) -> None:
        """Release the slot, which goes to the next request."""
        turn = self._next()
        if turn is None:
            self._free += 1
        else:
            turn.set_result(None)

    async def stay(self, flow: FlowKey) -> "SlotHold":
        """Wait for a slot and return a hold on it. The caller calls `end`."""
        await self.enter(flow)
        return SlotHold(self, flow, self._clock)

    def used(self, flow: FlowKey, seconds: float) -> None:
        # While nothing waits, short times are not counted, because every step of every small document calls this.
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
    """The slot of one step, which the step may release and reacquire until `end`."""

    def __init__(self, room: Slots, flow: FlowKey, clock: Callable[[], float]) -> None:
        """The caller holds the slot already."""
        self._room = room
        self._flow = flow
        self._clock = clock
        self._since: float | None = clock()
        """When the slot was taken; None while it is not held."""
        self._turn: Turn | None = None
        """The request for the slot, from `request` until `reacquire` takes it. It may have been granted."""
        self._ended = False

    @property
    def is_out(self) -> bool:
        """Whether the slot is not held and the hold has not ended."""
        return self._since is None and not self._ended

    @property
    def is_over(self) -> bool:
        """Whether other requests wait and the slot was held for QUANTUM_S."""
        return self._since is not None and self._room.is_wanted and self._clock() - self._since >= QUANTUM_S

    def end(self) -> None:
        self._ended = True
        self.step_out()

    def step_out(self) -> None:
        """Release the slot, or withdraw the request for it."""
        if self._since is not None:
            self._count()
            self._room.leave()
        elif self._turn is not None:
            turn, self._turn = self._turn, None
            self._room.withdraw(self._flow, turn)

    def ask_back(self) -> None:
        """Request the slot again without waiting for it."""
        if self.is_out and self._turn is None:
            self._turn = self._room.ask(self._flow)

    async def come_back(self) -> None:
        """Wait until the slot is held again. If several tasks of one step call this, the step still gets only one
        slot."""
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
        """Release the slot to the next request and wait for another one. If the next request is that of this step, it
        keeps the slot."""
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
