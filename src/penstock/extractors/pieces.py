"""The pieces that HTML and Word documents are read into, and their conversion to Markdown."""

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

BREAK = "\f"
_DEEPEST = 9
LONGEST_CELL = 2000
"""A table with more characters than this in one cell is treated as layout."""

_LOOKS_LIKE_MARKUP = re.compile(r"^(?=#{1,6}(?:[ \t]|$)|`{3}|~{3})", re.MULTILINE)
_FENCES = re.compile("`{3,}")


class Piece(NamedTuple):
    """`kind` is heading, paragraph, item, more (a further paragraph of an item), code, quote, table or break (of the
    page)."""

    kind: str
    text: str = ""
    level: int = 0
    """The level of a heading, from 1; the depth of an item, in steps of any size."""
    label: str = ""
    """The marker of an item; the language of code."""
    rows: tuple[tuple[str, ...], ...] = ()


def tidy(text: str) -> str:
    """The text with single spaces between words and without empty lines. Line breaks are kept."""
    lines = (" ".join(line.split()) for line in text.split("\n"))
    return "\n".join(line for line in lines if line)


def table(rows: list[list[list[Piece]]]) -> list[Piece]:
    """A table piece, or the pieces of all cells in order if the table is only used for layout."""
    filled = [[cell for cell in row if cell] for row in rows]
    if all(len(row) <= 1 for row in filled) or any(_arranged(cell) for row in filled for cell in row):
        return [piece for row in filled for cell in row for piece in cell]
    return [Piece("table", rows=tuple(tuple(map(_cell, row)) for row in rows if any(row)))]


def _arranged(cell: list[Piece]) -> bool:
    blocks = any(
        piece.kind in ("table", "heading") or (piece.kind == "code" and piece.text.count("\n") > 2) for piece in cell
    )
    return blocks or sum(len(piece.text) for piece in cell) > LONGEST_CELL


def _cell(pieces: list[Piece]) -> str:
    words = (word for piece in pieces for word in piece.text.split())
    return " ".join(words).replace("|", "\\|")


def render(pieces: Iterable[Piece]) -> str:
    """Render as Markdown, with a form feed between pages. Emphasis and links become plain text, because only text is
    searched."""
    out: list[str] = []
    levels: list[int] = []
    before = BREAK
    for piece in pieces:
        if piece.kind not in ("item", "more"):
            levels.clear()
        if piece.kind == "break":
            # Word marks most page breaks twice: where the author set it, and where it was rendered.
            if before != BREAK:
                out.append(BREAK)
            before = BREAK
        elif body := _rendered(piece, levels):
            if before != BREAK:
                out.append("\n" if levels and before in ("item", "more") else "\n\n")
            out.append(body)
            before = piece.kind
    return "".join(out)


def _rendered(piece: Piece, levels: list[int]) -> str:
    match piece.kind:
        case "heading":
            title = " ".join(piece.text.split())
            return f"{'#' * min(max(piece.level, 1), 6)} {title}" if title else ""
        case "item" | "more":
            return _item(piece, levels)
        case "code":
            return _code(piece)
        case "quote":
            return "\n".join(f"> {line}" for line in tidy(piece.text).split("\n") if line)
        case "table":
            return "\n".join(_lines(piece.rows))
        case _:
            return _paragraph(piece)


def _item(piece: Piece, levels: list[int]) -> str:
    while levels and levels[-1] > piece.level:
        levels.pop()
    if piece.kind == "item" and (not levels or levels[-1] < piece.level):
        levels.append(piece.level)
    if not levels:
        return _paragraph(piece)
    indent = "  " * min(len(levels) - 1, _DEEPEST)
    text = tidy(piece.text).replace("\n", f"\n{indent}  ")
    label = piece.label if piece.kind == "item" else " "
    return f"{indent}{label} {text}" if text else ""


def _paragraph(piece: Piece) -> str:
    return _LOOKS_LIKE_MARKUP.sub(r"\\", tidy(piece.text))


def _code(piece: Piece) -> str:
    text = piece.text.replace(BREAK, "\n").expandtabs(4).strip("\n").rstrip()
    if not text.strip():
        return ""
    fence = "`" * max((len(run) + 1 for run in _FENCES.findall(text)), default=3)
    return f"{fence}{piece.label}\n{text}\n{fence}"


def _lines(rows: tuple[tuple[str, ...], ...]) -> Iterator[str]:
    width = max(len(row) for row in rows)
    for number, row in enumerate(rows):
        cells = row + ("",) * (width - len(row)) if number == 0 else row
        yield f"| {' | '.join(cells)} |"
        if number == 0:
            yield "|" + " --- |" * width
