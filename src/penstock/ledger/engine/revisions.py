"""The revisions that sources reported for the bytes of documents.

A revision is stored after the submit, in a transaction of its own, and only if the document still has the bytes that
were read at this revision. If it is missing, the next ingest reads the bytes again and compares their hash. So a lost
write costs time, and never a change."""

from collections.abc import Sequence

import msgspec

from penstock.ledger.database.connection import Connection
from penstock.ledger.database.statements import Statement
from penstock.ledger.database.writer import Verb
from penstock.model.nouns import DocumentId, Owner


class KnownRevision(msgspec.Struct, frozen=True):
    document: DocumentId
    revision: str
    """Empty if none is stored."""


class NewRevision(msgspec.Struct, frozen=True):
    document: DocumentId
    sha256: str
    """The hash of the bytes that were read at this revision."""
    revision: str


class Revised(msgspec.Struct, frozen=True):
    owner: Owner
    revisions: tuple[NewRevision, ...]


_OF = Statement(
    "SELECT d.source, d.id, coalesce(d.revision, '') FROM {rows} JOIN {documents d: d.source = r.source AND {d.owner} "
    "AND d.collection = :collection AND d.deleted_at IS NULL}",
    rows="source text",
    plan_anew=True,
)
_REVISE = Statement(
    "UPDATE documents SET revision = r.revision FROM {rows} WHERE {documents.id = r.document} "
    "AND documents.sha256 = r.hash AND {documents.owner} AND documents.deleted_at IS NULL",
    rows="document text, hash text, revision text",
)


def of(owner: Owner, connection: Connection, collection: str, sources: Sequence[str]) -> dict[str, KnownRevision]:
    """The documents with these source URIs, and their revisions."""
    rows = connection.run(_OF, [(source,) for source in sources], owner=owner, collection=collection)
    return {row[0]: KnownRevision(DocumentId(row[1]), row[2]) for row in rows}


def _revise(connection: Connection, orders: Sequence[Revised]) -> list[None]:
    for order in orders:
        rows = sorted((one.document, one.sha256, one.revision) for one in order.revisions)
        connection.run(_REVISE, rows, owner=order.owner)
    return [None] * len(orders)


REVISE = Verb("revise", _revise)
