"""What a step waits on, and whether it holds its slot during the wait."""

from collections.abc import Awaitable, Callable

from penstock.ledger.engine.leasing import ROOM
from penstock.worker.activity import StepActivity
from penstock.worker.slots import SlotHold


class Presence:
    def __init__(self, activity: StepActivity, clock: Callable[[], float]) -> None:
        self.stay: SlotHold | None = None
        """The slot of the step, if it may release it for a while; else None."""
        self._activity = activity
        self._clock = clock
        self._works_elsewhere = False
        """Parser processes or a provider do the work between two batches. The slot is held only while a batch is
        stored."""
        self._in_batch = False
        """A batch is being stored. The slot is held until that is done."""
        self._returning = False
        """The step waits for its slot, whatever else is done for it meanwhile."""
        self._said: str | None = None
        """What the step waits on, apart from its slot."""

    def waiting(self, on: str | None) -> None:
        """Report what the step waits on. A waiting step releases its slot, and requests it when the wait is over
        (None)."""
        self.say(on)
        if self.stay is not None and not self._in_batch:
            if on is None:
                self.stay.ask_back()
            else:
                self.stay.step_out()

    def elsewhere(self, on: str | None) -> None:
        """Report that a parser process or a provider works for the step, or (`on`) that the step waits for one. It
        needs no slot until its next batch."""
        self.say(on)
        self._works_elsewhere = True
        if self.stay is not None and not self._in_batch:
            self.stay.step_out()

    def say(self, on: str | None) -> None:
        """Report what the step waits on, for `status` and the timeout, without a change of the slot."""
        self._said = on
        if on != self._activity.waiting_on and not self._returning:
            self._activity.wait(on)

    async def begin_batch(self) -> float:
        """Hold the slot until `end_batch`. Return how many seconds the step waited for it."""
        waited = await self.take_place()
        self._in_batch = True
        return waited

    def end_batch(self) -> None:
        self._in_batch = False

    async def give_way(self) -> float:
        """Between two batches: release the slot if it is not needed now, or let waiting requests have it first if the
        step has held it for long. Return how many seconds the step waited."""
        if self.stay is None:
            return 0.0
        if self._works_elsewhere or self._activity.waiting_on is not None:
            self.stay.step_out()
        elif self.stay.is_over:
            return await self._wait(self.stay.give_way)
        return 0.0

    async def take_place(self) -> float:
        """Hold the slot again. Return how many seconds the step waited for it."""
        if self.stay is not None and self.stay.is_out:
            return await self._wait(self.stay.come_back)
        return 0.0

    async def _wait(self, place: Callable[[], Awaitable[None]]) -> float:
        began = self._clock()
        self._returning = True
        self._activity.wait(ROOM)
        try:
            await place()
        finally:
            self._returning = False
            self._activity.wait(self._said)
        return self._clock() - began
