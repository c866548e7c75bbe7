"""The extracted text of a page, and its chunks."""

from typing import NamedTuple

from penstock.api.callers import Access
from penstock.model.items import Chunk, Page, Skip
from penstock.verbs.views import DocumentDetails
from penstock.web.words import Part, marked

CHUNKS = 200
"""The most chunks of a page that are shown."""
LONGEST = 200_000
"""The most characters of a page that are shown: a file without pages is one page."""
LOOKED_THROUGH = 500
"""So many chunks are read to find the first one of a page. Beyond that, its place is bisected."""


class Span(NamedTuple):
    """A chunk, and where it is in the text of the page."""

    chunk: Chunk
    start: int
    end: int


class PageText(NamedTuple):
    number: int
    label: str | None
    text: str
    spans: list[Span]
    before: int | None
    after: int | None
    skipped: Skip | None
    is_scan: bool
    """The text was read from an image of the page."""
    first: int
    """The offset of the first character that is shown, and `last` that behind the last one."""
    last: int

    def parts(self, chosen: int | None) -> list[Part]:
        """The text that is shown, with the chunk `chosen` marked."""
        here = [(span.start, span.end) for span in self.spans if span.chunk.ordinal == chosen]
        return marked(self.text, self.first, self.last, here)


async def page_text(access: Access, details: DocumentDetails, number: int, chosen: int | None) -> PageText | None:
    """The page with this number, or else the next one that has text; None: there is none. Of a long page, the part
    around the chunk `chosen` is shown."""
    page, before, after = await _page(access, details, number, max(0, number - 2))
    if page is None and number > 2:
        # Numbers of pages may have gaps.
        page, before, after = await _page(access, details, number, 0)
    if page is None:
        return None
    spans = await _spans(access, details, page, chosen)
    middle = next((span.start for span in spans if span.chunk.ordinal == chosen), 0)
    first = max(0, min(middle - LONGEST // 4, len(page.text) - LONGEST))
    last = min(len(page.text), first + LONGEST)
    is_scan = page.ocr is not None
    return PageText(page.number, page.label, page.text, spans, before, after, page.skipped, is_scan, first, last)


async def _page(
    access: Access, details: DocumentDetails, number: int, start: int
) -> tuple[Page | None, int | None, int | None]:
    """The page, and the numbers of the one before and the one after it."""
    found, before = None, None
    async for page in access.scope.show(details.id, "pages", start=start):
        if found is not None:
            return found, before, page.number
        if page.number >= number:
            if before is None and start:
                return None, None, None
            found = page
        else:
            before = page.number
    return found, before, None


async def _spans(access: Access, details: DocumentDetails, page: Page, chosen: int | None) -> list[Span]:
    spans: list[Span] = []
    start = await _first_chunk(access, details, page.number, chosen)
    async for chunk in access.scope.show(details.id, "chunks", start=start):
        if chunk.page > page.number or len(spans) >= CHUNKS:
            break
        if chunk.page_end < page.number:
            continue
        low = chunk.start if chunk.page == page.number else 0
        high = chunk.end if chunk.page_end == page.number else len(page.text)
        spans.append(Span(chunk, low, high))
    return spans


async def _first_chunk(access: Access, details: DocumentDetails, number: int, chosen: int | None) -> int:
    """The number of a chunk that is not behind the first one to show."""
    low, high = 0, details.chunks or 0
    while high - low > LOOKED_THROUGH:
        middle = (low + high) // 2
        chunk = await anext(access.scope.show(details.id, "chunks", start=middle), None)
        if chunk is None or chunk.page_end >= number:
            high = middle
        else:
            low = middle
    # A file without pages is one page with any number of chunks.
    return low if chosen is None or chosen - low < CHUNKS else chosen - CHUNKS // 2
