"""The keys of the service, and who changed what."""

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from penstock.errors import UsageError
from penstock.ledger.engine.api_keys import ApiKey
from penstock.ledger.engine.audit_log import NEWEST
from penstock.model.callers import KeyScope
from penstock.web.access import Administers
from penstock.web.collections import names
from penstock.web.pages import PageRoute, back, first, form, render, with_query

router = APIRouter(route_class=PageRoute, include_in_schema=False)

SHOWN = 200
LASTS = (("", "never"), ("1", "after a day"), ("30", "after 30 days"), ("90", "after 90 days"), ("365", "after a year"))
SCOPES = (
    (KeyScope.SEARCH, "search, and read the passages that are found"),
    (KeyScope.READ, "see documents, their text and their status"),
    (KeyScope.INGEST, "submit documents"),
    (KeyScope.WRITE, "change documents: retry, cancel, delete, metadata"),
    (KeyScope.OPS, "operate the engine: workers, locks, webhooks"),
    (KeyScope.ADMIN, "manage keys; includes all others"),
)
DAY_S = 86_400


@router.get("/keys")
async def keys(request: Request, access: Administers, after: Annotated[str, Query(max_length=100)] = "") -> Response:
    found = await access.scope.list_keys(after=after, limit=SHOWN + 1)
    now = access.scope.runtime.now()
    return render(
        request,
        "keys.html",
        access,
        keys=[(key, _state(key, now)) for key in found[:SHOWN]],
        after=with_query("/keys", after=found[SHOWN - 1].id) if len(found) > SHOWN else None,
        is_first=not found and not after,
        scopes=SCOPES,
        lasts=LASTS,
        collections=await names(access),
    )


@router.post("/keys")
async def create(request: Request, access: Administers) -> Response:
    """Show the new key, this once."""
    fields = form(request)
    days = first(fields, "days")
    if days not in dict(LASTS):
        raise UsageError(f"{days[:80]!r}: choose when the key expires")
    made = await access.scope.create_key(
        scopes=fields.get("scope", []),
        name=first(fields, "name").strip(),
        collections=fields.get("collection") or None,
        expires_s=int(days) * DAY_S if days else None,
    )
    # The session of a caller without a key ends with the first key.
    return render(request, "key.html", access, made=made, is_local=access.caller.key is None)


@router.post("/keys/{key_id}/revoke")
async def revoke(request: Request, access: Administers, key_id: str) -> Response:
    if first(form(request), "sure") != "yes":
        return render(
            request,
            "confirm.html",
            access,
            question="Revoke this key?",
            about=f"{key_id}: its tokens and sessions end with it. It cannot be made valid again."
            + (" It is the key that you are signed in with." if key_id == access.caller.key else ""),
            action=f"/keys/{key_id}/revoke",
            fields=[],
            changes=False,
            yes="Revoke the key",
            danger=True,
            back="/keys",
        )
    await access.scope.revoke_key(key_id)
    return back("/keys", f"The key {key_id} is revoked.")


@router.get("/audit")
async def audit(
    request: Request,
    access: Administers,
    action: Annotated[str, Query(max_length=100)] = "",
    before: Annotated[int, Query(ge=1, le=NEWEST)] = NEWEST,
) -> Response:
    found = await access.scope.list_audit(before=before, limit=SHOWN + 1, action=action)
    return render(
        request,
        "audit.html",
        access,
        action=action,
        entries=found[:SHOWN],
        known=sorted({one.action for one in found} | ({action} if action else set())),
        after=with_query("/audit", action=action, before=found[SHOWN - 1].id) if len(found) > SHOWN else None,
    )


def _state(key: ApiKey, now: float) -> str:
    if key.revoked_at is not None:
        return "revoked"
    return "expired" if key.expires_at is not None and key.expires_at <= now else "active"
