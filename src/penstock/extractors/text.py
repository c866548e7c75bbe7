"""Plain text, Markdown, reStructuredText and records (CSV, TSV, JSON lines), read in windows that depend only on the
input."""

import codecs
import re
from collections.abc import AsyncGenerator, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from penstock.errors import Transient
from penstock.extractors import markdown, records, rst
from penstock.extractors.base import Extracted, Raw
from penstock.extractors.encodings import UTF8, Utf8Check, byte_order_mark, legacy, shift_after, wide
from penstock.extractors.formats import CSV, JSON_LINES, MARKDOWN, RST, TSV, Format, Parts, of
from penstock.extractors.media import HEAD
from penstock.model.items import Block, Page

if TYPE_CHECKING:
    # Parser processes import this module too, and start faster without asyncio.
    from penstock.runtime import Runtime

WINDOW = 256 * 1024
_SCAN = 1024 * 1024
_BEFORE_BAD, _SAMPLE = 16 * 1024, 64 * 1024

_CUTS = (("\f",), ("\n\n", "\r\n\r\n", "\r\r"), ("\n",), ("\r",), (" ", "\t"))
_SURROGATES = re.compile("[\ud800-\udfff]")


class _Cursor(msgspec.Struct, frozen=True, omit_defaults=True):
    encoding: str
    offset: int
    page: int = 1
    path: tuple[str, ...] = ()
    fence: str = ""
    shift: str = ""
    """The escape sequence that is in effect at `offset`, for stateful encodings."""
    styles: tuple[str, ...] = ()
    """The lines that mark headings of reStructuredText, in the order of their levels."""
    table: records.Table = records.Table()


def make(row: Format, parts: Parts) -> "TextExtractor":
    return TextExtractor(parts.runtime, row=row)


class TextExtractor:
    """Reads a file in windows. A window has at most `WINDOW` bytes and ends at its last form feed, blank line, line end
    or space. It is one page, or several if it contains form feeds."""

    paid = False

    def __init__(self, runtime: "Runtime", window: int = WINDOW, row: Format | None = None) -> None:
        if window % 4:
            raise ValueError("a window holds whole UTF-32 units: its size is a multiple of 4")
        self._runtime = runtime
        self._window = window
        self._row = row

    def version(self, media_type: str, params: Mapping[str, Any]) -> str:
        return (self._row or of(media_type)).whole_version

    async def extract(
        self, raw: Raw, media_type: str, params: dict[str, Any], cursor: dict[str, Any]
    ) -> AsyncGenerator[Extracted, None]:
        head = b""
        if cursor:
            at = msgspec.convert(cursor, _Cursor)
        else:
            head = await _read(raw, 0, _SCAN)
            encoding, offset = await self._encoding(raw, head)
            at = _Cursor(encoding, offset)
        while at.offset < raw.size:
            known = len(head) == raw.size or at.offset + self._window <= len(head)
            data = head[at.offset : at.offset + self._window] if known else await _read(raw, at.offset, self._window)
            last = at.offset + len(data) >= raw.size
            first = at.page == 1
            pages, at = await self._runtime.run_sized("cpu", len(data), _read_window, data, last, at, media_type)
            matter = markdown.front_matter(pages[0].text) if first and media_type == MARKDOWN and pages else {}
            yield Extracted(pages, msgspec.to_builtins(at), metadata=matter)

    async def _encoding(self, raw: Raw, head: bytes) -> tuple[str, int]:
        """The encoding, and the offset at which the text begins."""
        mark = byte_order_mark(head)
        if mark:
            return mark
        guess = wide(head[:HEAD])
        if guess:
            return guess, 0
        check, block, offset = Utf8Check(), head, 0
        while block:
            offset += len(block)
            await self._runtime.run_sized("cpu", len(block), check.feed, block, offset >= raw.size)
            if check.first_bad is not None:
                begin = max(0, check.first_bad - _BEFORE_BAD)
                sample = await _read(raw, begin, _SAMPLE)
                return await self._runtime.run_blocking("cpu", legacy, sample, check.first_bad - begin), 0
            block = await _read(raw, offset, _SCAN)
        return check.encoding, 0


async def _read(raw: Raw, offset: int, length: int) -> bytes:
    wanted = min(length, raw.size - offset)
    data = await raw.read_range(offset, wanted) if wanted > 0 else b""
    if len(data) != wanted:
        raise Transient(
            f"{raw.name}: {len(data)} of {wanted} bytes could be read at offset {offset}; "
            "the stored file is shorter than it was when it was accepted",
            reason="short_read",
        )
    return data


def _read_window(data: bytes, last: bool, at: _Cursor, media_type: str) -> tuple[list[Page], _Cursor]:
    text, used = _decode(data, last, at, rows=media_type in (CSV, TSV))
    shift = shift_after(data[:used], at.encoding, at.shift)
    after = msgspec.structs.replace(at, offset=at.offset + used, shift=shift)
    if media_type in (CSV, TSV):
        texts, table = records.table_pages(text, at.table)
        after = msgspec.structs.replace(after, table=table)
    elif media_type == JSON_LINES:
        texts = records.record_pages(text)
    else:
        texts = text.split("\f")
        if not texts[-1] and len(texts) > 1:
            texts.pop()
    return _pages(texts, after, media_type)


def _pages(texts: list[str], at: _Cursor, media_type: str) -> tuple[list[Page], _Cursor]:
    """The pages with the structure of their texts, and the cursor after them."""
    state, styles = markdown.State(at.path, at.fence), at.styles
    pages = []
    for number, text in enumerate(texts, at.page):
        blocks: tuple[Block, ...] = ()
        path, before = state.path, state
        if media_type in (MARKDOWN, CSV, TSV):
            blocks, state = markdown.scan(text, before, first=number == 1 and media_type == MARKDOWN)
        elif media_type == RST:
            blocks, path_after, styles = rst.scan(text, path, styles)
            state = markdown.State(path_after)
        pages.append(Page(number, text, None, blocks, path))
    number = at.page + len(pages)
    return pages, msgspec.structs.replace(at, page=number, path=state.path, fence=state.fence, styles=styles)


def _decode(data: bytes, last: bool, at: _Cursor, *, rows: bool) -> tuple[str, int]:
    """The text of a window, and the number of bytes that were used. `rows`: the text consists of whole rows."""
    used = len(data) if last else _cut(data, at.encoding)
    if rows and not last and not at.encoding.startswith(("utf-16", "utf-32")):
        used = records.last_row_end(data) or used
    shift = at.shift.encode("ascii")
    if used:
        text = (shift + data[:used]).decode(at.encoding, "replace")
    else:
        decoder = codecs.getincrementaldecoder(at.encoding)("replace")
        text = decoder.decode(shift + data)
        used = len(data) - len(decoder.getstate()[0])
    if at.encoding != UTF8:
        text = _SURROGATES.sub("\ufffd", text)
    return text.replace("\0", "\ufffd"), used


def _cut(data: bytes, encoding: str) -> int:
    """The offset after the last position where the window may end; 0 if it can only end between two characters."""
    unit = 4 if encoding.startswith("utf-32") else 2 if encoding.startswith("utf-16") else 1
    for marks in _CUTS:
        cut = max(_past_last(data, mark.encode(encoding), unit) for mark in marks)
        if cut:
            return cut
    return 0


def _past_last(data: bytes, mark: bytes, unit: int) -> int:
    at = data.rfind(mark)
    while at >= 0 and at % unit:
        at = data.rfind(mark, 0, at + len(mark) - 1)
    return at + len(mark) if at >= 0 else 0


def markdown_pages(text: str) -> list[Page]:
    """The pages of a Markdown text, divided like a file with that text; one empty page for an empty text."""
    data, at = text.encode(UTF8, "replace"), _Cursor(UTF8, 0)
    pages: list[Page] = []
    while at.offset < len(data):
        window = data[at.offset : at.offset + WINDOW]
        found, at = _read_window(window, at.offset + len(window) >= len(data), at, MARKDOWN)
        pages += found
    return pages or [Page(1, "")]
