"""Who calls, by a key, a tenant token or a browser session."""

import hmac

from fastapi import Request
from msgspec.structs import replace

from penstock.api.callers import WithoutKeys
from penstock.api.problems import Problem
from penstock.app import App
from penstock.config import check_name
from penstock.errors import ConfigError, NotAuthenticated
from penstock.model.callers import Caller, KeyScope
from penstock.model.nouns import Owner
from penstock.verbs.authentication import Authenticator

COOKIE = "penstock_session"
CSRF = "X-CSRF-Token"
OWNER = "X-Penstock-Owner"
SAFE = frozenset({"GET", "HEAD", "OPTIONS"})


class Keys:
    """Asks for a key as soon as there is one. Until then, everybody on this machine is the configured owner."""

    def __init__(self, app: App) -> None:
        self.authenticator = Authenticator(app.resources)
        self._without = WithoutKeys(app)

    async def caller(self, request: Request) -> Caller:
        if not await self.authenticator.any_key():
            return await self._without.caller(request)
        text, by_cookie = credentials(request)
        if text is None:
            raise Problem("unauthorized", "send a key, as in `Authorization: Bearer pk_…`")
        try:
            found = await self.authenticator.authenticate(text)
        except NotAuthenticated as error:
            raise Problem("unauthorized", str(error)) from None
        if by_cookie:
            if found.csrf is None:
                raise Problem("unauthorized", "the cookie is not that of a session")
            _check_csrf(request, found.csrf)
        elif found.csrf is not None:
            raise Problem("unauthorized", "a session is sent as a cookie")
        return _for_owner(found, request.headers.get(OWNER))

    async def check_bind(self, host: str) -> None:
        if not await self.authenticator.any_key():
            await self._without.check_bind(host)


def credentials(request: Request) -> tuple[str | None, bool]:
    """The key, token or session that a request shows, and whether it comes from a cookie."""
    given = request.headers.get("authorization")
    if given is not None:
        kind, _, text = given.partition(" ")
        if kind.lower() != "bearer":
            raise Problem("unauthorized", "send the key as `Authorization: Bearer KEY`")
        return text.strip(), False
    given = request.headers.get("x-api-key")
    if given is not None:
        return given.strip(), False
    return request.cookies.get(COOKIE), True


def _check_csrf(request: Request, wanted: str) -> None:
    """A page of another site cannot read the token, so that it cannot send it."""
    if request.method in SAFE:
        return
    given = request.headers.get(CSRF, "")
    if not hmac.compare_digest(given.encode("utf-8", "replace"), wanted.encode()):
        raise Problem("forbidden", f"a session must repeat its CSRF token in {CSRF}")


def _for_owner(caller: Caller, wanted: str | None) -> Caller:
    if wanted is None or wanted == caller.owner:
        return caller
    if not caller.has(KeyScope.ADMIN) or caller.collections is not None:
        raise Problem("forbidden", f"{OWNER} needs the scope 'admin' for all collections", scope="admin")
    try:
        return replace(caller, owner=Owner(check_name("owner", wanted)))
    except ConfigError as error:
        raise Problem("invalid", str(error)) from None
