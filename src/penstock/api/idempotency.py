"""`Idempotency-Key`: a request that is repeated with the same key is not done again, but answered as before, for a day.

The fingerprint of a request is its method, path, query and payload. The payload is hashed while it is read, so that it
is never held in memory. The boundary of a multipart body is left out, because clients choose a new one each time."""

import asyncio
import hashlib
import json
import re
from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING

from fastapi import Request
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from penstock.api.problems import Problem, answer_of, problem_of
from penstock.errors import PenstockError
from penstock.ledger.engine import requests
from penstock.model.nouns import Token
from penstock.runtime import shielded

if TYPE_CHECKING:
    from penstock.api.service import Service

METHODS = ("POST", "PATCH", "DELETE")
"""PUT is idempotent by itself."""
LEASE_S = 10.0
RENEW_S = 3.0
STORED_BYTES = 1 << 20
"""Larger answers are not stored. The request is then done again."""
AGAIN = frozenset({401, 403, 408, 409, 412, 413, 425, 429})
"""Answers of requests that have done nothing and may be repeated with the same key."""
_KEY = re.compile(r"[\x21-\x7e]{1,255}")
_BOUNDARY = re.compile(r';\s*boundary=(?:"([^"]+)"|([^;\s]+))', re.IGNORECASE)
KEPT_HEADERS = ("content-type", "location", "etag")


class Idempotency:
    """A layer below the one that gives request ids."""

    def __init__(self, app: ASGIApp, service: "Service", prefixes: tuple[str, ...]) -> None:
        self._app = app
        self._service = service
        self._prefixes = prefixes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        key = Headers(scope=scope).get("idempotency-key") if scope["type"] == "http" else None
        if key is None or scope["method"] not in METHODS or not scope["path"].startswith(self._prefixes):
            await self._app(scope, receive, send)
            return
        try:
            if not _KEY.fullmatch(key):
                raise Problem("invalid", "Idempotency-Key: use 1 to 255 printable ASCII characters without spaces")
            await self._once(key, scope, receive, send)
        except (Problem, PenstockError) as error:
            await answer_of(problem_of(error), scope.get("penstock.request_id"), scope["path"])(scope, receive, send)

    async def _once(self, key: str, scope: Scope, receive: Receive, send: Send) -> None:
        caller = await self._service.authority.caller(Request(scope))
        ledger, token = self._service.app.ledger, Token(self._service.runtime.token())
        head = _head(scope, caller.actor)
        found = await ledger.write(requests.ENTER_REQUEST, requests.Enter(caller.owner, key, head, token, LEASE_S))
        if found == "entered":
            scope["penstock.idempotency_key"] = key
            await _Attempt(self._service, requests.Enter(caller.owner, key, head, token, LEASE_S)).run(
                self._app, scope, receive, send
            )
            return
        await self._again(found, head, scope, receive, send)

    async def _again(self, found: requests.Stored, head: str, scope: Scope, receive: Receive, send: Send) -> None:
        if found.fingerprint.partition("/")[0] != head:
            raise Problem("invalid", "this Idempotency-Key was used for another request: use a new one")
        if found.status is None:
            headers = {"Retry-After": str(round(RENEW_S))}
            raise Problem("conflict", "a request with this Idempotency-Key is in flight", headers=headers)
        body = _Body(scope, receive)
        while await body.more():
            pass
        if found.fingerprint != f"{head}/{body.hash}":
            raise Problem("invalid", "this Idempotency-Key was used with another payload: use a new one")
        kept = [(name.encode(), value.encode()) for name, value in json.loads(found.headers or "[]")]
        started = {"status": found.status, "headers": [*kept, (b"idempotency-replayed", b"true")]}
        await send({"type": "http.response.start", **started})
        await send({"type": "http.response.body", "body": found.body or b""})


class _Attempt:
    """A request that is done now. Its answer is stored before the client has its end."""

    def __init__(self, service: "Service", entered: requests.Enter) -> None:
        self._ledger = service.app.ledger
        self._runtime = service.runtime
        self._entered = entered
        self._status = 0
        self._headers: list[tuple[str, str]] = []
        self._pieces: list[bytes] | None = []
        self._size = 0
        self._settled = False
        self._is_secret = False

    async def run(self, app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
        body = _Body(scope, receive)
        renewing = asyncio.create_task(self._renew())

        async def send_on(message: Message) -> None:
            if await self._keep(message):
                # The rest of the body decides whether a later request has the same payload.
                while await body.more():
                    pass
                await shielded(self._settle(body.hash if body.ended else None))
            await send(message)

        try:
            await app(scope, body.receive, send_on)
        finally:
            renewing.cancel()
            with suppress(asyncio.CancelledError, PenstockError):
                await renewing
            if not self._settled:
                # It was cut off or failed. What it accepted is found by the next one.
                with suppress(PenstockError):
                    await shielded(self._settle(None))

    async def _keep(self, message: Message) -> bool:
        """Keep a copy of the answer. Return whether this is its end."""
        if message["type"] == "http.response.start":
            self._is_secret = "no-store" in Headers(raw=message.get("headers", [])).get("cache-control", "")
            self._status = message["status"]
            self._headers = [
                (name.decode("latin-1"), value.decode("latin-1"))
                for name, value in message.get("headers", ())
                if name.decode("latin-1").lower() in KEPT_HEADERS
            ]
            return False
        if message["type"] != "http.response.body":
            return False
        piece = message.get("body", b"")
        self._size += len(piece)
        if self._size > STORED_BYTES:
            self._pieces = None
        if self._pieces is not None:
            self._pieces.append(piece)
        return not message.get("more_body", False)

    async def _settle(self, payload: str | None) -> None:
        """Store the answer, or forget the request if it can be done again. An answer with a secret is not stored."""
        self._settled = True
        one = self._entered
        done = 200 <= self._status < 500 and self._status not in AGAIN
        if payload is None or not done or self._pieces is None or self._is_secret:
            await self._ledger.write(requests.FORGET_REQUEST, (one.owner, one.key, one.token))
            return
        answer = requests.StoreAnswer(
            one.owner, one.key, one.token, f"{one.fingerprint}/{payload}", self._status, json.dumps(self._headers),
            b"".join(self._pieces),
        )  # fmt: skip
        await self._ledger.write(requests.STORE_ANSWER, answer)

    async def _renew(self) -> None:
        one = self._entered
        while True:
            await self._runtime.sleep(RENEW_S)
            await self._ledger.write(requests.RENEW_REQUEST, (one.owner, one.key, one.token, LEASE_S))


class _Body:
    """The body of a request, hashed as it is read."""

    def __init__(self, scope: Scope, receive: Receive) -> None:
        self._receive = receive
        self._hash = hashlib.sha256()
        self._boundary = _boundary(Headers(scope=scope).get("content-type", ""))
        self._tail = b""
        self.ended = False
        self._gone = False

    @property
    def hash(self) -> str:
        """The hash of the whole body. The body must have ended."""
        whole = self._hash.copy()
        whole.update(self._tail)
        return whole.hexdigest()

    @property
    def _over(self) -> bool:
        return self.ended or self._gone

    async def receive(self) -> Message:
        message = await self._receive()
        if message["type"] == "http.disconnect":
            self._gone = True
        elif message["type"] == "http.request":
            self._add(message.get("body", b""))
            self.ended = not message.get("more_body", False)
        return message

    async def more(self) -> bool:
        """Read one more piece. Return whether there may be others."""
        if self._over:
            return False
        await self.receive()
        return not self._over

    def _add(self, piece: bytes) -> None:
        if not self._boundary:
            self._hash.update(piece)
            return
        text, at = self._tail + piece, 0
        while (found := text.find(self._boundary, at)) >= 0:
            self._hash.update(text[at:found])
            at = found + len(self._boundary)
        # The beginning of a boundary may stand at the end.
        end = max(at, len(text) - len(self._boundary) + 1)
        self._hash.update(text[at:end])
        self._tail = text[end:]


def _boundary(content_type: str) -> bytes:
    is_multipart = content_type.lower().startswith("multipart/")
    found = _BOUNDARY.search(content_type) if is_multipart else None
    return b"" if found is None else next(filter(None, found.groups())).encode("latin-1")


def _head(scope: Scope, actor: str) -> str:
    """The hash of everything but the body. The stored answer of a caller is not for another one, whose key may allow
    less."""
    kind = Headers(scope=scope).get("content-type", "").partition(";")[0].strip().lower()
    parts: Iterable[bytes] = (
        scope["method"].encode(), scope["path"].encode("utf-8", "replace"), scope.get("query_string", b""),
        kind.encode("latin-1", "replace"), actor.encode(),
    )  # fmt: skip
    return hashlib.sha256(json.dumps([part.decode("latin-1") for part in parts]).encode()).hexdigest()
