"""Webhooks: URLs of an owner that are told when documents and groups end (scope `ops`)."""

from typing import Annotated, Literal

from fastapi import APIRouter, Path, Query, Response
from pydantic import BaseModel, ConfigDict, Field

from penstock.api.answers import answer, described
from penstock.api.callers import Operates
from penstock.api.fields import TEXT, Collection
from penstock.api.routes.groups import whole
from penstock.ledger.engine.webhooks import NEWEST, Webhook, WebhookDelivery

router = APIRouter(prefix="/webhooks", tags=["webhooks"])
_LARGEST = 2**63 - 1
URL = r"^https?://[!-~]+$"
EventName = Literal["item_end", "item_failed", "group_end"]
Delivery = Annotated[int, Path(ge=1, le=_LARGEST)]


class NewWebhook(BaseModel):
    """A webhook to create."""

    model_config = ConfigDict(
        extra="forbid",
        strict=True,
        json_schema_extra={"example": {"url": "https://hooks.example.com/penstock", "events": ["item_failed"]}},
    )

    url: str = Field(max_length=2_000, pattern=URL, examples=["https://hooks.example.com/penstock"])
    events: list[EventName] = Field(["item_end", "item_failed"], min_length=1, max_length=10)
    collections: list[Collection] | None = Field(
        None, min_length=1, max_length=100, description="Only these; default: all."
    )
    name: str = Field("", max_length=200, pattern=TEXT)


class WebhookChanges(BaseModel):
    """What to change. What is left out stays."""

    model_config = ConfigDict(extra="forbid", strict=True, json_schema_extra={"example": {"active": True}})

    url: str | None = Field(None, max_length=2_000, pattern=URL)
    events: list[EventName] | None = Field(None, min_length=1, max_length=10)
    collections: list[Collection] | None = Field(
        None, min_length=1, max_length=100, description="`null` given: all of them."
    )
    name: str | None = Field(None, max_length=200, pattern=TEXT)
    active: bool | None = Field(None, description="Whether messages are sent.")
    new_secret: bool = Field(False, description="Replace the secret; the answer has the new one.")


@router.get("", operation_id="list_webhooks", responses=described({"webhooks": [Webhook], "next": str | None}))
async def list_webhooks(
    access: Operates,
    limit: Annotated[int, Query(ge=1, le=500)] = 100,
    cursor: Annotated[str, Query(max_length=100, pattern=TEXT)] = "",
) -> Response:
    """List the webhooks of the owner, without their secrets."""
    whole(access)
    found = await access.scope.list_webhooks(after=cursor, limit=limit)
    return answer({"webhooks": found, "next": found[-1].id if len(found) == limit else None})


@router.post(
    "", operation_id="create_webhook", status_code=201, responses=described({"webhook": Webhook, "secret": str}, 201)
)
async def create_webhook(access: Operates, new: NewWebhook) -> Response:
    """Create a webhook. `secret` signs its messages (Standard Webhooks). It is not shown again."""
    whole(access)
    made = await access.scope.create_webhook(new.url, events=new.events, collections=new.collections, name=new.name)
    headers = {"Cache-Control": "no-store", "Location": f"/api/v1/webhooks/{made.webhook.id}"}
    return answer({"webhook": made.webhook, "secret": made.secret}, 201, headers)


@router.get("/{webhook_id}", operation_id="get_webhook", responses=described(Webhook))
async def get_webhook(access: Operates, webhook_id: str) -> Response:
    """Return one webhook, without its secret."""
    whole(access)
    return answer(await access.scope.webhook(webhook_id))


@router.patch(
    "/{webhook_id}", operation_id="change_webhook", responses=described({"webhook": Webhook, "secret": str | None})
)
async def change_webhook(access: Operates, webhook_id: str, changes: WebhookChanges) -> Response:
    """Change a webhook; `active` enables or disables it. `secret` is `null` unless a new one was asked for."""
    whole(access)
    everywhere = "collections" in changes.model_fields_set and changes.collections is None
    made = await access.scope.change_webhook(
        webhook_id,
        url=changes.url,
        events=changes.events,
        collections=changes.collections,
        all_collections=everywhere,
        name=changes.name,
        active=changes.active,
        new_secret=changes.new_secret,
    )
    return answer({"webhook": made.webhook, "secret": made.secret or None}, headers={"Cache-Control": "no-store"})


@router.delete("/{webhook_id}", operation_id="delete_webhook", status_code=204, response_class=Response)
async def delete_webhook(access: Operates, webhook_id: str) -> Response:
    """Delete a webhook, with what waits for it."""
    whole(access)
    await access.scope.delete_webhook(webhook_id)
    return Response(status_code=204)


@router.post("/{webhook_id}/test", operation_id="test_webhook", responses=described(WebhookDelivery))
async def test_webhook(access: Operates, webhook_id: str) -> Response:
    """Send a message of the kind TEST now, and return what came of it. A disabled webhook can be tested, too."""
    whole(access)
    return answer(await access.scope.test_webhook(webhook_id))


@router.get(
    "/{webhook_id}/deliveries",
    operation_id="list_webhook_deliveries",
    responses=described({"deliveries": [WebhookDelivery], "next": int | None}),
)
async def list_webhook_deliveries(
    access: Operates,
    webhook_id: str,
    limit: Annotated[int, Query(ge=1, le=500)] = 100,
    cursor: Annotated[int, Query(ge=1, le=_LARGEST)] = NEWEST,
    status: Literal["", "PENDING", "DELIVERED", "FAILED"] = "",
) -> Response:
    """List the deliveries of a webhook, the newest first."""
    whole(access)
    found = await access.scope.list_webhook_deliveries(webhook_id, before=cursor, limit=limit, status=status)
    return answer({"deliveries": found, "next": found[-1].id if len(found) == limit else None})


@router.post(
    "/{webhook_id}/deliveries/{delivery_id}/redeliver",
    operation_id="redeliver_webhook",
    status_code=202,
    responses=described(WebhookDelivery, 202),
)
async def redeliver_webhook(access: Operates, webhook_id: str, delivery_id: Delivery) -> Response:
    """Send a delivery again, as the same event. A worker does it."""
    whole(access)
    return answer(await access.scope.redeliver_webhook(webhook_id, delivery_id), 202)
