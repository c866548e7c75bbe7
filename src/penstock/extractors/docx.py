"""Read a Word document as pieces: paragraphs, lists and tables in order, with notes and comments after the paragraph
that refers to them."""

import zipfile
from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import IO
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

from penstock.extractors.base import FileContent
from penstock.extractors.docx_styles import Numbering, Styles, marker, numeral, on
from penstock.extractors.omml import child, linear, local, value
from penstock.extractors.ooxml import by_kind, read_part, relations
from penstock.extractors.pieces import BREAK, Piece, render, table, tidy
from penstock.extractors.text import markdown_pages

_UNSEEN = {
    "pPr",
    "rPr",
    "sdtPr",
    "sdtEndPr",
    "del",
    "moveFrom",
    "instrText",
    "delText",
    "delInstrText",
    "tblPr",
    "trPr",
}
_SIGNS = {"tab": " ", "cr": "\n", "noBreakHyphen": "-", "ptab": " "}
_SYMBOLS = {0xFC: "✓", 0xFB: "✗", 0xA8: "☐", 0x6F: "☐", 0xFE: "☑", 0xFD: "☒", 0xE0: "→", 0xB7: "•"}
"""Characters of symbol fonts that have a meaning in text."""
_PRIVATE = 0xF000
_MOST_SPANNED = 100
_NEW_PAGE = {None, "nextPage", "evenPage", "oddPage"}


def pages(archive: zipfile.ZipFile) -> FileContent:
    """The pages of a document, divided at its page breaks."""
    return FileContent(markdown_pages(render(pieces(archive))))


def pieces(archive: zipfile.ZipFile) -> Iterator[Piece]:
    main, related = _main_part(archive)
    numbering = Numbering(read_part(archive, related.get("numbering")))
    reader = _Reader(
        Styles(read_part(archive, related.get("styles")), numbering),
        numbering,
        {kind: _entries(read_part(archive, related.get(f"{kind}s"))) for kind in ("footnote", "endnote", "comment")},
    )
    with archive.open(main) as stream:
        yield from _joined(piece for block in _blocks(stream) for piece in reader.block(block))


def _joined(found: Iterable[Piece]) -> Iterator[Piece]:
    """Join consecutive code pieces into one. In Word every line of code is a paragraph."""
    for kind, group in groupby(found, key=lambda piece: piece.kind):
        if kind == "code":
            yield Piece("code", "\n".join(piece.text for piece in group))
        else:
            yield from group


def _main_part(archive: zipfile.ZipFile) -> tuple[str, dict[str, str]]:
    """The name of the part with the text, and the names of its related parts by kind."""
    main = by_kind(relations(archive, "")).get("officeDocument", "word/document.xml")
    return main, by_kind(relations(archive, main))


def _entries(root: Element | None) -> dict[str | None, Element]:
    return {value(entry, "id"): entry for entry in root} if root is not None else {}


def _blocks(stream: IO[bytes]) -> Iterator[Element]:
    """Yield the elements of the body. Each is removed before the next is read, so that a long document is never
    completely in memory."""
    opened: list[Element] = []
    for event, element in ElementTree.iterparse(stream, ("start", "end")):
        if event == "start":
            opened.append(element)
            continue
        opened.pop()
        if len(opened) == 2 and local(opened[1]) == "body":
            yield element
            opened[1].remove(element)


class _Inline:
    """The text of one paragraph, and the pieces that follow it."""

    def __init__(self) -> None:
        self.text: list[str] = []
        self.after: list[Piece] = []
        self.breaks_before = self.breaks_after = False
        self._equation_ends = -1

    def equation(self, text: str) -> None:
        """Add an equation, separated by a space from an equation directly before it."""
        self.text.append(f" {text}" if self._equation_ends == len(self.text) else text)
        self._equation_ends = len(self.text)

    def add(self, text: str) -> None:
        self.text.append(text)

    def rendered_break(self) -> None:
        """Handle a page break within the paragraph. The paragraph is not split: the break goes before or after it."""
        if any(part.strip() for part in self.text):
            self.breaks_after = True
        else:
            self.breaks_before = True


class _Reader:
    def __init__(self, styles: Styles, numbering: Numbering, notes: dict[str, dict[str | None, Element]]) -> None:
        self._styles = styles
        self._numbering = numbering
        self._notes = notes
        self._noted = {"footnote": 0, "endnote": 0}

    def blocks(self, container: Element) -> list[Piece]:
        return [piece for element in container for piece in self.block(element)]

    def block(self, element: Element) -> list[Piece]:
        match local(element):
            case "p":
                return self._paragraph(element)
            case "tbl":
                return self._table(element)
            case "AlternateContent":
                return self.blocks(_chosen(element))
            case "oMathPara" | "oMath":
                return [Piece("paragraph", linear(element))]
            case name:
                return [] if name in _UNSEEN or name == "sectPr" else self.blocks(element)

    def _paragraph(self, element: Element) -> list[Piece]:
        settings = child(element, "pPr")
        known = self._styles.format(settings)
        inline = _Inline()
        for part in element:
            self._inline(part, inline)
        label = self._numbering.next(known.number, known.depth) if known.number else ""
        found = [Piece("break")] if known.breaks or inline.breaks_before else []
        for number, text in enumerate("".join(inline.text).split(BREAK)):
            if number:
                found.append(Piece("break"))
            if known.kind == "code":
                found.append(Piece("code", text))
            elif not text.strip():
                continue
            elif known.kind == "heading":
                found.append(Piece("heading", f"{label} {text}", known.level))
            elif known.number:
                found.append(Piece("more" if number else "item", text, known.depth, marker(label)))
            else:
                found.append(Piece(known.kind, text))
        found += inline.after
        section = child(settings, "sectPr")
        if inline.breaks_after or (section is not None and value(child(section, "type")) in _NEW_PAGE):
            found.append(Piece("break"))
        return found

    def _inline(self, element: Element, inline: _Inline) -> None:
        name = local(element)
        match name:
            case "t":
                inline.add((element.text or "").replace("\n", " ").replace(BREAK, " "))
            case "br":
                inline.add(BREAK if value(element, "type") == "page" else "\n")
            case "sym":
                inline.add(_symbol(value(element, "char")))
            case "lastRenderedPageBreak":
                inline.rendered_break()
            case "footnoteReference" | "endnoteReference":
                self._note(name.removesuffix("Reference"), element, inline)
            case "commentReference":
                self._comment(element, inline)
            case "oMath":
                inline.equation(linear(element))
            case "AlternateContent":
                self._inline(_chosen(element), inline)
            case "drawing" | "pict" | "object":
                self._drawing(element, inline)
            case "checkBox":
                checked = child(element, "checked")
                inline.add("☒" if on(child(element, "default") if checked is None else checked) else "☐")
            case "rt":
                inline.add("(")
                self._inlines(element, inline)
                inline.add(")")
            case "ruby":
                for part in (child(element, "rubyBase"), child(element, "rt")):
                    if part is not None:
                        self._inline(part, inline)
            case "r" if on(child(element, "rPr", "vanish")):
                return
            case _ if name in _SIGNS:
                inline.add(_SIGNS[name])
            case _ if name not in _UNSEEN:
                self._inlines(element, inline)

    def _inlines(self, element: Element, inline: _Inline) -> None:
        for part in element:
            self._inline(part, inline)

    def _note(self, kind: str, element: Element, inline: _Inline) -> None:
        note = self._notes[kind].get(value(element, "id"))
        if note is None:
            return
        self._noted[kind] += 1
        label = numeral(self._noted[kind], "decimal" if kind == "footnote" else "lowerRoman")
        inline.add(f"[^{label}]")
        inline.after.append(Piece("paragraph", f"[^{label}]: {self._text(note)}"))

    def _comment(self, element: Element, inline: _Inline) -> None:
        comment = self._notes["comment"].get(value(element, "id"))
        text = self._text(comment) if comment is not None else ""
        if text:
            author = value(comment, "author")
            inline.after.append(Piece("quote", f"Comment{f' by {author}' if author else ''}: {text}"))

    def _text(self, container: Element) -> str:
        return tidy("\n".join(piece.text for piece in self.blocks(container)))

    def _drawing(self, element: Element, inline: _Inline) -> None:
        """Add the text of a drawing or, if it has none, its alternative text."""
        boxes = [found for found in element.iter() if local(found) == "txbxContent"]
        for box in boxes:
            inline.after += self.blocks(box)
        described = next((found for found in element.iter() if local(found) in ("docPr", "imagedata")), None)
        words = value(described, "descr") or value(described, "alt")
        if words and not boxes:
            inline.add(f" {' '.join(words.split())} ")

    def _table(self, element: Element) -> list[Piece]:
        """The pieces of a table. It is split before each row that begins a page, and the first row is repeated there,
        as in Word."""
        pages: list[list[list[list[Piece]]]] = [[]]
        for row in _rows(element):
            cells = [self.blocks(cell) for cell in _within(row, "tc")]
            begins = any(piece.kind == "break" for cell in cells for piece in cell[:1])
            cells = [[piece for piece in cell if piece.kind != "break"] for cell in cells]
            for at, cell in reversed(list(enumerate(_within(row, "tc")))):
                span = value(child(cell, "tcPr", "gridSpan")) or "1"
                cells[at + 1 : at + 1] = [
                    [] for _ in range(1, min(int(span) if span.isdecimal() else 1, _MOST_SPANNED))
                ]
            if begins and pages[-1]:
                pages.append(pages[0][:1])
            pages[-1].append(cells)
        found = table(pages[0])
        for page in pages[1:]:
            found += [Piece("break"), *table(page)]
        return found


def _chosen(alternatives: Element) -> Element:
    chosen = child(alternatives, "Choice")
    fallback = child(alternatives, "Fallback")
    return chosen if chosen is not None else fallback if fallback is not None else alternatives


def _rows(element: Element) -> Iterator[Element]:
    """Rows that are not marked as deleted, also those inside wrapper elements."""
    return (row for row in _within(element, "tr") if child(row, "trPr", "del") is None)


def _within(element: Element, name: str) -> Iterator[Element]:
    for found in element:
        if local(found) == name:
            yield found
        elif local(found) not in _UNSEEN and local(found) not in ("tr", "tc", "p"):
            yield from _within(found, name)


def _symbol(code: str | None) -> str:
    try:
        point = int(code or "", 16)
    except ValueError:
        return ""
    return _SYMBOLS.get(point - _PRIVATE, "") if point >= _PRIVATE else chr(point)
