"""The highest generation that was ever written to an index, stored in a file at its root. It reveals a ledger that was
set back, without loading the index or reading its rows."""

import fcntl
import os
from pathlib import Path

from penstock.redaction import file_mode, make_folder

_NAME = "highest"
_WIDTH = 20


def read(root: Path) -> int:
    """The highest generation; 0 if the file does not exist or cannot be read."""
    try:
        return int((root / _NAME).read_bytes()[:_WIDTH])
    except (OSError, ValueError):
        return 0


class HighestGeneration:
    """Updates the file. Several processes may do so at the same time."""

    def __init__(self, root: Path) -> None:
        self._path = root / _NAME
        self._known = 0

    def reach(self, generation: int) -> None:
        """Record a generation. Call this before its rows are committed."""
        if generation <= self._known:
            return
        make_folder(self._path.parent, self._path.parent)
        descriptor = os.open(self._path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, file_mode(self._path.parent))
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            try:
                there = int(os.pread(descriptor, _WIDTH, 0))
            except ValueError:
                there = 0
            self._known = max(there, generation)
            if self._known > there:
                os.pwrite(descriptor, b"%0*d\n" % (_WIDTH, self._known), 0)
        finally:
            os.close(descriptor)
