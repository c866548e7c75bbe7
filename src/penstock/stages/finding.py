"""The metadata that the extract stage finds, page by page. It is part of the cursor, so that an interrupted extraction
ends with the same metadata (I12)."""

from collections.abc import Sequence
from typing import Any

from penstock.extractors import formats, languages
from penstock.extractors.properties import bounded, properties
from penstock.model.items import Page
from penstock.model.nouns import Json

FOUND, SAMPLE = "found", "sample"
"""Keys of the cursor: the metadata so far, and the words that were counted to detect the language."""
_TITLED = frozenset(
    (
        *(formats.MARKDOWN, formats.HTML, formats.DOCX, formats.PPTX, formats.ODT, formats.ODP, formats.EPUB),
        *(formats.RST, formats.NOTEBOOK, formats.XML),
    )
)
"""Formats whose first heading may be the title of the document."""
_SAMPLED = 20_000
"""Characters of a page that are searched for words."""


class Finding:
    def __init__(self, found: dict[str, Any], sample: dict[str, int], titled: bool, prose: bool) -> None:
        self._found = found
        self._sample = sample
        self._titled = titled
        self._prose = prose

    @classmethod
    def resumed(cls, cursor: Json, media_type: str) -> "Finding":
        row = formats.of(media_type)
        prose = media_type in (formats.PLAIN, formats.RST) or row.markdown or row.printed
        return cls(dict(cursor.get(FOUND, {})), dict(cursor.get(SAMPLE, {})), media_type in _TITLED, prose)

    def add(self, pages: Sequence[Page], metadata: Json) -> None:
        self._found = bounded({**self._found, **metadata})
        for page in pages:
            if page.number == 1 and self._titled and "title" not in self._found:
                self._found |= _heading(page)
            if self._prose and not languages.is_enough(self._sample):
                self._sample = languages.add(self._sample, page.text[:_SAMPLED])
                if languages.is_enough(self._sample):
                    self._detect()

    def cursor(self) -> dict[str, Any]:
        """What the cursor must contain to continue."""
        return {key: value for key, value in ((FOUND, self._found), (SAMPLE, self._sample)) if value}

    def metadata(self) -> dict[str, Any]:
        """The metadata of the document, once all pages were added."""
        self._detect()
        return self._found

    def _detect(self) -> None:
        if "language" not in self._found and (detected := languages.language(self._sample)) is not None:
            self._found["language"] = detected
        self._sample = {languages.WORDS: languages.ENOUGH} if self._sample else {}


def _heading(page: Page) -> dict[str, Any]:
    """The first heading of the first page, if no deeper one stands before it."""
    first = next((block for block in page.blocks if block.kind == "heading"), None)
    return properties(first.title) if first is not None and first.level == 1 else {}
