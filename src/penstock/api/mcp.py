"""The Model Context Protocol over HTTP, at `/mcp`. Requests are independent of each other: any process answers any."""

from contextvars import ContextVar
from importlib.util import find_spec
from typing import Any

from starlette.requests import Request
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from penstock.api.callers import Access, authenticated
from penstock.api.problems import Problem, answer_of, log_unexpected, problem_of
from penstock.model.callers import KeyScope

PATH = "/mcp"
MOST_BYTES = 16 << 20


class McpEndpoint:
    """An ASGI app. A caller with the scope `ingest` also gets the tools that submit documents."""

    def __init__(self) -> None:
        self._access: ContextVar[Any] = ContextVar("mcp_access")
        self._servers: dict[bool, Any] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            handle = await self._handler(Request(scope, receive))
        except Exception as error:
            problem, request_id = problem_of(error), scope.get("penstock.request_id")
            if problem.code == "internal":
                log_unexpected(error, str(request_id))
            await answer_of(problem, request_id)(scope, receive, send)
            return
        async with handle.run():
            await handle.handle_request(scope, receive, send)

    async def _handler(self, request: Request) -> Any:
        caller = await authenticated(request)
        for needed in (KeyScope.SEARCH, KeyScope.READ):
            if not caller.caller.has(needed):
                raise Problem("forbidden", f"this needs the scope {needed!r}", scope=needed)
        if caller.caller.filter:
            raise Problem("forbidden", "a token with a filter cannot use MCP: use the API")
        if find_spec("mcp") is None:
            raise Problem("not_supported", "MCP is not installed on the server: pip install 'penstock-rag[mcp]'")
        from mcp.server.streamable_http_manager import StreamableHTTPSessionManager

        # What handles the request inherits the variable: each request has a manager, with tasks of its own.
        self._access.set(caller)
        server = self._server(caller.caller.has(KeyScope.INGEST))
        return StreamableHTTPSessionManager(
            server._lowlevel_server, json_response=True, stateless=True, max_request_body_size=MOST_BYTES
        )

    def _server(self, ingest: bool) -> Any:
        from penstock.mcp.access import Access as McpAccess
        from penstock.mcp.server import make_server

        def access() -> McpAccess:
            found: Access = self._access.get()
            can_ingest = found.caller.has(KeyScope.INGEST)
            return McpAccess(found.scope, can_ingest=can_ingest, collections=found.caller.collections)

        if ingest not in self._servers:
            self._servers[ingest] = make_server(access, ingest=ingest)
        return self._servers[ingest]


def route() -> Route:
    return Route(PATH, endpoint=McpEndpoint(), methods=["POST"])
