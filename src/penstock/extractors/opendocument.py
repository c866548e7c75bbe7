"""OpenDocument text (.odt) and presentations (.odp)."""

import zipfile
from collections.abc import Iterator, Sequence
from functools import partial
from xml.etree.ElementTree import Element

from penstock.extractors.base import FileContent
from penstock.extractors.labelled import Part, labelled_pages
from penstock.extractors.office import encrypted, nested
from penstock.extractors.omml import child, local, value
from penstock.extractors.ooxml import read_part
from penstock.extractors.pieces import BREAK, Piece, render, table, tidy
from penstock.extractors.text import markdown_pages

_UNSEEN = {"tracked-changes", "sequence-decls", "variable-decls", "user-field-decls", "forms"}
_NOT_INLINE = {"frame", "custom-shape", "g", "annotation", "soft-page-break"}
_MOST_REPEATED = 100
"""A sheet may say that an empty cell is repeated a million times."""
_DEEPEST = 64


def pages(archive: zipfile.ZipFile, span: Sequence[int] | None = None) -> FileContent:
    manifest = read_part(archive, "META-INF/manifest.xml")
    if manifest is not None and any(local(found) == "encryption-data" for found in manifest.iter()):
        raise encrypted("OpenDocument")
    content = read_part(archive, "content.xml")
    if content is None:
        raise KeyError("it has no content.xml")
    body = child(content, "body")
    presentation = child(body, "presentation")
    if presentation is not None:
        slides = [found for found in presentation if local(found) == "page"]
        parts = (Part(f"slide {n}", partial(_rendered, slide)) for n, slide in enumerate(slides, 1))
        return labelled_pages(parts, span)
    return FileContent(markdown_pages(render(_blocks(child(body, "text")))))


def _rendered(slide: Element) -> list[str]:
    return [render(_slide(slide))]


def _slide(slide: Element) -> Iterator[Piece]:
    notes: list[Piece] = []
    for element in slide:
        if local(element) == "notes":
            notes += _blocks(element)
        elif value(element, "class") in ("title", "subtitle"):
            yield Piece("heading", " ".join(piece.text for piece in _block(element)), 1)
        else:
            yield from _block(element)
    if text := tidy("\n".join(piece.text for piece in notes)):
        yield Piece("quote", f"Notes: {text}")


def _blocks(container: Element | None, depth: int = 0) -> Iterator[Piece]:
    for element in container if container is not None else ():
        yield from _block(element, depth)


def _block(element: Element, depth: int = 0) -> Iterator[Piece]:
    if depth > _DEEPEST:
        raise nested("OpenDocument", _DEEPEST)
    match local(element):
        case "h":
            level = value(element, "outline-level") or "1"
            yield Piece("heading", _text(element), int(level) if level.isdecimal() else 1)
        case "p":
            yield Piece("paragraph", _text(element))
            yield from _framed(element, depth)
        case "list":
            yield from _items(element, depth, 0)
        case "table":
            yield from table([[list(_blocks(cell, depth + 1)) for cell in _cells(row)] for row in _rows(element)])
        case "soft-page-break":
            yield Piece("break")
        case "title" | "desc" | "annotation":
            texts = [_text(found) for found in element.iter() if local(found) in ("p", "desc")]
            yield Piece("paragraph", " ".join(texts))
        case name if name not in _UNSEEN:
            yield from _blocks(element, depth + 1)


def _items(element: Element, depth: int, level: int) -> Iterator[Piece]:
    for item in element:
        first = True
        for found in item if depth < _DEEPEST else ():
            if local(found) == "list":
                yield from _items(found, depth + 1, level + 1)
            elif local(found) in ("p", "h"):
                yield Piece("item" if first else "more", _text(found), level, "-")
                first = False


def _framed(paragraph: Element, depth: int) -> Iterator[Piece]:
    """Text boxes that are anchored in a paragraph."""
    for frame in paragraph:
        if local(frame) in ("frame", "custom-shape", "g"):
            yield from _blocks(frame, depth + 1)


def _rows(element: Element) -> Iterator[Element]:
    for found in element:
        if local(found) == "table-row":
            yield found
        elif local(found) in ("table-header-rows", "table-rows", "table-row-group"):
            yield from _rows(found)


def _cells(row: Element) -> Iterator[Element]:
    for cell in row:
        if local(cell) in ("table-cell", "covered-table-cell"):
            again = value(cell, "number-columns-repeated") or "1"
            for _ in range(min(int(again) if again.isdecimal() else 1, _MOST_REPEATED)):
                yield cell


def _text(element: Element) -> str:
    found: list[str] = []
    _collect(element, found)
    return "".join(found)


def _collect(element: Element, found: list[str], depth: int = 0) -> None:
    # White space in the file means one space, as in HTML; `tidy` removes the rest.
    found.append((element.text or "").replace("\n", " "))
    for inner in element if depth < _DEEPEST else ():
        match local(inner):
            case "s" | "tab":
                found.append(" ")
            case "line-break":
                found.append("\n")
            case "note":
                notes = (one for one in inner if local(one) == "note-body")
                found += [f" ({tidy(' '.join(_text(p) for p in note.iter() if local(p) == 'p'))})" for note in notes]
            case name if name not in _NOT_INLINE:
                _collect(inner, found, depth + 1)
        found.append((inner.tail or "").replace("\n", " ").replace(BREAK, " "))
