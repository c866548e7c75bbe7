"""Submits that are under way, by files that their processes hold locks on. Whatever the clock does meanwhile: bytes
that no row names yet are left alone as long as the process lives that stored them."""

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from penstock.errors import StorageError
from penstock.redaction import file_mode


class OpenSubmits:
    def __init__(self, folder: Path, make: Callable[[Path], None]) -> None:
        """`make` makes a folder that survives a power cut: those above it hold more than our files."""
        self._folder = folder
        self._make = make

    @contextmanager
    def hold(self, since: str) -> Iterator[None]:
        path = self._folder / since
        try:
            descriptor = self._hold(path)
        except OSError as error:
            raise StorageError(f"{path} could not be written: {error.strerror or error}") from error
        try:
            yield
        finally:
            path.unlink(missing_ok=True)
            os.close(descriptor)

    def _hold(self, path: Path) -> int:
        """Somebody who looks may take the lock before us, and the file for that of a dead process."""
        while True:
            try:
                descriptor = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, file_mode(self._folder))
            except FileNotFoundError:
                self._make(self._folder)
                continue
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            if os.fstat(descriptor).st_nlink:
                return descriptor
            os.close(descriptor)

    def oldest(self) -> str | None:
        """Of those that live; what the dead left is taken away."""
        try:
            names = sorted(os.listdir(self._folder))
        except FileNotFoundError:
            return None
        return next((name for name in names if self._lives(self._folder / name)), None)

    def _lives(self, path: Path) -> bool:
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        except PermissionError:
            # Another user's, who may be alive.
            return True
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink(missing_ok=True)
            return False
        except BlockingIOError:
            return True
        finally:
            os.close(descriptor)
