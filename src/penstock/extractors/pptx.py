"""PowerPoint presentations (.pptx): one page for each slide, with its title, text, tables, charts and notes."""

import zipfile
from collections.abc import Iterator, Sequence
from functools import partial
from typing import NamedTuple
from xml.etree.ElementTree import Element

from penstock.extractors.base import FileContent
from penstock.extractors.labelled import Part, labelled_pages
from penstock.extractors.omml import child, linear, local, value
from penstock.extractors.ooxml import Relation, by_kind, read_part, relations
from penstock.extractors.pieces import Piece, render, table, tidy

_FURNITURE = {"sldNum", "dt", "ftr", "hdr"}
"""Placeholders that repeat on every slide."""
_TITLES = {"title", "ctrTitle"}
_BULLETED = {"body", "obj", ""}
_DEEPEST = 32
"""Groups within groups. Files made to break readers nest more."""


class _Slide(NamedTuple):
    archive: zipfile.ZipFile
    related: dict[str, Relation]

    def shapes(self, tree: Element, depth: int = 0) -> Iterator[Piece]:
        for element in tree:
            match local(element):
                case "sp" | "cxnSp":
                    yield from self._shape(element)
                case "grpSp" if depth < _DEEPEST:
                    yield from self.shapes(element, depth + 1)
                case "AlternateContent":
                    chosen = _first(child(element, "Choice"), child(element, "Fallback"))
                    if chosen is not None and depth < _DEEPEST:
                        yield from self.shapes(chosen, depth + 1)
                case "graphicFrame":
                    yield from self._graphic(element)
                case "pic":
                    yield Piece("paragraph", value(child(element, "nvPicPr", "cNvPr"), "descr") or "")

    def _shape(self, shape: Element) -> Iterator[Piece]:
        holder = child(shape, "nvSpPr", "nvPr", "ph")
        kind = (value(holder, "type") or "") if holder is not None else None
        if kind in _FURNITURE:
            return
        body = child(shape, "txBody")
        paragraphs = [] if body is None else [found for found in body if local(found) == "p"]
        if kind in _TITLES:
            yield Piece("heading", " ".join(map(_text, paragraphs)), 1)
            return
        for paragraph in paragraphs:
            yield _paragraph(paragraph, bulleted=kind in _BULLETED if kind is not None else False)

    def _graphic(self, frame: Element) -> Iterator[Piece]:
        data = child(frame, "graphic", "graphicData")
        for element in data if data is not None else ():
            match local(element):
                case "tbl":
                    yield from table([[_cell(cell) for cell in row if local(cell) == "tc"] for row in _rows(element)])
                case "chart":
                    yield from _chart(self._part(value(element, "id")))
                case "relIds":
                    yield from _diagram(self._part(value(element, "dm")))

    def _part(self, relation: str | None) -> Element | None:
        found = self.related.get(relation or "")
        return None if found is None else read_part(self.archive, found.target)


def pages(archive: zipfile.ZipFile, span: Sequence[int] | None = None) -> FileContent:
    main = by_kind(relations(archive, "")).get("officeDocument", "ppt/presentation.xml")
    related = relations(archive, main)
    slides = enumerate(_order(archive, main, related), 1)
    return labelled_pages((Part(f"slide {n}", partial(_rendered, archive, name)) for n, name in slides), span)


def _order(archive: zipfile.ZipFile, main: str, related: dict[str, Relation]) -> list[str]:
    """The slides in the order in which they are shown; in the order of the relations, if the list is missing."""
    listed = child(read_part(archive, main), "sldIdLst")
    # The relation has the name `id` in a namespace; the number of the slide has the same name without one.
    ids = [key for entry in listed for key in _qualified(entry)] if listed is not None else []
    slides = [related[key].target for key in ids if key in related]
    return slides or [one.target for one in related.values() if one.kind == "slide"]


def _qualified(entry: Element) -> list[str]:
    return [found for key, found in entry.attrib.items() if key.endswith("}id")]


def _rendered(archive: zipfile.ZipFile, name: str) -> list[str]:
    return [render(_slide(archive, name))]


def _slide(archive: zipfile.ZipFile, name: str) -> Iterator[Piece]:
    related = relations(archive, name)
    tree = child(read_part(archive, name), "cSld", "spTree")
    if tree is not None:
        yield from _titled(list(_Slide(archive, related).shapes(tree)))
    notes = child(read_part(archive, by_kind(related).get("notesSlide")), "cSld", "spTree")
    if notes is not None:
        # The notes page also has a picture of the slide and its number.
        text = tidy("\n".join(piece.text for piece in _Slide(archive, {}).shapes(notes)))
        if text:
            yield Piece("quote", f"Notes: {text}")


def _titled(found: list[Piece]) -> list[Piece]:
    """The title comes first, wherever it stands in the file."""
    titles = [piece for piece in found if piece.kind == "heading"]
    return titles + [piece for piece in found if piece.kind != "heading"]


def _paragraph(paragraph: Element, bulleted: bool) -> Piece:
    settings = child(paragraph, "pPr")
    marked = bulleted if child(settings, "buNone") is None else False
    if child(settings, "buChar") is not None or child(settings, "buAutoNum") is not None:
        marked = True
    level = value(settings, "lvl") or "0"
    depth = int(level) if level.isdecimal() and len(level) < 3 else 0
    return Piece("item", _text(paragraph), depth, "-") if marked else Piece("paragraph", _text(paragraph))


def _text(paragraph: Element) -> str:
    found: list[str] = []
    for element in paragraph:
        match local(element):
            case "r" | "fld":
                found.append("".join(text.text or "" for text in element if local(text) == "t"))
            case "br":
                found.append("\n")
            case "m" | "oMath" | "oMathPara":
                found.append(linear(element))
            case "AlternateContent":
                chosen = child(element, "Choice")
                found.append(linear(chosen) if chosen is not None else "")
    return "".join(found)


def _rows(element: Element) -> Iterator[Element]:
    return (row for row in element if local(row) == "tr")


def _cell(cell: Element) -> list[Piece]:
    body = child(cell, "txBody")
    paragraphs = (found for found in body if local(found) == "p") if body is not None else ()
    return [Piece("paragraph", text) for found in paragraphs if (text := _text(found)).strip()]


def _chart(chart: Element | None) -> Iterator[Piece]:
    """The title of a chart, and its values as a table: a row for each category, a column for each series."""
    if chart is None:
        return
    title = next((found for found in chart.iter() if local(found) == "title"), None)
    yield Piece("paragraph", "" if title is None else " ".join(t.text or "" for t in title.iter() if local(t) == "t"))
    series = [found for found in chart.iter() if local(found) == "ser"]
    if not series:
        return
    names = [" ".join(_values(child(one, "tx"))) for one in series]
    categories = _values(_first(child(series[0], "cat"), child(series[0], "xVal")))
    columns = [_values(_first(child(one, "val"), child(one, "yVal"))) for one in series]
    height = max(len(categories), *map(len, columns))
    rows = [["", *names], *([_at(categories, n), *(_at(column, n) for column in columns)] for n in range(height))]
    yield from table([[[Piece("paragraph", cell)] for cell in row] for row in rows])


def _values(element: Element | None) -> list[str]:
    return [] if element is None else [found.text or "" for found in element.iter() if local(found) == "v"]


def _at(found: list[str], number: int) -> str:
    return found[number] if number < len(found) else ""


def _diagram(data: Element | None) -> Iterator[Piece]:
    for point in data.iter() if data is not None else ():
        if local(point) == "pt":
            text = " ".join(found.text or "" for found in point.iter() if local(found) == "t")
            if text.strip():
                yield Piece("item", text, 0, "-")


def _first(one: Element | None, other: Element | None) -> Element | None:
    """The first that exists. An element without children is false, so `or` cannot be used."""
    return other if one is None else one
