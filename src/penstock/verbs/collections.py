"""The collections of an owner: list, show and drop."""

import msgspec

from penstock.config import check_name
from penstock.errors import NotFound
from penstock.ledger.database.connection import Connection
from penstock.ledger.engine import collections, index_versions
from penstock.model.nouns import Owner
from penstock.upkeep.drop import finish_drop
from penstock.verbs.scope import Scope


class CollectionView(msgspec.Struct, frozen=True):
    """A collection and what it contains. All numbers are exact."""

    name: str
    created_at: float
    documents: int
    statuses: dict[str, int]
    """The number of documents by status."""
    pages: int
    """Pages and chunks are those that are searchable."""
    chunks: int
    bytes: int
    """The size of the files that the documents were made of."""
    index_version: int
    index: str | None
    """Where that version is, if a re-index has moved a collection; None: in the index of the settings."""
    embedder: str | None
    """The fingerprint of the embedder. None: nothing was indexed yet; the same holds for `dimensions`."""
    dimensions: int | None
    dropping: bool
    """A drop was interrupted. A worker, or the same call, completes it."""


async def list_collections(scope: Scope) -> list[CollectionView]:
    """Return the collections with their counts, by name. This reads each document once."""

    def look(connection: Connection) -> list[CollectionView]:
        views = (_view(scope.owner, connection, name) for name in collections.names(scope.owner, connection))
        return [view for view in views if view is not None]

    async with scope.ledger.snapshot() as snapshot:
        return await snapshot.read(look)


async def collection(scope: Scope, name: str) -> CollectionView:
    """Return one collection with its counts. Raises NotFound."""
    where = check_name("collection", name)
    async with scope.ledger.snapshot() as snapshot:
        found = await snapshot.read(lambda c: _view(scope.owner, c, where))
    if found is None:
        raise unknown(where)
    return found


class Dropped(msgspec.Struct, frozen=True):
    collection: str
    documents: int
    """The number of documents that this call deleted."""
    existed: bool
    """False: there was no such collection, or it was dropped before."""


async def drop_collection(scope: Scope, name: str) -> Dropped:
    """Delete all documents of a collection, and the collection. No search that starts after this call finds them. The
    documents are deleted in several transactions. If this call is interrupted, the next worker, or the same call,
    completes it. Documents that are submitted meanwhile stay."""
    where = check_name("collection", name)
    found = await scope.ledger.read(lambda c: collections.origin(scope.owner, c, where))
    if found is None:
        return Dropped(where, 0, False)
    drop = await scope.ledger.write(collections.BEGIN_DROP, (scope.owner, where))
    return Dropped(where, await finish_drop(scope.ledger, drop), True)


def unknown(name: str) -> NotFound:
    return NotFound(f"no collection {name!r}: `penstock collection list` shows all collections")


def _view(owner: Owner, connection: Connection, name: str) -> CollectionView | None:
    origin = collections.origin(owner, connection, name)
    version = index_versions.current(owner, connection, name)
    if origin is None or version is None:
        return None
    counts = collections.counts(owner, connection, name)
    return CollectionView(
        name,
        origin.created_at,
        sum(one.documents for one in counts),
        {one.status: one.documents for one in counts},
        sum(one.pages for one in counts),
        sum(one.chunks for one in counts),
        sum(one.bytes for one in counts),
        version.version,
        version.store,
        version.embedder,
        version.dimensions,
        origin.is_dropping,
    )
