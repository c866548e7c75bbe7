"""What an evaluation plans and finds."""

from typing import Any

import msgspec


class TrialPlan(msgspec.Struct, frozen=True):
    """An index that must be built for the comparison."""

    settings: dict[str, Any]
    documents: int
    extracted: int
    """Documents that must be extracted again. The others reuse their artifacts."""
    chunks: int
    """Estimated number of chunks to embed."""
    paid: bool
    price: float
    """US dollars per million tokens."""
    key: str


class Plan(msgspec.Struct, frozen=True):
    questions: int
    combinations: int
    trials: list[TrialPlan]


class Latency(msgspec.Struct, frozen=True):
    """Times of single searches in this process, in milliseconds."""

    p50: float
    p95: float


class Missed(msgspec.Struct, frozen=True):
    """A question without a right hit."""

    line: int
    question: str


class Built(msgspec.Struct, frozen=True):
    """The work of this call to build the index of a trial. Reused artifacts are not counted."""

    pages: int
    chunks: int
    embedded: int
    failed: int
    elapsed_s: float


class Result(msgspec.Struct, frozen=True):
    """The measures of one combination."""

    settings: dict[str, Any]
    present: bool
    """These are the present settings: the collection itself was searched."""
    mode: str
    documents: int
    chunks: int
    recall: dict[str, float]
    """The share of questions with a right hit among the first k, by k."""
    mrr: float
    """The mean of 1/rank of the first right hit, among the first hits up to the highest k."""
    latency_ms: Latency
    missed: list[Missed]
    """A chunk would be right, but search did not find it."""
    absent: list[Missed]
    """No chunk is right: the document is not in the collection, or its text does not contain the answer."""
    unread: int = 0
    """Documents whose chunks could not be read, so that `absent` may name too many questions."""
    built: Built | None = None


class Evaluation(msgspec.Struct):
    collection: str
    questions: int
    k: list[int]
    plan: Plan
    results: list[Result] = []
    interrupted: bool = False
    elapsed_s: float = 0.0
    removed_trials: int = 0
    """Leftovers of earlier evaluations that were removed."""


class EvaluationProgress(msgspec.Struct, frozen=True):
    """The progress of one combination: `searching` or `scanning`."""

    what: str
    settings: dict[str, Any]
    done: int
    of: int
