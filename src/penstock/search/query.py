"""Search. It uses one read snapshot of the ledger, excludes hidden generations, fetches more hits than requested, and
keeps those whose generation is active in the snapshot (I5)."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Literal

import msgspec

from penstock.embedders.base import Embedder, Model
from penstock.errors import UsageError
from penstock.indexes.base import Filter, Index, IndexHit, IndexTable, Query, TableId, TextQuery, Traits, VectorQuery
from penstock.ledger.database.store import Ledger
from penstock.ledger.engine import generations, index_versions
from penstock.model.items import Vector
from penstock.model.nouns import GenerationId, Owner
from penstock.search.fuse import fuse

Mode = Literal["hybrid", "vector", "text"]

Visible = Callable[[list[GenerationId]], Awaitable[dict[GenerationId, generations.Visible]]]
"""Returns which generations are active in the snapshot and complete in the version that is searched."""
FETCH_LEAST = 50
FETCH_ALL = 1 << 40
"""More rows than any table can have."""


class Hit(msgspec.Struct, frozen=True):
    score: float
    document_id: str
    name: str
    page: int
    page_end: int
    start: int
    end: int
    text: str
    metadata: dict[str, Any]
    headings: tuple[str, ...]
    source: str


async def search(
    ledger: Ledger, index: Index, embedder: Embedder, owner: Owner, query: str, k: int, collection: str, mode: Mode
) -> list[Hit]:
    if k < 1:
        raise UsageError(f"k is {k}: it must be at least 1")
    mode = _possible(mode, index.traits)
    # Bytes of a command line that are not UTF-8 become lone surrogates, which no embedder accepts.
    query = query.encode("utf-8", "replace").decode()
    look = partial(index_versions.current, owner)
    vector: Vector | None = None
    if mode != "text":
        # Before the snapshot is taken, because loading a model or calling a provider can take long.
        version = await ledger.read(look, collection)
        if version is None:
            return []
        _must_be_of(collection, version, embedder.model)
        vector = await embedder.embed_query(query)
    async with ledger.snapshot() as snapshot:
        version = await snapshot.read(look, collection)
        if version is None:
            return []
        if mode != "text":
            # Another version may have become current meanwhile.
            _must_be_of(collection, version, embedder.model)
        hidden = await snapshot.read(partial(generations.hidden, owner), collection, version.version)
        table = await index.open(TableId(owner, collection, version.version))
        if table is None:
            return []
        queries: list[Query] = []
        if vector is not None:
            queries.append(VectorQuery(vector))
        if mode != "vector":
            queries.append(TextQuery(query))

        async def visible(found: list[GenerationId]) -> dict[GenerationId, generations.Visible]:
            return await snapshot.read(partial(generations.visible, owner), version.version, found)

        return await _fetch(table, queries, k, hidden, visible, index.traits.max_hits)


def _possible(mode: Mode, traits: Traits) -> Mode:
    """The mode to use. If the index has only one mode, hybrid becomes that mode. Raises UsageError for a mode that the
    index does not support."""
    if mode == "hybrid" and len(traits.modes) == 1:
        return next(iter(traits.modes))
    if mode != "hybrid" and mode not in traits.modes:
        raise UsageError(f"this index cannot search with --mode {mode}: use {' or '.join(sorted(traits.modes))}")
    return mode


def _must_be_of(collection: str, version: index_versions.IndexVersion, model: Model) -> None:
    """Raises UsageError if another model made the vectors of the version."""
    if version.embedder not in (None, model.fingerprint, *model.former_names):
        raise UsageError(
            f"collection {collection!r} was embedded with {version.embedder}, not {model.fingerprint}: set that "
            "embedder, or search with --mode text"
        )


async def _fetch(
    table: IndexTable,
    queries: Sequence[Query],
    k: int,
    hidden: list[GenerationId],
    visible: Visible,
    most: int | None,
) -> list[Hit]:
    """Fetch more until k hits are active in the snapshot, or the index has no more. `most`: the maximum number of hits
    that one search can return."""
    most = most or FETCH_ALL
    count = min(max(4 * k, FETCH_LEAST), most)
    where = Filter(hidden)
    while True:
        rankings: list[list[IndexHit]] = await asyncio.gather(*(table.search(one, count, where) for one in queries))
        found = sorted({GenerationId(hit.generation) for ranking in rankings for hit in ranking})
        active = await visible(found)
        kept = [[hit for hit in ranking if hit.generation in active] for ranking in rankings]
        fused = fuse(kept) if len(kept) > 1 else kept[0]
        if len(fused) >= k or count == most or all(len(ranking) < count for ranking in rankings):
            return [_hit(hit, active[GenerationId(hit.generation)]) for hit in fused[:k]]
        count = min(4 * count, most)


def _hit(hit: IndexHit, document: generations.Visible) -> Hit:
    return Hit(
        hit.score,
        document.document_id,
        document.name,
        hit.page,
        hit.page_end,
        hit.start,
        hit.end,
        hit.text,
        json.loads(document.metadata),
        hit.headings,
        document.source,
    )
