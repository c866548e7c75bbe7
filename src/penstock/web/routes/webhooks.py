"""Webhooks: what is sent where, what came of it, and sending it again. And pausing the intake."""

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from penstock.errors import UsageError
from penstock.ledger.engine.webhooks import NEWEST, WebhookDelivery
from penstock.verbs.webhooks import DEFAULT, NAMES, STATUSES
from penstock.web.access import Operates, refuse_part
from penstock.web.collections import names
from penstock.web.pages import PageRoute, back, first, form, render, with_query

router = APIRouter(route_class=PageRoute, include_in_schema=False)

SHOWN = 100
EVENTS = {
    "item_end": "a document ended",
    "item_failed": "a document failed",
    "group_end": "a group ended",
}


@router.get("/webhooks")
async def webhooks(request: Request, access: Operates) -> Response:
    refuse_part(access)
    return render(
        request,
        "webhooks.html",
        access,
        webhooks=await access.scope.list_webhooks(limit=SHOWN),
        events=[(name, EVENTS.get(name, ""), name in DEFAULT) for name in NAMES],
        collections=await names(access),
    )


@router.post("/webhooks")
async def create(request: Request, access: Operates) -> Response:
    """Show the secret of the new webhook, this once."""
    refuse_part(access)
    fields = form(request)
    made = await access.scope.create_webhook(
        first(fields, "url").strip(),
        events=fields.get("event", []),
        collections=fields.get("collection") or None,
        name=first(fields, "name").strip(),
    )
    return render(request, "webhook_secret.html", access, made=made)


@router.get("/webhooks/{webhook_id}")
async def webhook(
    request: Request,
    access: Operates,
    webhook_id: str,
    status: str = "",
    before: Annotated[int, Query(ge=1, le=NEWEST)] = NEWEST,
) -> Response:
    refuse_part(access)
    found = await access.scope.webhook(webhook_id)
    deliveries = await access.scope.list_webhook_deliveries(found.id, before=before, limit=SHOWN + 1, status=status)
    here = f"/webhooks/{found.id}"
    more = len(deliveries) > SHOWN
    return render(
        request,
        "webhook.html",
        access,
        w=found,
        deliveries=deliveries[:SHOWN],
        chosen=status,
        statuses=STATUSES,
        after=with_query(here, status=status, before=deliveries[SHOWN - 1].id) if more else None,
    )


@router.post("/webhooks/{webhook_id}/{verb}")
async def act(request: Request, access: Operates, webhook_id: str, verb: str) -> Response:
    refuse_part(access)
    scope = access.scope
    found = await scope.webhook(webhook_id)
    here = f"/webhooks/{found.id}"
    if verb in ("delete", "secret") and first(form(request), "sure") != "yes":
        return render(
            request,
            "confirm.html",
            access,
            question="Delete this webhook?" if verb == "delete" else "Make a new secret?",
            about=f"{found.url}: "
            + ("what waits for it is deleted with it." if verb == "delete" else "the old one is not used any more."),
            action=f"{here}/{verb}",
            fields=[],
            changes=False,
            yes="Delete the webhook" if verb == "delete" else "Make a new secret",
            danger=verb == "delete",
            back=here,
        )
    if verb == "test":
        return back(here, _outcome(await scope.test_webhook(found.id)))
    if verb in ("enable", "disable"):
        await scope.change_webhook(found.id, active=verb == "enable")
        return back(here, "The webhook is enabled." if verb == "enable" else "The webhook is disabled.")
    if verb == "secret":
        made = await scope.change_webhook(found.id, new_secret=True)
        return render(request, "webhook_secret.html", access, made=made)
    if verb == "delete":
        await scope.delete_webhook(found.id)
        return back("/webhooks", "The webhook is deleted.")
    raise UsageError(f"verb {verb[:80]!r}: use test, enable, disable, secret or delete")


@router.post("/webhooks/{webhook_id}/deliveries/{delivery_id}/redeliver")
async def redeliver(request: Request, access: Operates, webhook_id: str, delivery_id: int) -> Response:
    refuse_part(access)
    if not 0 < delivery_id <= NEWEST:
        raise UsageError("there is no such delivery")
    await access.scope.redeliver_webhook(webhook_id, delivery_id)
    return back(f"/webhooks/{webhook_id}", "It is sent again, by a worker.")


@router.post("/intake/{verb}")
async def intake(request: Request, access: Operates, verb: str) -> Response:
    """Pause or resume the intake of this owner."""
    refuse_part(access)
    if verb == "pause":
        why = first(form(request), "reason").strip()
        await access.scope.pause_intake(reason=why)
        return back("/", "The intake is paused: new documents are refused. What was accepted is processed.")
    if verb == "resume":
        state = await access.scope.resume_intake()
        return back("/", "The intake of all owners is still paused." if state.paused else "The intake is open again.")
    raise UsageError(f"verb {verb[:80]!r}: use pause or resume")


def _outcome(sent: WebhookDelivery) -> str:
    if sent.status == "DELIVERED":
        return f"The test was answered with {sent.answer_status}."
    answered = f" It was answered with {sent.answer_status}." if sent.answer_status is not None else ""
    return f"The test failed: {sent.error or 'no reason is known'}.{answered}"
