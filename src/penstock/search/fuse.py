"""Two rankings become one: min-max halves, which beat reciprocal ranks on the questions we measured (DESIGN.md, 7)."""

from collections.abc import Sequence

from penstock.indexes.base import IndexHit

Id = tuple[int, int]


def min_max(hits: Sequence[IndexHit]) -> dict[Id, float]:
    """Scores stretched to 0…1 over the candidates."""
    if not hits:
        return {}
    low = min(hit.score for hit in hits)
    span = max(hit.score for hit in hits) - low
    return {(hit.generation, hit.ordinal): (hit.score - low) / span if span else 1.0 for hit in hits}


def fuse(rankings: Sequence[Sequence[IndexHit]]) -> list[IndexHit]:
    """Best first. A hit that one ranking lacks gets nothing from it."""
    share = 1.0 / len(rankings)
    scores: dict[Id, float] = {}
    hits: dict[Id, IndexHit] = {}
    for ranking in rankings:
        for key, score in min_max(ranking).items():
            scores[key] = scores.get(key, 0.0) + share * score
        hits.update({(hit.generation, hit.ordinal): hit for hit in ranking})
    order = sorted(hits, key=lambda key: (-scores[key], key))
    return [hits[key]._replace(score=scores[key]) for key in order]
