"""SIGINT and SIGTERM: the first signal asks the work to stop, a second SIGINT ends the process at once."""

import os
import signal
import threading
from collections.abc import Callable
from types import FrameType

WAIT_S = 2.0
HAND_OVER_S = 4.0
"""A command that executes steps has more time to release them. After that it exits as if it was killed."""


class Interrupted(BaseException):
    """A signal arrived while there was nothing to stop gracefully."""


class Signals:
    """Signal handlers of the interpreter, not of the event loop: they also run while the loop is blocked."""

    def __init__(self) -> None:
        self.received: int | None = None
        self.stop: Callable[[], object] | None = None
        self.give_up: Callable[[], object] = lambda: None
        """Called when stopping takes too long, before the process exits."""
        self.working = False
        self.is_service = False
        """The command runs until it is told to stop, so a signal is its normal end."""
        self._watchdog: threading.Timer | None = None

    @property
    def code(self) -> int:
        return 128 + (self.received or signal.SIGINT)

    @property
    def code_of_stop(self) -> int:
        """The exit code of a command that stopped in time and without an error."""
        return 0 if self.is_service else self.code

    def install(self) -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            # A shell ignores SIGINT for background processes on purpose.
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self._handle)

    def settle(self) -> None:
        """The command has ended: ignore later signals and stop the watchdog."""
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
