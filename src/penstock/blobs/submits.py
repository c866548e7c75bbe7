"""Submits in progress. Each has a file that its process holds a lock on. Blobs that no row names yet are kept as long
as the process that stored them runs, even if the clock is changed."""

import fcntl
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from penstock.errors import StorageError
from penstock.redaction import file_mode


class OpenSubmits:
    def __init__(self, folder: Path, make: Callable[[Path], None]) -> None:
        """`make` creates a folder durably. This matters because the parent folders also contain blobs."""
        self._folder = folder
        self._make = make

    async def check(self) -> None:
        """The mark ends with the process, or when it is removed."""

    @asynccontextmanager
    async def hold(self, since: str) -> "AsyncIterator[OpenSubmits]":
        path = self._folder / since
        try:
            descriptor = self._hold(path)
        except OSError as error:
            raise StorageError(f"{path} could not be written: {error.strerror or error}") from error
        try:
            yield self
        finally:
            path.unlink(missing_ok=True)
            os.close(descriptor)

    def _hold(self, path: Path) -> int:
        """Create and lock the file. Another process may lock it first, take it for that of a dead process and remove
        it; then this is repeated."""
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
        """The first name of a submit in progress; None if there is none. Removes files of dead processes."""
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
            # The file belongs to another user; its process may be running.
            return True
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink(missing_ok=True)
            return False
        except BlockingIOError:
            return True
        finally:
            os.close(descriptor)
