"""Index versions of a collection. One of them is current: searches read it, and new generations are placed in it. The
embedder belongs to the version, so that a query is embedded with the model that made the vectors in the version."""

from collections.abc import Sequence

import msgspec

from penstock.ledger.database.connection import Connection, Row
from penstock.ledger.database.statements import Statement
from penstock.ledger.database.writer import Verb
from penstock.ledger.engine.collections import EXISTS, VERSION_OF_C
from penstock.model.nouns import Owner

FIRST = 1
"""The number of the first version, which is used before anything was indexed."""


class IndexVersion(msgspec.Struct, frozen=True):
    version: int
    embedder: str | None
    """The fingerprint of the model. None: nothing was indexed yet."""
    dimensions: int | None
    setting: str | None = None
    """The value of the setting `embedder` that chose the model. None: not stored by this version of Penstock."""
    store: str | None = None
    """Where its table is, as `indexes/several.py` names it. None: in the index of the settings."""


_CURRENT = Statement(
    f"SELECT {VERSION_OF_C}, i.embedder, i.dimensions, i.setting, i.store FROM collections c "
    "LEFT JOIN index_versions i ON i.owner = c.owner "
    "AND i.collection = c.name AND i.state = 'CURRENT' WHERE c.owner = :owner AND c.name = :collection "
    f"AND {EXISTS}"
)
_OF = Statement(
    "SELECT version, embedder, dimensions, setting, store FROM index_versions "
    "WHERE owner = :owner AND collection = :collection AND version = :version"
)


_STORES = Statement("SELECT DISTINCT store FROM index_versions WHERE store IS NOT NULL ORDER BY store")


def stores(connection: Connection) -> list[str]:
    """Where tables of all owners are, apart from the index of the settings."""
    return [row[0] for row in connection.run(_STORES)]


def current(owner: Owner, connection: Connection, collection: str) -> IndexVersion | None:
    """The current version of a collection; None if there is no such collection."""
    rows = connection.run(_CURRENT, owner=owner, collection=collection)
    return _version(rows[0]) if rows else None


def of(owner: Owner, connection: Connection, collection: str, version: int) -> IndexVersion | None:
    """One version of a collection."""
    rows = connection.run(_OF, owner=owner, collection=collection, version=version)
    return _version(rows[0]) if rows else None


def _version(row: Row) -> IndexVersion:
    return IndexVersion(*row)


class Binding(msgspec.Struct, frozen=True):
    """The embedder that is about to write into a version."""

    owner: Owner
    collection: str
    version: int
    embedder: str
    dimensions: int
    former_names: tuple[str, ...] = ()
    """Former fingerprints of the same embedder. A version with one of these gets the new fingerprint."""
    setting: str | None = None
    store: str | None = None
    """The index of the settings. It is stored if a collection was moved to another index, so that other settings do not
    change where the tables are."""


_BIND = Statement(
    "INSERT INTO index_versions (owner, collection, version, state, embedder, dimensions, setting, store, "
    "created_at) SELECT owner, name, :version, 'CURRENT', :embedder, :dimensions, :setting, "
    "CASE WHEN EXISTS (SELECT 1 FROM index_versions WHERE store IS NOT NULL) THEN CAST(:store AS TEXT) END, {now} "
    "FROM collections WHERE owner = :owner AND name = :collection ON CONFLICT DO NOTHING"
)
_RENAME = Statement(
    "UPDATE index_versions SET embedder = :embedder WHERE owner = :owner AND collection = :collection "
    "AND version = :version AND embedder = :former"
)


_SET = Statement(
    "UPDATE index_versions SET setting = :setting WHERE owner = :owner AND collection = :collection "
    "AND version = :version AND embedder = :embedder AND (setting IS NULL OR setting <> :setting)"
)


def _bind(connection: Connection, bindings: Sequence[Binding]) -> list[IndexVersion | None]:
    """Bind versions to their embedders. The first embedder that writes into a version is its embedder. Returns the
    versions with their embedders."""
    answers = []
    for b in bindings:
        place = {"owner": b.owner, "collection": b.collection, "version": b.version}
        rows = connection.run(_OF, **place)
        if not rows:
            values = {"embedder": b.embedder, "dimensions": b.dimensions, "setting": b.setting, "store": b.store}
            connection.run(_BIND, **values, **place)
        for former in b.former_names:
            connection.run(_RENAME, embedder=b.embedder, former=former, **place)
        if b.setting is not None:
            connection.run(_SET, embedder=b.embedder, setting=b.setting, **place)
        rows = connection.run(_OF, **place)
        answers.append(_version(rows[0]) if rows else None)
    return answers


BIND = Verb("bind", _bind)
