"""The workers table. A row holds the name of a worker; whether the worker is alive is known by its lock
(liveness.py)."""

from collections.abc import Sequence

import msgspec

from penstock.ledger.database.connection import Connection
from penstock.ledger.database.statements import Statement
from penstock.ledger.database.writer import Verb
from penstock.model.nouns import WorkerId


class Worker(msgspec.Struct, frozen=True):
    id: WorkerId
    host: str
    pid: int


_REGISTER = Statement(
    "INSERT INTO workers (id, host, pid, started_at, seen_at) VALUES (:id, :host, :pid, {now}, {now})"
)
MIGRATING = Statement("SELECT pg_advisory_xact_lock(7236748365901)")
"""On PostgreSQL one process migrates at a time, and no worker starts meanwhile. SQLite has one writer anyway."""
_NOT_MIGRATING = Statement("SELECT pg_advisory_xact_lock_shared(7236748365901)")
_KNOWN = Statement("SELECT 1 FROM workers WHERE id = :id")
_ALL = Statement("SELECT id, host, pid FROM workers")
_BUSY = Statement(
    "SELECT w.id, w.host, w.pid, w.started_at, (SELECT count(*) FROM steps s WHERE s.status = 'RUNNING' "
    "AND s.worker_id = w.id) FROM workers w ORDER BY w.started_at, w.id"
)


class Busy(msgspec.Struct, frozen=True):
    id: WorkerId
    host: str
    pid: int
    started_at: float
    steps: int
    """Steps that it holds, of all owners."""


def _register(connection: Connection, workers: Sequence[Worker]) -> list[None]:
    if connection.dialect == "postgres":
        connection.run(_NOT_MIGRATING)
    for worker in workers:
        connection.run(_REGISTER, id=worker.id, host=worker.host, pid=worker.pid)
    return [None for _ in workers]


def is_known(connection: Connection, worker: WorkerId) -> bool:
    return bool(connection.run(_KNOWN, id=worker))


def everyone(connection: Connection) -> list[Worker]:
    return [Worker(WorkerId(row[0]), row[1], row[2]) for row in connection.run(_ALL)]


def busy(connection: Connection) -> list[Busy]:
    """The same with what they do, the oldest first."""
    return [Busy(*row) for row in connection.run(_BUSY)]


REGISTER = Verb("register", _register)
