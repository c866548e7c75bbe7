"""HEAD for whatever answers GET, and the methods of a path in `Allow`."""

from fastapi import Request
from starlette.routing import BaseRoute, Match
from starlette.types import ASGIApp, Message, Receive, Scope, Send

METHODS = ("GET", "HEAD", "PUT", "POST", "PATCH", "DELETE", "OPTIONS")


def allowed(request: Request) -> list[str]:
    """The methods that the path of a request has."""
    found = [method for method in METHODS if _answers(request.app.routes, request.scope, method)]
    if "GET" in found and "HEAD" not in found:
        found.insert(1, "HEAD")
    return found


def _answers(routes: list[BaseRoute], scope: Scope, method: str) -> bool:
    # Only what a route looks at: what it leaves in the scope must not reach the request.
    asked = {"type": "http", "method": method, "path": scope["path"], "root_path": "", "headers": []}
    return any(route.matches(dict(asked))[0] is Match.FULL for route in routes)


class _Ended(Exception):
    """The head of an answer was sent, and nobody wants its body."""


class Heads:
    """Answers HEAD with the head of the answer to GET, unless an operation has its own answer to HEAD."""

    def __init__(self, app: ASGIApp, routes: list[BaseRoute]) -> None:
        self._app = app
        self._routes = routes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "HEAD" or _answers(self._routes, scope, "HEAD"):
            await self._app(scope, receive, send)
            return
        ended = False
        scope["method"] = "GET"

        async def send_on(message: Message) -> None:
            nonlocal ended
            if message["type"] == "http.response.body":
                ended = True
                await send({"type": "http.response.body", "body": b""})
                raise _Ended
            await send(message)

        try:
            await self._app(scope, receive, send_on)
        except Exception:
            # The answer may be a stream, which has tasks, and wraps what ends them.
            if not ended:
                raise
        finally:
            scope["method"] = "HEAD"
