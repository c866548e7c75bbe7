"""Versions of the index of a collection. One is current: searches read it, and new generations are placed in it. The
embedder belongs to the version, so a query is embedded with the model that made the vectors which it is compared to."""

from collections.abc import Sequence

import msgspec

from penstock.ledger.database.connection import Connection, Row
from penstock.ledger.database.statements import Statement
from penstock.ledger.database.writer import Verb
from penstock.model.nouns import Owner

FIRST = 1
"""The version of a collection that nothing was indexed for yet."""


class IndexVersion(msgspec.Struct, frozen=True):
    version: int
    embedder: str | None
    """The fingerprint of the model. None: nothing was indexed yet."""
    dimensions: int | None


_CURRENT = Statement(
    "SELECT v.version, v.embedder, v.dimensions FROM collections c LEFT JOIN index_versions v ON v.owner = c.owner "
    "AND v.collection = c.name AND v.state = 'CURRENT' WHERE c.owner = :owner AND c.name = :collection"
)
_OF = Statement(
    "SELECT version, embedder, dimensions FROM index_versions WHERE owner = :owner AND collection = :collection "
    "AND version = :version"
)


def current(owner: Owner, connection: Connection, collection: str) -> IndexVersion | None:
    """None: there is no such collection."""
    rows = connection.run(_CURRENT, owner=owner, collection=collection)
    return _version(rows[0]) if rows else None


def _version(row: Row) -> IndexVersion:
    return IndexVersion(row[0] or FIRST, row[1], row[2])


class Binding(msgspec.Struct, frozen=True):
    """An embedder is about to write into a version."""

    owner: Owner
    collection: str
    version: int
    embedder: str
    dimensions: int
    former_names: tuple[str, ...] = ()
    """Of the same embedder: a version that is bound to one of them is bound to the new name from now on."""


_BIND = Statement(
    "INSERT INTO index_versions (owner, collection, version, state, embedder, dimensions, created_at) "
    "SELECT owner, name, :version, 'CURRENT', :embedder, :dimensions, {now} FROM collections "
    "WHERE owner = :owner AND name = :collection ON CONFLICT DO NOTHING"
)
_RENAME = Statement(
    "UPDATE index_versions SET embedder = :embedder WHERE owner = :owner AND collection = :collection "
    "AND version = :version AND embedder = :former"
)


def _bind(connection: Connection, bindings: Sequence[Binding]) -> list[IndexVersion | None]:
    """The first embedder that writes into a version is its embedder; the answer says which that is."""
    answers = []
    for b in bindings:
        place = {"owner": b.owner, "collection": b.collection, "version": b.version}
        rows = connection.run(_OF, **place)
        if not rows:
            connection.run(_BIND, embedder=b.embedder, dimensions=b.dimensions, **place)
        for former in b.former_names:
            connection.run(_RENAME, embedder=b.embedder, former=former, **place)
        rows = connection.run(_OF, **place)
        answers.append(_version(rows[0]) if rows else None)
    return answers


BIND = Verb("bind", _bind)
