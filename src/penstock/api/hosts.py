"""Refuses requests for other hosts, which a web page of somebody else may send through a name of its own."""

from urllib.parse import urlsplit

from starlette.types import ASGIApp, Receive, Scope, Send

from penstock.api.problems import Problem, answer_of

PROBES = ("/healthz", "/readyz")
"""Probes of a platform name the address of the machine."""


class Hosts:
    def __init__(self, app: ASGIApp, hosts: tuple[str, ...]) -> None:
        """`hosts`: names, and `*.example.com` for all below one."""
        self._app = app
        self._names = {host.lower() for host in hosts if not host.startswith("*.")}
        self._below = tuple(host[1:].lower() for host in hosts if host.startswith("*."))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in PROBES or self._knows(scope):
            await self._app(scope, receive, send)
            return
        problem = Problem("bad_request", "this server has another name: it is in serve.hosts")
        await answer_of(problem, scope.get("penstock.request_id"))(scope, receive, send)

    def _knows(self, scope: Scope) -> bool:
        given = next((value for name, value in scope["headers"] if name == b"host"), b"").decode("latin-1")
        try:
            host = (urlsplit(f"//{given}").hostname or "").lower()
        except ValueError:
            return False
        return host in self._names or (bool(self._below) and host.endswith(self._below))
