"""Formats whose parts (slides, sheets, chapters, messages) can be read by number. They are read as a whole file. If a
parser process fails on that, the parts are read in groups, and those of a bad group one by one, like pages of a PDF."""

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Any

import msgspec

from penstock.errors import Permanent, StepError
from penstock.extractors.bad_parts import is_of_a_part, skipped, twice
from penstock.extractors.base import Extracted, FileContent
from penstock.extractors.formats import EML, EPUB, MSG, ODP, ODS, PPTX, XLS, XLSX
from penstock.model.items import Page

NUMBERED = frozenset({PPTX, ODP, XLSX, XLS, ODS, EPUB, EML, MSG})
PARTS = "parts"
"""The cursor key for the number of parts that were read."""
GROUP = 8
"""Parts per call of a parser process."""

Call = Callable[[int, int], Awaitable[FileContent]]
"""Reads a number of parts from an index on. It also returns the labels of all."""


async def read_parts(call: Call, cursor: dict[str, Any]) -> AsyncGenerator[Extracted, None]:
    """Yield the pages of the parts after the cursor. Because a part may have several pages, their number is not known
    before the end: the cursor has no `of`."""
    # Raises Permanent if the file cannot even be opened.
    whole = await twice(lambda: call(0, 0))
    number, labels = int(cursor.get("pages", 0)), whole.labels
    for first in range(int(cursor.get(PARTS, 0)), len(labels), GROUP):
        async with aclosing(_group(call, first, labels[first : first + GROUP])) as parts:
            async for pages, done in parts:
                yield _batch(pages, number, done, whole)
                number += len(pages)
    if not number:
        yield _batch([Page(1, "")], 0, len(labels), whole)


async def _group(call: Call, first: int, labels: list[str]) -> AsyncGenerator[tuple[list[Page], int], None]:
    """Yield the pages of a group of parts, and how many parts were read then."""
    try:
        pages: list[Page] | None = (await call(first, len(labels))).pages
    except StepError as error:
        if not is_of_a_part(error):
            raise
        pages = None
    if pages is not None:
        yield pages, first + len(labels)
        return
    for index, label in enumerate(labels, first):
        yield await _part(call, index, label), index + 1


async def _part(call: Call, index: int, label: str) -> list[Page]:
    try:
        return (await twice(lambda: call(index, 1))).pages
    except Permanent as error:
        if not is_of_a_part(error):
            raise
        return [skipped(index + 1, error, label)]


def _batch(pages: list[Page], before: int, parts: int, whole: FileContent) -> Extracted:
    numbered = [msgspec.structs.replace(page, number=before + n) for n, page in enumerate(pages, 1)]
    place = {"pages": before + len(numbered), PARTS: parts}
    return Extracted(numbered, place, keep=True, metadata=whole.metadata)
