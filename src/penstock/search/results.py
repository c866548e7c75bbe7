"""What a search returns."""

from collections.abc import Iterable
from typing import Any

import msgspec


class Passage(msgspec.Struct, frozen=True):
    """A chunk beside a hit. Neighbouring chunks may overlap; their offsets say by how much."""

    ordinal: int
    page: int
    page_end: int
    start: int
    end: int
    text: str
    headings: tuple[str, ...]


class ScoreParts(msgspec.Struct, frozen=True):
    """The parts of a score. A part that this search does not compute is None."""

    cosine: float | None
    """Similarity of the vectors."""
    words: float | None
    """BM25 of the words."""
    grams: float | None
    """BM25 of the character grams."""
    fused: float | None
    """The weighted sum of the scaled parts."""
    relevance: float | None
    reranked: float | None = None
    """What the reranker says, from 0 to 1."""


class Hit(msgspec.Struct, frozen=True):
    score: float
    """Orders the hits of one search. Scores of different searches cannot be compared."""
    document_id: str
    name: str
    page: int
    page_end: int
    start: int
    end: int
    text: str
    """The whole chunk."""
    metadata: dict[str, Any]
    headings: tuple[str, ...]
    source: str
    collection: str = ""
    ordinal: int = 0
    """The number of the chunk in its document."""
    relevance: float | None = None
    """How well the passage covers the query, from 0 to 1. Comparable between searches; below 0.58 it is often wrong."""
    snippet: str = ""
    """The part of the text with the best sentences."""
    snippet_start: int = 0
    """Where the snippet begins in the text."""
    highlights: tuple[tuple[int, int], ...] = ()
    """Start and end of the matched words in the text."""
    before: tuple[Passage, ...] = ()
    """With `context`: the chunks before the hit."""
    after: tuple[Passage, ...] = ()
    """With `context`: the chunks after the hit."""
    more: int | None = None
    """With `group="document"`: the number of further hits in the document, among those that were ranked."""
    explain: ScoreParts | None = None
    pages_skipped: tuple[int, ...] = ()
    """The pages of the document that could not be read, and therefore cannot be found."""


class Explanation(msgspec.Struct, frozen=True):
    """How the hits of a search were ranked."""

    mode: str
    collections: tuple[str, ...]
    ranked: int
    """The number of chunks that were ranked."""
    weights: dict[str, float]
    """The share of each part in the fused score, and of the relevance in the final one."""
    gate: bool
    """Whether vectors and relevance were left out, because the token vectors do not know the script of the query."""
    filters: dict[str, Any]
    """What removed hits from the ranking: hidden generations by their number, `min_score`."""


class SearchResult(list[Hit]):
    """The hits of one page, best first. `next` is the cursor of the next page; None: there is no next page."""

    def __init__(self, hits: Iterable[Hit] = (), next: str | None = None, explain: Explanation | None = None) -> None:
        super().__init__(hits)
        self.next = next
        self.explain = explain
