"""Whether a step makes progress. The event loop records it here; the heartbeat reads it from its own thread."""

from collections.abc import Callable

from penstock.ledger.engine.leasing import StepSignal
from penstock.model.nouns import StepId

OTHERS_S = 2.0
"""How many seconds longer than the step's own worker other workers wait before they reap a step that hangs."""


class StepActivity:
    """The activity of one step. `timeout_s` is how long the step may work without progress; None means no limit."""

    def __init__(self, clock: Callable[[], float], timeout_s: float | None) -> None:
        self.timeout_s = timeout_s
        self.waiting_on: str | None = None
        self._clock = clock
        self._moves = 0
        self._moved_at = clock()
        self._told: tuple[int, str | None] | None = None if timeout_s is not None else (0, None)
        """The number of moves and the wait that the ledger has recorded."""

    @property
    def reaped_in(self) -> float | None:
        return None if self.timeout_s is None else self.timeout_s + OTHERS_S

    @property
    def overdue(self) -> bool:
        """Whether the step is working and has made no progress for longer than its timeout."""
        working = self.timeout_s is not None and self.waiting_on is None
        return working and self._clock() - self._moved_at > (self.timeout_s or 0.0)

    def progress(self) -> None:
        self._moves += 1
        self._moved_at = self._clock()

    def wait(self, on: str | None) -> None:
        # Set the time first: otherwise the heartbeat could see a step that has worked since before the wait.
        self._moved_at = self._clock()
        self.waiting_on = on

    def sign(self, step: StepId, loop_lives: bool) -> tuple[StepSignal | None, tuple[int, str | None]]:
        """Return the signal to send (None: nothing new) and the value to pass to `recorded` once the ledger has stored
        it. A step with a timeout that waits sends a signal with every heartbeat, unless the event loop hangs."""
        now = (self._moves, self.waiting_on)
        waits = self.timeout_s is not None and self.waiting_on is not None and loop_lives
        if now == self._told and not waits:
            return None, now
        moved = now[0] > (self._told[0] if self._told is not None else 0)
        return StepSignal(step, now[1], moved, self.reaped_in), now

    def recorded(self, told: tuple[int, str | None]) -> None:
        self._told = told
