"""How long the queue is, across owners, without counting all of it."""

from penstock.ledger.database.connection import Connection
from penstock.ledger.database.statements import Statement

_PENDING = Statement(
    "SELECT count(*) FROM (SELECT 1 FROM steps WHERE status = 'PENDING' AND resource_key IS NULL LIMIT :most) AS q"
)
_KEYED = Statement(
    "SELECT count(*) FROM (SELECT 1 FROM steps WHERE status = 'PENDING' AND resource_key IS NOT NULL LIMIT :most) AS q"
)


def pending(connection: Connection, most: int) -> int:
    """The number of steps that wait for a worker, counted up to about `most`."""
    found: int = connection.run(_PENDING, most=most)[0][0]
    if found < most:
        found += connection.run(_KEYED, most=most - found)[0][0]
    return found
