"""Space for an embedded ledger on a full disk: a file in the home that takes up some space. `delete` and `prune` remove
it when the disk is full, so that the ledger can record what they do, and create it again when there is space."""

import os
from contextlib import suppress
from pathlib import Path

from penstock.redaction import file_mode

SIZE = 1 << 20
LENT = 1 << 16
"""So much is given to a process that opens the ledger: SQLite makes a file of 32 KB beside it."""


class Reserve:
    def __init__(self, ledger: Path) -> None:
        self._path = ledger.with_suffix(".reserve")

    def fill(self) -> None:
        """Create the file, or what is missing of it, if there is space."""
        with suppress(OSError):
            if self._path.exists() and self._path.stat().st_size >= SIZE:
                return
            descriptor = os.open(self._path, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, file_mode(self._path.parent))
            before = os.fstat(descriptor).st_size
            try:
                os.posix_fallocate(descriptor, 0, SIZE)
            except OSError:
                # A failed call may have taken up some space.
                os.ftruncate(descriptor, before)
                if not before:
                    self.release()
            finally:
                os.close(descriptor)

    def lend(self) -> bool:
        """Make the file smaller, so that a ledger on a full disk can be opened. Returns whether there was enough."""
        try:
            left = self._path.stat().st_size - LENT
            if left >= 0:
                os.truncate(self._path, left)
        except OSError:
            return False
        return left >= 0

    def release(self) -> bool:
        """Remove the file. Returns whether it existed."""
        try:
            self._path.unlink()
        except OSError:
            return False
        return True
