"""Collections as the vector stores of OpenAI's clients, and their documents as files.

A store that a client made has a row with its name, so that it exists without documents. Every other collection is a
store too, with its own name. A document that was made of a file has the source `openai:file-ID`."""

import json
from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from penstock.ledger.database.connection import Connection, Row
from penstock.ledger.database.statements import Statement
from penstock.ledger.database.writer import Verb
from penstock.ledger.engine import collections
from penstock.model.nouns import DocumentId, Owner

BATCH_LIFE_S = 30 * 86_400.0
"""Batches of files are forgotten after this time. Their documents stay."""


class Store(msgspec.Struct, frozen=True):
    collection: str
    name: str
    metadata: dict[str, Any]
    created_at: float


_EXISTS = (
    "NOT EXISTS (SELECT 1 FROM collections c WHERE c.owner = v.owner AND c.name = v.collection "
    f"AND NOT {collections.EXISTS})"
)
_COLUMNS = "v.collection, v.name, v.metadata, v.created_at"
_GET = Statement(
    f"SELECT {_COLUMNS} FROM vector_stores v WHERE v.owner = :owner AND v.collection = :collection AND {_EXISTS}"
)
_ALL = Statement(f"SELECT {_COLUMNS} FROM vector_stores v WHERE v.owner = :owner AND {_EXISTS}")
_OTHERS = Statement(
    f"SELECT c.name, c.created_at FROM collections c WHERE c.owner = :owner AND {collections.EXISTS} AND NOT EXISTS "
    "(SELECT 1 FROM vector_stores v WHERE v.owner = c.owner AND v.collection = c.name)"
)


def _store(row: Row) -> Store:
    return Store(row[0], row[1], json.loads(row[2]), row[3])


def get(owner: Owner, connection: Connection, collection: str) -> Store | None:
    rows = connection.run(_GET, owner=owner, collection=collection)
    if rows:
        return _store(rows[0])
    origin = collections.origin(owner, connection, collection)
    return None if origin is None else Store(collection, collection, {}, origin.created_at)


def stores(owner: Owner, connection: Connection) -> list[Store]:
    """All stores of an owner, oldest first."""
    found = [_store(row) for row in connection.run(_ALL, owner=owner)]
    found += [Store(row[0], row[0], {}, row[1]) for row in connection.run(_OTHERS, owner=owner)]
    return sorted(found, key=lambda store: (store.created_at, store.collection))


class SetStore(msgspec.Struct, frozen=True):
    """Make a store, or change one."""

    owner: Owner
    collection: str
    name: str
    metadata: str
    """As JSON."""


_SET = Statement(
    "INSERT INTO vector_stores (owner, collection, name, metadata, created_at) "
    "VALUES (:owner, :collection, :name, :metadata, coalesce((SELECT c.created_at FROM collections c "
    "WHERE c.owner = :owner AND c.name = :collection), {now})) "
    "ON CONFLICT (owner, collection) DO UPDATE SET name = excluded.name, metadata = excluded.metadata "
    "RETURNING collection, name, metadata, created_at"
)


def _set(connection: Connection, requests: Sequence[SetStore]) -> list[Store]:
    return [_store(connection.run(_SET, **msgspec.structs.asdict(r))[0]) for r in requests]


_FORGET_BATCHES = Statement("DELETE FROM file_batches WHERE owner = :owner AND collection = :collection")
_FORGET = Statement("DELETE FROM vector_stores WHERE owner = :owner AND collection = :collection")


def _forget(connection: Connection, requests: Sequence[tuple[Owner, str]]) -> list[None]:
    for owner, collection in requests:
        connection.run(_FORGET_BATCHES, owner=owner, collection=collection)
        connection.run(_FORGET, owner=owner, collection=collection)
    return [None for _ in requests]


class Count(msgspec.Struct, frozen=True):
    """The documents of a store with one status, without those inside others."""

    status: str
    documents: int
    bytes: int
    newest: float


_COUNTS = Statement(
    "SELECT d.status, count(*), coalesce(sum(d.size), 0), max(d.updated_at) FROM documents d WHERE d.owner = :owner "
    "AND d.collection = :collection AND d.deleted_at IS NULL AND d.parent_id IS NULL GROUP BY d.status"
)


def counts(owner: Owner, connection: Connection, collection: str) -> list[Count]:
    """Count the documents of a store. This reads each of them."""
    rows = connection.run(_COUNTS, owner=owner, collection=collection)
    return [Count(row[0], int(row[1]), int(row[2]), row[3]) for row in rows]


class File(msgspec.Struct, frozen=True):
    """A document as a file of a store."""

    id: DocumentId
    collection: str
    source: str
    name: str
    media_type: str | None
    size: int
    status: str
    error: str | None
    submitted: str
    """The metadata that was submitted, as JSON."""
    found: str | None
    """The metadata that was found in the document, as JSON."""
    pages: int | None
    created_at: float
    reason: str | None
    """Why it has failed: the reason of its dead letter."""


_FILE = (
    "SELECT d.id, d.collection, d.source, d.name, d.media_type, d.size, d.status, d.error, "
    "coalesce(g.submitted, d.metadata), g.found, g.pages, d.created_at, CASE WHEN d.status = 'FAILED' THEN "
    "(SELECT max(l.reason) FROM dead_letters l WHERE l.document_id = d.id AND l.state = 'OPEN') END FROM documents d "
    "LEFT JOIN generations g ON g.document_id = d.id AND g.state = 'ACTIVE' "
    "WHERE d.owner = :owner AND d.deleted_at IS NULL "
)
State = Literal["in_progress", "completed", "failed", "cancelled"]
STATES: dict[State, tuple[str, ...]] = {
    "in_progress": ("HELD", "PENDING", "EXTRACTING", "CHUNKING", "EMBEDDING", "INDEXING"),
    "completed": ("COMPLETED",),
    "failed": ("FAILED", "NOT_INDEXABLE", "UNSUPPORTED"),
    "cancelled": ("CANCELLED",),
}
STATE_OF: dict[str, State] = {status: state for state, statuses in STATES.items() for status in statuses}


def _page_statement(state: State | None, goes_on: str, ascending: bool) -> Statement:
    listed = "" if state is None else ", ".join(f"'{status}'" for status in STATES[state])
    return Statement(
        _FILE
        + "AND d.collection = :collection AND d.parent_id IS NULL "
        + (f"AND d.status IN ({listed}) " if listed else "")
        + (f"AND d.id {goes_on} :place " if goes_on else "")
        + f"ORDER BY d.id {'ASC' if ascending else 'DESC'} LIMIT :count"
    )


_PAGES = {
    (state, goes_on, ascending): _page_statement(state, goes_on, ascending)
    for state in (None, *STATES)
    for goes_on in ("", "<", ">")
    for ascending in (True, False)
}


def page(
    owner: Owner,
    connection: Connection,
    collection: str,
    *,
    state: State | None = None,
    older: str = "",
    newer: str = "",
    ascending: bool = False,
    count: int,
) -> list[File]:
    """A page of the documents of a store: those older or newer than a document, if one of both is given."""
    given = {"place": older or newer} if older or newer else {}
    statement = _PAGES[state, "<" if older else ">" if newer else "", ascending]
    rows = connection.run(statement, owner=owner, collection=collection, count=count, **given)
    return [File(*row) for row in rows]


_BY_ID = Statement(_FILE + "AND d.id IN (SELECT r.document FROM {rows})", rows="document text")
_BY_SOURCE = Statement(
    _FILE + "AND d.collection = :collection AND d.source IN (SELECT r.source FROM {rows})", rows="source text"
)
_COPIES = Statement(
    "SELECT d.id, d.collection FROM {rows} JOIN documents d ON d.source = r.source AND {d.owner} "
    "AND d.deleted_at IS NULL",
    rows="source text",
)
_ROOTS = Statement(
    "SELECT d.id, coalesce(d.root_id, d.id) FROM {rows} JOIN documents d ON d.id = r.document WHERE {d.owner}",
    rows="document text",
)


def files(owner: Owner, connection: Connection, documents: Sequence[str]) -> dict[str, File]:
    """The documents with these ids, without those that were deleted."""
    return {row[0]: File(*row) for row in connection.run(_BY_ID, [(d,) for d in documents], owner=owner)}


def sourced(owner: Owner, connection: Connection, collection: str, sources: Sequence[str]) -> dict[str, File]:
    """The documents of a store with these sources, by source."""
    rows = connection.run(_BY_SOURCE, [(one,) for one in sources], owner=owner, collection=collection)
    return {row[2]: File(*row) for row in rows}


def copies(owner: Owner, connection: Connection, source: str) -> list[tuple[DocumentId, str]]:
    """The documents with this source in all collections, with their collections."""
    return [(DocumentId(row[0]), row[1]) for row in connection.run(_COPIES, [(source,)], owner=owner)]


def roots(owner: Owner, connection: Connection, documents: Sequence[str]) -> dict[str, File]:
    """By document: the outermost document that contains it, or itself."""
    pairs = connection.run(_ROOTS, [(d,) for d in documents], owner=owner)
    found = files(owner, connection, sorted({row[1] for row in pairs}))
    return {row[0]: found[row[1]] for row in pairs if row[1] in found}


class Batch(msgspec.Struct, frozen=True):
    id: str
    collection: str
    documents: tuple[DocumentId, ...]
    cancelled: bool
    created_at: float


class NewBatch(msgspec.Struct, frozen=True):
    owner: Owner
    id: str
    collection: str
    documents: tuple[DocumentId, ...]


_OLD = Statement(
    "DELETE FROM file_batches WHERE owner = :owner AND collection = :collection AND created_at < {now} - :life"
)
_ADD_BATCH = Statement(
    "INSERT INTO file_batches (id, owner, collection, documents, created_at) "
    "VALUES (:id, :owner, :collection, :documents, {now}) RETURNING id, collection, documents, cancelled, created_at"
)
_BATCH = Statement(
    "SELECT id, collection, documents, cancelled, created_at FROM file_batches "
    "WHERE owner = :owner AND collection = :collection AND id = :id"
)
_CANCEL = Statement("UPDATE file_batches SET cancelled = 1 WHERE owner = :owner AND id = :id")


def _batch(row: Row) -> Batch:
    return Batch(row[0], row[1], tuple(json.loads(row[2])), bool(row[3]), row[4])


def batch(owner: Owner, connection: Connection, collection: str, batch: str) -> Batch | None:
    rows = connection.run(_BATCH, owner=owner, collection=collection, id=batch)
    return _batch(rows[0]) if rows else None


def _add_batch(connection: Connection, requests: Sequence[NewBatch]) -> list[Batch]:
    answers = []
    for r in requests:
        connection.run(_OLD, owner=r.owner, collection=r.collection, life=BATCH_LIFE_S)
        given = {"id": r.id, "owner": r.owner, "collection": r.collection, "documents": json.dumps(r.documents)}
        answers.append(_batch(connection.run(_ADD_BATCH, **given)[0]))
    return answers


def _cancel_batch(connection: Connection, requests: Sequence[tuple[Owner, str]]) -> list[None]:
    for owner, batch in requests:
        connection.run(_CANCEL, owner=owner, id=batch)
    return [None for _ in requests]


SET_STORE = Verb("set_store", _set)
FORGET_STORE = Verb("forget_store", _forget)
ADD_FILE_BATCH = Verb("add_file_batch", _add_batch)
CANCEL_FILE_BATCH = Verb("cancel_file_batch", _cancel_batch)
