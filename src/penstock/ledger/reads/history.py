"""What waits longest, and the versions of a document."""

import msgspec

from penstock.ledger.database.connection import Connection
from penstock.ledger.database.statements import Statement
from penstock.model.nouns import DocumentId, Owner

_OLDEST = Statement(
    "SELECT id, name, created_at FROM documents WHERE owner = :owner AND status = 'PENDING' AND deleted_at IS NULL "
    "ORDER BY id LIMIT 1"
)
_VERSIONS = Statement(
    "SELECT g.id, g.state, x.status, g.size, g.sha256, g.raw_key, g.pages, g.chunks, g.created_at, g.flipped_at "
    "FROM generations g JOIN documents d ON d.id = g.document_id AND d.deleted_at IS NULL "
    "LEFT JOIN runs x ON x.document_id = g.document_id AND x.generation_id = g.id "
    "WHERE g.owner = :owner AND g.document_id = :id ORDER BY g.id DESC LIMIT :count"
)


class Version(msgspec.Struct, frozen=True):
    """A version of a document: bytes that were submitted, or the same bytes with other settings."""

    id: int
    state: str
    run: str | None
    size: int
    sha256: str
    raw_key: str
    pages: int | None
    chunks: int | None
    created_at: float
    searchable_since: float | None


class Waiting(msgspec.Struct, frozen=True):
    id: DocumentId
    name: str
    created_at: float


def oldest_waiting(owner: Owner, connection: Connection) -> Waiting | None:
    """The document that no step has begun for the longest time."""
    rows = connection.run(_OLDEST, owner=owner)
    return Waiting(*rows[0]) if rows else None


def versions(owner: Owner, connection: Connection, document: str, count: int) -> list[Version]:
    """The newest versions of a document, the newest first."""
    return [Version(*row) for row in connection.run(_VERSIONS, owner=owner, id=document, count=count)]
