"""Ranks the rows of a table for a query.

A hybrid search takes the best rows of three rankings: BM25 of words, BM25 of character grams, and cosine of vectors. It
scales each to 0…1 and adds them with fixed weights. Then it reranks the best of these by their relevance. The numbers
were chosen by measurement (decision 16). All depths are fixed: the first hits do not depend on how many are wanted.

More rows than needed are fetched, until enough of them belong to active generations (I5).
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Literal, NamedTuple

from penstock.embedders.base import Relevance
from penstock.indexes.base import IndexHit, Query, Searchable, TextQuery, Traits, VectorQuery
from penstock.ledger.engine import generations
from penstock.model.items import Vector
from penstock.model.nouns import GenerationId
from penstock.search.tables import Tables

Mode = Literal["hybrid", "vector", "text"]
Part = Literal["words", "grams", "cosine"]

Visible = Callable[[list[GenerationId]], Awaitable[dict[GenerationId, generations.Visible]]]
"""Returns which generations are active in the snapshot and complete in the version that is searched."""

DEPTH = 50
"""Rows of each ranking that are combined. If more hits are wanted, deeper rows follow, each time four times as many."""
TIED = 20
"""If rows have the same score, at most so many times as many are fetched in order to use those with the lowest ids."""
RERANKED = 20
"""Hits that are reranked by relevance."""
LEAST_DENSITY = 1.6
"""Characters for each token of the query. Below it, the tokens are single characters or bytes of a script that the
token vectors do not know, and only words and grams are compared."""


class Weights(NamedTuple):
    words: float
    grams: float
    cosine: float
    relevance: float
    """The share of the relevance in the final score of the reranked hits."""


STATIC = Weights(0.45, 0.40, 0.15, 0.4)
"""For the default embedder, whose vectors are means of token vectors."""
STRONG = Weights(0.30, 0.30, 0.40, 0.3)
"""For all other embedders."""
LEXICAL = Weights(0.53, 0.47, 0.0, 0.0)
"""For queries of too little density."""


class Asked(NamedTuple):
    """What a search looks for."""

    text: str
    mode: Mode
    vector: Vector | None = None
    """The vector of the text; None if the mode is `text`."""
    static: bool = False
    """Whether the vector is a mean of token vectors."""


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
    reranked: float | None = None
    """What the reranker says, from 0 to 1."""


Id = tuple[int, int]


async def rank(
    table: Tables,
    traits: Traits,
    asked: Asked,
    want: int,
    visible: Visible,
    relevance: Relevance,
) -> list[Candidate]:
    """Return the `want` best rows, best first."""
    weights = await _weights(asked, relevance)
    queries = _queries(asked, traits, weights)
    found: list[Candidate] = []
    depth = DEPTH
    while True:
        rankings = await _rankings(table, traits, list(queries.values()), depth, visible)
        ranked = _fused(dict(zip(queries, rankings, strict=True)), weights)
        if not found:
            found = await _reranked(ranked, asked, weights, relevance, table)
        else:
            found += _following(found, ranked)
        if len(found) >= want or all(not ranking.more for ranking in rankings):
            break
        depth *= 4
    return await _with_relevance(await _filled(found[:want], table), asked.text, relevance)


async def explain_weights(asked: Asked, traits: Traits, relevance: Relevance) -> tuple[dict[str, float], bool]:
    """The share of each part in the fused score and, as `relevance`, the share of the relevance in the final one. And
    whether the query has too little density for vectors."""
    weights = await _weights(asked, relevance)
    parts = _queries(asked, traits, weights)
    total = sum(getattr(weights, part) for part in parts) or 1.0
    shares = {str(part): getattr(weights, part) / total if len(parts) > 1 else 1.0 for part in parts}
    if asked.mode == "hybrid":
        shares["relevance"] = weights.relevance
    return shares, weights is LEXICAL


async def _weights(asked: Asked, relevance: Relevance) -> Weights:
    if asked.mode == "hybrid" and await relevance.density(asked.text) < LEAST_DENSITY:
        return LEXICAL
    return STATIC if asked.static else STRONG


def _queries(asked: Asked, traits: Traits, weights: Weights) -> dict[Part, Query]:
    queries: dict[Part, Query] = {}
    if asked.mode != "vector":
        queries["words"] = TextQuery(asked.text)
    if asked.mode == "hybrid" and "grams" in traits.text_fields:
        queries["grams"] = TextQuery(asked.text, "grams")
    if asked.vector is not None and (asked.mode == "vector" or weights.cosine):
        queries["cosine"] = VectorQuery(asked.vector)
    return queries


class _Ranking(NamedTuple):
    hits: list[IndexHit]
    documents: dict[GenerationId, generations.Visible]
    more: bool
    """Whether the index may have more rows."""
    share: float = 1.0
    """The share of the fetched rows that can be shown."""
    enough: bool = True
    """Whether there are as many hits as wanted, or as there are."""


async def _rankings(
    table: Tables, traits: Traits, queries: Sequence[Query], depth: int, visible: Visible
) -> list[_Ranking]:
    """With a filter, the first query shows how many rows the filter accepts, before the others begin. It is that of
    words, which is the cheapest."""
    if not table.filtered or table.narrowed:
        return await asyncio.gather(*(_top(table, traits, query, depth, visible) for query in queries))
    # Some more, so that the hits of a filter that many documents match are found at once.
    least = min(4 * depth, table.unfiltered)
    first = await _top(table, traits, queries[0], depth, visible, least, once=True)
    # If they are not enough, the first query is repeated beside the others.
    again = () if first.enough else queries[:1]
    least = _enough(depth, first.share)
    found = await asyncio.gather(*(_top(table, traits, q, depth, visible, least) for q in (*again, *queries[1:])))
    return found if again else [first, *found]


async def _top(
    table: Tables,
    traits: Traits,
    query: Query,
    depth: int,
    visible: Visible,
    least: int = 0,
    *,
    once: bool = False,
) -> _Ranking:
    """The best active rows, at most `depth`. `least`: the number of rows to begin with, if the index does not apply the
    filter. `once`: do not fetch more, even if there are too few. Rows of equal scores are ordered by their ids, so one
    row more is fetched, and further ones if that has the same score."""
    most = traits.max_hits
    count = max(depth + 1, 0 if table.narrowed else least)
    while True:
        if table.filtered and not table.narrowed and count > max(table.unfiltered, depth + 1):
            await table.narrow()
            count = depth + 1
        count = count if most is None else min(count, most)
        fetched = await table.search(query, count, whole=False)
        documents = await visible(sorted({GenerationId(hit.generation) for hit in fetched}))
        hits = [hit for hit in fetched if hit.generation in documents]
        more = len(fetched) >= count and count != most
        enough = len(hits) >= depth and not _is_cut_in_a_tie(fetched, hits[depth - 1], depth)
        if not more or enough or once:
            share = len(hits) / max(len(fetched), 1)
            return _Ranking(hits[:depth], documents, more or len(hits) > depth, share, enough or not more)
        count = max(2 * count, _enough(depth, len(hits) / len(fetched)))


def _enough(depth: int, share: float) -> int:
    """As many rows as are needed if the share of those that can be shown stays the same."""
    return int(1.3 * depth / share) if share else 1_000 * depth


def _is_cut_in_a_tie(fetched: Sequence[IndexHit], last: IndexHit, depth: int) -> bool:
    """Whether rows that were not fetched may have the same score as the last one that is used."""
    return fetched[-1].score == last.score and len(fetched) < TIED * depth


def _fused(rankings: Mapping[Part, _Ranking], weights: Weights) -> list[Candidate]:
    """All rows of the rankings, ordered by the weighted sum of their scaled scores. A row that is missing in a ranking
    gets 0 there."""
    hits: dict[Id, IndexHit] = {}
    documents: dict[GenerationId, generations.Visible] = {}
    scores: dict[Id, float] = {}
    parts: dict[Id, dict[str, float]] = {}
    total = sum(getattr(weights, part) for part in rankings) or 1.0
    for part, ranking in rankings.items():
        share = getattr(weights, part) / total if len(rankings) > 1 else 1.0
        documents |= ranking.documents
        for key, scaled, hit in zip(*_scaled(ranking.hits), ranking.hits, strict=True):
            hits[key] = hit
            scores[key] = scores.get(key, 0.0) + share * scaled
            parts.setdefault(key, {})[part] = hit.score
    order = sorted(hits, key=lambda key: (-scores[key], key))
    return [
        Candidate(hits[key], documents[GenerationId(key[0])], scores[key], fused=scores[key], **parts[key])
        for key in order
    ]


def _scaled(hits: Sequence[IndexHit]) -> tuple[list[Id], list[float]]:
    return [_id(hit) for hit in hits], min_max([hit.score for hit in hits])


def min_max(scores: Sequence[float]) -> list[float]:
    """The scores scaled to 0…1; all 1 if they are equal."""
    if not scores:
        return []
    low = min(scores)
    span = max(scores) - low
    return [(score - low) / span if span else 1.0 for score in scores]


async def _filled(found: list[Candidate], table: Searchable) -> list[Candidate]:
    """The candidates with their texts. A row that was removed meanwhile is left out."""
    missing = [one.hit for one in found if one.hit.place is not None]
    if not missing:
        return found
    rows = {_id(hit): hit for hit in await table.fill(missing)}
    return [
        one if one.hit.place is None else one._replace(hit=rows[_id(one.hit)])
        for one in found
        if one.hit.place is None or _id(one.hit) in rows
    ]


async def _reranked(
    ranked: list[Candidate], asked: Asked, weights: Weights, relevance: Relevance, table: Searchable
) -> list[Candidate]:
    """Order the first hits of a hybrid search by both scores. The others follow."""
    head = ranked[:RERANKED]
    if asked.mode != "hybrid" or not weights.relevance or len(head) < 2:
        return ranked
    head = await _with_relevance(await _filled(head, table), asked.text, relevance)
    fused = min_max([one.score for one in head])
    covered = min_max([one.relevance or 0.0 for one in head])
    share = weights.relevance
    final = [(1 - share) * first + share * second for first, second in zip(fused, covered, strict=True)]
    scored = [one._replace(score=score) for one, score in zip(head, final, strict=True)]
    scored.sort(key=lambda one: (-one.score, _id(one.hit)))
    return scored + _following(scored, ranked[RERANKED:])


def _following(before: Sequence[Candidate], ranked: Sequence[Candidate]) -> list[Candidate]:
    """The candidates that are not among those before. Their scores are scaled down, so that they stay behind."""
    known = {_id(one.hit) for one in before}
    new = [one for one in ranked if _id(one.hit) not in known]
    if not new or not before:
        return new
    limit, best = before[-1].score, new[0].score
    return [one._replace(score=limit * one.score / best if best > 0 else 0.0) for one in new]


async def _with_relevance(found: list[Candidate], query: str, relevance: Relevance) -> list[Candidate]:
    missing = [one.hit.text for one in found if one.relevance is None]
    if not missing:
        return found
    scores = iter(await relevance.relevance(query, missing))
    return [one if one.relevance is not None else one._replace(relevance=next(scores)) for one in found]


def _id(hit: IndexHit) -> Id:
    return hit.generation, hit.ordinal
