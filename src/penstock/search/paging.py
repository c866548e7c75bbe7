"""Pages of a ranking, and one hit per document.

A page is a part of one ranking, which does not depend on the size or number of the page. Therefore the pages of a
search neither overlap nor leave a gap while no document changes."""

import hashlib
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

from penstock.errors import UsageError
from penstock.model.nouns import DocumentId
from penstock.search.ranking import Candidate

GROWTH = 4
"""If too few hits can be shown, this many times as many are ranked."""
RANKED_MOST = 2_000
"""With a minimum relevance, at most this many chunks are ranked to fill a page."""

_CURSOR = re.compile(r"(\d{1,9})-([0-9a-f]{8})-([0-9A-Z]{1,40})-(\d{1,9})")


class Place(NamedTuple):
    """Where a page begins: behind a hit, which was at this position."""

    position: int
    document_id: str
    ordinal: int


START = Place(0, "", 0)

Shown = tuple[Candidate, int]
"""A hit, and the number of further hits in its document."""


def fingerprint(*parts: object) -> str:
    """Identifies a search in its cursors, so that a cursor is not used for another search."""
    return hashlib.sha256(repr(parts).encode("utf-8", "replace")).hexdigest()[:8]


def parse_cursor(after: str | None, search: str) -> Place:
    """Raises UsageError for a text that is not a cursor, or belongs to another search."""
    if after is None:
        return START
    found = _CURSOR.fullmatch(after)
    if found is None:
        raise UsageError(f"after {after[:60]!r}: expected the `next` of an earlier page")
    if found[2] != search:
        raise UsageError(
            f"after {after!r}: this page belongs to another search. Repeat the query with the same collections, mode, "
            "filters, grouping and minimum score, or omit it"
        )
    return Place(int(found[1]), found[3], int(found[4]))


def cursor(search: str, position: int, last: Candidate) -> str:
    return f"{position}-{search}-{last.document.document_id}-{last.hit.ordinal}"


class Ranked(NamedTuple):
    shown: list[Shown]
    """What may be shown, best first."""
    ranking: list[Candidate]
    """What was ranked."""


async def ranked_to(
    need: int, rank: Callable[[int], Awaitable[list[Candidate]]], min_score: float | None, *, by_document: bool
) -> Ranked:
    """Rank until there are `need` hits to show, or no more. `rank(n)` returns the n best chunks."""
    want = need
    while True:
        ranking = await rank(want)
        shown = _shown(ranking, min_score, by_document)
        enough = len(shown) >= need or (min_score is not None and want >= RANKED_MOST)
        if enough or len(ranking) < want:
            return Ranked(shown, ranking)
        want *= GROWTH


def _shown(ranking: Sequence[Candidate], min_score: float | None, by_document: bool) -> list[Shown]:
    kept = [one for one in ranking if min_score is None or (one.relevance is not None and one.relevance >= min_score)]
    if not by_document:
        return [(one, 0) for one in kept]
    counts = Counter(one.document.document_id for one in kept)
    best: dict[DocumentId, Candidate] = {}
    for one in kept:
        best.setdefault(one.document.document_id, one)
    return [(one, counts[document] - 1) for document, one in best.items()]


def page_start(shown: Sequence[Shown], place: Place) -> int:
    """The index of the first hit of a page: behind the last hit of the page before. If that is gone, or moved beyond
    the ranking, it is the position that it had."""
    if place is START:
        return 0
    for at, (one, _) in enumerate(shown):
        if (one.document.document_id, one.hit.ordinal) == (place.document_id, place.ordinal):
            return at + 1
    return place.position
