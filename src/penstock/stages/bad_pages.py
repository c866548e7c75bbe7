"""The pages of a document that could not be read: they are skipped and recorded, unless there are too many."""

from collections.abc import Mapping, Sequence
from typing import Any

from penstock.errors import Permanent
from penstock.model.items import Page, Skip
from penstock.model.nouns import Json

LISTED = 200
"""Skipped pages that are listed with their reason. Further ones are counted."""
COUNT, LIST = "bad_pages", "skipped"
"""The cursor keys of both. `bad` is a key of the extractor of archives."""
SKIPPED = "pages_skipped"
"""The key in the result of the step, and in the metadata of the document."""


class BadPages:
    """Counts skipped pages from the beginning of the document. The record is kept in the cursor, so that an interrupted
    extraction has the same result."""

    def __init__(self, cursor: Mapping[str, Any], share: float) -> None:
        self._share = share
        self._count: int = cursor.get(COUNT, 0)
        self._list: list[list[Any]] = [list(entry) for entry in cursor.get(LIST, ())]

    def add(self, pages: Sequence[Page], total: int | None) -> tuple[Sequence[Page], Permanent | None]:
        """Record the skipped pages of a batch. If there are too many for a document of `total` pages, return the pages
        before the one that exceeds the limit, and the error."""
        for number, page in enumerate(pages):
            if page.skipped is None:
                continue
            if total is not None and self._is_too_many(self._count + 1, total):
                return pages[:number], self._failure(page, total)
            self._count += 1
            if len(self._list) < LISTED:
                self._list.append(_entry(page, page.skipped))
        return pages, None

    def at_end(self, total: int) -> Permanent | None:
        """The error of a document whose number of pages was not known before its end."""
        if self._count and self._is_too_many(self._count, total):
            return self._failure(None, total)
        return None

    def _is_too_many(self, count: int, total: int) -> bool:
        """One bad page of several is never too many, unless none is allowed."""
        return count == total or count > (max(1.0, self._share * total) if self._share else 0)

    def _failure(self, last: Page | None, total: int) -> Permanent:
        entries = [*self._list]
        count = self._count
        if last is not None and last.skipped is not None:
            entries.append(_entry(last, last.skipped))
            count += 1
        page, reason, error = entries[0][:3]
        if self._share and total > 1:
            error = (
                f"{error.rstrip('.')}. {count:,} of {total:,} pages cannot be read, and the limit is {self._share:.0%} "
                "(limits.bad_pages)"
            )
        return Permanent(error, reason=reason, page=page)

    def cursor(self) -> dict[str, Any]:
        return {COUNT: self._count, LIST: self._list} if self._count else {}

    def meta(self) -> dict[str, Any]:
        """What the step records: the skipped pages with their reasons, and their numbers as metadata of the
        document, which hits contain."""
        if not self._count:
            return {}
        listed = [dict(zip(("page", "reason", "error", "label"), entry, strict=False)) for entry in self._list]
        return {
            SKIPPED: listed,
            "pages_skipped_count": self._count,
            "metadata": {SKIPPED: [entry[0] for entry in self._list]},
        }


def _entry(page: Page, why: Skip) -> list[Any]:
    """The number, reason and sentence; and the label, if it has one, such as `slide 3`."""
    return [page.number, why.reason, why.error, *([page.label] if page.label else [])]


def of_cursor(cursor: Mapping[str, Any]) -> list[Json]:
    """The skipped pages so far, from the cursor of an extract step."""
    found: list[Json] = BadPages(cursor, 1.0).meta().get(SKIPPED, [])
    return found
