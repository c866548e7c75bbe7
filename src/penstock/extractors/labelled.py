"""Pages of formats whose parts have names: slides, sheets, chapters, messages."""

import zipfile
import zlib
from collections.abc import Callable, Iterable
from xml.etree.ElementTree import ParseError

import msgspec

from penstock.extractors.text import markdown_pages
from penstock.model.items import Page, Skip

DAMAGES = (zipfile.BadZipFile, zlib.error, ParseError, KeyError, ValueError, EOFError, OSError, RuntimeError)
"""Exceptions of zipfile and the XML parser for damaged files."""


def labelled_pages(parts: Iterable[tuple[str, str | Callable[[], str]]]) -> list[Page]:
    """The pages of (label, Markdown) parts. Headings of one part do not apply to the next. A part that is too long for
    one page continues on pages with the same label. A part may be a function that makes its text: if it finds the part
    damaged, the page is skipped, and the others are read."""
    found: list[Page] = []
    for label, part in parts:
        try:
            text = part if isinstance(part, str) else part()
        except DAMAGES as error:
            reason = Skip("damaged", f"{label} is damaged and cannot be read ({error})"[:300])
            found.append(Page(len(found) + 1, "", label, skipped=reason))
            continue
        for page in markdown_pages(text):
            found.append(msgspec.structs.replace(page, number=len(found) + 1, label=label))
    return found or [Page(1, "")]
