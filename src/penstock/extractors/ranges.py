"""Extractors that send a document to a provider, one range of pages at a time.

For each range: cut it out (in a parser process), begin an operation and store its id, poll for the result, store the
pages by content, and only then hand them on. So a worker that is killed polls the operation that was begun instead of
paying for another one, and an answer that was stored is never asked for again."""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Mapping
from typing import Any, NamedTuple, Protocol, TypeVar

import msgspec

from penstock.errors import Away, Permanent, RateLimited, Transient
from penstock.extractors import markdown
from penstock.extractors.base import Extracted, Parsers, Raw
from penstock.extractors.formats import PDF
from penstock.extractors.pieces import Piece, render
from penstock.model.items import Page
from penstock.runtime import Runtime

T = TypeVar("T")

PAGES = 10
"""Pages of one operation, unless the parameter `pages_per_call` says otherwise."""
MOST_PAGES = 100
AHEAD = 3
"""Operations of one document that run at the same time."""
MOST_BYTES = 4_000_000
"""Pages of a PDF with more bytes are sent as images."""
WAIT_S = 1.0
"""Time between two polls, if the provider asks for none."""
SHORTEST_S = 0.05
"""Time between two polls, even if the provider asks for less."""
POLLS, LONGEST_S = 10, 30.0
"""How often in a row a poll may be refused, and how long a pause may be, before the step waits for the provider."""
CALL_S = 300.0
"""How long one request may take, from the first byte that is sent to the last one that comes."""
OPERATION_S = 3600.0
"""How long an operation may take. Then it is given up, and its pages are sent again."""
MOST_ANSWER_PAGES, MOST_CELLS = 100_000, 1_000_000
"""More pages in an answer, or cells in a table, are not believed."""
REDUCED = "reduced_pages"
"""The cursor key for the number of pages that were sent as images."""


class OperationGone(Exception):
    """The provider no longer knows an operation."""


class Payload(NamedTuple):
    data: bytes
    name: str
    media_type: str


class Provider(Protocol):
    """What differs between providers."""

    target: str
    version: str
    media_types: frozenset[str]

    async def begin(self, payload: Payload, params: Mapping[str, Any]) -> str:
        """Begin an operation and return its id. From here on it costs money."""

    async def poll(self, operation: str) -> "Poll":
        """Ask once for the result. Raises OperationGone if the provider no longer knows the operation."""

    async def close(self) -> None: ...


class Poll(NamedTuple):
    pages: list[list[Piece]] | None
    """The content of each page; None: not ready yet."""
    wait_s: float | None = None


class _Part(msgspec.Struct, frozen=True):
    total: int
    count: int
    data: bytes
    reduced: int | None


class _Answer(msgspec.Struct, frozen=True, array_like=True):
    """What is stored of a range."""

    pages: list[str]
    """The text of each page, as Markdown."""
    reduced: int = 0
    """How many of them were sent as images."""
    total: int = 0


class RangeExtractor:
    """An extractor that reads with a provider."""

    paid = True

    def __init__(self, provider: Provider, parsers: Parsers, runtime: Runtime) -> None:
        self._provider = provider
        self._parsers = parsers
        self._runtime = runtime

    def reads(self, media_type: str) -> bool:
        return media_type in self._provider.media_types

    @property
    def target(self) -> str:
        return self._provider.target

    def version(self, media_type: str, params: Mapping[str, Any]) -> str:
        return self._provider.version

    async def close(self) -> None:
        await self._provider.close()

    async def extract(
        self, raw: Raw, media_type: str, params: dict[str, Any], cursor: dict[str, Any]
    ) -> AsyncGenerator[Extracted, None]:
        reading = _Reading(self._provider, self._parsers, self._runtime, raw, media_type, params)
        done, reduced = int(cursor.get("pages", 0)), int(cursor.get(REDUCED, 0))
        total: int | None = cursor.get("of")
        state = markdown.State(tuple(cursor.get("path", ())), cursor.get("fence", ""))
        calls: deque[asyncio.Task[_Answer]] = deque()
        ahead = done
        try:
            while total is None or done < total:
                while (total is None and not calls) or (total is not None and ahead < total and len(calls) < AHEAD):
                    calls.append(asyncio.create_task(reading.read(ahead)))
                    ahead += reading.size
                answer = await calls[0]
                calls.popleft()
                total = answer.total
                pages = []
                for number, text in enumerate(answer.pages, done + 1):
                    blocks, after = markdown.scan(text, state, False)
                    pages.append(Page(number, text, None, blocks, state.path))
                    state = after
                first, done, reduced = done, done + len(pages), reduced + answer.reduced
                place = {"pages": done, "of": total, "path": state.path, "fence": state.fence, REDUCED: reduced}
                yield Extracted(pages, place, keep=True)
                # The artifact has them now.
                await reading.forget(first)
        finally:
            for call in calls:
                call.cancel()
            await asyncio.gather(*calls, return_exceptions=True)


class _Reading:
    def __init__(
        self,
        provider: Provider,
        parsers: Parsers,
        runtime: Runtime,
        raw: Raw,
        media_type: str,
        params: Mapping[str, Any],
    ) -> None:
        self._provider = provider
        self._parsers = parsers
        self._runtime = runtime
        self._raw = raw
        self._media_type = media_type
        self._params = params
        self._in_parts = media_type == PDF
        self.size = min(MOST_PAGES, max(1, int(params.get("pages_per_call", PAGES))))

    def _key(self, first: int) -> str:
        options = self._params.get("options")
        return f"{self._provider.target} {self._provider.version} {first}+{self.size} {options}"

    async def read(self, first: int) -> _Answer:
        """The pages from `first` on: those that were bought, or bought now."""
        answers, key = self._raw.providers.answers, self._key(first)
        if stored := (await answers.find([key])).get(key):
            return msgspec.msgpack.decode(stored, type=_Answer)
        try:
            return await self._raw.providers.calls.call(self._provider.target, lambda: self._buy(first, key))
        except Away as error:
            error.target = error.target or self._provider.target
            raise

    async def forget(self, first: int) -> None:
        await self._raw.providers.answers.forget([self._key(first)])

    async def _buy(self, first: int, key: str) -> _Answer:
        answers = self._raw.providers.answers

        async def begin() -> str:
            part = await self._part(first)
            payload = Payload(part.data, self._raw.name, self._media_type)
            operation = await self._in_time(self._provider.begin(payload, self._params))
            self._raw.providers.calls.accepted(self._provider.target)
            return msgspec.json.encode([operation, part.total, part.count, part.reduced is not None]).decode()

        started = await answers.start(key, begin)
        operation, total, count, reduced = msgspec.json.decode(started, type=tuple[str, int, int, bool])
        try:
            pages = await self._result(operation)
        except OperationGone as error:
            await answers.forget([key])
            said = str(error) or "the provider no longer has the result"
            raise Transient(f"{said}: the pages are sent again", reason="bad_answer") from None
        except Permanent:
            # The operation has failed: a retry begins another one.
            await answers.forget([key])
            raise
        if self._in_parts:
            pages = (pages + [[]] * count)[:count]
        else:
            total = len(pages)
        answer = _Answer([render(page) for page in pages], count if reduced else 0, total)
        await answers.keep({key: msgspec.msgpack.encode(answer)})
        return answer

    async def _part(self, first: int) -> _Part:
        raw = self._raw
        if not self._in_parts:
            return _Part(1, 1, await raw.read_range(0, raw.size), None)
        async with raw.file() as path:
            arguments: dict[str, Any] = {"password": None, "first": first, "count": self.size, "most": MOST_BYTES}
            try:
                data = await self._parsers.call("pdf_part", arguments, source=raw, document=path)
            except Permanent as error:
                arguments["password"] = await raw.password() if error.reason == "encrypted" else None
                if arguments["password"] is None:
                    raise
                data = await self._parsers.call("pdf_part", arguments, source=raw, document=path)
        return msgspec.msgpack.decode(data, type=_Part)

    async def _result(self, operation: str) -> list[list[Piece]]:
        self._raw.waiting(None)
        refused, end = 0, self._runtime.clock() + OPERATION_S
        while True:
            wait_s: float | None
            try:
                polled = await self._in_time(self._provider.poll(operation))
                if polled.pages is not None:
                    return polled.pages
                wait_s, refused = polled.wait_s, 0
            except RateLimited as error:
                # The operation is paid for, and asking for its result is no call of its own.
                refused, wait_s = refused + 1, error.retry_after
                if refused > POLLS or (wait_s or 0.0) > LONGEST_S:
                    raise
            if self._runtime.clock() > end:
                raise OperationGone(f"the provider has no result after {OPERATION_S:g} s")
            wait_s = (WAIT_S * 1.5**refused if wait_s is None else wait_s) + refused * 0.2 * self._runtime.random()
            await self._runtime.sleep(min(max(wait_s, SHORTEST_S), LONGEST_S))

    async def _in_time(self, request: Awaitable[T]) -> T:
        """The result of a request. Raises Away if it takes too long: a server may send one byte at a time."""
        try:
            async with asyncio.timeout(CALL_S) as scope:
                return await request
        except TimeoutError:
            if not scope.expired():
                raise
            raise Away(f"no answer: not done within {CALL_S:g} s", target=self._provider.target) from None


def believed(count: int, most: int) -> int:
    """A number of pages or cells from an answer. Raises ValueError if it is negative or too large."""
    if not 0 <= count <= most:
        raise ValueError(f"an answer with {count} parts")
    return count
