"""Queries about the expected content of the index. They continue `audit.py`.

These statements cross owners (I10); `owner` "" means all."""

from collections.abc import Sequence

import msgspec

from penstock.ledger.database.connection import Connection
from penstock.ledger.engine.collections import VERSION_OF_C
from penstock.ledger.upkeep.audit import PAGE, question
from penstock.model.metadata import merged
from penstock.model.nouns import Json


class TablePlace(msgspec.Struct, frozen=True, order=True):
    """An index table that the ledger names."""

    owner: str
    collection: str
    version: int


_PLACES = question(
    f"SELECT c.owner, c.name, {VERSION_OF_C}, NULL FROM collections c WHERE <c.owned> "
    "UNION SELECT v.owner, v.collection, v.version, v.dimensions FROM index_versions v WHERE <v.owned> "
    "UNION SELECT g.owner, g.collection, p.version, NULL FROM placements p "
    "JOIN generations g ON g.id = p.generation_id WHERE g.state <> 'PURGED' AND <g.owned>"
)


def places(connection: Connection, owner: str) -> dict[TablePlace, int | None]:
    """All tables that versions and placements name, with the expected dimensions of their vectors."""
    found: dict[TablePlace, int | None] = {}
    for row in connection.run(_PLACES, owner=owner):
        place = TablePlace(*row[:3])
        found[place] = row[3] or found.get(place)
    return found


class Active(msgspec.Struct, frozen=True):
    generation: int
    chunks: int


# What a re-index has staged, and what it has kept for an undo, is as complete as what is searchable.
_WHOLE = "(g.state = 'ACTIVE' OR (g.state = 'BUILDING' AND g.staging = 1 AND g.flipped_at IS NOT NULL))"
_ACTIVES = question(
    "SELECT g.id, coalesce(g.chunks, 0) FROM generations g "
    "JOIN placements p ON p.generation_id = g.id AND p.version = :version AND p.state = 'READY' "
    f"WHERE g.id > :after AND g.owner = :owner AND g.collection = :collection AND {_WHOLE} "
    "ORDER BY g.id LIMIT :count"
)
_ACTIVES_AGAIN = question(
    "SELECT g.id, coalesce(g.chunks, 0) FROM {rows} JOIN generations g ON g.id = r.generation "
    "JOIN placements p ON p.generation_id = g.id AND p.version = :version AND p.state = 'READY' "
    f"WHERE g.owner = :owner AND g.collection = :collection AND {_WHOLE} ORDER BY g.id",
    rows="generation bigint",
)


def actives(connection: Connection, place: TablePlace, after: int) -> list[Active]:
    where = {"owner": place.owner, "collection": place.collection, "version": place.version}
    return [Active(*row) for row in connection.run(_ACTIVES, after=after, count=PAGE, **where)]


def actives_again(connection: Connection, place: TablePlace, wanted: Sequence[int]) -> list[Active]:
    where = {"owner": place.owner, "collection": place.collection, "version": place.version}
    return [Active(*row) for row in connection.run(_ACTIVES_AGAIN, [(one,) for one in wanted], **where)]


class State(msgspec.Struct, frozen=True):
    """The state in the ledger of a generation that rows in the index belong to."""

    state: str
    place: TablePlace
    """The table of the requested version, if the generation is placed there; otherwise that of the version that it was
    made for."""
    document: str
    name: str
    chunks: int
    epoch: int
    """The highest epoch of its steps."""
    lost: bool
    """Whether its rows cannot be restored, because its artifacts were dropped on purpose or are damaged."""
    followed: bool
    """Whether a run of its document is open, which will replace it."""
    metadata: Json
    """The metadata of the document, whose title is searched with each row."""


_ROW_SOURCES = (
    "FROM artifact_refs f JOIN artifacts a ON a.id = f.artifact_id AND a.kind IN ('chunk', 'embed') "
    "WHERE f.generation_id = g.id"
)
_STATES = question(
    f"SELECT g.id, CASE WHEN {_WHOLE} THEN 'ACTIVE' ELSE g.state END, g.owner, g.collection, "
    "coalesce((SELECT p.version FROM placements p "
    "WHERE p.generation_id = g.id AND p.version = :version), g.index_version), g.document_id, d.name, "
    "coalesce(g.chunks, 0), "
    "coalesce((SELECT max(s.epoch) FROM steps s WHERE s.document_id = g.document_id AND s.generation_id = g.id), 0), "
    f"g.chunks > 0 AND ((SELECT count(DISTINCT a.kind) {_ROW_SOURCES}) < 2 "
    f"OR EXISTS (SELECT 1 {_ROW_SOURCES} AND a.state <> 'COMPLETE')), "
    "EXISTS (SELECT 1 FROM runs x WHERE x.document_id = g.document_id "
    "AND x.status = 'OPEN'), coalesce(g.submitted, d.metadata), g.found FROM {rows} "
    "JOIN generations g ON g.id = r.generation JOIN documents d ON d.id = g.document_id",
    rows="generation bigint",
)


def states(connection: Connection, wanted: Sequence[int], version: int = 0) -> dict[int, State]:
    rows = connection.run(_STATES, [(one,) for one in wanted], version=version)
    return {
        row[0]: State(
            row[1],
            TablePlace(*row[2:5]),
            row[5],
            row[6],
            row[7],
            row[8],
            bool(row[9]),
            bool(row[10]),
            merged((row[11], row[12])),
        )
        for row in rows
    }


class RowSource(msgspec.Struct, frozen=True):
    """The artifact that rows of a generation are made of."""

    artifact: int
    fingerprint: str
    complete: bool
    items: int
    segments: int


_SOURCES = question(
    "SELECT g.id, a.kind, a.id, a.fingerprint, a.state, a.items, a.segments FROM {rows} "
    "JOIN generations g ON g.id = r.generation JOIN artifact_refs f ON f.generation_id = g.id "
    "JOIN artifacts a ON a.id = f.artifact_id AND a.kind IN ('chunk', 'embed') "
    "LEFT JOIN steps s ON s.document_id = g.document_id AND s.generation_id = g.id AND s.name = f.step "
    "ORDER BY g.id, coalesce(s.position, 0)",
    rows="generation bigint",
)


def sources(connection: Connection, wanted: Sequence[int]) -> dict[tuple[int, str], RowSource]:
    """The artifacts of generations, by generation and kind. Of several steps of one kind the last counts, as in the
    index stage."""
    rows = connection.run(_SOURCES, [(one,) for one in wanted])
    return {(row[0], row[1]): RowSource(row[2], row[3], row[4] == "COMPLETE", row[5], row[6]) for row in rows}


_DROPPED_TEXTS = question(
    "SELECT g.id, d.id, g.raw_key FROM {rows} JOIN generations g ON g.id = r.generation "
    "JOIN documents d ON d.id = g.document_id WHERE g.artifacts_dropped_at IS NOT NULL AND d.deleted_at IS NULL "
    "AND d.status = 'COMPLETED' AND substr(d.media_type, 1, 5) = 'text/'",
    rows="generation bigint",
)


def dropped_texts(connection: Connection, wanted: Sequence[int]) -> dict[int, tuple[str, str]]:
    """The document and the key of the raw bytes of those generations that are text files whose artifacts were dropped
    on purpose."""
    return {row[0]: (row[1], row[2]) for row in connection.run(_DROPPED_TEXTS, [(one,) for one in wanted])}
