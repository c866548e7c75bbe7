"""Rich text (RTF), read with striprtf in a parser process."""

import re
from importlib import import_module
from typing import Any, BinaryIO

from penstock.extractors.base import FileContent
from penstock.extractors.file_properties import of_rtf
from penstock.extractors.office import damaged
from penstock.extractors.pieces import Piece, render, table
from penstock.extractors.text import markdown_pages

_CELL = "|"


def read(document: BinaryIO, media_type: str) -> FileContent:
    try:
        data = document.read()
        return FileContent(markdown_pages(markdown(data)), of_rtf(data, _text))
    except (ValueError, LookupError, OverflowError, RecursionError) as error:
        raise damaged("RTF", error) from error


def markdown(data: bytes) -> str:
    return render(_pieces(re.split(r"\r\n|\r|\n", _text(data))))


def _text(data: bytes) -> str:
    library: Any = import_module("striprtf.striprtf")
    # The file is ASCII; its other characters are escapes, which striprtf decodes by the code page that the file names.
    text: str = library.rtf_to_text(data.decode("latin-1"), errors="replace")
    # Escapes outside the first plane are written as two surrogates.
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _pieces(lines: list[str]) -> list[Piece]:
    """Lines that end with a cell mark are rows of a table."""
    pieces: list[Piece] = []
    rows: list[list[list[Piece]]] = []
    for line in [*lines, ""]:
        if line.endswith(_CELL):
            rows.append([[Piece("paragraph", cell)] if cell.strip() else [] for cell in line[:-1].split(_CELL)])
            continue
        pieces += table(rows) if rows else []
        rows = []
        pieces.append(Piece("paragraph", line))
    return pieces
