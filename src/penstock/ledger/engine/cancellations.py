"""Cancel documents with everything inside them, or the open runs of a group."""

from collections.abc import Sequence

import msgspec

from penstock.ledger.database.connection import Connection
from penstock.ledger.database.statements import Statement
from penstock.ledger.database.writer import Verb
from penstock.ledger.engine import children
from penstock.ledger.engine.runs import Selected, hold, stop_runs
from penstock.model.nouns import DocumentId, Owner

_CANCEL = Statement(
    "UPDATE documents SET status = 'CANCELLED', updated_at = {now} "
    "WHERE {owner} AND id IN (SELECT r.document FROM {rows})",
    rows="document text",
)


def cancel_documents(connection: Connection, owner: Owner, documents: Sequence[DocumentId]) -> set[DocumentId]:
    """Stop the open runs of documents that are held. Returns those that had one."""
    stopped = stop_runs(connection, documents)
    if stopped:
        connection.run(_CANCEL, [(document,) for document in stopped], owner=owner)
    return stopped


def _cancel(connection: Connection, requests: Sequence[Selected]) -> list[set[DocumentId]]:
    answers = []
    for request in requests:
        level = list(hold(request.owner, connection, request.documents))
        stopped: set[DocumentId] = set()
        while level:
            stopped |= cancel_documents(connection, request.owner, level)
            level = children.held(request.owner, connection, level)
        answers.append(stopped)
    return answers


class CancelGroup(msgspec.Struct, frozen=True):
    owner: Owner
    group: str
    count: int


_OPEN_OF_GROUP = Statement(
    "SELECT document_id FROM runs WHERE group_id = :group AND owner = :owner AND status = 'OPEN' LIMIT :count"
)


def _cancel_group(connection: Connection, requests: Sequence[CancelGroup]) -> list[int]:
    """Some of its open runs; 0: none is left."""
    answers = []
    for r in requests:
        rows = connection.run(_OPEN_OF_GROUP, group=r.group, owner=r.owner, count=r.count)
        chosen = Selected(r.owner, tuple(DocumentId(row[0]) for row in rows))
        answers.append(len(_cancel(connection, [chosen])[0]) if rows else 0)
    return answers


CANCEL = Verb("cancel", _cancel, counts=True)

CANCEL_GROUP = Verb("cancel_group", _cancel_group, counts=True)
