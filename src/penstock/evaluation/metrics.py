"""Measures of retrieval: recall at k, mean reciprocal rank and percentiles. Pure functions."""

import math
from collections.abc import Sequence

Rank = int | None
"""The place of the first right hit, counted from 1. None: no hit is right."""


def recall(ranks: Sequence[Rank], k: int) -> float:
    """The share of questions with a right hit among the first k."""
    return sum(rank is not None and rank <= k for rank in ranks) / len(ranks) if ranks else 0.0


def mean_reciprocal_rank(ranks: Sequence[Rank]) -> float:
    """The mean of 1/rank. A question without a right hit counts 0."""
    return sum(1 / rank for rank in ranks if rank is not None) / len(ranks) if ranks else 0.0


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least this share of the values does not exceed."""
    if not values:
        return 0.0
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


def margin(share: float, count: int) -> float:
    """Half of the 95 % interval (Wilson) of a share that was measured with `count` questions. It is not 0 for a share
    of 0 or 1, as a few questions do not prove that."""
    if not count:
        return 0.0
    square = 1.96**2 / count
    return math.sqrt(square * share * (1 - share) + square**2 / 4) / (1 + square)
