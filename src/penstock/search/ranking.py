"""Ranks the rows of a table for a query. It fetches more rows than wanted, and keeps those whose generation is active
(I5)."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Literal, NamedTuple

from penstock.indexes.base import Filter, IndexHit, IndexTable, Query, TextQuery, Traits, VectorQuery
from penstock.ledger.engine import generations
from penstock.model.items import Vector
from penstock.model.nouns import GenerationId

Mode = Literal["hybrid", "vector", "text"]

Visible = Callable[[list[GenerationId]], Awaitable[dict[GenerationId, generations.Visible]]]
"""Returns which generations are active in the snapshot and complete in the version that is searched."""
FETCH_LEAST = 50
FETCH_ALL = 1 << 40
"""More rows than any table can have."""

Id = tuple[int, int]


class Asked(NamedTuple):
    """What a search looks for."""

    text: str
    mode: Mode
    vector: Vector | None = None
    """The vector of the text; None if the mode is `text`."""


class Candidate(NamedTuple):
    """A row with its place in the ranking, and the parts of its score. A part that was not computed is None."""

    hit: IndexHit
    document: generations.Visible
    score: float
    """Orders the hits of one search. Scores of different searches cannot be compared."""
    relevance: float | None = None
    """How well the row answers the query, from 0 to 1. Comparable between searches."""
    cosine: float | None = None
    words: float | None = None
    """BM25 of the words."""
    grams: float | None = None
    """BM25 of the character grams."""
    fused: float | None = None
    """The weighted sum of the scaled parts, before reranking."""


async def rank(
    table: IndexTable, traits: Traits, asked: Asked, want: int, where: Filter, visible: Visible
) -> list[Candidate]:
    """Return the `want` best rows, best first. Fetches more until enough of them are active, or the index has no
    more."""
    queries: list[Query] = []
    if asked.vector is not None:
        queries.append(VectorQuery(asked.vector))
    if asked.mode != "vector":
        queries.append(TextQuery(asked.text))
    most = traits.max_hits or FETCH_ALL
    count = min(max(4 * want, FETCH_LEAST), most)
    while True:
        rankings: list[list[IndexHit]] = await asyncio.gather(*(table.search(one, count, where) for one in queries))
        found = sorted({GenerationId(hit.generation) for ranking in rankings for hit in ranking})
        active = await visible(found)
        kept = [[hit for hit in ranking if hit.generation in active] for ranking in rankings]
        ids = {_id(hit) for ranking in kept for hit in ranking}
        if len(ids) >= want or count == most or all(len(ranking) < count for ranking in rankings):
            return _ranked(queries, kept, active)[:want]
        count = min(4 * count, most)


def _ranked(
    queries: Sequence[Query], rankings: Sequence[list[IndexHit]], documents: dict[GenerationId, generations.Visible]
) -> list[Candidate]:
    hits = {_id(hit): hit for ranking in rankings for hit in ranking}
    cosine: dict[Id, float] = {}
    words: dict[Id, float] = {}
    for query, ranking in zip(queries, rankings, strict=True):
        part = cosine if isinstance(query, VectorQuery) else words
        part.update((_id(hit), hit.score) for hit in ranking)
    fused = _fuse(rankings) if len(rankings) > 1 else None
    made = [
        Candidate(
            hit,
            documents[GenerationId(hit.generation)],
            hit.score if fused is None else fused[key],
            cosine=cosine.get(key),
            words=words.get(key),
            fused=None if fused is None else fused[key],
        )
        for key, hit in hits.items()
    ]
    return sorted(made, key=lambda one: (-one.score, _id(one.hit)))


def _fuse(rankings: Sequence[Sequence[IndexHit]]) -> dict[Id, float]:
    """Scale each ranking to 0…1 (min-max) and average them. A row that is missing in a ranking gets 0 there."""
    scores: dict[Id, float] = {}
    for ranking in rankings:
        for key, score in _min_max(ranking).items():
            scores[key] = scores.get(key, 0.0) + score / len(rankings)
    return scores


def _min_max(hits: Sequence[IndexHit]) -> dict[Id, float]:
    if not hits:
        return {}
    low = min(hit.score for hit in hits)
    span = max(hit.score for hit in hits) - low
    return {_id(hit): (hit.score - low) / span if span else 1.0 for hit in hits}


def _id(hit: IndexHit) -> Id:
    return hit.generation, hit.ordinal
