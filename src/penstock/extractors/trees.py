"""JSON, Jupyter notebooks and XML. A small file is read whole, in a parser process. A large one is read as text."""

from collections.abc import AsyncGenerator, Mapping
from typing import Any

from penstock.extractors.base import Extracted, Raw
from penstock.extractors.formats import Format, Parts
from penstock.extractors.text import TextExtractor
from penstock.extractors.whole import WholeFileExtractor

LARGEST = 16 << 20
"""Files with more bytes are read as text. A parsed file takes many times its size in memory."""


def make(row: Format, parts: Parts) -> "TreeExtractor":
    return TreeExtractor(WholeFileExtractor(parts.parsers, row), TextExtractor(parts.runtime, row=row))


class TreeExtractor:
    paid = False

    def __init__(self, whole: WholeFileExtractor, text: TextExtractor) -> None:
        self._whole, self._text = whole, text

    def version(self, media_type: str, params: Mapping[str, Any]) -> str:
        return self._whole.version(media_type, params)

    def extract(
        self, raw: Raw, media_type: str, params: dict[str, Any], cursor: dict[str, Any]
    ) -> AsyncGenerator[Extracted, None]:
        reader = self._whole if raw.size <= LARGEST else self._text
        return reader.extract(raw, media_type, params, cursor)
