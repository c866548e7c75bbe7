"""Who calls, and what the caller may do. The owner comes from the caller, never from the request."""

import ipaddress
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Protocol
from urllib.parse import urlsplit

from fastapi import Depends, Request

from penstock.api.problems import Problem, not_found
from penstock.errors import ConfigError, PenstockError
from penstock.model.callers import Caller as Caller
from penstock.model.callers import KeyScope
from penstock.model.nouns import Owner

if TYPE_CHECKING:
    from penstock.api.service import Service
    from penstock.app import App
    from penstock.verbs.admissions import Limits
    from penstock.verbs.owner import OwnerScope
    from penstock.verbs.views import DocumentDetails

ALL_SCOPES = frozenset(KeyScope)

_CROCKFORD = frozenset("0123456789ABCDEFGHJKMNPQRSTVWXYZ")


class Authority(Protocol):
    """Decides who sent a request."""

    async def caller(self, request: Request) -> Caller:
        """Return the caller, or raise Problem 401 or 403."""
        ...

    async def check_bind(self, host: str) -> None:
        """Raise ConfigError if the server must not listen on this address."""
        ...


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() == "localhost"


class WithoutKeys:
    """While there is no key, everybody on this machine is the configured owner, with all scopes."""

    def __init__(self, app: "App") -> None:
        self._caller = Caller(app.owner, ALL_SCOPES)

    async def caller(self, request: Request) -> Caller:
        if request.client is not None and not is_loopback(request.client.host):
            raise Problem("unauthorized", "without a key, only calls from this machine are answered")
        self._refuse_other_sites(request)
        return self._caller

    async def check_bind(self, host: str) -> None:
        if not is_loopback(host):
            raise ConfigError(
                f"there is no key yet, so that everybody who reaches {host} could read all documents: listen on "
                "127.0.0.1, or create a key first"
            )

    def _refuse_other_sites(self, request: Request) -> None:
        """A page of another site in a browser of this machine must not act here, also not by a name of its own that
        leads to 127.0.0.1."""
        host = request.headers.get("host", "")
        if not is_loopback(urlsplit(f"//{host}").hostname or ""):
            raise Problem("forbidden", "without a key, only calls to localhost or 127.0.0.1 are answered")
        origin = request.headers.get("origin")
        if origin is not None and urlsplit(origin).netloc != host:
            raise Problem("forbidden", "without a key, web pages of other sites must not call")


@dataclass(frozen=True)
class Access:
    """A caller with the scope that an operation needs, and the verbs of the owner."""

    caller: Caller
    service: "Service"
    scope: "OwnerScope"

    @property
    def owner(self) -> Owner:
        return self.caller.owner

    def may_use(self, collection: str) -> bool:
        return self.caller.sees(collection)

    def collection(self, name: str | None) -> str:
        """Return the collection to write to or read from: the named one, or the configured one."""
        from penstock.verbs.scope import chosen_collection

        chosen = chosen_collection(self.scope, name)
        if not self.may_use(chosen):
            raise not_found("collection", chosen)
        return chosen

    def _sees(self, found: "DocumentDetails") -> bool:
        if not self.may_use(found.collection):
            return False
        if not self.caller.filter:
            return True
        from penstock.search.filters import Fields, compiled

        place = (found.id, found.collection, found.name, found.source, found.media_type, found.size, found.status)
        return compiled(self.caller.filter)(
            Fields(*place, found.pages, found.created_at, (json.dumps(found.metadata),))
        )

    async def document(self, document_id: str) -> "DocumentDetails":
        """Return the document with exactly this id. Any other is a 404, whatever the reason."""
        if not is_id(document_id):
            raise not_found("document", document_id)
        found = await self.scope.status(document_id)
        if found.id != document_id or not self._sees(found):
            raise not_found("document", document_id)
        return found


def is_id(text: str) -> bool:
    """Whether this is an id in full (a ULID)."""
    return len(text) == 26 and _CROCKFORD.issuperset(text)


def service_of(request: Request) -> "Service":
    service: Service = request.app.state.service
    return service


def requires(needed: str) -> Callable[[Request], Awaitable[Access]]:
    """The dependency of an operation that needs this scope."""
    scope = KeyScope(needed)

    async def access(request: Request) -> Access:
        found = await authenticated(request)
        if not found.caller.has(scope):
            raise Problem("forbidden", f"this needs the scope {needed!r}", scope=needed)
        return found

    return access


async def authenticated(request: Request) -> Access:
    """The dependency of an operation that needs a caller with any scope."""
    service = service_of(request)
    caller = await service.authority.caller(request)
    request.scope["penstock.caller"] = caller
    request.scope["penstock.headers"] = service.requests.take(caller.owner, await _limits(service, caller.owner))
    return Access(caller, service, service.app.for_owner(caller.owner, caller.actor))


async def _limits(service: "Service", owner: Owner) -> "Limits | None":
    """Those of the owner; None if the ledger does not answer: each operation says so itself."""
    admissions = service.app.resources.admissions
    try:
        return await admissions.of(owner)
    except PenstockError:
        return admissions.known(owner)


Searches = Annotated[Access, Depends(requires("search"))]
Reads = Annotated[Access, Depends(requires("read"))]
Ingests = Annotated[Access, Depends(requires("ingest"))]
Writes = Annotated[Access, Depends(requires("write"))]
Operates = Annotated[Access, Depends(requires("ops"))]
Administers = Annotated[Access, Depends(requires("admin"))]
