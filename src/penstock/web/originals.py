"""Pages of originals as pictures, with a passage marked. Parser processes draw them, with their limits of memory and
time; the server only passes them on. Some are kept, because a person looks at one page several times."""

import asyncio
import base64
import hashlib
from collections import OrderedDict
from html import escape
from textwrap import wrap

import msgspec

from penstock.errors import StepError
from penstock.extractors.formats import PDF
from penstock.ledger.reads.history import Version
from penstock.verbs.scope import Scope
from penstock.verbs.stored_raw import StoredRaw
from penstock.verbs.views import DocumentDetails
from penstock.web.page_text import PageText

WIDTH = 1_200
MOST = 4_000_000
"""The most pixels of a page."""
KEPT = 32 << 20
"""The most bytes of pictures that are kept."""
AT_ONCE = 2
WAIT_S = 20.0
UNIT = 10_000

Place = tuple[int, int, int, int]


class Drawing(msgspec.Struct, frozen=True):
    image: bytes
    width: int
    height: int
    places: list[list[Place]]
    """The rectangles of each chunk of the page, in parts of `UNIT` of its width and height."""


_DECODER = msgspec.msgpack.Decoder(Drawing)


class Originals:
    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[object, ...], Drawing] = OrderedDict()
        self._size = 0
        self._slots = asyncio.Semaphore(AT_ONCE)

    async def draw(self, scope: Scope, details: DocumentDetails, version: Version, page: PageText) -> Drawing:
        """Return the page. Raise StepError if it cannot be drawn, and TimeoutError if that takes too long."""
        spans = [(span.start, span.end) for span in page.spans]
        known = hashlib.sha256(repr((page.text, spans)).encode(errors="replace")).digest()
        key = (scope.owner, version.raw_key, version.sha256, page.number, known)
        async with asyncio.timeout(WAIT_S), self._slots:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key]
            drawn = await _drawn(scope, details, version, page, spans)
        self._keep(key, drawn)
        return drawn

    def _keep(self, key: tuple[object, ...], drawn: Drawing) -> None:
        if key in self._kept:
            return
        self._kept[key] = drawn
        self._size += len(drawn.image)
        while self._size > KEPT:
            _, gone = self._kept.popitem(last=False)
            self._size -= len(gone.image)


async def _drawn(
    scope: Scope, details: DocumentDetails, version: Version, page: PageText, spans: list[tuple[int, int]]
) -> Drawing:
    raw = StoredRaw(scope, details.id, details.name, version.raw_key, version.size)
    arguments = {
        "password": await raw.password(),
        "index": page.number - 1,
        "width": WIDTH,
        "most": MOST,
        "text": page.text,
        # Text that was recognised in an image is not in the text layer.
        "spans": [] if page.is_scan else spans,
    }
    async with raw.file() as path:
        return _DECODER.decode(await scope.resources.parsers.call("pdf_view", arguments, source=raw, document=path))


def has_pages(details: DocumentDetails) -> bool:
    """Whether the pages of the original can be drawn."""
    return details.media_type == PDF


def picture(drawn: Drawing, page: PageText, chosen: int | None) -> bytes:
    """The page as an SVG image, with the chunk marked."""
    marked = next((i for i, span in enumerate(page.spans) if span.chunk.ordinal == chosen), None)
    places = drawn.places[marked] if marked is not None and marked < len(drawn.places) else []
    across, down = drawn.width / UNIT, drawn.height / UNIT
    marks = "".join(
        f'<rect x="{left * across - 3:.1f}" y="{top * down - 2:.1f}" width="{(right - left) * across + 6:.1f}" '
        f'height="{(bottom - top) * down + 4:.1f}" rx="3"/>'
        for left, top, right, bottom in places
    )
    data = base64.b64encode(drawn.image).decode()
    return _svg(
        drawn.width,
        drawn.height,
        f'<image width="{drawn.width}" height="{drawn.height}" href="data:image/jpeg;base64,{data}"/>'
        f'<g fill="#ffd200" fill-opacity=".38" stroke="#9a6b00" stroke-opacity=".55">{marks}</g>',
    )


def excuse(error: Exception) -> bytes:
    """An SVG image that says why there is none."""
    why = str(error) if isinstance(error, StepError) else "it takes too long now: load the page again later"
    lines = wrap(f"This page cannot be shown: {why}", 60)[:8]
    text = "".join(f'<tspan x="30" dy="28">{escape(line)}</tspan>' for line in lines)
    return _svg(
        640,
        320,
        '<rect width="640" height="320" fill="#f5f6f8"/>'
        f'<text x="30" y="40" font-family="sans-serif" font-size="18" fill="#1a1f27">{text}</text>',
    )


def _svg(width: int, height: int, inner: str) -> bytes:
    whole = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}">'
        f"{inner}</svg>"
    )
    # Control characters of an error have no place in XML.
    return "".join(c if c.isprintable() else " " for c in whole).encode(errors="replace")
