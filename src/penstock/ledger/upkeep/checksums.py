"""Stored checksums: the version and the checksum of an index table after a vacuum. The transaction that releases the
table's lock stores the checksum, with the time of that release. Every later holder of the lock changes that time.

These statements cross owners (I10); `owner` "" means all."""

from collections.abc import Sequence

import msgspec

from penstock.ledger.database.connection import Connection
from penstock.ledger.database.statements import Statement
from penstock.ledger.database.writer import Verb
from penstock.ledger.engine import locks
from penstock.ledger.upkeep.audit import question
from penstock.ledger.upkeep.audit_index import TablePlace
from penstock.model.nouns import Token


class NewChecksum(msgspec.Struct, frozen=True):
    place: TablePlace
    token: Token
    """The token of the lock that vacuum holds."""
    table_version: int
    sha256: str

    @property
    def key(self) -> str:
        return locks.index_key(self.place.owner, self.place.collection, self.place.version)


class StoredChecksum(msgspec.Struct, frozen=True):
    place: TablePlace
    table_version: int
    sha256: str
    at: float


_STORE = Statement(
    "INSERT INTO index_checksums (owner, collection, version, table_version, sha256, sealed_at) "
    "SELECT :owner, :collection, :version, :table_version, :sha256, l.released_at FROM locks l "
    "WHERE l.resource_key = :key ON CONFLICT (owner, collection, version) DO UPDATE SET "
    "table_version = excluded.table_version, sha256 = excluded.sha256, sealed_at = excluded.sealed_at"
)
_DROP = Statement(
    "DELETE FROM index_checksums WHERE owner = :owner AND collection = :collection AND version = :version"
)
_STORED = question(
    "SELECT c.owner, c.collection, c.version, c.table_version, c.sha256, c.sealed_at FROM index_checksums c "
    "WHERE <c.owned> ORDER BY c.owner, c.collection, c.version"
)
_HELD_SINCE = Statement("SELECT token, released_at FROM locks WHERE resource_key = :key")
_BEFORE_HOLDER = Statement(
    "SELECT c.table_version, c.sha256, c.sealed_at FROM index_checksums c "
    "JOIN locks l ON l.resource_key = :key AND l.released_at = c.sealed_at "
    "WHERE c.owner = :owner AND c.collection = :collection AND c.version = :version"
)


def _store(connection: Connection, checksums: Sequence[NewChecksum]) -> list[bool]:
    return [_store_one(connection, checksum) for checksum in checksums]


def _store_one(connection: Connection, checksum: NewChecksum) -> bool:
    if not locks.give_back(connection, checksum.key, checksum.token):
        return False
    what = {"table_version": checksum.table_version, "sha256": checksum.sha256}
    connection.run(_STORE, key=checksum.key, **_where(checksum.place), **what)
    return True


def _drop(connection: Connection, places: Sequence[TablePlace]) -> list[None]:
    for place in places:
        connection.run(_DROP, **_where(place))
    return [None for _ in places]


def _where(place: TablePlace) -> dict[str, str | int]:
    return {"owner": place.owner, "collection": place.collection, "version": place.version}


def stored(connection: Connection, owner: str) -> list[StoredChecksum]:
    return [StoredChecksum(TablePlace(*row[:3]), *row[3:]) for row in connection.run(_STORED, owner=owner)]


def held_since(connection: Connection, checksum: StoredChecksum) -> bool:
    """Whether a process holds the table's lock, or has held it, since the checksum was stored. The times are compared
    for equality and not for order, because a clock may be set back."""
    key = locks.index_key(checksum.place.owner, checksum.place.collection, checksum.place.version)
    return any(token is not None or at != checksum.at for token, at in connection.run(_HELD_SINCE, key=key))


def before_holder(connection: Connection, place: TablePlace) -> StoredChecksum | None:
    """The stored checksum of a table, if no other process held the table's lock between it and the present holder."""
    key = locks.index_key(place.owner, place.collection, place.version)
    rows = connection.run(_BEFORE_HOLDER, key=key, **_where(place))
    return StoredChecksum(place, *rows[0]) if rows else None


STORE_CHECKSUM = Verb("store_checksum", _store)
DROP_CHECKSUM = Verb("drop_checksum", _drop)
