"""Collections: which exist, what they hold, and their drop.

A collection exists from its first document until it is dropped, and again as soon as it has a document. A drop first
stores up to which document it deletes (`drop_to`). So it can be continued after a crash, by any process, and documents
that were submitted later stay."""

from collections.abc import Sequence

import msgspec

from penstock.ledger.database.connection import Connection
from penstock.ledger.database.statements import Statement
from penstock.ledger.database.writer import Verb
from penstock.model.nouns import DocumentId, Owner

_HAS_DOCUMENTS = (
    "EXISTS (SELECT 1 FROM documents d WHERE d.owner = c.owner AND d.collection = c.name AND d.deleted_at IS NULL)"
)
EXISTS = f"(c.dropped_at IS NULL OR {_HAS_DOCUMENTS})"
"""A condition on a row c of `collections`."""

VERSION = (
    "(SELECT coalesce(max(CASE WHEN v.state = 'CURRENT' THEN v.version END), max(v.version) + 1, 1) "
    "FROM index_versions v WHERE v.owner = <owner> AND v.collection = <collection>)"
)
"""The index version that new generations of a collection are written for: the current one or, before anything is
indexed, the one after those that were retired by a drop."""
VERSION_OF_C = VERSION.replace("<owner>", "c.owner").replace("<collection>", "c.name")
VERSION_OF_G = VERSION.replace("<owner>", "g.owner").replace("<collection>", "g.collection")
VERSION_HERE = VERSION.replace("<owner>", ":owner").replace("<collection>", ":collection")

_NAMES = Statement(f"SELECT c.name FROM collections c WHERE c.owner = :owner AND {EXISTS} ORDER BY c.name")


def names(owner: Owner, connection: Connection) -> list[str]:
    """The names of all collections of an owner."""
    return [row[0] for row in connection.run(_NAMES, owner=owner)]


class StatusCount(msgspec.Struct, frozen=True):
    """The documents of a collection with one status."""

    status: str
    documents: int
    bytes: int
    pages: int
    chunks: int


_COUNTS = Statement(
    "SELECT d.status, count(*), coalesce(sum(d.size), 0), coalesce(sum(g.pages), 0), coalesce(sum(g.chunks), 0) "
    "FROM documents d LEFT JOIN generations g ON g.document_id = d.id AND g.state = 'ACTIVE' "
    "WHERE d.owner = :owner AND d.collection = :collection AND d.deleted_at IS NULL GROUP BY d.status ORDER BY d.status"
)


def counts(owner: Owner, connection: Connection, collection: str) -> list[StatusCount]:
    """Count the documents of a collection. This reads each of them."""
    rows = connection.run(_COUNTS, owner=owner, collection=collection)
    return [StatusCount(row[0], *map(int, row[1:])) for row in rows]


class Origin(msgspec.Struct, frozen=True):
    created_at: float
    is_dropping: bool


_ORIGIN = Statement(
    f"SELECT c.created_at, c.drop_to IS NOT NULL FROM collections c WHERE c.owner = :owner AND c.name = :collection "
    f"AND {EXISTS}"
)


def origin(owner: Owner, connection: Connection, collection: str) -> Origin | None:
    """When a collection was made; None if there is no such collection."""
    rows = connection.run(_ORIGIN, owner=owner, collection=collection)
    return Origin(rows[0][0], bool(rows[0][1])) if rows else None


class Drop(msgspec.Struct, frozen=True):
    """A drop that was begun. `upto`: the newest document that it deletes."""

    owner: Owner
    collection: str
    upto: str


_NEWEST = Statement(
    "SELECT max(d.id) FROM documents d WHERE d.owner = :owner AND d.collection = :collection AND d.deleted_at IS NULL"
)
_BEGIN = Statement("UPDATE collections SET drop_to = :upto WHERE owner = :owner AND name = :collection")
_END = Statement(
    "UPDATE collections SET drop_to = NULL, dropped_at = {now} "
    "WHERE owner = :owner AND name = :collection AND drop_to = :upto"
)
_IS_GONE = (
    "EXISTS (SELECT 1 FROM collections c WHERE c.owner = :owner AND c.name = :collection "
    f"AND c.drop_to IS NULL AND NOT {EXISTS})"
)
# What is ingested later may have another embedder. So it gets another version.
_RETIRE = Statement(
    "UPDATE index_versions SET state = 'RETIRED' WHERE owner = :owner AND collection = :collection "
    f"AND state IN ('CURRENT', 'BUILDING') AND {_IS_GONE}"
)
_END_REINDEX = Statement(f"DELETE FROM reindexes WHERE owner = :owner AND collection = :collection AND {_IS_GONE}")
_BEGUN = Statement("SELECT owner, name, drop_to FROM collections WHERE drop_to IS NOT NULL ORDER BY owner, name")
_BEGUN_IN = Statement(
    "SELECT owner, name, drop_to FROM collections WHERE owner = :owner AND name = :collection AND drop_to IS NOT NULL"
)
_LEFT = Statement(
    "SELECT id FROM documents WHERE owner = :owner AND collection = :collection AND deleted_at IS NULL "
    "AND id <= :upto ORDER BY id LIMIT :count"
)


def _begin(connection: Connection, requests: Sequence[tuple[Owner, str]]) -> list[Drop]:
    drops = []
    for owner, name in requests:
        [(newest,)] = connection.run(_NEWEST, owner=owner, collection=name)
        drop = Drop(owner, name, newest or "0")
        connection.run(_BEGIN, owner=owner, collection=name, upto=drop.upto)
        drops.append(drop)
    return drops


def _end(connection: Connection, drops: Sequence[Drop]) -> list[None]:
    for drop in drops:
        connection.run(_END, owner=drop.owner, collection=drop.collection, upto=drop.upto)
        connection.run(_RETIRE, owner=drop.owner, collection=drop.collection)
        connection.run(_END_REINDEX, owner=drop.owner, collection=drop.collection)
    return [None for _ in drops]


def begun(connection: Connection) -> list[Drop]:
    """The drops of all owners that have not ended."""
    return [Drop(Owner(row[0]), *row[1:]) for row in connection.run(_BEGUN)]


def begun_in(owner: Owner, connection: Connection, collection: str) -> list[Drop]:
    """The drop of a collection, if it has not ended."""
    return [Drop(owner, *row[1:]) for row in connection.run(_BEGUN_IN, owner=owner, collection=collection)]


def left(owner: Owner, connection: Connection, drop: Drop, count: int) -> list[DocumentId]:
    """Documents that a drop has not deleted yet."""
    rows = connection.run(_LEFT, owner=owner, collection=drop.collection, upto=drop.upto, count=count)
    return [DocumentId(row[0]) for row in rows]


BEGIN_DROP = Verb("begin_drop", _begin)
END_DROP = Verb("end_drop", _end)
