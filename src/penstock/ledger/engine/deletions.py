"""Delete: cancel, tombstone and purge rows in one transaction, for documents and everything inside them (I5)."""

from collections.abc import Sequence

import msgspec

from penstock.ledger.database.connection import Connection
from penstock.ledger.database.statements import Statement
from penstock.ledger.database.writer import Verb
from penstock.ledger.engine import children, dead_letters, generations
from penstock.ledger.engine.cancellations import cancel_documents
from penstock.ledger.engine.children import Parent
from penstock.ledger.engine.forgotten import forget
from penstock.ledger.engine.generations import GRACE_S
from penstock.ledger.engine.runs import Selected, hold
from penstock.model.nouns import DocumentId, Owner

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
        there = list(hold(request.owner, connection, request.documents))
        if there and request.forget:
            forget(request.owner, connection, there)
        answers.append(delete_trees(request.owner, connection, there))
    return answers


def delete_trees(owner: Owner, connection: Connection, level: list[DocumentId]) -> set[DocumentId]:
    """Delete documents that are held, and everything inside them. The children are looked up after the leases of their
    parents are gone: from then on no others are added."""
    gone: set[DocumentId] = set()
    while level:
        rows = [(document,) for document in level]
        cancel_documents(connection, owner, level)
        generations.retire(connection, level, GRACE_S, active=True)
        connection.run(_TOMBSTONE, rows, owner=owner)
        connection.run(_FORGET_KEYS, rows, owner=owner)
        dead_letters.close(owner, connection, level, "DISCARDED")
        gone.update(level)
        level = children.held(owner, connection, level)
    return gone


class Sweep(msgspec.Struct, frozen=True):
    """Delete children that the newest generation of their parent does not contain."""

    owner: Owner
    parent: Parent
    count: int


def _sweep(connection: Connection, requests: Sequence[Sweep]) -> list[int | None]:
    """The number of children that were deleted; None: the lease of the step is lost."""
    answers: list[int | None] = []
    for r in requests:
        if not children.hold_lease(r.owner, connection, r.parent):
            answers.append(None)
            continue
        gone = children.gone(r.owner, connection, r.parent, r.count)
        delete_trees(r.owner, connection, list(hold(r.owner, connection, gone)) if gone else [])
        answers.append(len(gone))
    return answers


DELETE = Verb("delete", _delete, counts=True)

SWEEP = Verb("sweep", _sweep, counts=True)
