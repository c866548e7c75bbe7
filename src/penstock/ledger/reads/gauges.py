"""How the ledger stands, across owners: for those who watch the engine. It names no owner and no document."""

from collections.abc import Iterable

from penstock.ledger.database.connection import Connection
from penstock.ledger.database.statements import Statement
from penstock.metrics.registry import Gauge
from penstock.model.states import DocumentStatus
from penstock.model.usage import KINDS, NANO

# Each count walks the index of its status: what has ended costs nothing. Ids rise with time, and are in SQLite's index.
_WAITING = (
    "SELECT kind, count(*) AS steps, min(id) AS oldest FROM steps "
    "WHERE status = 'PENDING' AND resource_key IS {} GROUP BY kind"
)
_PENDING = Statement(
    f"SELECT w.kind, w.steps, {{now}} - s.created_at FROM ({_WAITING.format('NULL')} UNION ALL "
    f"{_WAITING.format('NOT NULL')}) AS w JOIN steps s ON s.id = w.oldest"
)
_RUNNING = Statement("SELECT kind, count(*) FROM steps WHERE status = 'RUNNING' GROUP BY kind")
_BACKED_OFF = Statement("SELECT kind, count(*) FROM steps WHERE status = 'ERROR' GROUP BY kind")
# By owner first: that is the order of the index.
_DOCUMENTS = Statement(
    "SELECT status, sum(documents) FROM (SELECT owner, status, count(*) AS documents FROM documents "
    "WHERE deleted_at IS NULL GROUP BY owner, status) AS d GROUP BY status"
)
_LETTERS = Statement("SELECT count(*) FROM dead_letters WHERE state = 'OPEN'")
_AWAY = Statement("SELECT state, count(*) FROM targets GROUP BY state")
_DELIVERIES = Statement("SELECT count(*) FROM deliveries WHERE status = 'PENDING'")
_SPENT = Statement("SELECT kind, sum(cost) FROM usage GROUP BY kind")
_WORKERS = Statement("SELECT count(*) FROM workers")


def read(connection: Connection, kinds: Iterable[str]) -> list[Gauge]:
    """It counts, so it is not to be asked often. Of these `kinds` it also tells that there is nothing."""
    nothing = dict.fromkeys(kinds, 0)
    pending = dict(nothing)
    ages = dict.fromkeys(nothing, 0.0)
    for kind, steps, age in connection.run(_PENDING):
        pending[kind] = pending.get(kind, 0) + steps
        ages[kind] = max(ages.get(kind, 0.0), round(age, 3))
    by_status = {
        "PENDING": pending,
        "RUNNING": nothing | dict(connection.run(_RUNNING)),
        "ERROR": nothing | dict(connection.run(_BACKED_OFF)),
    }
    documents = dict.fromkeys(map(str, DocumentStatus), 0) | dict(connection.run(_DOCUMENTS))
    away = {"away": 0, "limited": 0, "unauthorized": 0} | dict(connection.run(_AWAY))
    spent = dict.fromkeys(KINDS, 0) | dict(connection.run(_SPENT))
    return [
        *(
            Gauge("queue_depth", steps, {"kind": kind, "status": status})
            for status, counts in by_status.items()
            for kind, steps in counts.items()
        ),
        *(Gauge("oldest_pending_age_seconds", age, {"kind": kind}) for kind, age in ages.items()),
        *(Gauge("documents", int(count), {"status": status}) for status, count in documents.items()),
        Gauge("deliveries_waiting", connection.run(_DELIVERIES)[0][0]),
        Gauge("dead_letters_open", connection.run(_LETTERS)[0][0]),
        *(Gauge("targets_away", count, {"state": state}) for state, count in away.items()),
        Gauge("workers", connection.run(_WORKERS)[0][0]),
        *(Gauge("spent_dollars", int(cost) / NANO, {"kind": kind}) for kind, cost in spent.items()),
    ]
