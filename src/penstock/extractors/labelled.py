"""Pages of formats whose parts have names and can be read by number: slides, sheets, chapters, messages."""

import struct
import zipfile
import zlib
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple
from xml.etree.ElementTree import ParseError

import msgspec

from penstock.extractors.base import FileContent
from penstock.extractors.text import markdown_pages
from penstock.model.items import Page, Skip

DAMAGES = (zipfile.BadZipFile, zlib.error, ParseError, KeyError, ValueError, EOFError, OSError, RuntimeError)
"""Exceptions of zipfile and the XML parser for damaged files."""
_OF_A_PART = (*DAMAGES, LookupError, ArithmeticError, struct.error)
_LONGEST_LABEL = 80


class Part(NamedTuple):
    label: str
    texts: Callable[[], Iterable[str]]
    """Makes its Markdown, in one or more pieces. Nothing of the part is read before this is called."""
    titled: bool = False
    """If its text begins with a heading, that is its label."""


def labelled_pages(parts: Iterable[Part], span: Sequence[int] | None = None) -> FileContent:
    """The pages of the parts; with a `span` (first, count), only of these parts, and the labels of all. Headings of one
    part do not apply to the next. A part that is too long for one page continues on pages with the same label. The page
    of a damaged part is skipped, and the others are read."""
    found: list[Page] = []
    labels: list[str] = []
    first, count = span or (0, None)
    for index, part in enumerate(parts):
        labels += [part.label] if span is not None else []
        if index < first or (count is not None and index >= first + count):
            continue
        for page in _pages(part):
            found.append(msgspec.structs.replace(page, number=len(found) + 1))
    return FileContent(found or ([Page(1, "")] if span is None else []), labels=labels)


def _pages(part: Part) -> list[Page]:
    found: list[Page] = []
    try:
        for text in part.texts():
            label = (part.titled and _title(text)) or part.label
            found += [msgspec.structs.replace(page, label=label) for page in markdown_pages(text)]
    except _OF_A_PART as error:
        reason = Skip("damaged", f"{part.label} is damaged and cannot be read ({error})"[:300])
        return [Page(1, "", part.label, skipped=reason)]
    return found


def _title(text: str) -> str:
    first = text.partition("\n")[0]
    return first.lstrip("#").strip()[:_LONGEST_LABEL] if first.startswith("#") else ""
