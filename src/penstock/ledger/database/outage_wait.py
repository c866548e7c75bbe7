"""Waits for a database that is not available. All connections of a process share one outage: it begins with the first
call that fails, is reported once, and ends with the next call that succeeds."""

import logging
import threading
from collections.abc import Callable
from typing import Literal, TypeVar

from penstock.errors import LedgerAway
from penstock.runtime import Runtime

T = TypeVar("T")
Use = Literal["read", "write"]
"""A server that was demoted still answers reads. So reads and writes have separate outages."""

PAUSE_S = 0.25
SAY_AFTER_S = 1.0
"""A shorter outage, such as one lost connection, is not reported."""
HURRY_S = 1.0
"""The limit once the process was told to stop."""

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
        """Call a function that reads, again and again while the database is not available."""
        while True:
            try:
                answer = function()
            except LedgerAway as error:
                self.wait(error, "read")
            else:
                self.answered("read")
                return answer

    def wait(self, error: LedgerAway, use: Use) -> None:
        """Wait a moment before the next try. Raises the error once the limit is reached."""
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
        """Note that a connection was lost, which alone is not an outage. Returns the time."""
        self.lost_at = self._runtime.clock()
        return self.lost_at

    def answered(self, use: Use) -> None:
        """Note that a call succeeded. Called often, so it returns at once if there is no outage. A successful write
        ends the outage of reads too."""
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
        """The process was told to stop: wait only briefly from now on."""
        self.limit_s = HURRY_S if self.limit_s is None else min(self.limit_s, HURRY_S)

    def give_up(self) -> None:
        """Stop waiting: every call that waits now, or later, raises its error."""
        self._over.set()
