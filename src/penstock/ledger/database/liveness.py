"""Which workers are alive, without relying on PIDs: a worker holds a lock that the system releases when the worker
dies. On SQLite that is an flock on a file in the home, on PostgreSQL a session advisory lock."""

import errno
import fcntl
import os
import zlib
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from penstock.errors import StorageError
from penstock.ledger.database.connection import Connection
from penstock.ledger.database.database import Database
from penstock.ledger.database.statements import Statement
from penstock.model.nouns import WorkerId
from penstock.redaction import file_mode, make_folder

_ADVISORY_CLASS = 0x50454E53
_HOLD = Statement("SELECT pg_advisory_lock(:class, :key)")
_TRY = Statement("SELECT pg_try_advisory_lock(:class, :key)")
_LET_GO = Statement("SELECT pg_advisory_unlock(:class, :key)")
_END = Statement("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid || ' ' || backend_start = :session")


class Liveness(Protocol):
    def hold(self, worker: WorkerId, connection: Connection) -> None:
        """Take the lock of this worker, for as long as the connection and the process last."""

    def dead(self, workers: Sequence[WorkerId], connection: Connection) -> list[WorkerId]:
        """The workers whose lock is free: they are dead."""

    def alive(self, workers: Sequence[WorkerId], connection: Connection) -> list[WorkerId]:
        """The others, and workers that have just started and have no row yet, where this can be found out."""

    def leave(self, worker: WorkerId) -> None: ...

    def count(self) -> int:
        """Those that live, by what they hold in the home."""

    def sweep(self, before: float, *, dry_run: bool = False) -> int:
        """Take away what the dead left behind before a time, where no row tells of them any more."""


class FileLiveness:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._held: dict[WorkerId, int] = {}

    def hold(self, worker: WorkerId, connection: Connection) -> None:
        try:
            make_folder(self._folder, self._folder)
            descriptor = os.open(self._folder / worker, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, file_mode(self._folder))
        except OSError as error:
            raise StorageError(f"{self._folder / worker} could not be written: {error.strerror}") from error
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        self._held[worker] = descriptor

    def dead(self, workers: Sequence[WorkerId], connection: Connection) -> list[WorkerId]:
        return [worker for worker in workers if worker not in self._held and self._is_dead(worker)]

    def alive(self, workers: Sequence[WorkerId], connection: Connection) -> list[WorkerId]:
        # A file comes before its row, and may be about to be locked: it is only looked at.
        files = os.listdir(self._folder) if self._folder.is_dir() else []
        names = dict.fromkeys((*workers, *map(WorkerId, sorted(files))))
        return [name for name in names if name in self._held or not self._is_dead(name, keep=True)]

    def _is_dead(self, worker: WorkerId, keep: bool = False) -> bool:
        path = self._folder / worker
        try:
            descriptor = _opened(path)
        except FileNotFoundError:
            # A row is written after its file: no file means that the worker has left, or was swept by another.
            return True
        except PermissionError:
            # Another user's, who may be alive: the lease tells.
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not keep:
                with suppress(OSError):
                    path.unlink(missing_ok=True)
            return True
        except BlockingIOError:
            return False
        finally:
            os.close(descriptor)

    def leave(self, worker: WorkerId) -> None:
        descriptor = self._held.pop(worker, None)
        if descriptor is not None:
            (self._folder / worker).unlink(missing_ok=True)
            os.close(descriptor)

    def count(self) -> int:
        """How many workers are alive."""
        try:
            names = [WorkerId(entry.name) for entry in os.scandir(self._folder)]
        except FileNotFoundError:
            return 0
        return sum(name in self._held or not self._is_dead(name, keep=True) for name in names)

    def sweep(self, before: float, *, dry_run: bool = False) -> int:
        """Only old ones: a young file may be about to be locked by who has just made it."""
        try:
            old = [entry.name for entry in os.scandir(self._folder) if entry.stat().st_mtime < before]
        except FileNotFoundError:
            return 0
        unheld = [WorkerId(name) for name in old if name not in self._held]
        return sum(self._is_dead(name, keep=dry_run) for name in unheld)


class AdvisoryLiveness:
    def __init__(self) -> None:
        self._held: dict[WorkerId, str] = {}
        """By whom, and in which session."""

    def hold(self, worker: WorkerId, connection: Connection) -> None:
        if worker in self._held:
            # Where only we noticed that the connection was lost, the server keeps its lock, perhaps for hours.
            connection.run(_END, session=self._held[worker])
        self._held[worker] = connection.session
        connection.run(_HOLD, **{"class": _ADVISORY_CLASS, "key": _key(worker)})

    def dead(self, workers: Sequence[WorkerId], connection: Connection) -> list[WorkerId]:
        gone = []
        for worker in workers:
            if worker in self._held:
                continue
            key = {"class": _ADVISORY_CLASS, "key": _key(worker)}
            if connection.run(_TRY, **key)[0][0]:
                connection.run(_LET_GO, **key)
                gone.append(worker)
        return gone

    def alive(self, workers: Sequence[WorkerId], connection: Connection) -> list[WorkerId]:
        dead = set(self.dead(workers, connection))
        return [worker for worker in workers if worker not in dead]

    def leave(self, worker: WorkerId) -> None:
        self._held.pop(worker, None)

    def count(self) -> int:
        """Rows show which workers may be alive, not locks."""
        return 0

    def sweep(self, before: float, *, dry_run: bool = False) -> int:
        """The server has let go of their locks."""
        return 0


def _opened(path: Path) -> int:
    """A lock needs no right to write, but a folder on the network may want it."""
    try:
        return os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        if error.errno != errno.EROFS:
            raise
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)


def _key(worker: WorkerId) -> int:
    return zlib.crc32(worker.encode()) & 0x7FFFFFFF


def of(database: Database) -> Liveness:
    return AdvisoryLiveness() if database.dialect == "postgres" else FileLiveness(database.path.parent / "workers")
