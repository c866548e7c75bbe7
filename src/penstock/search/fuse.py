"""Combine two rankings: scale each to 0…1 (min-max) and average. In our measurements this was better than reciprocal
rank fusion."""

from collections.abc import Sequence

from penstock.indexes.base import IndexHit

Id = tuple[int, int]


def min_max(hits: Sequence[IndexHit]) -> dict[Id, float]:
    """The scores of the hits, scaled to 0…1."""
    if not hits:
        return {}
    low = min(hit.score for hit in hits)
    span = max(hit.score for hit in hits) - low
    return {(hit.generation, hit.ordinal): (hit.score - low) / span if span else 1.0 for hit in hits}


def fuse(rankings: Sequence[Sequence[IndexHit]]) -> list[IndexHit]:
    """The combined ranking, best first. A hit that is missing in a ranking gets the score 0 there."""
    share = 1.0 / len(rankings)
    scores: dict[Id, float] = {}
    hits: dict[Id, IndexHit] = {}
    for ranking in rankings:
        for key, score in min_max(ranking).items():
            scores[key] = scores.get(key, 0.0) + share * score
        hits.update({(hit.generation, hit.ordinal): hit for hit in ranking})
    order = sorted(hits, key=lambda key: (-scores[key], key))
    return [hits[key]._replace(score=scores[key]) for key in order]
