"""Waiting for a database that is away. All connections of a process share one outage: it begins with the first call
that gets no answer, it is said once, and it ends with the next call that gets one."""

import logging
import threading
from collections.abc import Callable
from typing import Literal, TypeVar

from penstock.errors import LedgerAway
from penstock.runtime import Runtime

T = TypeVar("T")
Use = Literal["read", "write"]
"""A server that was demoted answers those who read, and nobody else: an outage of one ends by itself."""

PAUSE_S = 0.25
SAY_AFTER_S = 1.0
"""A connection that was cut is made anew without a word."""
HURRY_S = 1.0
"""Who was told to stop waits no longer than this."""

logger = logging.getLogger("penstock.ledger")


class OutageWait:
    def __init__(self, runtime: Runtime) -> None:
        self.limit_s: float | None = 0.0
        """How long an outage may last before a call fails; None: for ever."""
        self.say: Callable[[str], None] = logger.warning
        self.lost_at: float | None = None
        """When a connection was last lost, or could not be made, by the clock."""
        self._runtime = runtime
        self._lock = threading.Lock()
        self._since: dict[Use, float] = {}
        self._said = False
        self._over = threading.Event()

    def call(self, function: Callable[[], T]) -> T:
        """What a function answers that reads; where the database is away, it is called again."""
        while True:
            try:
                answer = function()
            except LedgerAway as error:
                self.wait(error, "read")
            else:
                self.answered("read")
                return answer

    def wait(self, error: LedgerAway, use: Use) -> None:
        """A moment, after which it is worth another try. Raises the error where the time to wait is over."""
        now = self.lost()
        with self._lock:
            lasted = now - self._since.setdefault(use, now)
            if self._over.is_set() or (self.limit_s is not None and lasted >= self.limit_s):
                raise error
            say = not self._said and lasted >= SAY_AFTER_S
            self._said = self._said or say
        if say:
            full_stop = "" if str(error).endswith((".", "?")) else "."
            self.say(f"{error}{full_stop} Waiting for it; what is done is kept.")
        self._over.wait(PAUSE_S)

    def lost(self) -> float:
        """A connection is gone; that alone is no outage. The time."""
        self.lost_at = self._runtime.clock()
        return self.lost_at

    def answered(self, use: Use) -> None:
        """Called often: while the database is there, this is one look into an empty table. Who may write may read."""
        if not self._since or (use == "read" and "read" not in self._since):
            return
        with self._lock:
            if use == "write":
                self._since.clear()
            self._since.pop(use, None)
            back = self._said and not self._since
            self._said = self._said and not back
        if back:
            self.say("The database is back.")

    def hurry(self) -> None:
        """We were told to stop: a hand-over is worth a moment, no more."""
        self.limit_s = HURRY_S if self.limit_s is None else min(self.limit_s, HURRY_S)

    def give_up(self) -> None:
        """Nobody waits any more, and whoever does now is woken."""
        self._over.set()
