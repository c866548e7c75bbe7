"""Who works here. A row is a name to look up; whether its worker lives is told by the lock it holds (liveness)."""

from collections.abc import Sequence

import msgspec

from penstock.ledger.database import Connection, Statement
from penstock.ledger.writer import Verb
from penstock.model.nouns import WorkerId


class Worker(msgspec.Struct, frozen=True):
    id: WorkerId
    host: str
    pid: int


_REGISTER = Statement(
    "INSERT INTO workers (id, host, pid, started_at, seen_at) VALUES (:id, :host, :pid, {now}, {now})"
)
_ALL = Statement("SELECT id, host, pid FROM workers")


def _register(connection: Connection, workers: Sequence[Worker]) -> list[None]:
    for worker in workers:
        connection.run(_REGISTER, id=worker.id, host=worker.host, pid=worker.pid)
    return [None for _ in workers]


def everyone(connection: Connection) -> list[Worker]:
    return [Worker(WorkerId(row[0]), row[1], row[2]) for row in connection.run(_ALL)]


REGISTER = Verb("register", _register)
