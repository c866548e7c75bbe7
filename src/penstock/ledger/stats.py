"""Counts for people: what `status` shows."""

from typing import Any

from penstock.ledger.database import Connection, Statement
from penstock.model.nouns import Owner

_DOCUMENTS = Statement(
    "SELECT status, count(*) FROM documents WHERE owner = :owner AND deleted_at IS NULL GROUP BY status ORDER BY status"
)
_STEPS = Statement(
    "SELECT status, count(*) FROM steps WHERE owner = :owner AND status <> 'COMPLETED' GROUP BY status ORDER BY status"
)
_STEPS_DONE = Statement("SELECT count(*) FROM steps WHERE owner = :owner AND status = 'COMPLETED'")
_RUNNING = Statement(
    "SELECT kind, waiting_on, count(*) FROM steps WHERE owner = :owner AND status = 'RUNNING' "
    "GROUP BY kind, waiting_on ORDER BY kind, waiting_on"
)
_LETTERS = Statement("SELECT count(*) FROM dead_letters WHERE owner = :owner AND state = 'OPEN'")


def documents(owner: Owner, connection: Connection) -> dict[str, int]:
    return {row[0]: row[1] for row in connection.run(_DOCUMENTS, owner=owner)}


def steps(owner: Owner, connection: Connection) -> dict[str, int]:
    counts = {row[0]: row[1] for row in connection.run(_STEPS, owner=owner)}
    done = connection.run(_STEPS_DONE, owner=owner)[0][0]
    return {**counts, "COMPLETED": done} if done else counts


def running(owner: Owner, connection: Connection) -> list[dict[str, Any]]:
    rows = connection.run(_RUNNING, owner=owner)
    return [{"kind": kind, "waiting_on": waiting_on, "steps": count} for kind, waiting_on, count in rows]


def dead_letters(owner: Owner, connection: Connection) -> int:
    count: int = connection.run(_LETTERS, owner=owner)[0][0]
    return count
