"""Search. It uses one read snapshot of the ledger, excludes hidden generations, fetches more hits than requested, and
keeps those whose generation is active in the snapshot (I5)."""

import asyncio
import json
from collections.abc import Sequence
from functools import partial
from typing import Any, Literal

import msgspec

from penstock.embedders.base import Embedder
from penstock.errors import UsageError
from penstock.indexes.base import Filter, Index, IndexHit, IndexTable, Query, TableId, TextQuery, Traits, VectorQuery
from penstock.ledger.database.store import Ledger, Snapshot
from penstock.ledger.engine import documents, generations
from penstock.model.items import Vector
from penstock.model.nouns import GenerationId, Owner
from penstock.search.fuse import fuse

Mode = Literal["hybrid", "vector", "text"]

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
        raise UsageError(f"k is {k}: ask for at least one hit")
    mode = _possible(mode, index.traits)
    # Bytes of a command line that are not UTF-8 become lone surrogates, which no embedder accepts.
    query = query.encode("utf-8", "replace").decode()
    look = partial(documents.collection, owner)
    vector: Vector | None = None
    if mode != "text":
        # Before the snapshot is taken: a model may have to be loaded, or a provider asked.
        if await ledger.read(look, collection) is None:
            return []
        vector = await embedder.embed_query(query)
    async with ledger.snapshot() as snapshot:
        home = await snapshot.read(look, collection)
        if home is None:
            return []
        if mode != "text" and home.embedder not in (None, embedder.model.fingerprint, *embedder.model.former_names):
            raise UsageError(
                f"collection {collection!r} was embedded with {home.embedder}, not {embedder.model.fingerprint}: set "
                "that embedder, or search with --mode text"
            )
        version = home.index_version
        hidden = await snapshot.read(partial(generations.hidden, owner), collection, version)
        table = await index.open(TableId(owner, collection, version))
        if table is None:
            return []
        queries: list[Query] = []
        if vector is not None:
            queries.append(VectorQuery(vector))
        if mode != "vector":
            queries.append(TextQuery(query))
        return await _fetch(snapshot, table, owner, queries, k, hidden, index.traits.max_hits)


def _possible(mode: Mode, traits: Traits) -> Mode:
    """Hybrid is what the index has of both."""
    if mode == "hybrid" and len(traits.modes) == 1:
        return next(iter(traits.modes))
    if mode != "hybrid" and mode not in traits.modes:
        raise UsageError(f"this index cannot search with --mode {mode}: use {' or '.join(sorted(traits.modes))}")
    return mode


async def _fetch(
    snapshot: Snapshot,
    table: IndexTable,
    owner: Owner,
    queries: Sequence[Query],
    k: int,
    hidden: list[GenerationId],
    most: int | None,
) -> list[Hit]:
    """Fetch more until k hits are active in the snapshot, or the index has no more. `most`: hits of one search."""
    most = most or FETCH_ALL
    count = min(max(4 * k, FETCH_LEAST), most)
    where = Filter(hidden)
    while True:
        rankings: list[list[IndexHit]] = await asyncio.gather(*(table.search(one, count, where) for one in queries))
        found = sorted({GenerationId(hit.generation) for ranking in rankings for hit in ranking})
        active = await snapshot.read(partial(generations.visible, owner), found)
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
