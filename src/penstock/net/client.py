"""The HTTP client that all parts of Penstock use: time limits, size limits, checked addresses, typed errors.

Import this module where it is used, not at the top of a module: httpx2 takes 0.1 s to import.
"""

import asyncio
import logging
import ssl
from collections.abc import AsyncIterable, AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from functools import cache
from urllib.parse import urljoin, urlsplit

import httpcore2
import httpx2
import msgspec

from penstock.config import check_url
from penstock.errors import Away, PenstockError, Permanent, RateLimited, Unauthorized
from penstock.net.addresses import GuardedNetwork, GuardedTransport
from penstock.net.headers import retry_after
from penstock.runtime import Runtime

REDIRECTS = 5
CONNECTIONS = 32
KEEP_S = 30.0
"""Seconds after which an idle connection is closed."""
MAX_BYTES = 64 << 20
BOMB = 16 << 20
BOMB_RATIO = 200
"""A compressed response that has more bytes than BOMB may expand to so many times its size."""
ENCODINGS = ("", "identity", "gzip", "deflate")
"""Accepted content encodings of a response. The client requests none, but some servers compress anyway."""

_ours: ContextVar[bool] = ContextVar("penstock.net.ours", default=False)


class Limits(msgspec.Struct, frozen=True):
    """Limits of one request, in seconds and bytes."""

    wait_s: float = 30.0
    """For connecting, and between two pieces of the response."""
    total_s: float | None = None
    """For the whole request; None: no limit except that of the caller."""
    max_bytes: int = MAX_BYTES
    cut: bool = False
    """Whether a response that is too large is cut off at `max_bytes`. Otherwise it is an error."""


class Reply(msgspec.Struct, frozen=True):
    """A complete response."""

    status: int
    headers: Mapping[str, str]
    """Names in lower case."""
    body: bytes
    retry_after: float | None = None
    """Seconds."""

    @property
    def ok(self) -> bool:
        return 200 <= self.status < 300

    def excerpt(self, url: str, longest: int) -> str:
        """The beginning of the text, for an error message. Parts of the URL that may be secret are removed from it."""
        text = self.body.decode("utf-8", "replace")
        parts = urlsplit(url)
        for secret in (f"{parts.path}?{parts.query}", parts.path, parts.query, parts.password or ""):
            if len(secret) > 1:
                text = text.replace(secret, "…")
        return " ".join(text.split())[:longest]


class Stream:
    """A response that is read piece by piece."""

    def __init__(self, response: httpx2.Response, limits: Limits, now: float) -> None:
        self.status = response.status_code
        self.location = response.headers.get("Location") if response.has_redirect_location else None
        """Where a redirect leads; None if the response is not a redirect."""
        self.headers: Mapping[str, str] = {name.lower(): value for name, value in response.headers.items()}
        self.retry_after = retry_after(self.headers.get("retry-after"), now)
        self._response = response
        self._limits = limits

    async def pieces(self) -> AsyncIterator[bytes]:
        """Yield the content in pieces. Raises Permanent (`too_large`) if it, or its declared length, exceeds the
        limit, unless `cut` is set."""
        if self.headers.get("content-encoding", "").strip().lower() not in ENCODINGS:
            raise Permanent("the response has an encoding that was not requested", reason="bad_answer")
        left = self._limits.max_bytes
        announced = self.headers.get("content-length", "")
        if not self._limits.cut and announced.isdigit() and int(announced) > left:
            raise self._too_large()
        read = 0
        async for piece in self._response.aiter_bytes():
            read += len(piece)
            if read > max(BOMB, BOMB_RATIO * self._response.num_bytes_downloaded):
                raise Permanent("the compressed answer expands without end", reason="too_large")
            if len(piece) > left and not self._limits.cut:
                raise self._too_large()
            if piece := piece[:left]:
                yield piece
            left -= len(piece)
            if self._limits.cut and left <= 0:
                return

    async def read(self) -> Reply:
        body = b"".join([piece async for piece in self.pieces()])
        return Reply(self.status, self.headers, body, self.retry_after)

    def _too_large(self) -> Permanent:
        return Permanent(f"the answer has more than {self._limits.max_bytes:,} bytes", reason="too_large")


class Client:
    """Keeps connections open for further requests. Call `close` in the event loop that used the client.

    It uses no proxy and no cookies, and it follows redirects only on request and only on the same host. A caller that
    follows redirects to other hosts itself uses `next_url`: the addresses of each host are checked. `allow_private`
    says whether it may connect to addresses that are not public: True for URLs that the operator set, False for URLs
    from other users."""

    def __init__(self, runtime: Runtime, *, allow_private: bool) -> None:
        self._runtime = runtime
        self._pool = httpcore2.AsyncConnectionPool(
            _trust(),
            max_connections=CONNECTIONS,
            keepalive_expiry=KEEP_S,
            network_backend=GuardedNetwork(runtime, allow_private=allow_private),
        )
        self._client = httpx2.AsyncClient(transport=GuardedTransport(self._pool), trust_env=False, timeout=None)
        self._client.headers = httpx2.Headers({"User-Agent": "penstock", "Accept-Encoding": "identity"})
        _hide_from_logs()

    async def close(self) -> None:
        await self._client.aclose()

    async def request(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        content: bytes | None = None,
        limits: Limits = Limits(),
        redirects: int = 0,
    ) -> Reply:
        """Return the complete response, whatever its status; `check` raises the error for a bad status. Raises Away if
        there was no response. Error messages do not contain the URL."""
        async with self.stream(
            method, url, headers=headers, content=content, limits=limits, redirects=redirects
        ) as stream:
            return await stream.read()

    @asynccontextmanager
    async def stream(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        content: bytes | AsyncIterable[bytes] | None = None,
        limits: Limits = Limits(),
        redirects: int = 0,
    ) -> AsyncIterator[Stream]:
        """As `request`, but the response is read piece by piece, and so may be `content`, which is sent as it comes: in
        chunks, unless the headers name its length. `redirects`: how many to follow, for GET and HEAD
        only."""
        check_url(url)
        with _typed_errors(limits):
            async with _in_time(limits.total_s):
                response = await self._send(method, url, headers, content, limits, redirects)
                try:
                    yield Stream(response, limits, self._runtime.now())
                finally:
                    await response.aclose()

    async def _send(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str] | None,
        content: bytes | AsyncIterable[bytes] | None,
        limits: Limits,
        redirects: int,
    ) -> httpx2.Response:
        with _own_log():
            for _ in range(1 + min(redirects, REDIRECTS)):
                request = self._client.build_request(
                    method, url, headers=headers, content=content, timeout=httpx2.Timeout(limits.wait_s)
                )
                response = await self._client.send(request, stream=True, follow_redirects=False)
                if redirects == 0 or not response.has_redirect_location or method not in ("GET", "HEAD"):
                    return response
                await response.aclose()
                url = next_url(url, response.headers["Location"])
        raise Permanent("it redirects too many times", reason="bad_redirect")


def check(reply: Reply | Stream, who: str, *, setting: str, target: str | None = None) -> None:
    """Raise the error for a bad status. Its message begins with `who`, such as "embedder 'openai'". `setting` is the
    setting to change if the key is rejected."""
    status = reply.status
    if 200 <= status < 300:
        return
    said = f"{who} answered {status}"
    if status == 429:
        raise RateLimited(said, target=target, retry_after=reply.retry_after)
    if status in (401, 403):
        raise Unauthorized(f"{said}: it rejects the key. Correct {setting}", setting=setting, target=target)
    if status == 408 or status >= 500:
        raise Away(said, target=target, retry_after=reply.retry_after)
    raise Permanent(said, reason="http_error")


def next_url(url: str, location: str, *, other_hosts: bool = False) -> str:
    """The URL of a redirect. Raises Permanent if https would change to http, and unless it is on the same host or
    `other_hosts` is set. User name and password are passed on only to the same host and port."""
    try:
        target = urljoin(url, location)
        check_url(target)
        before, after = urlsplit(url), urlsplit(target)
        upgrade = (before.scheme, after.scheme) == ("http", "https") and before.port == after.port is None
        same = before.hostname == after.hostname and (
            (before.scheme, before.port) == (after.scheme, after.port) or upgrade
        )
    except (PenstockError, ValueError):
        raise Permanent("it redirects to something that is not a URL of http", reason="bad_redirect") from None
    if other_hosts and (before.scheme, after.scheme) == ("https", "http"):
        raise Permanent("it redirects from https to http", reason="bad_redirect")
    if after.username is not None or not (same or other_hosts):
        raise Permanent("it redirects to another host", reason="bad_redirect")
    if same and before.username is not None:
        user_info = before.netloc.rpartition("@")[0]
        return after._replace(netloc=f"{user_info}@{after.netloc}").geturl()
    return target


@asynccontextmanager
async def _in_time(seconds: float | None) -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(seconds) as scope:
            yield
    except TimeoutError:
        if not scope.expired():
            # The timeout of the caller.
            raise
        raise _away(f"not done within {seconds:g} s") from None


@contextmanager
def _typed_errors(limits: Limits) -> Iterator[None]:
    try:
        yield
    except httpx2.TimeoutException:
        raise _away(f"nothing within {limits.wait_s:g} s") from None
    except httpx2.ConnectError as error:
        raise _away(_why_not_connected(error)) from None
    except httpx2.ProtocolError:
        raise _away("the connection was cut, or the answer is not HTTP") from None
    except httpx2.TransportError:
        raise _away("the connection was lost") from None
    except httpx2.DecodingError:
        raise _away("the compressed answer is damaged") from None
    except (httpx2.InvalidURL, httpx2.UnsupportedProtocol):
        raise Permanent("the URL cannot be used", reason="bad_url") from None


def _away(message: str) -> Away:
    return Away(f"no answer: {message}")


def _why_not_connected(error: BaseException) -> str:
    """The message of the operating system, which contains no URL."""
    cause: BaseException | None = error
    said = str(error)
    while cause is not None:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return "the certificate cannot be trusted"
        if isinstance(cause, OSError) and cause.strerror:
            said = cause.strerror
        cause = cause.__cause__ or cause.__context__
    return said


@cache
def _trust() -> ssl.SSLContext:
    return ssl.create_default_context()


@contextmanager
def _own_log() -> Iterator[None]:
    """Mark log records within the context as caused by a request of this client."""
    token = _ours.set(True)
    try:
        yield
    finally:
        _ours.reset(token)


@cache
def _hide_from_logs() -> None:
    """Remove the log records of this client's requests: the libraries log whole URLs, which may contain secrets.
    Records of other code that uses the libraries are kept."""
    for name in ("httpx2", "httpcore2.connection", "httpcore2.http11"):
        logging.getLogger(name).addFilter(lambda _: not _ours.get())
