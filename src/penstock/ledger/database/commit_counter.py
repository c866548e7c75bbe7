"""A file beside an embedded ledger with the position of its last counted commit. A ledger that is behind its mark is an
older copy, or was copied without its WAL."""

import os
from contextlib import suppress
from pathlib import Path

from penstock.privacy import file_mode

_WIDTH = 20


class CommitCounter:
    def __init__(self, ledger: Path) -> None:
        self.path = ledger.with_suffix(".mark")
        self._file: int | None = None

    def read(self) -> int:
        """0 where there is none, or none that can be read: only what it says for certain counts."""
        try:
            return int(self.path.read_bytes()[:_WIDTH])
        except (OSError, ValueError):
            return 0

    def write(self, position: int) -> None:
        """Always after the commit. It need not survive a power cut, nor be the highest of several processes': an older
        mark raises no alarm. A disk that takes no mark is no reason to fail either."""
        with suppress(OSError):
            if self._file is None:
                self._file = os.open(self.path, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, file_mode(self.path.parent))
            os.pwrite(self._file, b"%0*d\n" % (_WIDTH, position), 0)

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None
