"""HTML and XHTML, read as a whole file in a parser process. It fetches no resources and executes no scripts."""

import re
from typing import BinaryIO, NamedTuple

from penstock.extractors.base import FileContent
from penstock.extractors.charsets import decoded
from penstock.extractors.html_head import head_properties
from penstock.extractors.html_tags import BLOCKS, CELLS, HEADINGS, LISTS, SCOPES, TABLES, UNSEEN, VOID, ended_by
from penstock.extractors.html_tokens import RAW, attributes, tokens
from penstock.extractors.pieces import Piece, render, table
from penstock.extractors.text import markdown_pages

_MAY_HIDE = re.compile("hidden|none|navigation", re.IGNORECASE)
_HIDDEN = re.compile(r"display\s*:\s*none|visibility\s*:\s*hidden", re.IGNORECASE)
_LANGUAGE = re.compile(r"\b(?:language|lang|highlight-source)-([\w+#-]+)")
_LONGEST_HEADING = 500
_MOST_SPANNED = 100

_PARAGRAPHS = re.compile(r"\n\s*\n")


def read(document: BinaryIO, media_type: str) -> FileContent:
    html = decoded(document.read())
    return FileContent(markdown_pages(markdown(html)), head_properties(html))


def markdown(html: str) -> str:
    reader = _read(html, frozenset(), hide=True)
    if reader.lost or not reader.pieces:
        # A hidden element is never closed, or all text is hidden: read again and keep hidden text.
        reader = _read(html, frozenset(reader.lost), hide=False)
    found = reader.pieces
    if found and reader.title and not any(piece.kind == "heading" and piece.level == 1 for piece in found):
        found = [Piece("heading", reader.title, 1), *found]
    return render(found)


def _read(html: str, shown: frozenset[str], hide: bool) -> "_Reader":
    reader = _Reader(shown, hide)
    for kind, content, more in tokens(html):
        if kind == "text":
            reader.text(content)
        elif kind == "start":
            reader.start(content, more)
        else:
            reader.end(content)
    reader.finish()
    return reader


class _Open(NamedTuple):
    """An open element. `unseen`: the element itself is hidden. `shown`: neither it nor an element around it is."""

    name: str
    unseen: bool
    shown: bool


class _List:
    def __init__(self, start: int | None) -> None:
        self.next = start

    def marker(self) -> str:
        if self.next is None:
            return "-"
        self.next += 1
        return f"{self.next - 1}."


class _Place:
    """The container that text is added to: the document, or a cell of a table."""

    def __init__(self, pieces: list[Piece]) -> None:
        self.pieces = pieces
        self.lists: list[_List] = []
        self.marker: str | None = None
        self.heading = self.quotes = 0


class _Table:
    def __init__(self) -> None:
        self.captions: list[Piece] = []
        self._rows: list[list[list[Piece]]] = []
        self._spans: dict[int, int] = {}
        """By column: the number of further rows that a cell above extends over."""

    def add_row(self) -> None:
        self._rows.append([])

    def add_cell(self, columns: int, rows: int) -> list[Piece]:
        if not self._rows:
            self.add_row()
        row = self._rows[-1]
        while self._spans.get(len(row), 0) > 0:
            self._spans[len(row)] -= 1
            row.append([])
        cell: list[Piece] = []
        for column in range(columns):
            self._spans[len(row)] = rows - 1
            row.append([] if column else cell)
        return cell

    def pieces(self) -> list[Piece]:
        return self.captions + table([row for row in self._rows if row])


class _Reader:
    """Tracks the open elements that matter: hidden elements, lists, tables, headings, code, quotes."""

    def __init__(self, shown: frozenset[str], hide: bool) -> None:
        self.pieces: list[Piece] = []
        self.title = ""
        self.lost: set[str] = set()
        """Hidden elements that were never closed."""
        self._shown, self._hide = shown, hide
        self._open: list[_Open] = []
        self._unseen = 0
        self._text: list[str] = []
        self._code = False
        self._language = ""
        self._places = [_Place(self.pieces)]
        self._tables: list[_Table] = []

    def start(self, tag: str, raw: str) -> None:
        if tag in BLOCKS:
            self._flush()
            names, scopes = ended_by(tag)
            while self._end_first(names, scopes):
                pass
        if self._unseen:
            if tag not in VOID:
                self._open.append(_Open(tag, False, False))
            return
        unseen = self._is_unseen(tag, raw)
        if tag in VOID:
            if not unseen:
                self._void(tag, raw)
        elif unseen or tag in BLOCKS:
            self._open.append(_Open(tag, unseen, not unseen))
            if unseen:
                self._unseen += 1
            else:
                self._begin(tag, raw)
        elif tag == "code" and self._code:
            self._language = self._language or _language(raw)

    def end(self, tag: str) -> None:
        if (tag not in BLOCKS and not self._unseen) or tag in ("body", "html"):
            return
        if tag in BLOCKS:
            self._flush()
        self._end_first(frozenset((tag,)), frozenset() if tag in TABLES else SCOPES)

    def text(self, text: str) -> None:
        if not self._unseen:
            self._text.append(text if self._code else text.replace("\n", " "))

    def finish(self) -> None:
        """Close all open elements at the end of the file."""
        self._flush()
        self.lost = {element.name for element in self._open if element.unseen} - RAW
        while self._open:
            self._end_last()

    # open elements

    def _is_unseen(self, tag: str, raw: str) -> bool:
        if tag in self._shown or tag in ("html", "body"):
            return False
        if tag in UNSEEN:
            # On pages with collapsible sections, headings are often buttons.
            return tag != "button" or not self._places[-1].heading
        return self._hide and (tag == "nav" or (_MAY_HIDE.search(raw) is not None and _hidden(attributes(raw))))

    def _end_first(self, names: frozenset[str], scopes: frozenset[str]) -> bool:
        """Close the innermost open element with one of these names, and all elements inside it. Does nothing if an
        element of `scopes` is open inside it. Returns whether an element was closed."""
        for at in range(len(self._open) - 1, -1, -1):
            name = self._open[at].name
            if name in names:
                while len(self._open) > at:
                    self._end_last()
                return True
            if name in scopes:
                return False
        return False

    def _end_last(self) -> None:
        name, unseen, shown = self._open.pop()
        self._unseen -= unseen
        if shown:
            self._finish(name)

    def _begin(self, tag: str, raw: str) -> None:
        place = self._places[-1]
        if tag in HEADINGS:
            place.heading = int(tag[1])
        elif tag in LISTS:
            place.lists.append(_List(_number(attributes(raw), "start", 1, 10**9) if tag == "ol" else None))
        elif tag in ("li", "dt"):
            place.marker = place.lists[-1].marker() if place.lists else "-"
        elif tag == "dd":
            place.marker = None
        elif tag == "pre":
            self._code, self._language = True, _language(raw)
        elif tag == "blockquote":
            place.quotes += 1
        elif tag == "table":
            self._tables.append(_Table())
        elif self._tables and tag == "tr":
            self._tables[-1].add_row()
        elif self._tables and tag in CELLS:
            self._places.append(_Place(self._cell(tag, raw)))

    def _cell(self, tag: str, raw: str) -> list[Piece]:
        if tag == "caption":
            return self._tables[-1].captions
        if "span" not in raw.lower():
            return self._tables[-1].add_cell(1, 1)
        found = attributes(raw)
        columns, rows = (_number(found, name, 1, _MOST_SPANNED) for name in ("colspan", "rowspan"))
        return self._tables[-1].add_cell(columns, rows)

    def _finish(self, tag: str) -> None:
        place = self._places[-1]
        if tag in HEADINGS:
            place.heading = 0
        elif tag in LISTS and place.lists:
            place.lists.pop()
        elif tag in ("li", "dt", "dd"):
            place.marker = None
        elif tag == "title":
            self.title = self.title or " ".join("".join(self._text).split())
            self._text.clear()
        elif tag == "pre":
            place.pieces.append(Piece("code", "".join(self._text), label=self._language))
            self._text.clear()
            self._code = False
        elif tag == "blockquote":
            place.quotes -= 1
        elif tag == "table":
            self._places[-1].pieces += self._tables.pop().pieces()
        elif tag in CELLS and len(self._places) > 1:
            self._places.pop()

    # text

    def _flush(self) -> None:
        """Add the collected text as a block."""
        if self._code:
            if self._text and not self._text[-1].endswith("\n"):
                self._text.append("\n")
            return
        if self._open and self._open[-1].name == "title":
            return
        text = "".join(self._text)
        self._text.clear()
        if not text.strip():
            return
        place = self._places[-1]
        if place.heading and len(text) <= _LONGEST_HEADING:
            place.pieces.append(Piece("heading", text.rstrip(" ¶"), place.heading))
            place.marker = None
        elif place.lists:
            kind = "more" if place.marker is None else "item"
            place.pieces.append(Piece(kind, text, len(place.lists), place.marker or ""))
            place.marker = None
        else:
            kind = "quote" if place.quotes else "paragraph"
            place.pieces += [Piece(kind, part) for part in _PARAGRAPHS.split(text)]

    def _void(self, tag: str, raw: str) -> None:
        if tag == "br":
            self._text.append("\n")
        elif tag == "img":
            self._text.append(f" {' '.join(attributes(raw).get('alt', '').split())} ")
        elif tag == "input":
            found = attributes(raw)
            if found.get("type", "").lower() == "checkbox":
                self._text.append("☒ " if "checked" in found else "☐ ")


def _hidden(found: dict[str, str]) -> bool:
    return (
        "hidden" in found
        or found.get("aria-hidden") == "true"
        or found.get("role") == "navigation"
        or _HIDDEN.search(found.get("style", "")) is not None
    )


def _language(raw: str) -> str:
    found = _LANGUAGE.search(attributes(raw).get("class", ""))
    return found[1] if found else ""


def _number(found: dict[str, str], name: str, default: int, most: int) -> int:
    text = found.get(name, "").strip()
    return min(max(int(text), 1), most) if text.isascii() and text.isdecimal() and len(text) < 10 else default
