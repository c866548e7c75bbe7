"""The outermost layer: request ids, the access log, and whatever no handler expects."""

import logging
import re
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from penstock.api.problems import Problem, answer_of, log_unexpected
from penstock.redaction import masked
from penstock.runtime import Runtime

_ID = re.compile(rb"[A-Za-z0-9._-]{1,64}")
_access = logging.getLogger("penstock.access")


class Edge:
    def __init__(self, app: ASGIApp, runtime: Runtime) -> None:
        self._app = app
        self._runtime = runtime

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = self._request_id(scope)
        scope["penstock.request_id"] = request_id
        began, status, size = self._runtime.clock(), 0, 0

        async def send_on(message: Message) -> None:
            nonlocal status, size
            if message["type"] == "http.response.start":
                status = message["status"]
                limits = scope.get("penstock.headers", {})
                message["headers"] = [
                    *message.get("headers", ()),
                    *((name.lower().encode(), value.encode()) for name, value in limits.items()),
                    (b"x-request-id", request_id.encode()),
                    (b"x-content-type-options", b"nosniff"),
                ]
            elif message["type"] == "http.response.body":
                size += len(message.get("body", b""))
            await send(message)

        try:
            await self._app(scope, receive, send_on)
        except Exception as error:
            log_unexpected(error, request_id)
            if status:
                raise
            problem = Problem("internal", "the server met an unexpected error; accepted documents are safe")
            await answer_of(problem, request_id, scope["path"])(scope, receive, send_on)
        finally:
            if _access.isEnabledFor(logging.INFO):
                _access.info("%s", _line(scope, status, size, self._runtime.clock() - began))

    def _request_id(self, scope: Scope) -> str:
        given = next((value for name, value in scope["headers"] if name == b"x-request-id"), b"")
        return given.decode() if _ID.fullmatch(given) else self._runtime.ulid()


def _line(scope: Scope, status: int, size: int, seconds: float) -> str:
    caller: Any = scope.get("penstock.caller")
    client = scope.get("client")
    fields = {
        "id": scope["penstock.request_id"],
        "client": client[0] if client else "-",
        "owner": caller.owner if caller is not None else "-",
        "key": (caller.key or "-") if caller is not None else "-",
        "method": scope["method"],
        "path": masked(scope["path"])[:500],
        "status": status,
        "bytes": size,
        "ms": round(seconds * 1000, 1),
    }
    return " ".join(f"{name}={_quoted(value)}" for name, value in fields.items())


def _quoted(value: object) -> str:
    """A value on one line: a client must not be able to forge a line of the log."""
    text = str(value)
    return text if text and text.isprintable() and '"' not in text and " " not in text else ascii(text)
