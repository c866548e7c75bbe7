"""What a step waits on, and whether it holds its slot during the wait."""

from collections.abc import Awaitable, Callable

from penstock.ledger.engine.leasing import SLOT
from penstock.worker.activity import StepActivity
from penstock.worker.slots import SlotHold


class Presence:
    __slots__ = ("_activity", "_clock", "_delegates", "_in_batch", "_reacquiring", "_reported", "hold")

    def __init__(self, activity: StepActivity, clock: Callable[[], float]) -> None:
        self.hold: SlotHold | None = None
        """The slot of the step, if it may release it for a while; else None."""
        self._activity = activity
        self._clock = clock
        self._delegates = False
        """Parser processes or a provider do the work between two batches. The slot is held only while a batch is
        stored."""
        self._in_batch = False
        """A batch is being stored. The slot is held until that is done."""
        self._reacquiring = False
        """The step waits for its slot, whatever else is done for it meanwhile."""
        self._reported: str | None = None
        """What the step waits on, apart from its slot."""

    def waiting(self, on: str | None) -> None:
        """Report what the step waits on. A waiting step releases its slot, and requests it when the wait is over
        (None)."""
        self.report_wait(on)
        if self.hold is not None and not self._in_batch:
            if on is None:
                self.hold.request()
            else:
                self.hold.release()

    def delegate(self, on: str | None) -> None:
        """Report that a parser process or a provider works for the step, or (`on`) that the step waits for one. It
        needs no slot until its next batch."""
        self.report_wait(on)
        self._delegates = True
        if self.hold is not None and not self._in_batch:
            self.hold.release()

    def report_wait(self, on: str | None) -> None:
        """Report what the step waits on, for `status` and the timeout, without a change of the slot."""
        self._reported = on
        if on != self._activity.waiting_on and not self._reacquiring:
            self._activity.wait(on)

    async def begin_batch(self) -> float:
        """Hold the slot until `end_batch`. Return how many seconds the step waited for it."""
        waited = await self.reacquire_slot()
        self._in_batch = True
        return waited

    def end_batch(self) -> None:
        self._in_batch = False

    async def yield_slot(self) -> float:
        """Between two batches: release the slot if it is not needed now, or let waiting requests have it first if the
        step has held it for long. Return how many seconds the step waited."""
        if self.hold is None:
            return 0.0
        if self._delegates or self._activity.waiting_on is not None:
            self.hold.release()
        elif self.hold.should_yield:
            return await self._wait(self.hold.yield_slot)
        return 0.0

    async def reacquire_slot(self) -> float:
        """Hold the slot again. Return how many seconds the step waited for it."""
        if self.hold is not None and self.hold.is_released:
            return await self._wait(self.hold.reacquire)
        return 0.0

    async def _wait(self, acquire: Callable[[], Awaitable[None]]) -> float:
        began = self._clock()
        self._reacquiring = True
        self._activity.wait(SLOT)
        try:
            await acquire()
        finally:
            self._reacquiring = False
            self._activity.wait(self._reported)
        return self._clock() - began
