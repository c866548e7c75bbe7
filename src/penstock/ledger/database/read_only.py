"""A ledger that cannot be written, because it is on a read-only file system or the permissions are missing.

SQLite reads a database with a WAL only with the help of its -shm file, which it cannot create here. So a ledger without
a WAL is opened as a file that does not change. A connection is used for one read only, because a process with other
permissions may change the file between two reads. A ledger that was copied with its WAL, but without -shm, is copied
into a temporary folder, because its last commits are in the WAL."""

import os
import shutil
import sqlite3
import tempfile
from pathlib import Path
from urllib.parse import quote

from penstock.errors import StorageError


def cannot_be_written(path: Path) -> bool:
    """Whether the file exists and this process cannot change it, or cannot create files beside it."""
    return os.path.exists(path) and not (os.access(path, os.W_OK) and os.access(path.parent, os.W_OK))


class ReadOnlyFile:
    """Chooses how SQLite opens a ledger that cannot be written."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._copy: tempfile.TemporaryDirectory[str] | None = None

    def uri(self) -> str:
        if self._copy is not None:
            return _uri(Path(self._copy.name) / self._path.name, "mode=rw")
        wal = self._path.with_name(self._path.name + "-wal")
        try:
            has_wal = wal.stat().st_size > 0
        except OSError:
            has_wal = False
        live = _uri(self._path, "mode=ro")
        # A -shm file means that a process writes, even if it has just emptied the WAL.
        if (has_wal or os.path.exists(f"{self._path}-shm")) and _works(live):
            return live
        if not has_wal:
            return _uri(self._path, "mode=ro&immutable=1")
        self._copy = _copied(self._path, wal)
        return self.uri()

    def close(self) -> None:
        if self._copy is not None:
            self._copy.cleanup()
            self._copy = None


def _uri(path: Path, options: str) -> str:
    return f"file:{quote(bytes(path))}?{options}"


def _works(uri: str) -> bool:
    try:
        database = sqlite3.connect(uri, uri=True)
        try:
            database.execute("SELECT 1 FROM sqlite_schema LIMIT 1").fetchall()
        finally:
            database.close()
    except sqlite3.Error:
        return False
    return True


def _copied(path: Path, wal: Path) -> "tempfile.TemporaryDirectory[str]":
    try:
        folder = tempfile.TemporaryDirectory(prefix="penstock-")
        for file in (path, wal):
            shutil.copyfile(file, Path(folder.name) / file.name)
    except OSError as error:
        raise StorageError(
            f"the ledger {path} is read-only and was left with a -wal file. It must be copied to be read, which failed "
            f"({error.strerror}): set TMPDIR to a folder with space, or open the home once where it can be written"
        ) from error
    return folder
