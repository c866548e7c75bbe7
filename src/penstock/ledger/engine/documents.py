"""Documents as their owner sees them."""

import json
from collections.abc import Sequence
from typing import Any

import msgspec

from penstock.ledger.database.connection import Connection, Row
from penstock.ledger.database.statements import Statement
from penstock.ledger.engine import generations
from penstock.ledger.engine.steps import SETTINGS
from penstock.model.metadata import merged
from penstock.model.nouns import Document, DocumentId, Generation, GenerationId, Owner, StepView
from penstock.model.states import DocumentStatus, StepStatus

_COLUMNS = (
    "SELECT d.id, d.owner, d.collection, d.source, d.name, d.media_type, d.size, d.sha256, "
    "coalesce(g.submitted, d.metadata), d.status, d.retry_count, d.error, g.pages, g.chunks, "
    "d.created_at, d.updated_at, g.id IS NOT NULL, "
    "coalesce(g.sha256 <> d.sha256, false), g.artifacts_dropped_at, g.found, d.parent_id FROM documents d "
    "LEFT JOIN generations g ON g.document_id = d.id AND g.state = 'ACTIVE' "
)
OF_OWNER = _COLUMNS + "WHERE d.owner = :owner AND d.deleted_at IS NULL "
_GET = Statement(OF_OWNER + "AND d.id = :id")
# By whether a status, a collection and a place to continue from are given: each has an index to walk, so that a reader
# of the few that failed, or of a small collection, does not walk past all others.
_CHOICES = [(a, b, c) for a in (False, True) for b in (False, True) for c in (False, True)]


def _chosen(of_status: bool, in_collection: bool, goes_on: bool) -> str:
    return (
        "AND d.status = :status " * of_status
        + "AND d.collection = :collection " * in_collection
        + "AND d.id < :before " * goes_on
    )


_LISTS = {choice: Statement(OF_OWNER + _chosen(*choice) + "ORDER BY d.id DESC LIMIT :count") for choice in _CHOICES}
# A filter is looked for in the metadata of the next :count documents, which begin after :least.
_LAST = {
    choice: Statement(
        "SELECT count(*), min(id) FROM (SELECT d.id FROM documents d WHERE d.owner = :owner AND d.deleted_at IS NULL "
        + _chosen(*choice)
        + "ORDER BY d.id DESC LIMIT :count) AS examined"
    )
    for choice in _CHOICES
}
# The documents are chosen before the others are joined: PostgreSQL would read all generations.
_EXAMINED = {
    choice: _COLUMNS.replace(
        "FROM documents d ",
        "FROM (SELECT * FROM documents d WHERE d.owner = :owner AND d.deleted_at IS NULL "
        + _chosen(*choice)
        + "AND d.id >= :least ORDER BY d.id DESC LIMIT :count) AS d ",
    )
    for choice in _CHOICES
}
_CONTAINING = {
    choice: Statement(_EXAMINED[choice] + f"WHERE {generations.CONTAINS} ORDER BY d.id DESC", rows="part text")
    for choice in _CHOICES
}
_NAMED = {
    choice: Statement(_EXAMINED[choice] + "WHERE {instr}(d.name, :part) > 0 ORDER BY d.id DESC") for choice in _CHOICES
}
_COUNTS = {
    choice: Statement(
        "SELECT count(*) FROM (SELECT 1 FROM documents d WHERE d.owner = :owner AND d.deleted_at IS NULL "
        + _chosen(*choice)
        + "ORDER BY d.id DESC LIMIT :count) AS examined"
    )
    for choice in _CHOICES
}
# A document with a status in a collection: the rows of one of the two indexes are walked, and no more than :count.
_BOTH = {
    (by, goes_on): Statement(
        f"SELECT count(*), coalesce(sum(CASE WHEN {other} = :other THEN 1 ELSE 0 END), 0) FROM "
        f"(SELECT {other} FROM documents d WHERE d.owner = :owner AND d.deleted_at IS NULL AND d.{by} = :value "
        + "AND d.id < :before " * goes_on
        + "ORDER BY d.id DESC LIMIT :count) AS examined"
    )
    for by, other in (("status", "collection"), ("collection", "status"))
    for goes_on in (False, True)
}
_STATES = Statement(
    "SELECT d.id, d.status FROM {rows} JOIN documents d ON d.id = r.document WHERE {d.owner}",
    rows="document text",
)
_KNOWN = Statement(
    "SELECT d.id, d.deleted_at IS NULL FROM {rows} JOIN documents d ON d.id = r.document WHERE {d.owner}",
    rows="document text",
)
_UNDER = Statement(
    "SELECT id, source FROM documents WHERE {owner} AND collection = :collection AND deleted_at IS NULL "
    "AND parent_id IS NULL AND source {bytes} >= :low AND source {bytes} < :high ORDER BY source {bytes}"
)
# By the index that begins with the source.
_SOURCED = {
    in_collection: Statement(
        _COLUMNS
        + "WHERE {d.owner} AND d.deleted_at IS NULL "
        + "AND d.collection = :collection " * in_collection
        + "AND d.source {bytes} >= :low "
        "AND d.source {bytes} < :high AND (d.source {bytes} > :after OR (d.source {bytes} = :after "
        "AND d.id {bytes} > :last)) ORDER BY d.source {bytes}, d.id {bytes} LIMIT :count"
    )
    for in_collection in (False, True)
}
_CANDIDATE = "SELECT id, status, source FROM documents WHERE owner = :owner AND deleted_at IS NULL "
_PREFIX = Statement(_CANDIDATE + "AND id {bytes} >= :low AND id {bytes} < :high ORDER BY id LIMIT :count")
_SUFFIX = Statement(_CANDIDATE + "AND substr(id, length(id) - length(:suffix) + 1) = :suffix ORDER BY id LIMIT :count")
_SOURCES = Statement(
    "SELECT d.id, d.status, d.source FROM {rows} JOIN documents d ON d.source = r.source AND {d.owner} "
    "AND d.deleted_at IS NULL ORDER BY d.id",
    rows="source text",
)
_NAME = Statement(_CANDIDATE + "AND name = :name ORDER BY id LIMIT :count")
_END = Statement(
    _CANDIDATE + "AND substr(source, length(source) - length(:ending) + 1) = :ending ORDER BY id LIMIT :count"
)
_EXACT = Statement(_CANDIDATE + "AND id = :id")
WAITING_ON = (
    "CASE WHEN s.status = 'PENDING' AND EXISTS (SELECT 1 FROM locks l WHERE l.resource_key = s.resource_key "
    "AND l.paused_until IS NOT NULL) THEN 'index' WHEN s.status = 'PENDING' AND EXISTS "
    "(SELECT 1 FROM locks l WHERE l.resource_key = s.resource_key "
    "AND l.lease_until > {now}) THEN 'lock' ELSE s.waiting_on END"
)
"""What a step waits on: a step that waits for a lock does not report it, so the lock is read."""
_STEPS = Statement(
    f"SELECT s.name, s.kind, s.status, s.attempts, {WAITING_ON}, s.started_at, s.finished_at, s.meta, s.progress_at, "
    "s.created_at, CASE WHEN s.status = 'ERROR' THEN s.not_before END, s.crashes, s.errors, s.error "
    "FROM steps s WHERE s.owner = :owner AND s.document_id = :id "
    "AND s.generation_id = (SELECT max(generation_id) FROM runs WHERE document_id = :id) ORDER BY s.position"
)
_RUN = Statement(
    "SELECT x.id, x.status, x.generation_id, s.body FROM runs x JOIN snapshots s ON s.hash = x.snapshot "
    "WHERE x.owner = :owner AND x.document_id = :id ORDER BY x.generation_id DESC LIMIT 1"
)
_ACTIVE = Statement("SELECT id FROM generations WHERE owner = :owner AND document_id = :id AND state = 'ACTIVE'")


class Listed(msgspec.Struct, frozen=True):
    """A document, whether search finds it, and whether what it finds is an older version."""

    document: Document
    searchable: bool
    stale: bool
    artifacts_dropped_at: float | None
    """Of what search finds: when its pages, chunks and vectors were let go of on purpose."""
    parent: DocumentId | None = None


def _document(row: Row) -> Document:
    return Document(
        id=row[0],
        owner=row[1],
        collection=row[2],
        source=row[3],
        name=row[4],
        media_type=row[5],
        size=row[6],
        sha256=row[7],
        metadata=json.loads(row[8]),
        status=DocumentStatus(row[9]),
        retry_count=row[10],
        error=row[11],
        pages=row[12],
        chunks=row[13],
        created_at=row[14],
        updated_at=row[15],
    )


def listed_row(row: Row) -> Listed:
    has_active = bool(row[16])
    document = msgspec.structs.replace(_document(row), metadata=merged((row[8], row[19])))
    return Listed(document, has_active and (row[13] or 0) > 0, has_active and bool(row[17]), row[18], row[20])


def get(owner: Owner, connection: Connection, document: str) -> Listed | None:
    rows = connection.run(_GET, owner=owner, id=document)
    return listed_row(rows[0]) if rows else None


LIVE_COLUMNS = (
    "d.id, d.owner, d.collection, d.source, d.name, d.media_type, d.size, d.sha256, d.metadata, d.status, "
    "d.retry_count, d.error, NULL, NULL, d.created_at, d.updated_at, g.id, g.document_id, g.index_version, g.raw_key, "
    "g.size, g.sha256, g.staging, (SELECT i.store FROM index_versions i WHERE i.owner = g.owner "
    "AND i.collection = g.collection AND i.version = g.index_version)"
)
_LIVE = Statement(
    f"SELECT {LIVE_COLUMNS} FROM {{rows}} JOIN documents d ON d.id = r.document "
    "JOIN generations g ON g.id = r.generation WHERE d.deleted_at IS NULL",
    rows="document text, generation bigint",
)


Live = tuple[Document, Generation]


def live_row(row: Row) -> Live | None:
    """Of these columns."""
    if row[0] is None:
        return None
    return _document(row[:16]), Generation(GenerationId(row[16]), DocumentId(row[17]), *row[18:])


def live(connection: Connection, ids: Sequence[tuple[DocumentId, GenerationId]]) -> dict[GenerationId, Live]:
    """The documents of claimed steps with their generations, of all owners, without deleted ones."""
    found = (live_row(row) for row in connection.run(_LIVE, ids))
    return {pair[1].id: pair for pair in found if pair is not None}


_PASSWORD = Statement("SELECT password FROM documents WHERE owner = :owner AND id = :id AND deleted_at IS NULL")


def password(owner: Owner, connection: Connection, document: DocumentId) -> str | None:
    """The password of a document, for its extraction only."""
    rows = connection.run(_PASSWORD, owner=owner, id=document)
    return str(rows[0][0]) if rows and rows[0][0] is not None else None


LEAST = 4
"""The least number of characters of a suffix of an id."""
CANDIDATES = 10


class Candidate(msgspec.Struct, frozen=True):
    """A document that a name may mean."""

    id: DocumentId
    status: DocumentStatus
    source: str


def candidates(owner: Owner, connection: Connection, name: str, sources: Sequence[str]) -> list[Candidate]:
    """The documents that a name may mean: by id, else by source URI, else by prefix or suffix of the id, else by name,
    else by the end of the source URI. The first of these that finds any counts."""
    if not name:
        return []
    part = name.upper()
    # A whole id and a source are found by their indexes. A suffix and a name are looked for among all of the owner's.
    found = connection.run(_EXACT, owner=owner, id=part)
    found = found or connection.run(_SOURCES, [(source,) for source in sources], owner=owner)
    if not found and part.isascii() and part.isalnum():
        found = connection.run(_PREFIX, owner=owner, low=part, high=part + "~", count=CANDIDATES)
        if not found and len(part) >= LEAST:
            found = connection.run(_SUFFIX, owner=owner, suffix=part, count=CANDIDATES)
    found = found or connection.run(_NAME, owner=owner, name=name, count=CANDIDATES)
    if not found and "/" in name:
        # As lists show equal names (`b/notes.txt`) and documents inside others (`mail.eml!/notes.txt`).
        found = connection.run(_END, owner=owner, ending=f"/{name.lstrip('/')}", count=CANDIDATES)
    return [Candidate(DocumentId(row[0]), DocumentStatus(row[1]), row[2]) for row in found]


def known(owner: Owner, connection: Connection, ids: Sequence[str], *, deleted: bool) -> dict[str, DocumentId]:
    """The ids that exist; `deleted`: deleted documents too."""
    rows = connection.run(_KNOWN, [(i,) for i in ids], owner=owner)
    return {row[0]: DocumentId(row[0]) for row in rows if deleted or row[1]}


def newest(
    owner: Owner, connection: Connection, *, status: str, collection: str, before: str, count: int
) -> list[Listed]:
    choice = {"status": status, "collection": collection, "before": before}
    given = {name: value for name, value in choice.items() if value}
    rows = connection.run(_LISTS[bool(status), bool(collection), bool(before)], owner=owner, count=count, **given)
    return [listed_row(row) for row in rows]


class Examined(msgspec.Struct, frozen=True):
    documents: list[Listed]
    last: str | None
    """The last document that was looked at; None: there are no more."""


def examined(
    owner: Owner,
    connection: Connection,
    *,
    status: str,
    collection: str,
    before: str,
    count: int,
    parts: Sequence[str] = (),
    name: str = "",
) -> Examined:
    """Look at the next `count` documents, newest first. `parts`: only those whose metadata, as JSON, contain one of
    these texts; or else `name`: only those whose name contains this text."""
    if not parts and not name:
        page = newest(owner, connection, status=status, collection=collection, before=before, count=count)
        return page_of(page, count)
    choice = {"status": status, "collection": collection, "before": before}
    given = {name: value for name, value in choice.items() if value}
    which = (bool(status), bool(collection), bool(before))
    [(looked_at, least)] = connection.run(_LAST[which], owner=owner, count=count, **given)
    if not looked_at:
        return Examined([], None)
    place: dict[str, Any] = {"owner": owner, "least": least, "count": count, **given}
    if parts:
        rows = connection.run(_CONTAINING[which], [(part,) for part in parts], **place)
    else:
        rows = connection.run(_NAMED[which], part=name, **place)
    return Examined([listed_row(row) for row in rows], least if looked_at == count else None)


def page_of(found: list[Listed], count: int) -> Examined:
    return Examined(found, found[-1].document.id if len(found) == count else None)


class Counted(msgspec.Struct, frozen=True):
    count: int
    exact: bool
    """False: there are at least so many. Counting stops after a number of documents."""


def counted(owner: Owner, connection: Connection, *, status: str, collection: str, before: str, most: int) -> Counted:
    """Count documents, but look at no more than `most` of them."""
    if status and collection:
        return _counted_by_both(owner, connection, status, collection, before, most)
    choice = {"status": status, "collection": collection, "before": before}
    given = {name: value for name, value in choice.items() if value}
    statement = _COUNTS[bool(status), bool(collection), bool(before)]
    count: int = connection.run(statement, owner=owner, count=most + 1, **given)[0][0]
    return Counted(min(count, most), count <= most)


def _counted_by_both(
    owner: Owner, connection: Connection, status: str, collection: str, before: str, most: int
) -> Counted:
    best = Counted(0, False)
    given = {"owner": owner, "count": most + 1} | ({"before": before} if before else {})
    for by, value, other in (("status", status, collection), ("collection", collection, status)):
        examined, found = connection.run(_BOTH[by, bool(before)], value=value, other=other, **given)[0]
        if examined <= most:
            return Counted(int(found), True)
        best = Counted(max(best.count, min(int(found), most)), False)
    return best


def statuses(owner: Owner, connection: Connection, ids: Sequence[str]) -> dict[str, DocumentStatus]:
    rows = connection.run(_STATES, [(i,) for i in ids], owner=owner)
    return {row[0]: DocumentStatus(row[1]) for row in rows}


def under(owner: Owner, connection: Connection, collection: str, prefix: str) -> list[tuple[DocumentId, str]]:
    """Documents whose source begins with a prefix, without those inside others: what `--prune` compares a folder
    with."""
    high = prefix[:-1] + chr(ord(prefix[-1]) + 1)
    rows = connection.run(_UNDER, owner=owner, collection=collection, low=prefix, high=high)
    return [(DocumentId(row[0]), row[1]) for row in rows]


def sourced(
    owner: Owner,
    connection: Connection,
    collection: str,
    between: tuple[str, str],
    after: tuple[str, str],
    count: int,
) -> list[Listed]:
    """A page of the documents whose source is in a range, in the order of their sources: from the first bound to before
    the second one. `after`: the source and the id of the last one of the page before."""
    given = {"low": max(between[0], after[0]), "high": between[1], "after": after[0], "last": after[1], "count": count}
    given |= {"collection": collection} if collection else {}
    return [listed_row(row) for row in connection.run(_SOURCED[bool(collection)], owner=owner, **given)]


class LastRun(msgspec.Struct, frozen=True):
    id: str
    status: str
    generation: int
    body: str


def last_run(owner: Owner, connection: Connection, document: DocumentId) -> LastRun | None:
    rows = connection.run(_RUN, owner=owner, id=document)
    return LastRun(*rows[0]) if rows else None


def steps(owner: Owner, connection: Connection, document: DocumentId) -> list[StepView]:
    return [
        StepView(row[0], row[1], StepStatus(row[2]), row[3], row[4], row[5], row[6], json.loads(row[7]), *row[8:])
        for row in connection.run(_STEPS, owner=owner, id=document)
    ]


class Origin(msgspec.Struct, frozen=True):
    """The settings of a document's newest run, and the document's status."""

    collection: str
    snapshot: str
    settings: str
    priority: int
    status: str
    media_type: str | None = None


_ORIGINS = Statement(
    f"SELECT d.id, d.collection, x.snapshot, {SETTINGS}, x.priority, d.status, d.media_type FROM {{rows}} "
    "JOIN documents d ON d.id = r.document AND d.owner = :owner AND d.deleted_at IS NULL "
    "JOIN runs x ON x.document_id = d.id "
    "AND x.generation_id = (SELECT max(generation_id) FROM runs WHERE runs.document_id = d.id)",
    rows="document text",
)


def origins(owner: Owner, connection: Connection, ids: Sequence[DocumentId]) -> dict[DocumentId, Origin]:
    rows = connection.run(_ORIGINS, [(document,) for document in ids], owner=owner)
    return {DocumentId(row[0]): Origin(*row[1:]) for row in rows}


def active_generation(owner: Owner, connection: Connection, document: DocumentId) -> int | None:
    rows = connection.run(_ACTIVE, owner=owner, id=document)
    return rows[0][0] if rows else None


_RAW = Statement(
    "SELECT g.raw_key, g.size, g.sha256 FROM generations g JOIN documents d ON d.id = g.document_id "
    "AND d.deleted_at IS NULL WHERE g.owner = :owner AND g.document_id = :id ORDER BY g.id DESC LIMIT 1"
)


def raw(owner: Owner, connection: Connection, document: DocumentId) -> tuple[str, int, str] | None:
    """The key, size and hash of the newest raw bytes of a document."""
    rows = connection.run(_RAW, owner=owner, id=document)
    return (rows[0][0], rows[0][1], rows[0][2]) if rows and rows[0][0] else None


class ArtifactProgress(msgspec.Struct, frozen=True):
    step: str
    kind: str
    complete: bool
    items: int
    cursor: str
    updated_at: float


_PROGRESS = Statement(
    "SELECT f.step, a.kind, a.state = 'COMPLETE', a.items, a.cursor, a.updated_at FROM artifact_refs f "
    "JOIN artifacts a ON a.id = f.artifact_id JOIN generations g ON g.id = f.generation_id "
    "LEFT JOIN steps s ON s.document_id = g.document_id AND s.generation_id = g.id AND s.name = f.step "
    "WHERE a.owner = :owner AND f.generation_id = :generation ORDER BY coalesce(s.position, 0), a.id"
)


def progress(owner: Owner, connection: Connection, generation: int) -> list[ArtifactProgress]:
    """In the order of the steps: of two of one kind the last one counts, as it does for the steps that follow."""
    rows = connection.run(_PROGRESS, owner=owner, generation=generation)
    return [ArtifactProgress(row[0], row[1], bool(row[2]), *row[3:]) for row in rows]
