"""Pages of formats whose parts have names: slides, sheets, chapters, messages."""

from collections.abc import Iterable

import msgspec

from penstock.extractors.text import markdown_pages
from penstock.model.items import Page


def labelled_pages(parts: Iterable[tuple[str, str]]) -> list[Page]:
    """The pages of (label, Markdown) parts. Headings of one part do not apply to the next. A part that is too long for
    one page continues on pages with the same label."""
    found: list[Page] = []
    for label, text in parts:
        for page in markdown_pages(text):
            found.append(msgspec.structs.replace(page, number=len(found) + 1, label=label))
    return found or [Page(1, "")]
