"""PDF: parser processes read several batches of pages at a time; the pages are returned in order."""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from penstock.errors import Permanent, StepError
from penstock.extractors.bad_parts import is_of_a_part, skipped, twice
from penstock.extractors.base import Extracted, Parsers, PdfPart, Raw
from penstock.extractors.formats import PDF, Format, Parts, of
from penstock.model.items import Page

PAGES = 8
"""Pages per call of a parser process."""
LARGE = 1 << 20
CALLS = 4
"""Maximum number of calls for each parser process that are waiting, running, or finished but not stored. A crash loses
at most `CALLS * PAGES` pages for each process."""


_DECODER = msgspec.msgpack.Decoder(PdfPart)


def make(row: Format, parts: Parts) -> "PdfExtractor":
    return PdfExtractor(parts.parsers, row)


class PdfExtractor:
    paid = False

    def __init__(self, parsers: Parsers, row: Format | None = None) -> None:
        self._parsers = parsers
        self._version = (row or of(PDF)).whole_version

    def version(self, media_type: str, params: Mapping[str, Any]) -> str:
        return self._version

    async def extract(
        self, raw: Raw, media_type: str, params: dict[str, Any], cursor: dict[str, Any]
    ) -> AsyncGenerator[Extracted, None]:
        done: int = cursor.get("pages", 0)
        calls: deque[asyncio.Task[PdfPart]] = deque()
        async with raw.file() as path:
            reading = _Reading(self._parsers, raw, path)
            ahead = done + PAGES
            try:
                if raw.size >= LARGE:
                    # The document probably has more pages. Start the other parser processes before the number is known.
                    for _ in range(self._parsers.width - 1):
                        calls.append(asyncio.create_task(reading.read(ahead, PAGES)))
                        ahead += PAGES
                part = await reading.begin(done)
                total, metadata = part.total, part.metadata
                if reading.locked:
                    await _drop(calls)
                    ahead = done + PAGES
                while True:
                    done += len(part.pages)
                    if part.pages:
                        yield Extracted(part.pages, {"pages": done, "of": total}, done < total, metadata)
                        metadata = {}
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
                        part = PdfPart(total, part.pages + calls.popleft().result().pages)
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
        pages = [await self._page(index) for index in range(first, min(first + count, whole.total))]
        return PdfPart(whole.total, pages, {} if first else whole.metadata)

    async def _page(self, index: int) -> Page:
        try:
            part = await twice(lambda: self._call(index, 1))
        except Permanent as error:
            if not is_of_a_part(error):
                raise
            return skipped(index + 1, error)
        return part.pages[0]

    async def _call(self, first: int, count: int) -> PdfPart:
        arguments = {"password": self._password, "first": first, "count": count}
        answer = await self._parsers.call("pdf", arguments, source=self._source, document=self._path)
        return _DECODER.decode(answer)
