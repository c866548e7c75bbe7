"""Index versions of collections that were dropped. Their tables are removed when all rows are purged.

These statements cross owners (I10)."""

from collections.abc import Sequence

import msgspec

from penstock.ledger.database.connection import Connection
from penstock.ledger.database.statements import Statement
from penstock.ledger.database.writer import Verb
from penstock.ledger.engine import backup_guard
from penstock.model.nouns import Owner


class Retired(msgspec.Struct, frozen=True):
    """A version whose collection was dropped."""

    owner: Owner
    collection: str
    version: int


# Nothing is removed while a backup runs.
_EMPTY = Statement(
    "SELECT v.owner, v.collection, v.version FROM index_versions v WHERE v.state = 'RETIRED' AND NOT EXISTS "
    "(SELECT 1 FROM generations g WHERE g.owner = v.owner AND g.collection = v.collection "
    "AND g.index_version = v.version AND g.written = 1 AND g.state <> 'ACTIVE') "
    f"AND NOT {backup_guard.RUNNING} ORDER BY v.owner, v.collection, v.version"
)
_FORGET = Statement(
    "DELETE FROM index_versions WHERE owner = :owner AND collection = :collection AND version = :version "
    "AND state = 'RETIRED'"
)


def empty(connection: Connection) -> list[Retired]:
    """The retired versions of all owners whose rows are purged."""
    return [Retired(Owner(row[0]), *row[1:]) for row in connection.run(_EMPTY)]


def _forget(connection: Connection, versions: Sequence[Retired]) -> list[None]:
    for one in versions:
        connection.run(_FORGET, owner=one.owner, collection=one.collection, version=one.version)
    return [None for _ in versions]


FORGET_VERSION = Verb("forget_version", _forget)
