"""Disks that fail: errors and short writes at what blobs, ledger and index write, drawn by a seed."""

import errno
import os
import random
import sqlite3
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from penstock.blobs import local
from penstock.indexes import lance_files
from penstock.indexes.lance_writer import LanceWriter
from penstock.ledger.database.sqlite import SqliteConnection

ERRORS = (errno.ENOSPC, errno.EIO, errno.EROFS, errno.EDQUOT)


class Faults:
    """While `on`, one write in so many fails. `seen` counts where."""

    def __init__(self, seed: int, one_in: int) -> None:
        self.on = False
        self.seen: Counter[str] = Counter()
        self._random = random.Random(seed)
        self._one_in = one_in

    def strikes(self, place: str) -> bool:
        if not self.on or self._random.randrange(self._one_in):
            return False
        self.seen[place] += 1
        return True

    def error(self) -> OSError:
        code = self._random.choice(ERRORS)
        return OSError(code, os.strerror(code))

    def half(self, size: int) -> int:
        return self._random.randint(1, size)

    def later(self) -> bool:
        """Whether it fails after it was done: nobody can know."""
        return self._random.random() < 0.5


class _Os:
    """The module `os`, as blobs see it."""

    def __init__(self, faults: Faults) -> None:
        self._faults = faults

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def open(self, path: Any, flags: int, *more: Any, **options: Any) -> int:
        if flags & os.O_CREAT and self._faults.strikes("blob open"):
            raise self._faults.error()
        return os.open(path, flags, *more, **options)

    def write(self, descriptor: int, data: Any) -> int:
        if self._faults.strikes("blob write"):
            raise self._faults.error()
        if len(data) > 1 and self._faults.strikes("blob short write"):
            return os.write(descriptor, bytes(data)[: self._faults.half(len(data))])
        return os.write(descriptor, data)

    def fsync(self, descriptor: int) -> None:
        if self._faults.strikes("blob fsync"):
            raise self._faults.error()
        os.fsync(descriptor)

    def rename(self, source: Any, target: Any) -> None:
        if self._faults.strikes("blob rename"):
            raise self._faults.error()
        os.rename(source, target)


class _Database:
    """A connection of SQLite to a disk that fails."""

    def __init__(self, database: sqlite3.Connection, faults: Faults) -> None:
        self._database = database
        self._faults = faults

    def __getattr__(self, name: str) -> Any:
        return getattr(self._database, name)

    def execute(self, text: str, *values: Any) -> Any:
        writes = text.startswith(("INSERT", "UPDATE", "DELETE", "COMMIT", "BEGIN IMMEDIATE", "WITH"))
        if writes and self._faults.strikes(f"ledger {text.split()[0]}"):
            full = self._faults.later()
            error = sqlite3.OperationalError("database or disk is full" if full else "disk I/O error")
            error.sqlite_errorcode = sqlite3.SQLITE_FULL if full else sqlite3.SQLITE_IOERR
            raise error
        return self._database.execute(text, *values)


def harm_blobs(faults: Faults, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "os", _Os(faults))


def harm_ledger(faults: Faults, monkeypatch: pytest.MonkeyPatch) -> None:
    connect = SqliteConnection.__init__

    def harmed(self: SqliteConnection, *arguments: Any) -> None:
        connect(self, *arguments)
        self._db = _Database(self._db, faults)  # type: ignore[assignment]

    monkeypatch.setattr(SqliteConnection, "__init__", harmed)


def harm_index(faults: Faults, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("stage_create", "commit_create", "stage_append", "stage_merge", "commit", "update"):
        monkeypatch.setattr(LanceWriter, name, _failing(getattr(LanceWriter, name), f"index {name}", faults))
    monkeypatch.setattr(lance_files, "sync", _failing(lance_files.sync, "index sync", faults))


def _failing(function: Callable[..., Any], place: str, faults: Faults) -> Callable[..., Any]:
    def failing(*arguments: Any, **options: Any) -> Any:
        if not faults.strikes(place):
            return function(*arguments, **options)
        if faults.later():
            function(*arguments, **options)
        raise faults.error()

    return failing


HARM = {"blobs": harm_blobs, "ledger": harm_ledger, "index": harm_index}
