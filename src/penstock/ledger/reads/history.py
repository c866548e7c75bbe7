"""What ended when, and what waits longest."""

from collections.abc import Sequence
from itertools import pairwise

import msgspec

from penstock.ledger.database.connection import Connection
from penstock.ledger.database.statements import Statement
from penstock.model.nouns import DocumentId, Owner
from penstock.model.states import ENDS

_STATUSES = ", ".join(f"'{status}'" for status in ENDS)
# A document that has ended changes only with its metadata.
_ENDED = Statement(
    "SELECT status, count(*) FROM documents WHERE owner = :owner AND updated_at >= :since AND updated_at < :until "
    f"AND status IN ({_STATUSES}) AND deleted_at IS NULL GROUP BY status"
)
_OLDEST = Statement(
    "SELECT id, name, created_at FROM documents WHERE owner = :owner AND status = 'PENDING' AND deleted_at IS NULL "
    "ORDER BY id LIMIT 1"
)


class Waiting(msgspec.Struct, frozen=True):
    id: DocumentId
    name: str
    created_at: float


def ended(owner: Owner, connection: Connection, edges: Sequence[float]) -> dict[int, dict[str, int]]:
    """The documents that ended between one edge and the next, by status, for the numbers of the intervals in which any
    did."""
    found = {}
    for i, (since, until) in enumerate(pairwise(edges)):
        if rows := connection.run(_ENDED, owner=owner, since=since, until=until):
            found[i] = {row[0]: row[1] for row in rows}
    return found


def oldest_waiting(owner: Owner, connection: Connection) -> Waiting | None:
    """The document that no step has begun for the longest time."""
    rows = connection.run(_OLDEST, owner=owner)
    return Waiting(*rows[0]) if rows else None
