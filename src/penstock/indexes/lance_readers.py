"""Who reads a Lance table. A reader holds a shared lock on a file in its folder; the process that removes old versions
looks whether somebody does.

A reader first takes the lock and then opens the latest version. So if the lock is free at one moment, every reader that
begins later uses the version of that moment or a later one, and older versions can be removed without waiting. A writer
holds the same lock from the version that it starts from until its commit.

And whether somebody has searched lately: a writer updates the indexes of a table more often if it is searched."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

NAME = "readers.lock"


class Readers:
    def __init__(self, table: Path) -> None:
        self._path = table / NAME

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Hold the lock. Nobody else holds it for longer than it takes to see that it was free."""
        descriptor = self._open()
        try:
            if descriptor is not None:
                # On a file system without locks, `are_gone` is never true.
                with suppress(OSError):
                    fcntl.flock(descriptor, fcntl.LOCK_SH)
            yield
        finally:
            if descriptor is not None:
                os.close(descriptor)

    def are_gone(self) -> bool:
        """Whether nobody reads at this moment, in any process. False also if that cannot be known."""
        try:
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError:
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        else:
            return True
        finally:
            os.close(descriptor)

    def _open(self) -> int | None:
        """None if there is nothing to lock: the folder does not exist, or it is read-only and no release that knows
        this file has written the table."""
        try:
            return os.open(self._path, os.O_RDONLY)
        except FileNotFoundError:
            pass
        except OSError:
            return None
        try:
            return os.open(self._path, os.O_RDONLY | os.O_CREAT, 0o644)
        except OSError:
            return None


SEARCHED_S = 60.0
"""How long a table counts as searched after a search."""
NOTED_S = 5.0
"""A process notes its searches at most so often."""


class Searches:
    """When a table was last searched, by any process: the time of an empty file in its folder."""

    def __init__(self, table: Path) -> None:
        self._path = table / "searched"
        self._noted = -NOTED_S

    def note(self, now: float) -> None:
        """Record a search. Does nothing if the folder is missing or read-only."""
        if abs(now - self._noted) < NOTED_S:
            return
        self._noted = now
        with suppress(OSError):
            os.close(os.open(self._path, os.O_WRONLY | os.O_CREAT, 0o644))
            os.utime(self._path, (now, now))

    def are_recent(self, now: float) -> bool:
        try:
            return abs(now - self._path.stat().st_mtime) < SEARCHED_S
        except OSError:
            return False
