"""SIGINT and SIGTERM: the first asks the work to stop, a second SIGINT ends the process at once."""

import os
import signal
import threading
from collections.abc import Callable
from types import FrameType

WAIT_S = 2.0
HAND_OVER_S = 4.0
"""A command that works has longer to hand its steps over; killed after that, it loses what any kill loses."""


class Interrupted(BaseException):
    """A signal came while there was nothing to stop in good order."""


class Signals:
    """Handlers of the interpreter, not of the loop: a second signal counts even while the loop waits for a thread."""

    def __init__(self) -> None:
        self.received: int | None = None
        self.stop: Callable[[], object] | None = None
        self.give_up: Callable[[], object] = lambda: None
        """Says the last words when stopping takes too long."""
        self.working = False
        self._watchdog: threading.Timer | None = None

    @property
    def code(self) -> int:
        return 128 + (self.received or signal.SIGINT)

    def install(self) -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            # A shell that starts us in the background has SIGINT ignored, and means it.
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self._handle)

    def settle(self) -> None:
        """The command is at its end: later signals change nothing, and nobody waits for it any more."""
        self.stop = lambda: None
        if self._watchdog is not None:
            self._watchdog.cancel()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.received is not None:
            if number == signal.SIGINT:
                os._exit(130)
            return
        self.received = number
        if self.stop is None:
            raise Interrupted
        self._watchdog = threading.Timer(HAND_OVER_S if self.working else WAIT_S, self._too_late)
        self._watchdog.daemon = True
        self._watchdog.start()
        self.stop()

    def _too_late(self) -> None:
        self.give_up()
        os._exit(self.code)
