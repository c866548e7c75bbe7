"""Records in text files. Rows of CSV and TSV become Markdown tables; JSON lines become blocks of `key: value` lines."""

import csv
import io
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from penstock.extractors.pieces import Piece, render

PAGE_ROWS = 500
"""Rows on one page. The header is repeated on each page."""
LONGEST_CELL = 300
"""A page with a longer cell shows its rows as `column: value` lines. In a table, such a cell would be far from the name
of its column."""
_DELIMITERS = ",;\t|"
_SAMPLE_ROWS = 20
_LONGEST_HEADER = 8192
_DEEPEST = 20
_NONE = "none"

csv.field_size_limit(1 << 24)


class Table(NamedTuple):
    """What a later part of the file needs from its beginning."""

    delimiter: str = ""
    """`none`: the file is not a table, and its text is kept as it is. "": not known yet."""
    header: tuple[str, ...] = ()


def table_pages(text: str, table: Table) -> tuple[list[str], Table]:
    """The pages of whole rows, as Markdown, and the state for the rows that follow."""
    delimiter = table.delimiter or _delimiter(text)
    if delimiter == _NONE:
        return [text], Table(_NONE)
    rows = [row for row in _rows(text, delimiter) if any(row)]
    header = table.header
    if not header and rows:
        header, rows = tuple(rows[0]), rows[1:] or [[]]
    pages = [_page(header, rows[at : at + PAGE_ROWS]) for at in range(0, len(rows), PAGE_ROWS)]
    kept = header if sum(map(len, header)) <= _LONGEST_HEADER else tuple(str(n + 1) for n in range(len(header)))
    return pages or [""], Table(delimiter, kept)


def record_pages(text: str) -> list[str]:
    """One page of the values in JSON lines. A line that is not JSON is kept as it is."""
    return ["\n\n".join(shown for line in text.splitlines() if (shown := _record(line.strip())))]


def lines(value: object, name: str = "", depth: int = 0) -> Iterator[str]:
    """The `key: value` lines of a JSON value. Keys of inner objects are joined by dots, items of lists are numbered."""
    label = f"{name}: " if name else ""
    if depth == _DEEPEST and isinstance(value, dict | list):
        yield f"{label}{json.dumps(value, ensure_ascii=False)}"
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield from lines(inner, f"{name}.{key}" if name else str(key), depth + 1)
    elif isinstance(value, list) and any(isinstance(item, dict | list) for item in value):
        for number, item in enumerate(value, 1):
            yield from lines(item, f"{name}.{number}" if name else str(number), depth + 1)
    elif isinstance(value, list):
        if value:
            yield label + ", ".join(_scalar(item) for item in value)
    elif value is not None and value != "":
        yield label + _scalar(value)


def last_row_end(data: bytes) -> int:
    """The end of the last whole row; 0 if there is none. A line break between quotation marks belongs to a cell."""
    at = data.rfind(b"\n") + 1
    odd = data.count(b'"', 0, at) % 2
    while odd and at > 0:
        before = data.rfind(b"\n", 0, at - 1) + 1
        odd, at = (odd + data.count(b'"', before, at)) % 2, before
    return at


def _rows(text: str, delimiter: str) -> list[list[str]]:
    try:
        return [
            [cell.strip() for cell in row] for row in csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)
        ]
    except csv.Error:
        return [[cell.strip() for cell in line.split(delimiter)] for line in text.splitlines()]


def _delimiter(text: str) -> str:
    """The character that divides most of the first lines into the same number of cells, at least two."""
    sample = text[: 64 * 1024].splitlines(keepends=True)[: _SAMPLE_ROWS + 1]
    if len(sample) > 1 and not sample[-1].endswith(("\n", "\r")):
        sample.pop()
    best = (0, 0, _NONE)
    for place, delimiter in enumerate(_DELIMITERS):
        widths = Counter(len(row) for row in _rows("".join(sample), delimiter) if any(row))
        wide = [(count, -place) for width, count in widths.items() if width > 1]
        if wide and 2 * max(wide)[0] > widths.total():
            best = max(best, (*max(wide), delimiter))
    return best[2]


def _page(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    if any(len(cell) > LONGEST_CELL for row in rows for cell in row):
        return "\n\n".join("\n".join(_named(header, row)) for row in rows)
    cells = tuple(tuple(" ".join(cell.split()).replace("|", "\\|") for cell in row) for row in (header, *rows) if row)
    return render([Piece("table", rows=cells)])


def _named(header: Sequence[str], row: Sequence[str]) -> Iterator[str]:
    for number, cell in enumerate(row):
        if cell:
            yield f"{header[number]}: {cell}" if number < len(header) and header[number] else cell


def _record(line: str) -> str:
    try:
        return "\n".join(lines(json.loads(line)))
    except (ValueError, RecursionError):
        return line


def _scalar(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
