"""PDF: parser processes read several batches of pages at a time; the pages are returned in order."""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from penstock.errors import ParserBreach, Permanent, StepError, Transient
from penstock.extractors.base import Extracted, Parsers, Raw
from penstock.extractors.formats import PDF, Format, Parts, of
from penstock.model.items import Page

PAGES = 8
"""Pages per call of a parser process."""
LARGE = 1 << 20
CALLS = 4
"""Maximum number of calls for each parser process that are waiting, running, or finished but not stored. A crash loses
at most `CALLS * PAGES` pages for each process."""


class Part(NamedTuple):
    """The number of pages of the document, and a batch of them. If there is an error, the batch ends before the page
    that could not be read."""

    total: int
    pages: list[Page]
    error: StepError | None = None


_DECODER: msgspec.msgpack.Decoder[tuple[int, list[Page]]] = msgspec.msgpack.Decoder(tuple[int, list[Page]])


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
        calls: deque[asyncio.Task[Part]] = deque()
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
                total = part.total
                if reading.locked:
                    await _drop(calls)
                    ahead = done + PAGES
                while True:
                    done += len(part.pages)
                    if part.pages:
                        yield Extracted(part.pages, {"pages": done, "of": total}, keep=done < total)
                    if part.error is not None:
                        raise part.error
                    # Only after the pages read so far are stored: otherwise a crash would lose more than the limit.
                    while ahead < total and len(calls) < CALLS * self._parsers.width:
                        calls.append(asyncio.create_task(reading.read(ahead, PAGES)))
                        ahead += PAGES
                    if not calls:
                        return
                    part = await calls[0]
                    calls.popleft()
                    # A call that raised is handled after the pages before it are stored.
                    while part.error is None and calls and _succeeded(calls[0]):
                        following = calls.popleft().result()
                        part = Part(total, part.pages + following.pages, following.error)
            finally:
                await _drop(calls)


def _succeeded(call: "asyncio.Task[Part]") -> bool:
    return call.done() and not call.cancelled() and call.exception() is None


async def _drop(calls: deque[asyncio.Task[Part]]) -> None:
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

    async def begin(self, first: int) -> Part:
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

    async def read(self, first: int, count: int) -> Part:
        """Read a batch. If it cannot be read, read it again page by page, to keep the readable pages and to name the
        unreadable one."""
        try:
            return await self._call(first, count)
        except StepError as error:
            if error.page is None and not _may_be_of_a_page(error):
                raise
            if count == 1:
                return Part(0, [], _at_page(error, first + 1))
        part = Part(0, [])
        for index in range(first, first + count):
            one = await self.read(index, 1)
            part = Part(max(part.total, one.total), part.pages + one.pages, one.error)
            if part.error is not None or index + 1 >= part.total:
                break
        return part

    async def _call(self, first: int, count: int) -> Part:
        arguments = {"password": self._password, "first": first, "count": count}
        answer = await self._parsers.call("pdf", arguments, source=self._source, document=self._path)
        return Part(*_DECODER.decode(answer))


def _may_be_of_a_page(error: StepError) -> bool:
    return isinstance(error, ParserBreach) or error.reason == "parser_error"


def _at_page(error: StepError, page: int) -> StepError:
    if isinstance(error, Permanent):
        return error
    # An error in the reader's code may be temporary. What killed the parser process would do so again.
    kind = Permanent if isinstance(error, ParserBreach) else Transient
    return kind(f"page {page}: {error}", reason=error.reason, page=page)
