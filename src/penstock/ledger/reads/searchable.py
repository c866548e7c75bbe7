"""The searchable documents of a collection, with the artifacts that they were made of."""

from collections.abc import Sequence

import msgspec

from penstock.ledger.database.connection import Connection
from penstock.ledger.database.statements import Statement
from penstock.ledger.engine.steps import SETTINGS
from penstock.model.nouns import DocumentId, GenerationId, Owner


class Searchable(msgspec.Struct, frozen=True):
    id: DocumentId
    source: str
    name: str
    metadata: str
    media_type: str | None
    generation: GenerationId
    raw_key: str
    size: int
    sha256: str
    chunks: int
    settings: str | None
    """The settings of the run that made it; None if the run was pruned."""
    dropped: int
    """1 if its artifacts were dropped, else 0."""


class MadeArtifact(msgspec.Struct, frozen=True):
    """A complete artifact, as a row that another ledger can hold."""

    id: int
    fingerprint: str
    kind: str
    cursor: str
    items: int
    segments: int
    meta: str


class MadeSegment(msgspec.Struct, frozen=True):
    artifact: int
    ordinal: int
    key: str
    sha256: str
    size: int
    items: int
    first: int
    cursor: str


_SEARCHABLE = Statement(
    "SELECT d.id, d.source, d.name, d.metadata, d.media_type, g.id, g.raw_key, g.size, g.sha256, g.chunks, "
    f"{SETTINGS}, "
    "CASE WHEN g.artifacts_dropped_at IS NULL THEN 0 ELSE 1 END "
    "FROM documents d JOIN generations g ON g.document_id = d.id AND g.state = 'ACTIVE' AND g.chunks > 0 "
    "LEFT JOIN runs x ON x.generation_id = g.id "
    "WHERE d.owner = :owner AND d.collection = :collection AND d.deleted_at IS NULL AND d.id > :after "
    "ORDER BY d.id LIMIT :count"
)
# The artifact of an index step stands for rows in the index of this ledger: it is of no use elsewhere.
_ARTIFACTS = Statement(
    "SELECT DISTINCT a.id, a.fingerprint, a.kind, a.cursor, a.items, a.segments, a.meta FROM {rows} "
    "JOIN artifact_refs f ON f.generation_id = r.generation JOIN artifacts a ON a.id = f.artifact_id "
    "WHERE a.owner = :owner AND a.state = 'COMPLETE' AND a.kind <> 'index'",
    rows="generation bigint",
)
_SEGMENTS = Statement(
    "SELECT s.artifact_id, s.ordinal, s.key, s.sha256, s.size, s.items, s.first, s.cursor FROM {rows} "
    "JOIN artifacts a ON a.id = r.artifact AND a.owner = :owner JOIN segments s ON s.artifact_id = a.id",
    rows="artifact bigint",
)


def searchable(owner: Owner, connection: Connection, collection: str, after: str, count: int) -> list[Searchable]:
    """A page of the searchable documents of a collection, in the order of their ids."""
    rows = connection.run(_SEARCHABLE, owner=owner, collection=collection, after=after, count=count)
    return [Searchable(*row) for row in rows]


def made(
    owner: Owner, connection: Connection, generations: Sequence[GenerationId]
) -> tuple[list[MadeArtifact], list[MadeSegment]]:
    """The complete artifacts of these generations, except those of index steps."""
    rows = connection.run(_ARTIFACTS, [(generation,) for generation in generations], owner=owner)
    artifacts = [MadeArtifact(*row) for row in rows]
    segments = connection.run(_SEGMENTS, [(artifact.id,) for artifact in artifacts], owner=owner) if artifacts else []
    return artifacts, [MadeSegment(*row) for row in segments]
