"""What has changed of an owner's documents: the rows of the change feed, in the order of their last change."""

import json
from collections.abc import Sequence

import msgspec

from penstock.ledger.database.connection import Connection
from penstock.ledger.database.statements import Statement
from penstock.model.nouns import DocumentId, Owner


class Position(msgspec.Struct, frozen=True, order=True):
    """A place in the feed of an owner: the time and the document of a change."""

    at: float
    document: str = ""


class ChangedDocument(msgspec.Struct, frozen=True):
    """A document as it is after its last change."""

    id: DocumentId
    collection: str
    name: str
    source: str
    status: str
    error: str | None
    retry_count: int
    batch: str | None
    changed_at: float
    deleted: bool
    searchable: bool
    stale: bool
    pages: int | None
    chunks: int | None
    group: str | None
    """The group of its newest run."""

    @property
    def position(self) -> Position:
        return Position(self.changed_at, self.id)


_CHANGED = Statement(
    "SELECT d.id, d.collection, d.name, d.source, d.status, d.error, d.retry_count, d.batch, d.updated_at, "
    "d.deleted_at IS NOT NULL, g.id IS NOT NULL AND coalesce(g.chunks, 0) > 0, coalesce(g.sha256 <> d.sha256, false), "
    "g.pages, g.chunks, (SELECT x.group_id FROM runs x WHERE x.document_id = d.id "
    "ORDER BY x.generation_id DESC LIMIT 1) FROM documents d "
    "LEFT JOIN generations g ON g.document_id = d.id AND g.state = 'ACTIVE' AND d.deleted_at IS NULL "
    "WHERE d.owner = :owner AND (d.updated_at, d.id {bytes}) > (:at, :document) "
    "ORDER BY d.updated_at, d.id {bytes} LIMIT :count"
)


def changed(owner: Owner, connection: Connection, after: Position, count: int) -> list[ChangedDocument]:
    """The next documents whose last change comes after a position, deleted ones too."""
    rows = connection.run(_CHANGED, owner=owner, at=after.at, document=after.document, count=count)
    return [ChangedDocument(*row[:9], *map(bool, row[9:12]), *row[12:]) for row in rows]


class Present(msgspec.Struct, frozen=True):
    """The present end of the feed."""

    at: float
    """By the clock of the database."""
    history: int
    """How often the ledger was put back to an earlier state: positions of another history mean nothing."""


_CLOCK = Statement("SELECT {now}, (SELECT count(*) FROM histories)")
_OLDEST = Statement(
    "SELECT extract(epoch FROM min(xact_start))::double precision FROM pg_stat_activity "
    "WHERE backend_xid IS NOT NULL AND datname = current_database()"
)


def present(connection: Connection) -> Present:
    [(at, history)] = connection.run(_CLOCK)
    return Present(float(at), int(history))


def oldest_writer(connection: Connection) -> float | None:
    """When the oldest transaction began that may still commit changes. None: there is none, or the database commits in
    the order of its clock."""
    if connection.dialect == "sqlite":
        return None
    found = connection.run(_OLDEST)[0][0]
    return None if found is None else float(found)


class Made(msgspec.Struct, frozen=True):
    """How far a running document is."""

    document: DocumentId
    collection: str
    group: str | None
    status: str
    step: str
    kind: str
    waiting_on: str | None
    pages: int = 0
    total_pages: int | None = None
    chunks: int = 0
    total_chunks: int | None = None
    embedded: int = 0


_RUNNING = Statement(
    "SELECT s.document_id, d.collection, x.group_id, d.status, s.name, s.kind, s.waiting_on, a.kind, a.items, "
    "a.state = 'COMPLETE', CASE WHEN a.kind = 'extract' AND a.state <> 'COMPLETE' THEN a.cursor END "
    "FROM steps s JOIN documents d ON d.id = s.document_id AND d.deleted_at IS NULL JOIN runs x ON x.id = s.run_id "
    "LEFT JOIN artifact_refs f ON f.generation_id = s.generation_id LEFT JOIN artifacts a ON a.id = f.artifact_id "
    "WHERE s.status = 'RUNNING' AND {s.owner} ORDER BY s.document_id, s.id"
)


def running(owner: Owner, connection: Connection) -> list[Made]:
    """The progress of the documents that workers hold. There are few of them, however many documents there are."""
    found: dict[DocumentId, dict[str, object]] = {}
    for row in connection.run(_RUNNING, owner=owner):
        one = found.setdefault(
            DocumentId(row[0]),
            dict(
                zip(("document", "collection", "group", "status", "step", "kind", "waiting_on"), row[:7], strict=True)
            ),
        )
        one.update(_counted(row[7:]))
    return [msgspec.convert(one, Made) for one in found.values()]


def _counted(row: Sequence[object]) -> dict[str, object]:
    kind, items, complete, cursor = row
    if kind == "extract":
        of = json.loads(str(cursor)).get("of") if cursor is not None else None
        return {"pages": items, "total_pages": items if complete else of}
    if kind == "chunk":
        return {"chunks": items, "total_chunks": items if complete else None}
    return {"embedded": items} if kind == "embed" else {}
