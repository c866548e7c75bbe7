"""Seals: the version and the checksum of an index table after vacuum. The seal is written in the transaction that
releases the lock, with the time of that release: any later holder of the lock changes that time.

These statements cross owners (I10); `owner` "" means all."""

from collections.abc import Sequence

import msgspec

from penstock.ledger.database.connection import Connection
from penstock.ledger.database.statements import Statement
from penstock.ledger.database.writer import Verb
from penstock.ledger.engine import locks
from penstock.ledger.upkeep.audit import question
from penstock.ledger.upkeep.audit_index import Place
from penstock.model.nouns import Token


class Seal(msgspec.Struct, frozen=True):
    place: Place
    token: Token
    """Of the lock that vacuum holds."""
    table_version: int
    sha256: str

    @property
    def key(self) -> str:
        return locks.index_key(self.place.owner, self.place.collection, self.place.version)


class Sealed(msgspec.Struct, frozen=True):
    place: Place
    table_version: int
    sha256: str
    at: float


_SEAL = Statement(
    "INSERT INTO index_checksums (owner, collection, version, table_version, sha256, sealed_at) "
    "SELECT :owner, :collection, :version, :table_version, :sha256, l.released_at FROM locks l "
    "WHERE l.resource_key = :key ON CONFLICT (owner, collection, version) DO UPDATE SET "
    "table_version = excluded.table_version, sha256 = excluded.sha256, sealed_at = excluded.sealed_at"
)
_UNSEAL = Statement(
    "DELETE FROM index_checksums WHERE owner = :owner AND collection = :collection AND version = :version"
)
_SEALED = question(
    "SELECT c.owner, c.collection, c.version, c.table_version, c.sha256, c.sealed_at FROM index_checksums c "
    "WHERE <c.owned> ORDER BY c.owner, c.collection, c.version"
)
_HELD_SINCE = Statement("SELECT token, released_at FROM locks WHERE resource_key = :key")
_BEFORE_HOLDER = Statement(
    "SELECT c.table_version, c.sha256, c.sealed_at FROM index_checksums c "
    "JOIN locks l ON l.resource_key = :key AND l.released_at = c.sealed_at "
    "WHERE c.owner = :owner AND c.collection = :collection AND c.version = :version"
)


def _seal(connection: Connection, seals: Sequence[Seal]) -> list[bool]:
    return [_seal_one(connection, seal) for seal in seals]


def _seal_one(connection: Connection, seal: Seal) -> bool:
    if not locks.give_back(connection, seal.key, seal.token):
        return False
    what = {"table_version": seal.table_version, "sha256": seal.sha256}
    connection.run(_SEAL, key=seal.key, **_where(seal.place), **what)
    return True


def _unseal(connection: Connection, places: Sequence[Place]) -> list[None]:
    for place in places:
        connection.run(_UNSEAL, **_where(place))
    return [None for _ in places]


def _where(place: Place) -> dict[str, str | int]:
    return {"owner": place.owner, "collection": place.collection, "version": place.version}


def sealed(connection: Connection, owner: str) -> list[Sealed]:
    return [Sealed(Place(*row[:3]), *row[3:]) for row in connection.run(_SEALED, owner=owner)]


def held_since(connection: Connection, seal: Sealed) -> bool:
    """Whether somebody of ours holds the lock, or has held it, since that seal. Not by comparing times: a clock may
    have been set back."""
    key = locks.index_key(seal.place.owner, seal.place.collection, seal.place.version)
    return any(token is not None or at != seal.at for token, at in connection.run(_HELD_SINCE, key=key))


def before_holder(connection: Connection, place: Place) -> Sealed | None:
    """The seal of a table, if nobody held its lock between it and whoever holds it now."""
    key = locks.index_key(place.owner, place.collection, place.version)
    rows = connection.run(_BEFORE_HOLDER, key=key, **_where(place))
    return Sealed(place, *rows[0]) if rows else None


SEAL = Verb("seal_index", _seal)
UNSEAL = Verb("unseal_index", _unseal)
