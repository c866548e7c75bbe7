"""Word documents of the old format (DOC): the text, by its piece table. Styles are not read, so there are no
headings."""

import re
import struct
from collections.abc import Iterator
from typing import Any, BinaryIO

from penstock.errors import Permanent
from penstock.extractors.base import FileContent
from penstock.extractors.file_properties import of_summary
from penstock.extractors.office import damaged, encrypted
from penstock.extractors.pieces import BREAK, Piece, render, table
from penstock.extractors.text import markdown_pages

_LABEL = "Word of the old format"
_MAGIC = 0xA5EC
_ENCRYPTED, _SECOND_TABLE = 0x0100, 0x0200
_LENGTHS, _CLX = 0x4C, 0x01A2
_STORIES = 8
"""Main text, footnotes, headers, macros, comments, endnotes, text boxes, text boxes of headers."""
_SHOWN = {0, 1, 4, 5, 6}
_COMPRESSED = 1 << 30
_PARAGRAPH, _CELL = "\r", "\x07"
_FIELD = re.compile("\x13[^\x13\x14\x15]*(?:\x14([^\x13\x15]*))?\x15")
"""A field: its instruction, which is dropped, and its result, which is kept."""
_SIGNS = str.maketrans({"\x0b": "\n", "\x1e": "-", "\x1f": None, "\xa0": " ", **dict.fromkeys("\x01\x02\x05\x08")})


def read(document: BinaryIO, media_type: str) -> FileContent:
    import olefile

    try:
        with olefile.OleFileIO(document) as container:
            return FileContent(markdown_pages(render(_pieces(_text(container)))), of_summary(container))
    except Permanent:
        raise
    except Exception as error:
        # The library raises many kinds of error for damaged containers.
        raise damaged(_LABEL, error) from error


def _text(container: Any) -> str:
    main: bytes = container.openstream("WordDocument").read()
    magic, flags = struct.unpack_from("<H8xH", main)
    if magic != _MAGIC:
        raise ValueError("it does not begin like a Word document")
    if flags & _ENCRYPTED:
        raise encrypted(_LABEL)
    lengths = struct.unpack_from(f"<{_STORIES}i", main, _LENGTHS)
    start, size = struct.unpack_from("<II", main, _CLX)
    tables: bytes = container.openstream("1Table" if flags & _SECOND_TABLE else "0Table").read()
    whole = "".join(_parts(main, tables[start : start + size]))
    at, stories = 0, []
    for number, length in enumerate(lengths):
        if number in _SHOWN:
            stories.append(whole[at : at + max(length, 0)])
        at += max(length, 0)
    return _PARAGRAPH.join(stories)


def _parts(main: bytes, clx: bytes) -> Iterator[str]:
    """The parts of the text in order. The piece table follows a list of formats, which is skipped."""
    at = 0
    while clx[at] == 1:
        at += 3 + struct.unpack_from("<H", clx, at + 1)[0]
    (size,) = struct.unpack_from("<I", clx, at + 1)
    table_ = clx[at + 5 : at + 5 + size]
    count = (len(table_) - 4) // 12
    ends = struct.unpack_from(f"<{count + 1}I", table_)
    for number in range(count):
        length = ends[number + 1] - ends[number]
        (place,) = struct.unpack_from("<I", table_, 4 * (count + 1) + 8 * number + 2)
        if place & _COMPRESSED:
            begin = (place & ~_COMPRESSED) // 2
            yield main[begin : begin + length].decode("cp1252", "replace")
        else:
            yield main[place : place + 2 * length].decode("utf-16-le", "replace")


def _pieces(text: str) -> Iterator[Piece]:
    while (shorter := _FIELD.sub(r"\1", text)) != text:
        text = shorter
    text = re.sub("[\x13\x14\x15]", "", text).translate(_SIGNS)
    rows: list[list[list[Piece]]] = []
    for paragraph in text.split(_PARAGRAPH):
        *cells, rest = paragraph.split(_CELL)
        if cells:
            # A row ends with an empty cell of its own. Rows whose cells have several paragraphs are cut there.
            rows += _rows(cells)
        if rest.strip():
            yield from table(rows) if rows else ()
            rows = []
            for number, part in enumerate(rest.split(BREAK)):
                yield from [Piece("break")] if number else []
                yield Piece("paragraph", part)
    yield from table(rows) if rows else ()


def _rows(cells: list[str]) -> Iterator[list[list[Piece]]]:
    row: list[list[Piece]] = []
    for cell in cells:
        if not cell and row:
            yield row
            row = []
        else:
            row.append([Piece("paragraph", cell)] if cell.strip() else [])
    if row:
        yield row
