"""Documents by what belongs to them: the document that contains them, a batch, a group, the time of their last change,
or the reason of their dead letter."""

from penstock.ledger.database.connection import Connection
from penstock.ledger.database.statements import Statement
from penstock.ledger.engine.documents import OF_OWNER, Counted, Examined, listed_row, page_of
from penstock.model.nouns import Owner

_NEWEST = "ORDER BY d.id DESC LIMIT :count"
_RELATED = {
    "parent": "AND d.parent_id = :value ",
    "batch": "AND d.batch = :value ",
    "group": "AND d.id IN (SELECT x.document_id FROM runs x WHERE x.group_id = :value) ",
    "updated_since": "AND d.updated_at >= :value ",
}
"""What belongs to a document, and has an index."""
_LISTS = {
    (kind, goes_on): Statement(OF_OWNER + words + "AND d.id < :before " * goes_on + _NEWEST)
    for kind, words in _RELATED.items()
    for goes_on in (False, True)
}
# The status has an index: a document with an open dead letter is FAILED.
_FAILED = (
    "AND d.status = 'FAILED' AND EXISTS (SELECT 1 FROM dead_letters l WHERE l.document_id = d.id "
    "AND l.state = 'OPEN' AND l.event_id IS NULL AND l.reason = :reason) "
)
_OF_REASON = {
    goes_on: Statement(OF_OWNER + _FAILED + "AND d.id < :before " * goes_on + _NEWEST) for goes_on in (False, True)
}
_COUNT = Statement(
    "SELECT count(*) FROM (SELECT 1 FROM documents d WHERE d.owner = :owner AND d.deleted_at IS NULL "
    f"{_FAILED} LIMIT :most) AS found"
)


def inside(owner: Owner, connection: Connection, parent: str, *, before: str, count: int) -> Examined:
    """The documents directly inside another one, newest first."""
    return _listed(owner, connection, "parent", parent, before, count)


def of_batch(owner: Owner, connection: Connection, batch: str, *, before: str, count: int) -> Examined:
    return _listed(owner, connection, "batch", batch, before, count)


def of_group(owner: Owner, connection: Connection, group: str, *, before: str, count: int) -> Examined:
    """The documents with a run of a group, newest first."""
    return _listed(owner, connection, "group", group, before, count)


def updated_since(owner: Owner, connection: Connection, since: float, *, before: str, count: int) -> Examined:
    return _listed(owner, connection, "updated_since", since, before, count)


def _listed(owner: Owner, connection: Connection, kind: str, value: str | float, before: str, count: int) -> Examined:
    given = {"before": before} if before else {}
    rows = connection.run(_LISTS[kind, bool(before)], owner=owner, value=value, count=count, **given)
    return page_of([listed_row(row) for row in rows], count)


def failed_for(owner: Owner, connection: Connection, reason: str, *, before: str, count: int) -> Examined:
    """The documents that failed for this reason, newest first."""
    given = {"before": before} if before else {}
    rows = connection.run(_OF_REASON[bool(before)], owner=owner, reason=reason, count=count, **given)
    return page_of([listed_row(row) for row in rows], count)


def count_failed_for(owner: Owner, connection: Connection, reason: str, most: int) -> Counted:
    """Count the documents that failed for this reason, but no more than `most`."""
    found: int = connection.run(_COUNT, owner=owner, reason=reason, most=most + 1)[0][0]
    return Counted(min(found, most), found <= most)
