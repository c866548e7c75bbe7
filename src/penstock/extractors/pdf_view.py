"""Draw a page of a PDF for a reader, with the places of passages on it, in a parser process."""

import ctypes
import io
import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, BinaryIO

import pypdfium2
import pypdfium2.raw as pdfium

from penstock.errors import Permanent
from penstock.extractors import pdf_pages

QUALITY = 85
MOST_CHARACTERS = 200_000
"""The largest number of characters of a page in which passages are looked for."""
MOST_RECTANGLES = 400
"""The largest number of rectangles of one passage: about one a line."""
NEAR = 60
"""How far the text and the characters of the page may differ, before the rest is not compared any more."""
UNIT = 10_000
"""Rectangles are in parts of so many of the width and the height of the page."""

GAP = 400
"""The widest space between two pieces of one line, in these units."""

Rectangle = tuple[int, int, int, int]


def read(
    file: BinaryIO,
    password: str | None,
    index: int,
    width: int,
    most: int,
    text: str,
    spans: Sequence[tuple[int, int]],
) -> dict[str, Any]:
    """Return the page as a JPEG that is `width` pixels wide, but has at most `most` pixels; and for each span of `text`
    the rectangles (left, top, right, bottom) that it covers. They are empty where the page has no such text."""
    with pdf_pages.opened_pdf(file, password) as document:
        if not 0 <= index < len(document):
            raise Permanent(f"the file has {len(document)} pages", reason="damaged")
        try:
            page = document[index]
            try:
                image = _image(page, width, most)
                places = _places(page, text, spans)
            finally:
                page.close()
        except (pypdfium2.PdfiumError, ValueError) as error:
            raise Permanent(
                f"page {index + 1} cannot be drawn ({error}): the file is damaged there", reason="damaged"
            ) from error
        return {"image": image[0], "width": image[1], "height": image[2], "places": places}


def _image(page: Any, width: int, most: int) -> tuple[bytes, int, int]:
    wide, high = page.get_size()
    scale = min(width / max(wide, 1), math.sqrt(most / max(wide * high, 1)))
    bitmap = page.render(scale=scale, rev_byteorder=True)
    try:
        written = io.BytesIO()
        bitmap.to_pil().convert("RGB").save(written, "JPEG", quality=QUALITY)
        return written.getvalue(), bitmap.width, bitmap.height
    finally:
        bitmap.close()


def _places(page: Any, text: str, spans: Sequence[tuple[int, int]]) -> list[list[Rectangle]]:
    layer = page.get_textpage()
    try:
        if not spans or len(text) > MOST_CHARACTERS or layer.count_chars() > MOST_CHARACTERS:
            return [[] for _ in spans]
        indexes = aligned(text, [pdfium.FPDFText_GetUnicode(layer, i) for i in range(layer.count_chars())])
        return [lines(islice(_rectangles(page, layer, indexes[low:high]), MOST_RECTANGLES)) for low, high in spans]
    finally:
        layer.close()


def aligned(text: str, codes: Sequence[int]) -> list[int | None]:
    """For each character of the text, the index of the same character in `codes`, or None. Only letters and digits are
    compared, because the text differs in spaces, ends of lines and hyphens; and some characters may be missing."""
    wanted = [(i, ord(c)) for i, c in enumerate(text) if c.isalnum()]
    there = [(i, code) for i, code in enumerate(codes) if code < 0x110000 and chr(code).isalnum()]
    found: list[int | None] = [None] * len(text)
    a = b = 0
    while a < len(wanted) and b < len(there):
        if wanted[a][1] == there[b][1]:
            found[wanted[a][0]] = there[b][0]
            a, b = a + 1, b + 1
            continue
        step = _nearest(wanted, there, a, b)
        if step is None:
            break
        a, b = a + step[0], b + step[1]
    return found


def _nearest(
    wanted: Sequence[tuple[int, int]], there: Sequence[tuple[int, int]], a: int, b: int
) -> tuple[int, int] | None:
    """How many characters to leave out on both sides until four of them agree; one is enough at the end."""
    for distance in range(1, NEAR):
        for skipped in range(distance + 1):
            x, y = a + skipped, b + distance - skipped
            ours, theirs = wanted[x : x + 4], there[y : y + 4]
            if ours and [code for _, code in ours] == [code for _, code in theirs]:
                return skipped, distance - skipped
    return None


def _rectangles(page: Any, layer: Any, indexes: Sequence[int | None]) -> Iterator[Rectangle]:
    """One rectangle for each line or piece of one."""
    for first, count in _runs(indexes):
        left, top, right, bottom = (ctypes.c_double() for _ in range(4))
        for n in range(min(pdfium.FPDFText_CountRects(layer, first, count), MOST_RECTANGLES)):
            if pdfium.FPDFText_GetRect(layer, n, left, top, right, bottom):
                x0, y0 = _on_page(page, left.value, top.value)
                x1, y1 = _on_page(page, right.value, bottom.value)
                found = min(x0, x1), min(y0, y1), max(x0, x1), max(y0, y1)
                if found[0] < UNIT and found[1] < UNIT and found[2] > 0 and found[3] > 0:
                    yield found


def lines(pieces: Iterable[Rectangle]) -> list[Rectangle]:
    """Join pieces of one line, such as words in different fonts."""
    joined: list[Rectangle] = []
    for piece in pieces:
        if joined and (one := _line(joined[-1], piece)) is not None:
            joined[-1] = one
        else:
            joined.append(piece)
    return joined


def _line(one: Rectangle, other: Rectangle) -> Rectangle | None:
    """Both together, if they are beside each other in one line."""
    shared = min(one[3], other[3]) - max(one[1], other[1])
    gap = max(one[0], other[0]) - min(one[2], other[2])
    if gap > GAP or 2 * shared < min(one[3] - one[1], other[3] - other[1]):
        return None
    return min(one[0], other[0]), min(one[1], other[1]), max(one[2], other[2]), max(one[3], other[3])


def _runs(indexes: Sequence[int | None]) -> Iterator[tuple[int, int]]:
    """The ranges of characters (first, count). Spaces between two characters do not end one."""
    begun = last = -1
    for index in indexes:
        if index is None:
            continue
        if begun >= 0 and not 0 < index - last <= 8:
            yield begun, last - begun + 1
            begun = -1
        begun = index if begun < 0 else begun
        last = index
    if begun >= 0:
        yield begun, last - begun + 1


def _on_page(page: Any, x: float, y: float) -> tuple[int, int]:
    """The place on the drawn page, which may be turned or cropped."""
    across, down = ctypes.c_int(), ctypes.c_int()
    pdfium.FPDF_PageToDevice(page, 0, 0, UNIT, UNIT, 0, x, y, across, down)
    return across.value, down.value
