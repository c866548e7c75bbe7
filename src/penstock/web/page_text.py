"""The extracted text of a page beside its chunks."""

from typing import NamedTuple

from penstock.api.callers import Access
from penstock.model.items import Chunk
from penstock.verbs.views import DocumentDetails
from penstock.web.words import Part, marked

CHUNKS = 200
"""The most chunks of a page that are shown."""


class PageText(NamedTuple):
    number: int
    label: str | None
    parts: list[Part]
    chunks: list[Chunk]
    before: int | None
    after: int | None


async def page_text(access: Access, details: DocumentDetails, number: int, chosen: int | None) -> PageText | None:
    """The page with this number, or else the next one that has text; None: there is none. The chunk `chosen` is
    marked."""
    shown, before, after = None, None, None
    async for page in access.scope.show(details.id, "pages"):
        if shown is not None:
            after = page.number
            break
        if page.number >= number:
            shown = page
        else:
            before = page.number
    if shown is None:
        return None
    chunks, spans = list[Chunk](), list[tuple[int, int]]()
    async for chunk in access.scope.show(details.id, "chunks"):
        if chunk.page > shown.number or len(chunks) >= CHUNKS:
            break
        if chunk.page_end < shown.number:
            continue
        chunks.append(chunk)
        if chunk.ordinal == chosen:
            low = chunk.start if chunk.page == shown.number else 0
            high = chunk.end if chunk.page_end == shown.number else len(shown.text)
            spans.append((low, high))
    parts = marked(shown.text, 0, len(shown.text), spans)
    return PageText(shown.number, shown.label, parts, chunks, before, after)
