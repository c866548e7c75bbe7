"""Delete: cancel, tombstone and purge rows in one transaction (I5)."""

from collections.abc import Sequence

from penstock.ledger.database.connection import Connection
from penstock.ledger.database.statements import Statement
from penstock.ledger.database.writer import Verb
from penstock.ledger.engine import dead_letters, generations
from penstock.ledger.engine.cancellations import cancel_documents
from penstock.ledger.engine.forgotten import forget
from penstock.ledger.engine.generations import GRACE_S
from penstock.ledger.engine.runs import Selected, hold
from penstock.model.nouns import DocumentId

_TOMBSTONE = Statement(
    "UPDATE documents SET deleted_at = {now}, updated_at = {now}, password = NULL "
    "WHERE {owner} AND id IN (SELECT r.document FROM {rows})",
    rows="document text",
)

_FORGET_KEYS = Statement(
    "DELETE FROM idempotency_keys WHERE owner = :owner AND document_id IN (SELECT r.document FROM {rows})",
    rows="document text",
)


def _delete(connection: Connection, requests: Sequence[Selected]) -> list[set[DocumentId]]:
    """Cancel, tombstone and purge rows in one transaction: no search that starts after this finds them (I5)."""
    answers = []
    for request in requests:
        there = hold(request.owner, connection, request.documents)
        if there:
            rows = [(document,) for document in there]
            cancel_documents(connection, request.owner, list(there))
            generations.retire(connection, list(there), GRACE_S, active=True)
            if request.forget:
                forget(request.owner, connection, list(there))
            connection.run(_TOMBSTONE, rows, owner=request.owner)
            connection.run(_FORGET_KEYS, rows, owner=request.owner)
            dead_letters.close(request.owner, connection, list(there), "DISCARDED")
        answers.append(set(there))
    return answers


DELETE = Verb("delete", _delete, counts=True)
