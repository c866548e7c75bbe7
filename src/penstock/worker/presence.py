"""What a step waits on, and whether it holds its place in the room meanwhile."""

from collections.abc import Awaitable, Callable

from penstock.ledger.engine.leasing import ROOM
from penstock.worker.activity import StepActivity
from penstock.worker.slots import SlotHold


class Presence:
    def __init__(self, activity: StepActivity, clock: Callable[[], float]) -> None:
        self.stay: SlotHold | None = None
        """Its place in a room, while it has one that it may leave for a while."""
        self._activity = activity
        self._clock = clock
        self._works_elsewhere = False
        """Parser processes or a provider do the work between two batches: the place is held only while a batch is
        kept."""
        self._in_batch = False
        """A batch is being kept: the place is held until that is done."""
        self._returning = False
        """It waits for its place, whatever is done for it elsewhere meanwhile."""
        self._said: str | None = None
        """What it waits on, apart from its place."""

    def waiting(self, on: str | None) -> None:
        """A step that waits gives its place back, and requests it when the wait is over."""
        self.say(on)
        if self.stay is not None and not self._in_batch:
            if on is None:
                self.stay.ask_back()
            else:
                self.stay.step_out()

    def elsewhere(self, on: str | None) -> None:
        """A parser process or a provider works for the step, or (`on`) it waits for that: it needs no place until its
        next batch."""
        self.say(on)
        self._works_elsewhere = True
        if self.stay is not None and not self._in_batch:
            self.stay.step_out()

    def say(self, on: str | None) -> None:
        """For `status` and the timeout; the place stays as it is."""
        self._said = on
        if on != self._activity.waiting_on and not self._returning:
            self._activity.wait(on)

    async def begin_batch(self) -> float:
        """Hold the place until the batch is kept. How many seconds that took."""
        waited = await self.take_place()
        self._in_batch = True
        return waited

    def end_batch(self) -> None:
        self._in_batch = False

    async def give_way(self) -> float:
        """Between two batches: let others have the place if it is their turn, or if it is not needed now."""
        if self.stay is None:
            return 0.0
        if self._works_elsewhere or self._activity.waiting_on is not None:
            self.stay.step_out()
        elif self.stay.is_over:
            return await self._wait(self.stay.give_way)
        return 0.0

    async def take_place(self) -> float:
        """Hold the place again. How many seconds that took."""
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
