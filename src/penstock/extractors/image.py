"""Images, read by OCR: each image of a file is a page."""

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any, NamedTuple

import msgspec

from penstock.errors import Permanent
from penstock.extractors.bad_parts import twice
from penstock.extractors.base import Extracted, Parsers, Raw
from penstock.extractors.formats import Format, Parts
from penstock.extractors.ocr import NONE, Ocr, OcrSettings, find, why_not
from penstock.extractors.scanned import ScannedPages
from penstock.model.items import Page

BATCH = 64


def make(row: Format, parts: Parts) -> "ImageExtractor":
    return ImageExtractor(parts.parsers, row, Ocr(parts.parsers, find(parts.tessdata)), parts.megapixels)


class _Image(NamedTuple):
    total: int
    data: bytes
    dpi: int | None


class ImageExtractor:
    paid = False

    def __init__(self, parsers: Parsers, row: Format, ocr: Ocr, megapixels: int) -> None:
        self._parsers = parsers
        self._row = row
        self._ocr = ocr
        self._megapixels = megapixels

    def version(self, media_type: str, params: Mapping[str, Any]) -> str:
        return f"{self._row.whole_version}/{self._ocr.version(OcrSettings.of(params))}"

    async def extract(
        self, raw: Raw, media_type: str, params: dict[str, Any], cursor: dict[str, Any]
    ) -> AsyncGenerator[Extracted, None]:
        settings = OcrSettings.of(params)
        if self._ocr.version(settings) == NONE:
            sentence = f"its text ({self._row.label}) can only be read by OCR, but {why_not(settings)}"
            raise Permanent(sentence, reason="unsupported_type")
        async with raw.file() as path:

            async def image(index: int) -> _Image:
                arguments = {"index": index, "megapixels": self._megapixels}
                answer = await self._parsers.call("image", arguments, source=raw, document=path)
                return _Image(*msgspec.msgpack.decode(answer, type=tuple[int, bytes, int | None]))

            async def draw(number: int, dpi: int) -> tuple[bytes, int | None]:
                found = await image(number - 1)
                return found.data, found.dpi

            total = (await twice(lambda: image(-1))).total
            scanned = ScannedPages(self._ocr, settings, raw, draw)
            for first in range(int(cursor.get("pages", 0)), total, BATCH):
                numbers = range(first + 1, min(first + BATCH, total) + 1)
                pages = [Page(number, "", f"image {number}" if total > 1 else None) for number in numbers]
                async with aclosing(scanned.read(pages, numbers)) as batches:
                    async for batch in batches:
                        yield Extracted(batch, {"pages": batch[-1].number, "of": total}, keep=total > 1)
