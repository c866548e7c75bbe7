"""Webhooks of an owner: URLs that are told when documents and groups end."""

from collections.abc import Iterable
from functools import partial
from typing import NoReturn

import msgspec

from penstock.config import check_name, check_url
from penstock.errors import NotFound, UsageError
from penstock.events import signing
from penstock.ledger.engine import webhooks
from penstock.ledger.engine.webhooks import NEWEST, Webhook, WebhookDelivery
from penstock.model.events import EventKind
from penstock.verbs import arguments
from penstock.verbs.scope import Scope

EVENTS = (EventKind.ITEM_END, EventKind.ITEM_FAILED, EventKind.GROUP_END)
"""What a webhook may be told."""
NAMES = tuple(event.lower() for event in EVENTS)
DEFAULT = ("item_end", "item_failed")
MOST = 50
"""How many webhooks an owner may have."""
MOST_COLLECTIONS = 100
STATUSES = ("PENDING", "DELIVERED", "FAILED")
BY_USER = "a user disabled it"


class CreatedWebhook(msgspec.Struct, frozen=True):
    webhook: Webhook
    secret: str
    """What signs its messages. It cannot be shown again."""


class WebhookTest(msgspec.Struct, frozen=True):
    """The event of a test."""

    id: str
    at: float
    owner: str
    webhook: str
    kind: str = webhooks.TEST


async def create_webhook(
    scope: Scope,
    url: str,
    *,
    events: Iterable[str] = DEFAULT,
    collections: Iterable[str] | None = None,
    name: str = "",
) -> CreatedWebhook:
    """Create a webhook: from now on, a signed POST tells this URL when a document of this owner ends (`item_end`),
    fails (`item_failed`) or a group ends (`group_end`). `collections`: only documents in these. The result is the only
    place where the secret appears."""
    await _check_url(scope, url)
    secret = signing.new_secret(scope.runtime)
    new = webhooks.NewWebhook(
        scope.owner,
        scope.runtime.ulid(),
        arguments.text("name", name),
        url,
        secret,
        _events(events),
        _collections(collections),
        scope.actor,
        MOST,
    )
    made = await scope.ledger.write(webhooks.CREATE_WEBHOOK, new)
    if made is None:
        raise UsageError(f"there are {MOST} webhooks already: delete one first")
    return CreatedWebhook(made, secret)


async def list_webhooks(scope: Scope, *, after: str = "", limit: int = 100) -> list[Webhook]:
    """Return the webhooks in the order in which they were created: those after the id `after`."""
    most = arguments.count("limit", limit)
    return await scope.ledger.read(partial(webhooks.listed, scope.owner), arguments.text("after", after), most)


async def webhook(scope: Scope, webhook: str) -> Webhook:
    """Return one webhook."""
    wanted = arguments.text("webhook", webhook)
    found = await scope.ledger.read(partial(webhooks.get, scope.owner), wanted)
    return found if found is not None else _unknown(wanted)


async def change_webhook(
    scope: Scope,
    webhook: str,
    *,
    url: str | None = None,
    events: Iterable[str] | None = None,
    collections: Iterable[str] | None = None,
    all_collections: bool = False,
    name: str | None = None,
    active: bool | None = None,
    new_secret: bool = False,
) -> CreatedWebhook:
    """Change a webhook. What is not given stays. `active`: whether messages are sent; what waits for a webhook that is
    disabled fails, and can be sent again later. `new_secret`: the result has a new secret, and the old one is not used
    any more; otherwise the secret in the result is empty."""
    wanted = arguments.text("webhook", webhook)
    if url is not None:
        await _check_url(scope, url)
    if all_collections and collections is not None:
        raise UsageError("give either collections or all_collections")
    secret = signing.new_secret(scope.runtime) if new_secret else None
    change = webhooks.WebhookChange(
        scope.owner,
        wanted,
        scope.actor,
        arguments.maybe("name", name),
        url,
        secret,
        None if events is None else _events(events),
        _collections(collections),
        all_collections,
        active,
        BY_USER,
    )
    made = await scope.ledger.write(webhooks.CHANGE_WEBHOOK, change)
    return CreatedWebhook(made, secret or "") if made is not None else _unknown(wanted)


async def delete_webhook(scope: Scope, webhook: str) -> None:
    """Delete a webhook, with what waits for it."""
    wanted = arguments.text("webhook", webhook)
    if not await scope.ledger.write(webhooks.DELETE_WEBHOOK, webhooks.WebhookDelete(scope.owner, wanted, scope.actor)):
        _unknown(wanted)


async def test_webhook(scope: Scope, webhook: str) -> WebhookDelivery:
    """Send a message of the kind TEST now, also to a webhook that is disabled. Return what came of it."""
    from penstock.events.sender import Poster

    wanted = arguments.text("webhook", webhook)
    to = await scope.ledger.read(partial(webhooks.address, scope.owner), wanted)
    if to is None:
        _unknown(wanted)
    event = WebhookTest(f"test-{scope.runtime.ulid()}", scope.runtime.now(), scope.owner, wanted)
    poster = Poster(scope.runtime, scope.config.serve.private_webhooks)
    try:
        posted = await poster.post(to, event.id, event.kind, 1, msgspec.json.encode(event))
    finally:
        await poster.close()
    tested = webhooks.Tested(scope.owner, wanted, posted.error, posted.status, posted.answer)
    sent = await scope.ledger.write(webhooks.TESTED_WEBHOOK, tested)
    return sent if sent is not None else _unknown(wanted)


async def list_webhook_deliveries(
    scope: Scope, webhook: str, *, before: int = NEWEST, limit: int = 100, status: str = ""
) -> list[WebhookDelivery]:
    """Return the deliveries of a webhook, the newest first: those with a smaller id than `before`. `status`: only
    PENDING, DELIVERED or FAILED ones."""
    start, count = arguments.number("before", before), arguments.count("limit", limit)
    if status and status not in STATUSES:
        raise UsageError(f"status {status!r}: use one of {', '.join(STATUSES)}")
    hook = await _known(scope, webhook)
    return await scope.ledger.read(partial(webhooks.deliveries, scope.owner), hook.id, start, count, status)


async def redeliver_webhook(scope: Scope, webhook: str, delivery: int) -> WebhookDelivery:
    """Send a delivery again, as the same event, whatever came of it."""
    number = arguments.number("delivery", delivery)
    hook = await _known(scope, webhook)
    order = webhooks.Redelivery(scope.owner, hook.id, number, scope.actor)
    again = await scope.ledger.write(webhooks.REDELIVER, order)
    found = await scope.ledger.read(partial(webhooks.delivery, scope.owner), hook.id, number)
    if found is None:
        raise NotFound(f"no delivery {number} of this webhook")
    if not again and hook.state == webhooks.DISABLED:
        raise UsageError("the webhook is disabled: enable it first")
    if not again:
        raise UsageError("a test cannot be sent again: send another one")
    return found


async def _known(scope: Scope, name: str) -> Webhook:
    return await webhook(scope, name)


def _unknown(name: str) -> NoReturn:
    raise NotFound(f"no webhook {name!r}: `penstock webhook list` shows them")


async def _check_url(scope: Scope, url: str) -> None:
    from penstock.net.addresses import AddressRefused, refuse_private

    check_url(arguments.text("url", url))
    if scope.config.serve.private_webhooks:
        return
    try:
        await refuse_private(scope.runtime, url)
    except AddressRefused:
        raise UsageError(
            "the URL leads to a private address. Use a public one; the operator can allow private ones with "
            "serve.private_webhooks"
        ) from None


def _events(given: Iterable[str]) -> tuple[str, ...]:
    names = arguments.texts("events", given)
    if not names or (wrong := [name for name in names if name.lower() not in NAMES]):
        raise UsageError(f"events {wrong if names else names!r}: use some of {', '.join(NAMES)}")
    return tuple(event for event in EVENTS if event.lower() in {name.lower() for name in names})


def _collections(given: Iterable[str] | None) -> tuple[str, ...] | None:
    if given is None:
        return None
    found = tuple(dict.fromkeys(check_name("collection", name) for name in arguments.texts("collections", given)))
    if not 1 <= len(found) <= MOST_COLLECTIONS:
        raise UsageError(f"collections: name 1 to {MOST_COLLECTIONS} of them, or none for all")
    return found
