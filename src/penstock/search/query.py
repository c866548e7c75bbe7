"""Search. It uses one read snapshot of the ledger, excludes hidden generations, and keeps the hits whose generation is
active in the snapshot (I5)."""

from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec

from penstock.embedders.base import Embedder, Model, Relevance
from penstock.errors import UsageError
from penstock.indexes.base import Filter, Index, TableId, Traits
from penstock.ledger.database.store import Ledger
from penstock.ledger.engine import generations, index_versions
from penstock.model.items import Vector
from penstock.model.metadata import merged
from penstock.model.nouns import GenerationId, Owner
from penstock.search.filters import Fields, Predicate
from penstock.search.ranking import Asked, Candidate, Mode, rank


class Hit(msgspec.Struct, frozen=True):
    score: float
    """Orders the hits of one search."""
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
    relevance: float | None = None
    """How well the passage covers the query, from 0 to 1. Comparable between searches; below 0.58 it is often wrong."""


async def search(
    ledger: Ledger,
    index: Index,
    embedder: Embedder,
    relevance: Relevance,
    owner: Owner,
    query: str,
    k: int,
    collection: str,
    mode: Mode,
    accepts: Predicate | None = None,
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
        where = Filter(hidden)
        allowed: set[GenerationId] | None = None
        if accepts is not None:
            accepted, rejected = await snapshot.read(
                partial(generations.matching, owner), collection, version.version, _reading(accepts)
            )
            allowed = set(accepted)
            # The shorter list: a long one takes longer to apply than the search itself.
            shorter = len(accepted) <= len(rejected) and "only" in index.traits.filters
            where = Filter(hidden, accepted) if shorter else Filter([*hidden, *rejected])
        table = await index.open(TableId(owner, collection, version.version))
        if table is None:
            return []

        async def visible(found: list[GenerationId]) -> dict[GenerationId, generations.Visible]:
            if allowed is not None:
                found = [generation for generation in found if generation in allowed]
            return await snapshot.read(partial(generations.visible, owner), version.version, found)

        asked = Asked(query, mode, vector, static=embedder.model.static)
        ranked = await rank(table, index.traits, asked, k, where, visible, relevance)
        return [_hit(candidate) for candidate in ranked]


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


def _reading(accepts: Predicate) -> Callable[[generations.Searchable], bool]:
    return lambda one: accepts(Fields(*one[1:10], (one.metadata, one.found)))


def _hit(candidate: Candidate) -> Hit:
    hit, document = candidate.hit, candidate.document
    return Hit(
        candidate.score,
        document.document_id,
        document.name,
        hit.page,
        hit.page_end,
        hit.start,
        hit.end,
        hit.text,
        merged((document.metadata, document.found)),
        hit.headings,
        document.source,
        candidate.relevance,
    )
