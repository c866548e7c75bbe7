"""Generations: activation, hidden generations, placements and purges.

A placement says that rows of a generation may be in a version of the index. It is READY when all of them are. A run
writes into the version that was current when it began (`generations.index_version`). `generations.written` says that
there is a placement, so that a small database index finds the few hidden generations."""

from collections.abc import Callable, Sequence

import msgspec

from penstock.ledger.database.connection import Connection
from penstock.ledger.database.statements import Statement
from penstock.ledger.database.writer import Verb
from penstock.ledger.engine import backup_guard
from penstock.model.nouns import DocumentId, GenerationId, Owner, StepId, Token

GRACE_S = 60.0
"""Seconds for which the rows of a replaced generation are kept for searches whose snapshot still shows it."""

_REPLACE = Statement(
    "UPDATE generations SET state = 'SUPERSEDED' FROM {rows} "
    "WHERE {generations.document_id = r.document} AND generations.state = 'ACTIVE' RETURNING id",
    rows="document text",
)
_ACTIVATE = Statement(
    "UPDATE generations SET state = 'ACTIVE', flipped_at = {now}, pages = r.page_count, chunks = r.chunk_count, "
    "found = r.found FROM {rows} WHERE {generations.id = r.generation}",
    rows="generation bigint, page_count int, chunk_count int, found text",
)
_PURGE = Statement(
    "INSERT INTO purges (generation_id, owner, collection, index_version, not_before) "
    "SELECT g.id, g.owner, g.collection, g.index_version, {now} + :grace FROM {rows} "
    "JOIN generations g ON g.id = r.generation WHERE true ON CONFLICT (generation_id) DO NOTHING",
    rows="generation bigint",
)


def activate(
    connection: Connection,
    flips: Sequence[tuple[GenerationId, DocumentId, int | None, int, str | None]],
    grace_s: float,
) -> None:
    """Activate generations and mark those that they replace as superseded. The rows of the replaced ones are purged
    after `grace_s` seconds, so that searches that have begun can still read them."""
    replaced = connection.run(_REPLACE, [(document,) for _, document, *_ in flips])
    connection.run(_ACTIVATE, [(generation, *counts) for generation, _, *counts in flips])
    schedule_purge(connection, [GenerationId(row[0]) for row in replaced], grace_s)


_STAGE = Statement(
    "UPDATE generations SET flipped_at = {now}, pages = r.page_count, chunks = r.chunk_count, found = r.found "
    "FROM {rows} WHERE {generations.id = r.generation}",
    rows="generation bigint, page_count int, chunk_count int, found text",
)


def stage(connection: Connection, rows: Sequence[tuple[GenerationId, int | None, int, str | None]]) -> None:
    """Generations of a re-index are complete. The switch activates them."""
    connection.run(_STAGE, rows)


def schedule_purge(connection: Connection, ids: Sequence[GenerationId], grace_s: float) -> None:
    if ids:
        connection.run(_PURGE, [(generation,) for generation in ids], grace=grace_s)


_RETIRE = Statement(
    "UPDATE generations SET state = 'SUPERSEDED', staging = 0 FROM {rows} "
    "WHERE {generations.document_id = r.document} AND generations.state = 'BUILDING' RETURNING id",
    rows="document text",
)
_RETIRE_ALL = Statement(
    "UPDATE generations SET state = 'SUPERSEDED', staging = 0 FROM {rows} "
    "WHERE {generations.document_id = r.document} AND generations.state IN ('BUILDING', 'ACTIVE') RETURNING id",
    rows="document text",
)


def retire(connection: Connection, documents: Sequence[DocumentId], grace_s: float, *, active: bool = False) -> None:
    """Mark generations that are being built as superseded, with `active` (for a delete) also the searchable ones, and
    schedule the purge of their rows."""
    if documents:
        statement = _RETIRE_ALL if active else _RETIRE
        rows = connection.run(statement, [(document,) for document in documents])
        schedule_purge(connection, [GenerationId(row[0]) for row in rows], grace_s)


class Writing(msgspec.Struct, frozen=True):
    step_id: StepId
    token: Token
    generation: GenerationId


_UNWRITTEN = Statement(
    "SELECT g.id, p.version IS NOT NULL FROM {rows} JOIN generations g ON g.id = r.generation "
    "AND g.state = 'BUILDING' JOIN steps s ON s.id = r.step AND s.lease_token = r.lease "
    "LEFT JOIN placements p ON p.generation_id = g.id AND p.version = g.index_version",
    rows="generation bigint, step bigint, lease text",
)
_PLACE = Statement(
    "INSERT INTO placements (generation_id, version, state) SELECT g.id, g.index_version, 'BUILDING' FROM {rows} "
    "JOIN generations g ON g.id = r.generation",
    rows="generation bigint",
)
_WRITTEN = Statement(
    "UPDATE generations SET written = 1 FROM {rows} WHERE {generations.id = r.generation}", rows="generation bigint"
)


def _write(connection: Connection, writings: Sequence[Writing]) -> list[bool | None]:
    """Insert the placement of a generation before its first row is written to the index, so that searches exclude it.
    Returns whether an earlier attempt may already have written rows; None if the lease was lost."""
    rows = connection.run(_UNWRITTEN, [(w.generation, w.step_id, w.token) for w in writings])
    before = {row[0]: bool(row[1]) for row in rows}
    fresh = [(generation,) for generation, written in before.items() if not written]
    if fresh:
        connection.run(_WRITTEN, fresh)
        connection.run(_PLACE, fresh)
    return [before.get(w.generation) for w in writings]


_READY = Statement(
    "UPDATE placements SET state = 'READY' FROM {rows} WHERE {placements.generation_id = r.generation}",
    rows="generation bigint",
)


def place(connection: Connection, written: Sequence[GenerationId]) -> None:
    """Mark the placements of these generations as READY. A flip does this when all their rows are in the index."""
    if written:
        connection.run(_READY, [(generation,) for generation in written])


_HIDDEN = Statement(
    "SELECT g.id FROM generations g JOIN placements p ON p.generation_id = g.id AND p.version = :version "
    "WHERE g.owner = :owner AND g.collection = :collection AND g.index_version = :version AND g.written = 1 "
    "AND g.state <> 'ACTIVE'"
)
_VISIBLE = Statement(
    "SELECT g.id, d.id, d.name, d.source, coalesce(g.submitted, d.metadata), g.found, d.collection, d.media_type, "
    "d.size, d.status, g.pages, d.created_at FROM {rows} JOIN generations g ON g.id = r.generation "
    "JOIN placements p ON p.generation_id = g.id AND p.version = :version AND p.state = 'READY' "
    "JOIN documents d ON d.id = g.document_id "
    "WHERE g.state = 'ACTIVE' AND g.owner = :owner AND d.deleted_at IS NULL",
    rows="generation bigint",
)


def active_condition(version: int) -> str:
    """An SQL condition for an index in the same database: the generation of the row `c` is active and complete in this
    version."""
    return (
        f"EXISTS (SELECT 1 FROM generations g JOIN placements p ON p.generation_id = g.id AND p.version = {version:d} "
        "AND p.state = 'READY' WHERE g.id = c.generation AND g.state = 'ACTIVE')"
    )


def hidden(owner: Owner, connection: Connection, collection: str, version: int) -> list[GenerationId]:
    """Generations with rows in this version that a search must exclude: building, superseded or deleted."""
    rows = connection.run(_HIDDEN, owner=owner, collection=collection, version=version)
    return [GenerationId(row[0]) for row in rows]


class Visible(msgspec.Struct, frozen=True):
    document_id: DocumentId
    name: str
    source: str
    metadata: str
    """Submitted with the document, as JSON."""
    found: str | None
    """Metadata that the steps found, as JSON."""
    collection: str
    media_type: str | None
    size: int
    status: str
    pages: int | None
    created_at: float


def visible(
    owner: Owner, connection: Connection, version: int, candidates: Sequence[GenerationId]
) -> dict[GenerationId, Visible]:
    """The candidates that are active in this snapshot and complete in this version, with their documents (I5)."""
    rows = connection.run(_VISIBLE, [(generation,) for generation in candidates], owner=owner, version=version)
    return {GenerationId(row[0]): Visible(DocumentId(row[1]), *row[2:]) for row in rows}


_SEARCHABLE_TEXT = (
    "SELECT g.id, d.id, d.name, d.source, coalesce(g.submitted, d.metadata), g.found, d.collection, d.media_type, "
    "d.size, d.status, g.pages, d.created_at FROM generations g "
    "JOIN placements p ON p.generation_id = g.id AND p.version = :version AND p.state = 'READY' "
    "JOIN documents d ON d.id = g.document_id WHERE g.id > :after AND g.state = 'ACTIVE' AND g.owner = :owner "
    "AND g.collection = :collection AND d.deleted_at IS NULL"
)
_PAGE_TEXT = " ORDER BY g.id LIMIT :count"
_SEARCHABLE = Statement(_SEARCHABLE_TEXT + _PAGE_TEXT)
_JSON = "coalesce(g.submitted, d.metadata) || coalesce(g.found, '')"
CONTAINS = f"EXISTS (SELECT 1 FROM {{rows}} WHERE {{instr}}({_JSON}, r.part) > 0)"
"""Whether the metadata of a document, as JSON, contains one of the given parts."""
_CONTAINING = Statement(f"{_SEARCHABLE_TEXT} AND {CONTAINS}{_PAGE_TEXT}", rows="part text")
FILTERED_AT_ONCE = 10_000


def matching(
    owner: Owner,
    connection: Connection,
    collection: str,
    version: int,
    accepts: Callable[[Visible], bool],
    parts: Sequence[str] = (),
) -> tuple[list[GenerationId], list[GenerationId]]:
    """The searchable generations of a version that a filter accepts, and those that it rejects. `parts`: the JSON of
    every accepted document contains one of these texts. Then the database leaves out documents without any, and they
    are in neither list."""
    accepted: list[GenerationId] = []
    rejected: list[GenerationId] = []
    where = {"owner": owner, "collection": collection, "version": version, "count": FILTERED_AT_ONCE}
    after = 0
    statement = _CONTAINING if parts else _SEARCHABLE
    given = [(part,) for part in parts] if parts else None
    while rows := connection.run(statement, given, after=after, **where):
        for row in rows:
            (accepted if accepts(Visible(DocumentId(row[1]), *row[2:])) else rejected).append(row[0])
        after = rows[-1][0]
        if len(rows) < FILTERED_AT_ONCE:
            break
    return accepted, rejected


class Purge(msgspec.Struct, frozen=True):
    """A generation to remove from one version of the index. If it has no placement, this is the version that it was
    made for."""

    generation: GenerationId
    owner: Owner
    collection: str
    version: int


# Nothing is purged while a backup runs.
_DUE = Statement(
    "SELECT u.generation_id, u.owner, u.collection, coalesce(p.version, u.index_version) FROM "
    "(SELECT * FROM purges WHERE not_before <= (SELECT {now}) + :ahead "
    f"AND NOT {backup_guard.RUNNING} ORDER BY not_before LIMIT :count) AS u "
    "LEFT JOIN placements p ON p.generation_id = u.generation_id ORDER BY u.not_before"
)
_DUE_IN = Statement(
    "SELECT u.generation_id FROM purges u LEFT JOIN placements p ON p.generation_id = u.generation_id "
    "WHERE u.owner = :owner AND u.collection = :collection AND coalesce(p.version, u.index_version) = :version "
    f"AND u.not_before <= (SELECT {{now}}) AND NOT {backup_guard.RUNNING} ORDER BY u.not_before LIMIT :count"
)
_POSTPONE = Statement(
    "UPDATE purges SET not_before = {now} + :pause WHERE generation_id IN (SELECT r.generation FROM {rows})",
    rows="generation bigint",
)
_UNPLACE = Statement(
    "DELETE FROM placements WHERE version = :version AND generation_id IN (SELECT r.generation FROM {rows})",
    rows="generation bigint",
)
_NOWHERE = Statement(
    "SELECT r.generation FROM {rows} WHERE NOT EXISTS "
    "(SELECT 1 FROM placements p WHERE p.generation_id = r.generation)",
    rows="generation bigint",
)
_DONE = Statement(
    "DELETE FROM purges WHERE generation_id IN (SELECT r.generation FROM {rows})", rows="generation bigint"
)
_PURGED = Statement(
    "UPDATE generations SET state = 'PURGED', written = 0 FROM {rows} "
    "WHERE {generations.id = r.generation} AND generations.state = 'SUPERSEDED'",
    rows="generation bigint",
)
_FORGET = Statement(
    "DELETE FROM artifact_refs WHERE generation_id IN (SELECT r.generation FROM {rows})", rows="generation bigint"
)


def due_purges(connection: Connection, count: int, ahead_s: float = 0.0) -> list[Purge]:
    rows = connection.run(_DUE, count=count, ahead=ahead_s)
    return [Purge(GenerationId(row[0]), Owner(row[1]), row[2], row[3]) for row in rows]


def due_purges_in(
    owner: Owner, connection: Connection, collection: str, version: int, count: int
) -> list[GenerationId]:
    """The due purges of one table."""
    where = {"owner": owner, "collection": collection, "version": version}
    return [GenerationId(row[0]) for row in connection.run(_DUE_IN, count=count, **where)]


def _postpone(connection: Connection, groups: Sequence[tuple[tuple[GenerationId, ...], float]]) -> list[None]:
    """Postpone purges by a number of seconds, because their table cannot be changed."""
    for generations, seconds in groups:
        connection.run(_POSTPONE, [(generation,) for generation in generations], pause=seconds)
    return [None for _ in groups]


class Removed(msgspec.Struct, frozen=True):
    """The rows of these generations were durably removed from a version of the index."""

    version: int
    generations: tuple[GenerationId, ...]


def _purged(connection: Connection, groups: Sequence[Removed]) -> list[None]:
    """Delete placements. A generation without placements becomes PURGED, and its references to artifacts are deleted,
    so that prune can remove them."""
    for group in groups:
        connection.run(_UNPLACE, [(generation,) for generation in group.generations], version=group.version)
    gone = [(generation,) for group in groups for generation in group.generations]
    rows = [(row[0],) for row in connection.run(_NOWHERE, gone)]
    connection.run(_PURGED, rows)
    connection.run(_FORGET, rows)
    connection.run(_DONE, rows)
    return [None for _ in groups]


WRITE = Verb("write", _write)
POSTPONE = Verb("postpone", _postpone)
PURGED = Verb("purge", _purged)
