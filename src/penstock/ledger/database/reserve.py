"""Space for an embedded ledger on a full disk: a file in the home that takes up some space. `delete` and `prune` remove
it when the disk is full, so that the ledger can record what they do, and create it again when there is space."""

import os
from contextlib import suppress
from pathlib import Path

from penstock.redaction import file_mode

SIZE = 1 << 20


class Reserve:
    def __init__(self, ledger: Path) -> None:
        self._path = ledger.with_suffix(".reserve")

    def fill(self) -> None:
        """Create the file, unless it exists or there is no space for it."""
        if self._path.exists():
            return
        with suppress(OSError):
            descriptor = os.open(
                self._path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, file_mode(self._path.parent)
            )
            try:
                os.posix_fallocate(descriptor, 0, SIZE)
            except OSError:
                self.release()
            finally:
                os.close(descriptor)

    def release(self) -> bool:
        """Remove the file. Returns whether it existed."""
        try:
            self._path.unlink()
        except OSError:
            return False
        return True
