"""Reorders the best hits of a ranking by a model that reads query and passage together (`rerank`)."""

import math
from collections.abc import Awaitable, Callable

from penstock.errors import ConfigError
from penstock.rerankers.base import Reranker
from penstock.search.ranking import Candidate, min_max

DEPTH = 10
"""Hits that the model reads. It is fixed, so the first hits do not depend on how many are wanted."""
SHARE = 0.7
"""The share of the model in the final score. The rest is the place in the ranking before."""


class Reranking:
    """One search. Each passage is read once, however often the ranking is extended."""

    def __init__(self, reranker: Reranker, query: str) -> None:
        self._reranker, self._query = reranker, query
        self._scores: dict[tuple[int, int], float] = {}

    @classmethod
    async def start(cls, reranker: Reranker, query: str) -> "Reranking":
        await reranker.warm_up()
        return cls(reranker, query)

    async def best(self, count: int, rank: Callable[[int], Awaitable[list[Candidate]]]) -> list[Candidate]:
        """The `count` best. `rank(n)` returns the n best of the ranking before."""
        ranked = await rank(max(count, DEPTH))
        head = ranked[:DEPTH]
        new = [one for one in head if _id(one) not in self._scores]
        found = await self._reranker.scores(self._query, [one.hit.text for one in new]) if new else []
        if len(found) != len(new) or not all(map(math.isfinite, found)):
            raise ConfigError(
                f"the reranker {self._reranker.name} returned {len(found)} scores for {len(new)} passages, or some "
                "that are not numbers: use another model"
            )
        self._scores.update((_id(one), score) for one, score in zip(new, found, strict=True))
        read = [self._scores[_id(one)] for one in head]
        final = [
            SHARE * scaled + (1 - SHARE) * (1 - place / max(len(head), 1)) for place, scaled in enumerate(min_max(read))
        ]
        scored = [
            one._replace(score=score, reranked=_probability(answer))
            for one, score, answer in zip(head, final, read, strict=True)
        ]
        scored.sort(key=lambda one: (-one.score, _id(one)))
        return [*scored, *_behind(scored, ranked[DEPTH:])][:count]


def _behind(head: list[Candidate], others: list[Candidate]) -> list[Candidate]:
    """The others, with scores below those of the head."""
    if not head or not others:
        return others
    limit, best = head[-1].score, others[0].score
    return [one._replace(score=limit * one.score / best if best > 0 else 0.0) for one in others]


def _probability(odds: float) -> float:
    return 0.5 * (1 + math.tanh(odds / 2))


def _id(one: Candidate) -> tuple[int, int]:
    return one.hit.generation, one.hit.ordinal
