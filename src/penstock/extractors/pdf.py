"""PDF: pages read by parser processes, several batches at a time, handed on in page order."""

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
"""Pages in a call."""
LARGE = 1 << 20
CALLS = 4
"""Calls for each parser process that wait, are read, or are read but not kept yet. What a kill can cost is thus at most
`CALLS * PAGES` pages a process."""


class Part(NamedTuple):
    """How many pages the document has, and some of them: up to the one that could not be read, if there is an error."""

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
                    # It has more pages than these, most likely: no child should wait to hear how many.
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
                    # Not before what was read is kept: a kill would cost more than it may.
                    while ahead < total and len(calls) < CALLS * self._parsers.width:
                        calls.append(asyncio.create_task(reading.read(ahead, PAGES)))
                        ahead += PAGES
                    if not calls:
                        return
                    part = await calls[0]
                    calls.popleft()
                    # One that failed as a whole has its turn when what was read before it is kept.
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
    """One document in the hands of the parser processes."""

    def __init__(self, parsers: Parsers, source: Raw, path: Path) -> None:
        self._parsers = parsers
        self._source = source
        self._path = path
        self._password: str | None = None

    @property
    def locked(self) -> bool:
        """Whether it took a password to open it."""
        return self._password is not None

    async def begin(self, first: int) -> Part:
        """The first batch. Most documents need no password: only one that does is asked for it."""
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
        """A batch that could not be read is read again page by page, to keep what can be and to name the page."""
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
    # What went wrong in our own code may have been chance; what killed its process is so again.
    kind = Permanent if isinstance(error, ParserBreach) else Transient
    return kind(f"page {page}: {error}", reason=error.reason, page=page)
