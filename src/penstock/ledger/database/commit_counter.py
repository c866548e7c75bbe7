"""A file beside an embedded ledger with the number of its last counted commit. A ledger whose own number is lower is an
older copy, or was copied without its WAL."""

import os
from contextlib import suppress
from pathlib import Path

from penstock.redaction import file_mode

_WIDTH = 20


class CommitCounter:
    def __init__(self, ledger: Path) -> None:
        self.path = ledger.with_suffix(".mark")
        self._file: int | None = None

    def read(self) -> int:
        """0 if there is none, or none that can be read."""
        try:
            return int(self.path.read_bytes()[:_WIDTH])
        except (OSError, ValueError):
            return 0

    def write(self, position: int) -> None:
        """Call this after the commit. The file need not survive a power cut, nor hold the highest number of several
        processes: a number that is too low raises no alarm. An error of the disk is ignored."""
        with suppress(OSError):
            if self._file is None:
                self._file = os.open(self.path, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, file_mode(self.path.parent))
            os.pwrite(self._file, b"%0*d\n" % (_WIDTH, position), 0)

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None
