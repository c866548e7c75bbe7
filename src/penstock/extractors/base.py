"""PORT: raw bytes in, pages with structure out, from any cursor on."""

from collections.abc import AsyncIterator
from typing import Any, NamedTuple, Protocol

from penstock.model.items import Page


class Source(Protocol):
    """The raw bytes of one document, read in ranges."""

    @property
    def name(self) -> str: ...

    @property
    def size(self) -> int: ...

    async def read_range(self, offset: int, length: int) -> bytes: ...


class Extracted(NamedTuple):
    """A batch of pages, and the cursor from which extraction goes on after it."""

    pages: list[Page]
    cursor: dict[str, Any]


class Extractor(Protocol):
    @property
    def version(self) -> str:
        """Changes whenever the output for the same input does: part of the artifact's fingerprint."""

    def extract(
        self, source: Source, media_type: str, params: dict[str, Any], cursor: dict[str, Any]
    ) -> AsyncIterator[Extracted]:
        """Pages in order. An empty cursor is the beginning. Where a batch ends depends on the input alone."""
