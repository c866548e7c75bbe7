"""Requests to a server: the key, time-outs, and repeats where they are safe."""

import json
import os
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote, urlencode, urlsplit

from penstock.client.errors import Conflict, ServerFailed, ServiceError, error_of
from penstock.errors import Away, UsageError
from penstock.runtime import Runtime

if TYPE_CHECKING:
    from penstock.net.client import Client as HttpClient
    from penstock.net.client import Limits, Reply, Stream

T = TypeVar("T")

SERVER, KEY = "PENSTOCK_SERVER", "PENSTOCK_KEY"
API = "/api/v1"
FIRST_S, LONGEST_S = 0.2, 10.0
"""Bounds of the pause before a request is repeated."""
ANSWERS = 1 << 30
"""The largest answer that is read as a whole."""
Content = bytes | Callable[[], AsyncIterator[bytes]]
"""A body, or a function that makes it anew for each attempt."""


class Patience:
    """How long a call goes on although the server does not answer. Each success begins it anew."""

    def __init__(self, runtime: Runtime, seconds: float, waiting: Callable[[float], None] | None = None) -> None:
        self._runtime = runtime
        self._seconds = seconds
        self._waiting = waiting
        self._since: float | None = None
        self._failures = 0

    def restart(self) -> None:
        self._since, self._failures = None, 0

    async def wait(self, error: Exception, retry_after: float | None = None) -> None:
        """Sleep before the next attempt. Raise the error if there is to be none."""
        now = self._runtime.clock()
        self._since = now if self._since is None else self._since
        # Full jitter: clients that were cut off together do not come back together.
        pause = self._runtime.random() * min(LONGEST_S, FIRST_S * 2 ** min(self._failures, 20)) + (retry_after or 0.0)
        self._failures += 1
        if now + pause - self._since > self._seconds:
            raise error
        if self._waiting is not None:
            self._waiting(now - self._since)
        await self._runtime.sleep(pause)


class Connection:
    """The requests of a client. Nothing is connected before the first of them."""

    def __init__(
        self,
        url: str | None,
        key: str | None,
        *,
        timeout_s: float,
        patience_s: float,
        owner: str | None = None,
        runtime: Runtime | None = None,
    ) -> None:
        given = (url or os.environ.get(SERVER) or "").strip()
        parts = urlsplit(given)
        if parts.scheme not in ("http", "https") or not parts.netloc:
            example = 'as in Client("http://127.0.0.1:8440")'
            raise UsageError(
                f"{given!r} is no address of a server: use http:// or https://, {example}, or set {SERVER}"
            )
        self.url = given.rstrip("/").removesuffix(API)
        self.runtime = runtime or Runtime()
        self._owns_runtime = runtime is None
        self._headers = _headers(key if key is not None else os.environ.get(KEY), owner)
        self._timeout_s, self._patience_s = timeout_s, patience_s
        self._http: HttpClient | None = None
        self.waiting: Callable[[float], None] | None = None
        """Called before each pause with the seconds for which the server has not answered."""

    async def close(self) -> None:
        if self._http is not None:
            await self._http.close()
            self._http = None
        if self._owns_runtime:
            self.runtime.close()

    def patience(self, most: float | None = None) -> Patience:
        """That of the client, or less."""
        seconds = self._patience_s if most is None else min(most, self._patience_s)
        return Patience(self.runtime, seconds, self.waiting)

    async def json(self, method: str, path: str, kind: Any = None, **options: Any) -> Any:
        """The answer as a value of a type; without one, as plain data."""
        from penstock.verbs.from_json import restored

        reply = await self.request(method, path, **options)
        try:
            data = json.loads(reply.body)
            return data if kind is None else restored(data, kind)
        except (ValueError, RecursionError) as error:
            raise self._odd(error) from None

    def restored(self, data: Any, kind: type[T]) -> T:
        """A part of an answer as a value of a type."""
        from penstock.verbs.from_json import restored

        try:
            found: T = restored(data, kind)
        except ValueError as error:
            raise self._odd(error) from None
        return found

    def _odd(self, error: Exception) -> ServerFailed:
        return ServerFailed(f"the answer of {self.url} cannot be understood: is this a Penstock server? ({error})")

    async def request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, Any] | None = None,
        data: Any = None,
        content: Content | None = None,
        headers: Mapping[str, str] | None = None,
        wait_s: float = 0.0,
        once: bool = True,
        patience: Patience | None = None,
    ) -> "Reply":
        """Return the answer, or raise its error. The request is repeated if the server does not answer or asks for
        that: all requests are safe to repeat, because those that change something carry a key (`once`) by which the
        server knows them again. `data` is sent as JSON. `wait_s`: the longest time that the answer may take besides
        the time limit of the client."""
        sent = dict(headers or {})
        if data is not None:
            content = json.dumps(data).encode()
            sent["Content-Type"] = "application/json"
        if once and method in ("POST", "PATCH", "DELETE"):
            sent.setdefault("Idempotency-Key", self.runtime.secret(128))
        patience = patience or self.patience()
        while True:
            try:
                async with self._stream(method, path, query, sent, content, self._limits(wait_s)) as stream:
                    return await stream.read()
            except Away as error:
                await patience.wait(error, error.retry_after)
            except Conflict as error:
                # The same request is in flight, after a connection that was lost.
                if (pause := error.retry_after) is None:
                    raise
                await patience.wait(error, pause)

    @asynccontextmanager
    async def stream(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
        content: Content | None = None,
        wait_s: float = 0.0,
        max_bytes: int = 1 << 62,
    ) -> AsyncIterator["Stream"]:
        """One attempt at a request, whose answer is read piece by piece. Raise its error."""
        async with self._stream(method, path, query, headers, content, self._limits(wait_s, max_bytes)) as stream:
            yield stream

    @asynccontextmanager
    async def _stream(
        self,
        method: str,
        path: str,
        query: Mapping[str, Any] | None,
        headers: Mapping[str, str] | None,
        content: Content | None,
        limits: "Limits",
    ) -> AsyncIterator["Stream"]:
        from penstock.net.client import Client as HttpClient

        if self._http is None:
            self._http = HttpClient(self.runtime, allow_private=True)
        body = content() if callable(content) else content
        try:
            async with self._http.stream(
                method, self.address(path, query), headers={**self._headers, **(headers or {})}, content=body,
                limits=limits,
            ) as stream:  # fmt: skip
                if not 200 <= stream.status < 300:
                    said = await stream.read()
                    raise error_of(said.status, said.headers, said.body, said.retry_after)
                yield stream
        except ServiceError:
            raise
        except Away as error:
            raise Away(f"{self.url} does not answer ({str(error).removeprefix('no answer: ')})") from None
        finally:
            if callable(content) and hasattr(body, "aclose"):
                with suppress(RuntimeError):
                    await body.aclose()  # type: ignore[union-attr]

    def address(self, path: str, query: Mapping[str, Any] | None = None) -> str:
        """The whole address. Values that are None are left out."""
        pairs = [(name, _text(value)) for name, value in (query or {}).items() if value is not None]
        text = f"?{urlencode(pairs)}" if pairs else ""
        return f"{self.url}{path if path.startswith('/') else f'{API}/{path}'}{text}"

    def _limits(self, wait_s: float, max_bytes: int = ANSWERS) -> "Limits":
        from penstock.net.client import Limits

        return Limits(wait_s=self._timeout_s + wait_s, max_bytes=max_bytes)


def _headers(key: str | None, owner: str | None) -> dict[str, str]:
    headers = {"Accept": "application/json"}
    if key is not None and (word := key.strip()):
        if not (word.isascii() and word.isprintable() and " " not in word):
            raise UsageError("the key has characters that no key has")
        headers["Authorization"] = f"Bearer {word}"
    if owner is not None:
        headers["X-Penstock-Owner"] = owner
    return headers


def _text(value: Any) -> str | bytes:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict):
        return json.dumps(value)
    return str(value).encode("utf-8", "replace")


def segment(text: str) -> str:
    """A text as one part of a path."""
    if not text or text in (".", ".."):
        raise UsageError(f"{text!r} is no id")
    return quote(text.encode("utf-8", "replace"), safe="")
