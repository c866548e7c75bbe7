"""Whether a step gets on: the loop says so here, and the heart looks, from a thread of its own."""

from collections.abc import Callable

from penstock.ledger.engine.leasing import StepSignal
from penstock.model.nouns import StepId

OTHERS_S = 2.0
"""So much longer than its own worker others wait before they take a step that hangs."""


class StepActivity:
    """`timeout_s`: how long the step may work without progress; None: as long as it likes."""

    def __init__(self, clock: Callable[[], float], timeout_s: float | None) -> None:
        self.timeout_s = timeout_s
        self.waiting_on: str | None = None
        self._clock = clock
        self._moves = 0
        self._moved_at = clock()
        self._told: tuple[int, str | None] | None = None if timeout_s is not None else (0, None)
        """Moves and wait as the ledger has them."""

    @property
    def reaped_in(self) -> float | None:
        return None if self.timeout_s is None else self.timeout_s + OTHERS_S

    @property
    def overdue(self) -> bool:
        """It works, and has not got on for too long."""
        working = self.timeout_s is not None and self.waiting_on is None
        return working and self._clock() - self._moved_at > (self.timeout_s or 0.0)

    def progress(self) -> None:
        self._moves += 1
        self._moved_at = self._clock()

    def wait(self, on: str | None) -> None:
        # Before the wait ends: the heart must not see a step that works since long ago.
        self._moved_at = self._clock()
        self.waiting_on = on

    def sign(self, step: StepId, loop_lives: bool) -> tuple[StepSignal | None, tuple[int, str | None]]:
        """What there is to tell, and what to `tell` once the ledger has it. Nobody waits in a loop that hangs."""
        now = (self._moves, self.waiting_on)
        waits = self.timeout_s is not None and self.waiting_on is not None and loop_lives
        if now == self._told and not waits:
            return None, now
        moved = now[0] > (self._told[0] if self._told is not None else 0)
        return StepSignal(step, now[1], moved, self.reaped_in), now

    def tell(self, told: tuple[int, str | None]) -> None:
        self._told = told
