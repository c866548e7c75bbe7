"""Documents on the web as a source: `https://host/file.pdf`, one or many of them.

`discover` asks for each URL with HEAD whether it changed; `read` streams the bytes with GET, and continues by range
after a cut connection. Redirects are followed here, one by one, so that each host gets its own turn, its `robots.txt`
is obeyed and its address is checked."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from penstock.config_http import HttpConfig
from penstock.errors import Away, Permanent, RateLimited, SourceChanged, SourceError, UsageError
from penstock.runtime import Runtime
from penstock.sources.base import Change, Found, Known, compared
from penstock.sources.robots import Rules, parse
from penstock.sources.web_hosts import Host, Patience, origin_of
from penstock.sources.web_names import conditions, name_of, resume_condition, revision_of, source_uri

if TYPE_CHECKING:
    from penstock.net.client import Client, Stream

LOOKS = 16
"""So many URLs are looked at together."""
REDIRECTS = 5
ROBOTS_BYTES = 512 << 10
GONE = (404, 410)
BUSY = (408, 425, 429)
SLOWEST, SLOW_FOR = 1000, 4
"""A document that comes with fewer bytes a second, for so many times `timeout_s`, is given up."""


@dataclass(frozen=True)
class _Place:
    url: str = field(repr=False)
    """With its secrets."""


@dataclass(frozen=True)
class _Look:
    """What a host said about a document."""

    status: int
    headers: Mapping[str, str]
    url: str = field(repr=False)
    """After redirects."""


class HttpSource:
    """Finds and reads documents by their URLs. The URI of a document is its URL without secrets."""

    repeatable = True

    def __init__(self, urls: Sequence[str], runtime: Runtime, config: HttpConfig, *, megabytes: int) -> None:
        for url in urls:
            _check(url)
        self._urls = {source_uri(url): url for url in urls}
        self._runtime = runtime
        self._config = config
        self._megabytes = megabytes
        self._hosts: dict[str, Host] = {}
        self._learned: dict[str, Found] = {}
        self.problems: list[str] = []

    @cached_property
    def _client(self) -> "Client":
        from penstock.net.client import Client

        return Client(self._runtime, allow_private=self._config.allow_private)

    async def close(self) -> None:
        if "_client" in vars(self):
            await self._client.close()
            del self._client

    async def discover(self, known: Known) -> AsyncGenerator[Found, None]:
        gone: list[Found] = []
        urls = list(self._urls.items())
        for start in range(0, len(urls), LOOKS):
            batch = urls[start : start + LOOKS]
            before = await known.revisions([uri for uri, _ in batch])
            looks = await asyncio.gather(*(self._look(uri, url, before.get(uri)) for uri, url in batch))
            for found in filter(None, looks):
                if found.change is Change.GONE:
                    gone.append(found)
                    continue
                for one in compared([found], before):
                    yield one
        if not self.problems:
            for found in gone:
                yield found

    async def _look(self, uri: str, url: str, before: str | None) -> Found | None:
        """Ask for one document. None: it cannot be had, and `problems` says why."""
        try:
            look = await self._ask(url, conditions(before or ""))
            if look.status in GONE and before is not None:
                return Found(uri, name_of(url, {}), change=Change.GONE)
            if look.status == 304 and before:
                return Found(uri, name_of(url, look.headers, look.url), before, place=_Place(url))
            _refuse(look.status)
            revision = revision_of(look.headers, self._runtime.now())
            return Found(uri, name_of(url, look.headers, look.url), revision, place=_Place(url))
        except SourceError as error:
            self.problems.append(f"{uri}: {error}")
            return None

    async def _ask(self, url: str, headers: Mapping[str, str]) -> _Look:
        """The answer to HEAD. Some servers refuse HEAD for what they have: then GET decides, and its content is not
        read."""
        patience = Patience(self._host(url), self._config, self._runtime)
        methods = ["GET", "HEAD"]
        while True:
            try:
                async with self._opened(methods[-1], url, headers) as (answer, final):
                    if 200 <= answer.status < 300 or answer.status == 304 or methods == ["GET"]:
                        return _Look(answer.status, answer.headers, final)
                    methods.pop()
            except Away as error:
                await patience.wait(error)

    async def read(self, found: Found) -> AsyncGenerator[bytes, None]:
        url: str = found.place.url
        patience = Patience(self._host(url), self._config, self._runtime)
        download = _Download(self._megabytes << 20)
        pace = _Pace(self._runtime, SLOW_FOR * self._config.timeout_s)
        while True:
            try:
                async with self._opened("GET", url, download.headers(), download.left) as (answer, final):
                    skip = download.begin(answer, self._runtime.now())
                    pace.waits()
                    async for piece in answer.pieces():
                        pace.came(len(piece))
                        fresh, skip = piece[skip:], max(0, skip - len(piece))
                        if fresh:
                            download.size += len(fresh)
                            patience.renew()
                            yield fresh
                        pace.waits()
                    break
            except Away as error:
                download.check_resumable(error)
                await patience.wait(error)
        revision = revision_of(download.first, self._runtime.now())
        self._learned[found.uri] = found._replace(name=name_of(url, download.first, final), revision=revision)

    def learned(self, found: Found) -> Found:
        return self._learned.get(found.uri, found)

    @asynccontextmanager
    async def _opened(
        self, method: str, url: str, headers: Mapping[str, str], max_bytes: int | None = None
    ) -> "AsyncIterator[tuple[Stream, str]]":
        """The answer after redirects, and its URL. Raises Away if the host does not work, and SourceError if the URL
        cannot be used."""
        from penstock.net.client import Limits, next_url

        limits = Limits(self._config.timeout_s, max_bytes=max_bytes or self._megabytes << 20)
        try:
            for _ in range(1 + REDIRECTS):
                host = self._host(url)
                await self._obey(host, url)
                async with host.turn(), self._client.stream(method, url, headers=headers, limits=limits) as answer:
                    if answer.location is None:
                        _raise_away(answer)
                        yield answer, url
                        return
                url = next_url(url, answer.location, other_hosts=True)
        except Permanent as error:
            raise SourceError(_hint(error, self._megabytes)) from None
        raise SourceError("it redirects too many times")

    async def _obey(self, host: Host, url: str) -> None:
        """Raise SourceError if the `robots.txt` of the host forbids the URL."""
        if host.away is not None:
            raise SourceError(host.away)
        if not self._config.robots:
            return
        async with host.reading:
            if host.rules is None:
                host.rules = await self._robots(host)
        if not host.rules.allow(url):
            raise SourceError(f"{host.origin}/robots.txt forbids it (the setting http.robots decides)")

    async def _robots(self, host: Host) -> Rules:
        from penstock.net.client import Limits, next_url

        limits = Limits(self._config.timeout_s, total_s=10 * self._config.timeout_s, max_bytes=ROBOTS_BYTES, cut=True)
        url = f"{host.origin}/robots.txt"
        for _ in range(1 + REDIRECTS):
            async with self._host(url).turn(), self._client.stream("GET", url, limits=limits) as answer:
                if answer.location is None:
                    _raise_away(answer)
                    text = (await answer.read()).body.decode("utf-8", "replace") if answer.status == 200 else ""
                    return parse(text)
            url = next_url(url, answer.location, other_hosts=True)
        return Rules()

    def _host(self, url: str) -> Host:
        origin = origin_of(url)
        if origin not in self._hosts:
            self._hosts[origin] = Host(origin, self._config, self._runtime)
        return self._hosts[origin]


class _Pace:
    """Refuses a document that comes so slowly that it would take for ever. Only the time that the server takes counts,
    not that of the reader."""

    def __init__(self, runtime: Runtime, seconds: float) -> None:
        self._runtime, self._seconds = runtime, seconds
        self._since = self._waited = 0.0
        self._size = 0

    def waits(self) -> None:
        self._since = self._runtime.clock()

    def came(self, size: int) -> None:
        self._waited += self._runtime.clock() - self._since
        self._size += size
        if self._waited >= self._seconds:
            if self._size < SLOWEST * self._waited:
                raise SourceError(f"it sends fewer than {SLOWEST:,} bytes a second")
            self._waited, self._size = 0.0, 0


class _Download:
    """The progress of one document."""

    def __init__(self, most: int) -> None:
        self.first: Mapping[str, str] = {}
        """The headers of the first answer."""
        self.size = 0
        self._most = most
        self._condition: str | None = None
        """What proves that a later answer has the same bytes; None: nothing does."""

    @property
    def left(self) -> int:
        # A server that ignores the range sends everything again.
        return self._most

    def headers(self) -> dict[str, str]:
        if not self.size or self._condition is None:
            return {}
        return {"Range": f"bytes={self.size}-", "If-Range": self._condition}

    def begin(self, answer: "Stream", now: float) -> int:
        """Check an answer. Returns how many of its bytes are known already."""
        if answer.status == 206 and self.size:
            if not _continues(answer.headers, self.first, self.size):
                raise SourceChanged("it changed while it was read")
            return 0
        _refuse(answer.status)
        if not self.size:
            self.first = answer.headers
            # Of a compressed answer, the range would count compressed bytes.
            plain = answer.headers.get("content-encoding", "identity").strip().lower() in ("", "identity")
            self._condition = resume_condition(answer.headers, now) if plain else None
            return 0
        if resume_condition(answer.headers, now) != self._condition:
            raise SourceChanged("it changed while it was read")
        return self.size

    def check_resumable(self, error: Away) -> None:
        if self.size and self._condition is None:
            raise SourceChanged(f"{error}, and the server does not say whether it still has the same content")


def _continues(headers: Mapping[str, str], first: Mapping[str, str], size: int) -> bool:
    """Whether a partial answer continues the first one at this size."""
    unit, _, ranged = headers.get("content-range", "").strip().partition(" ")
    start, _, rest = ranged.partition("-")
    total = rest.partition("/")[2]
    length = first.get("content-length", "")
    same = headers.get("etag", first.get("etag")) == first.get("etag")
    return unit.lower() == "bytes" and start == str(size) and same and (total in ("*", length) or not length)


def _check(url: str) -> None:
    from penstock.config import check_url

    check_url(url)
    host = urlsplit(url).hostname or ""
    if unquote(host) != host:
        raise UsageError("the host name of the URL is encoded: write it as it is")


def _raise_away(answer: "Stream") -> None:
    said = f"the server answered {answer.status}"
    if answer.status == 429:
        raise RateLimited(said, retry_after=answer.retry_after)
    if answer.status in BUSY or answer.status >= 500:
        raise Away(said, retry_after=answer.retry_after)


def _refuse(status: int) -> None:
    if 200 <= status < 300 and status != 206:
        return
    why = {401: ": it wants a login", 403: ": it refuses access", 404: ": there is no such document"}
    raise SourceError(f"the server answered {status}{why.get(status, '')}")


def _hint(error: Permanent, megabytes: int) -> str:
    if error.reason == "private_address":
        return "the host has a private address, which is refused (the setting http.allow_private allows it)"
    if error.reason == "too_large":
        return f"{error} (the setting limits.megabytes is {megabytes:,})"
    return str(error)
