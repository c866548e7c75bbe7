"""API keys, tenant tokens, browser sessions, and who changed what."""

from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Query, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from penstock.api.answers import answer
from penstock.api.callers import Access, Administers, Reads, authenticated, service_of
from penstock.api.fields import TEXT, Collection, Filter
from penstock.api.keys import COOKIE
from penstock.api.problems import Problem
from penstock.ledger.engine.audit_log import NEWEST
from penstock.verbs.keys import SESSION_S

router = APIRouter(tags=["keys"])
Anybody = Annotated[Access, Depends(authenticated)]
_LARGEST = 2**63 - 1
ScopeName = Literal["search", "read", "ingest", "write", "ops", "admin"]


class Body(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class NewKey(Body):
    """A key to create."""

    name: str = Field("", max_length=200, pattern=TEXT, examples=["portal"])
    scopes: list[ScopeName] = Field(["search", "read"], min_length=1, max_length=10, examples=[["search", "read"]])
    collections: list[Collection] | None = Field(None, min_length=1, max_length=100, examples=[["default"]])
    expires_in: float | None = Field(None, gt=0, le=10**9, description="Seconds.", examples=[86400])


class NewToken(Body):
    """A tenant token to create from the key of the caller."""

    scopes: list[Literal["search", "read"]] = Field(
        ["search", "read"], min_length=1, max_length=10, examples=[["read"]]
    )
    collections: list[Collection] | None = Field(None, min_length=1, max_length=100, examples=[["default"]])
    filter: Filter | None = Field(None, examples=[{"customer": "acme"}])
    expires_in: float = Field(3600, ge=1, le=86_400, description="Seconds.", examples=[600])


class NewSession(Body):
    key: str = Field(max_length=2_000, description="The API key.", examples=["pk_…"])


@router.post("/keys", operation_id="create_key", status_code=201)
async def create_key(access: Administers, new: NewKey) -> Response:
    """Create an API key. `secret` is the whole key. It is not shown again."""
    made = await access.scope.create_key(
        scopes=new.scopes, name=new.name, collections=new.collections, expires_s=new.expires_in
    )
    return answer({"key": made.key, "secret": made.secret}, 201, {"Cache-Control": "no-store"})


@router.get("/keys", operation_id="list_keys")
async def list_keys(
    access: Administers,
    limit: Annotated[int, Query(ge=1, le=500)] = 100,
    cursor: Annotated[str, Query(max_length=100, pattern=TEXT)] = "",
) -> Response:
    """List the keys of the owner, those that were revoked too."""
    found = await access.scope.list_keys(after=cursor, limit=limit)
    return answer({"keys": found, "next": found[-1].id if len(found) == limit else None})


@router.delete("/keys/{key_id}", operation_id="revoke_key")
async def revoke_key(access: Administers, key_id: str) -> Response:
    """Revoke a key, with its tokens and sessions. Every process refuses them within a second."""
    return answer(await access.scope.revoke_key(key_id))


@router.post("/tokens", operation_id="create_token", status_code=201)
async def create_token(access: Anybody, new: NewToken) -> Response:
    """Create a tenant token: it only searches and reads, and ends with the key of the caller."""
    caller = access.caller
    if caller.key is None or not caller.actor.startswith("key:"):
        raise Problem("forbidden", "a token is made with a key: create one with `penstock key create`")
    made = await access.service.app.for_owner(caller.owner, caller.actor).create_token(
        caller.key, scopes=new.scopes, collections=new.collections, filter=new.filter, expires_s=new.expires_in
    )
    return answer(made, 201, {"Cache-Control": "no-store"})


@router.post("/session", operation_id="open_session", status_code=201)
async def open_session(request: Request, new: NewSession) -> Response:
    """Exchange a key for a browser session: a cookie that scripts cannot read. Requests that change something must
    repeat `csrf` in the header `X-CSRF-Token`."""
    made = await service_of(request).keys.authenticator.open_session(new.key)
    response = answer({"csrf": made.csrf, "expires_in": made.lasts_s}, 201, {"Cache-Control": "no-store"})
    is_secure = request.url.scheme == "https"
    response.set_cookie(
        COOKIE, made.cookie, max_age=int(SESSION_S), httponly=True, samesite="strict", secure=is_secure, path="/"
    )
    return response


@router.get("/session", operation_id="show_session")
async def show_session(access: Anybody) -> Response:
    """Say who the caller is, and what it may do."""
    caller = access.caller
    shown = {
        "owner": caller.owner,
        "actor": caller.actor,
        "scopes": sorted(caller.scopes),
        "collections": caller.collections,
        "csrf": caller.csrf,
    }
    return answer(shown, headers={"Cache-Control": "no-store"})


@router.delete("/session", operation_id="close_session", status_code=204)
async def close_session(request: Request, access: Anybody) -> Response:
    """End the browser session."""
    cookie = request.cookies.get(COOKIE)
    if cookie is not None and access.caller.csrf is not None:
        await service_of(request).keys.authenticator.close_session(cookie)
    response = Response(status_code=204)
    response.delete_cookie(COOKIE, path="/")
    return response


@router.get("/audit", operation_id="list_audit")
async def list_audit(
    access: Administers,
    limit: Annotated[int, Query(ge=1, le=500)] = 100,
    cursor: Annotated[int, Query(ge=1, le=_LARGEST)] = NEWEST,
    action: Annotated[str, Query(max_length=100, pattern=TEXT)] = "",
) -> Response:
    """List who changed what and when, and what was there before, the newest first."""
    found = await access.scope.list_audit(before=cursor, limit=limit, action=action)
    return answer({"entries": found, "next": found[-1].id if len(found) == limit else None})


@router.get("/usage", operation_id="show_usage")
async def show_usage(access: Reads, days: Annotated[int, Query(ge=1, le=100_000)] = 30) -> Response:
    """Show what was bought from providers and what was saved, by model and day; and the quota, with what is used."""
    bought = await access.scope.usage(days=days)
    return answer({"days": bought.days, "total": bought.total, "quota": await access.scope.quota()})
