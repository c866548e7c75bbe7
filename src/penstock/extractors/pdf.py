"""PDF: parser processes read several batches of pages at a time; the pages are returned in order."""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from pathlib import Path
from typing import Any

import msgspec

from penstock.errors import Permanent, StepError
from penstock.extractors.bad_parts import is_of_a_part, skipped, twice
from penstock.extractors.base import Extracted, Parsers, PdfPart, Raw
from penstock.extractors.formats import PDF, Format, Parts, of
from penstock.extractors.ocr import CURSOR, NONE, Ocr, OcrSettings, find
from penstock.extractors.scanned import ScannedPages
from penstock.model.items import Page

PAGES = 8
"""Pages per call of a parser process."""
LARGE = 1 << 20
DRAWN = 40_000_000
"""The largest number of pixels of a page that is drawn for OCR: A1 at 200 dpi. A larger page is drawn smaller."""
CALLS = 4
"""Maximum number of calls for each parser process that are waiting, running, or finished but not stored. A crash loses
at most `CALLS * PAGES` pages for each process."""


_DECODER = msgspec.msgpack.Decoder(PdfPart)


def make(row: Format, parts: Parts) -> "PdfExtractor":
    return PdfExtractor(parts.parsers, row, Ocr(parts.parsers, find(parts.tessdata)))


class PdfExtractor:
    paid = False

    def __init__(self, parsers: Parsers, row: Format | None = None, ocr: Ocr | None = None) -> None:
        self._parsers = parsers
        self._version = (row or of(PDF)).whole_version
        self._ocr = ocr or Ocr(parsers, None)

    def version(self, media_type: str, params: Mapping[str, Any]) -> str:
        settings = OcrSettings.of(params)
        if settings.mode == "always":
            return f"{self._version}/{self._ocr.version(settings)}"
        return self._version

    def scan_version(self, media_type: str, params: Mapping[str, Any]) -> str | None:
        return self._ocr.version(OcrSettings.of(params))

    async def extract(
        self, raw: Raw, media_type: str, params: dict[str, Any], cursor: dict[str, Any]
    ) -> AsyncGenerator[Extracted, None]:
        settings = OcrSettings.of(params)
        version = self._ocr.version(settings)
        seen = {CURSOR: cursor[CURSOR]} if CURSOR in cursor else {}
        async with raw.file() as path:
            reading = _Reading(self._parsers, raw, path)
            scanned = ScannedPages(self._ocr, settings, raw, reading.draw)
            async with aclosing(self._parts(raw, reading, cursor.get("pages", 0))) as parts:
                async for part in parts:
                    scans = {page.number for page in part.pages} if settings.mode == "always" else {*part.scans}
                    seen = {CURSOR: version} if scans else seen
                    done = part.pages[-1].number if part.pages else 0
                    if not part.pages or not scans or version == NONE:
                        if part.pages:
                            place = {"pages": done, "of": part.total, **seen}
                            yield Extracted(part.pages, place, done < part.total, part.metadata)
                        continue
                    optional = scans.difference(part.scans)
                    async with aclosing(scanned.read(part.pages, scans, optional)) as batches:
                        async for pages in batches:
                            # It took a second, and is kept at once.
                            place = {"pages": pages[-1].number, "of": part.total, **seen}
                            yield Extracted(pages, place, True, part.metadata)

    async def _parts(self, raw: Raw, reading: "_Reading", done: int) -> AsyncGenerator[PdfPart, None]:
        """Yield the pages from index `done` on, in order."""
        calls: deque[asyncio.Task[PdfPart]] = deque()
        ahead = done + PAGES
        try:
            if raw.size >= LARGE:
                # The document probably has more pages. Start the other parser processes before the number is known.
                for _ in range(self._parsers.width - 1):
                    calls.append(asyncio.create_task(reading.read(ahead, PAGES)))
                    ahead += PAGES
            part = await reading.begin(done)
            total = part.total
            if reading.locked:
                await _drop(calls)
                ahead = done + PAGES
            while True:
                yield part
                # Only after the pages read so far are stored: otherwise a crash would lose more than the limit.
                while ahead < total and len(calls) < CALLS * self._parsers.width:
                    calls.append(asyncio.create_task(reading.read(ahead, PAGES)))
                    ahead += PAGES
                if not calls:
                    return
                part = await calls[0]
                calls.popleft()
                # A call that raised is handled after the pages before it are stored.
                while calls and _succeeded(calls[0]):
                    following = calls.popleft().result()
                    part = PdfPart(total, part.pages + following.pages, part.metadata, part.scans + following.scans)
        finally:
            await _drop(calls)


def _succeeded(call: "asyncio.Task[PdfPart]") -> bool:
    return call.done() and not call.cancelled() and call.exception() is None


async def _drop(calls: deque[asyncio.Task[PdfPart]]) -> None:
    for call in calls:
        call.cancel()
    await asyncio.gather(*calls, return_exceptions=True)
    calls.clear()


class _Reading:
    """Reads one document with the parser processes."""

    def __init__(self, parsers: Parsers, source: Raw, path: Path) -> None:
        self._parsers = parsers
        self._source = source
        self._path = path
        self._password: str | None = None

    @property
    def locked(self) -> bool:
        """Whether the document needed a password."""
        return self._password is not None

    async def begin(self, first: int) -> PdfPart:
        """Read the first batch. The password is fetched only if the document needs one."""
        try:
            return await self.read(first, PAGES)
        except Permanent as error:
            if error.reason != "encrypted":
                raise
            self._password = await self._source.password()
            if self._password is None:
                raise
        return await self.read(first, PAGES)

    async def read(self, first: int, count: int) -> PdfPart:
        """Read a batch. If it cannot be read, read it again page by page, and skip each page that cannot be read."""
        try:
            return await self._call(first, count)
        except StepError as error:
            if not is_of_a_part(error):
                raise
        # Raises Permanent if the document cannot even be opened.
        whole = await twice(lambda: self._call(0, 0))
        parts = [await self._page(index) for index in range(first, min(first + count, whole.total))]
        scans = [page.number for page, scanned in parts if scanned]
        return PdfPart(whole.total, [page for page, _ in parts], {} if first else whole.metadata, scans)

    async def _page(self, index: int) -> tuple[Page, bool]:
        try:
            part = await twice(lambda: self._call(index, 1))
        except Permanent as error:
            if not is_of_a_part(error):
                raise
            return skipped(index + 1, error), False
        return part.pages[0], bool(part.scans)

    async def draw(self, number: int, dpi: int) -> tuple[bytes, int]:
        """The page as an image, and its resolution."""
        arguments = {"password": self._password, "index": number - 1, "dpi": dpi, "most": DRAWN}
        answer = await self._parsers.call("pdf_image", arguments, source=self._source, document=self._path)
        return msgspec.msgpack.decode(answer, type=bytes), dpi

    async def _call(self, first: int, count: int) -> PdfPart:
        arguments = {"password": self._password, "first": first, "count": count}
        answer = await self._parsers.call("pdf", arguments, source=self._source, document=self._path)
        return _DECODER.decode(answer)
