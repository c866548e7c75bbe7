"""Webhooks of an owner, and the list of their deliveries. Triggers of the schema insert the deliveries (m0033), and
`webhook_sending.py` has what workers need to send them."""

import json
from collections.abc import Sequence

import msgspec

from penstock.ledger.database.connection import Connection
from penstock.ledger.database.statements import Statement
from penstock.ledger.database.writer import Verb
from penstock.ledger.engine import audit_log
from penstock.model.nouns import Owner

ACTIVE, DISABLED = "ACTIVE", "DISABLED"
TEST = "TEST"
"""The kind of the event that a user sends to try a webhook."""
NEWEST = 2**63 - 1


class Webhook(msgspec.Struct, frozen=True):
    """A webhook as it is listed, without its secret."""

    id: str
    name: str
    url: str
    events: tuple[str, ...]
    collections: tuple[str, ...] | None
    """Only what concerns these; None: all."""
    state: str
    """`ACTIVE` or `DISABLED`."""
    reason: str | None
    """Why it is disabled."""
    failing_since: float | None
    """Since when no delivery has succeeded; None: the last one did."""
    held_until: float | None
    """Nothing is sent before this time, because the last delivery failed."""
    created_at: float
    created_by: str


class NewWebhook(msgspec.Struct, frozen=True):
    owner: Owner
    id: str
    name: str
    url: str
    secret: str
    events: tuple[str, ...]
    collections: tuple[str, ...] | None
    actor: str
    most: int
    """How many webhooks an owner may have."""


class WebhookDelivery(msgspec.Struct, frozen=True):
    """An event on its way to a webhook. `id` counts up, and is the same for every attempt."""

    id: int
    event: str
    document_id: str | None
    run_id: str | None
    group_id: str | None
    status: str
    """`PENDING`, `DELIVERED` or `FAILED`."""
    attempts: int
    answer_status: int | None
    """The status of the last answer; None: there was none."""
    answer: str | None
    """The beginning of the last answer."""
    error: str | None
    created_at: float
    retry_at: float | None
    """The time of the next attempt of a pending one."""
    finished_at: float | None


class Address(msgspec.Struct, frozen=True):
    """What a delivery needs to know of a webhook."""

    id: str
    owner: Owner
    url: str
    secret: str

    def __repr__(self) -> str:
        return f"Address(id={self.id!r})"


_SHOWN = (
    "id, name, url, events, collections, state, reason, failing_since, held_until, created_at, created_by FROM webhooks"
)
_COUNT = Statement("SELECT count(*) FROM webhooks WHERE owner = :owner")
_INSERT = Statement(
    "INSERT INTO webhooks (id, owner, name, url, secret, events, collections, state, created_at, created_by) "
    "VALUES (:id, :owner, :name, :url, :secret, :events, :collections, 'ACTIVE', {now}, :actor)"
)
_LISTED = Statement(f"SELECT {_SHOWN} WHERE owner = :owner AND id > :after ORDER BY id LIMIT :count")
_ONE = Statement(f"SELECT {_SHOWN} WHERE id = :id AND {{owner}}")
_ADDRESS = Statement("SELECT id, owner, url, secret FROM webhooks WHERE id = :id AND {owner}")


def _webhook(row: Sequence[object]) -> Webhook:
    hook, name, url, events, collections, *rest = row
    places = None if collections is None else tuple(json.loads(str(collections)))
    return Webhook(str(hook), str(name), str(url), tuple(json.loads(str(events))), places, *rest)  # type: ignore[arg-type]


def listed(owner: Owner, connection: Connection, after: str, count: int) -> list[Webhook]:
    return [_webhook(row) for row in connection.run(_LISTED, owner=owner, after=after, count=count)]


def get(owner: Owner, connection: Connection, webhook: str) -> Webhook | None:
    return next((_webhook(row) for row in connection.run(_ONE, owner=owner, id=webhook)), None)


def address(owner: Owner, connection: Connection, webhook: str) -> Address | None:
    return next((Address(*row) for row in connection.run(_ADDRESS, owner=owner, id=webhook)), None)


def _create(connection: Connection, new: Sequence[NewWebhook]) -> list[Webhook | None]:
    """None: the owner has too many already."""
    answers: list[Webhook | None] = []
    for one in new:
        if connection.run(_COUNT, owner=one.owner)[0][0] >= one.most:
            answers.append(None)
            continue
        places = None if one.collections is None else json.dumps(one.collections)
        values = {"id": one.id, "owner": one.owner, "name": one.name, "url": one.url, "secret": one.secret}
        connection.run(_INSERT, events=json.dumps(one.events), collections=places, actor=one.actor, **values)
        made = get(one.owner, connection, one.id)
        assert made is not None
        audit_log.record(connection, [audit_log.Change(one.owner, one.actor, "webhook.create", one.id, told(made))])
        answers.append(made)
    return answers


class WebhookChange(msgspec.Struct, frozen=True):
    """New values; None: as before. `everywhere`: it concerns all collections again."""

    owner: Owner
    id: str
    actor: str
    name: str | None = None
    url: str | None = None
    secret: str | None = None
    events: tuple[str, ...] | None = None
    collections: tuple[str, ...] | None = None
    everywhere: bool = False
    active: bool | None = None
    reason: str | None = None
    """Why it is disabled."""


_CHANGE = Statement(
    "UPDATE webhooks SET name = :name, url = :url, secret = coalesce(:secret, secret), events = :events, "
    "collections = :collections, state = :state, reason = :reason WHERE id = :id AND {owner}"
)
_AFRESH = Statement(
    "UPDATE webhooks SET failures = 0, failing_since = NULL, held_until = NULL WHERE id = :id AND {owner}"
)
_END_PENDING = Statement(
    "UPDATE webhook_deliveries SET status = 'FAILED', error = :error, finished_at = {now} "
    "WHERE webhook_id = :id AND {owner} AND status = 'PENDING'"
)
_DELETE = Statement("DELETE FROM webhooks WHERE id = :id AND {owner} RETURNING id")


def _change(connection: Connection, changes: Sequence[WebhookChange]) -> list[Webhook | None]:
    return [_change_one(connection, change) for change in changes]


def _change_one(connection: Connection, change: WebhookChange) -> Webhook | None:
    """The webhook as it is now; None: there is none."""
    old = get(change.owner, connection, change.id)
    if old is None:
        return None
    places = change.collections if change.collections is not None or change.everywhere else old.collections
    active = (old.state == ACTIVE) if change.active is None else change.active
    reason = None if active else old.reason if change.active is None else change.reason
    values: dict[str, object] = {
        "name": old.name if change.name is None else change.name,
        "url": old.url if change.url is None else change.url,
        "secret": change.secret,
        "events": json.dumps(old.events if change.events is None else change.events),
        "collections": None if places is None else json.dumps(places),
        "state": ACTIVE if active else DISABLED,
        "reason": reason,
    }
    connection.run(_CHANGE, owner=change.owner, id=change.id, **values)
    if change.url is not None or (active and old.state == DISABLED):
        connection.run(_AFRESH, owner=change.owner, id=change.id)
    if not active:
        end_pending(change.owner, connection, change.id, reason or "the webhook is disabled")
    new = get(change.owner, connection, change.id)
    assert new is not None
    former, given = told(old), told(new)
    given = {name: value for name, value in given.items() if value != former[name]}
    if change.secret is not None:
        given["secret"] = "new"
    if given:
        former = {name: former[name] for name in given if name in former}
        said = audit_log.Change(change.owner, change.actor, "webhook.change", change.id, given, former)
        audit_log.record(connection, [said])
    return new


def end_pending(owner: Owner, connection: Connection, webhook: str, error: str) -> None:
    """End the pending deliveries of a webhook that is disabled. Each can be sent again later."""
    connection.run(_END_PENDING, owner=owner, id=webhook, error=error)


def told(webhook: Webhook) -> dict[str, object]:
    """What the audit log says of it."""
    return {name: getattr(webhook, name) for name in ("name", "url", "events", "collections", "state", "reason")}


class WebhookDelete(msgspec.Struct, frozen=True):
    owner: Owner
    id: str
    actor: str


def _delete(connection: Connection, orders: Sequence[WebhookDelete]) -> list[bool]:
    """Whether it was there. Its deliveries, which nobody can see any more, are removed by prune."""
    answers = []
    for order in orders:
        old = get(order.owner, connection, order.id)
        if old is not None:
            connection.run(_DELETE, owner=order.owner, id=order.id)
            said = audit_log.Change(order.owner, order.actor, "webhook.delete", order.id, {}, told(old))
            audit_log.record(connection, [said])
        answers.append(old is not None)
    return answers


# Deliveries.

_DELIVERY = (
    "d.id, d.kind, d.document_id, d.run_id, d.group_id, d.status, d.attempts, d.answer_status, d.answer, d.error, "
    "d.created_at, CASE WHEN d.status = 'PENDING' THEN d.not_before END, d.finished_at FROM webhook_deliveries d"
)
_DELIVERIES = Statement(
    f"SELECT {_DELIVERY} WHERE d.webhook_id = :webhook AND d.owner = :owner AND d.id < :before "
    "AND (:status = '' OR d.status = :status) ORDER BY d.id DESC LIMIT :count"
)
_DELIVERY_OF = Statement(f"SELECT {_DELIVERY} WHERE d.id = :id AND d.webhook_id = :webhook AND d.owner = :owner")
_AGAIN = Statement(
    "UPDATE webhook_deliveries SET status = 'PENDING', attempts = 0, not_before = {now}, since = {now}, "
    "finished_at = NULL, error = NULL WHERE id = :id AND webhook_id = :webhook AND {owner} AND kind <> 'TEST' "
    "AND (SELECT w.state FROM webhooks w WHERE w.id = :webhook) = 'ACTIVE' RETURNING id"
)
_TESTED = Statement(
    "INSERT INTO webhook_deliveries (webhook_id, owner, kind, status, attempts, not_before, since, error, "
    "answer_status, answer, created_at, finished_at) SELECT w.id, w.owner, 'TEST', CAST(:status AS TEXT), 1, {now}, "
    "{now}, CAST(:error AS TEXT), CAST(:answer_status AS INTEGER), CAST(:answer AS TEXT), {now}, {now} "
    "FROM webhooks w WHERE w.id = :webhook AND w.owner = :owner RETURNING id"
)


def deliveries(
    owner: Owner, connection: Connection, webhook: str, before: int, count: int, status: str = ""
) -> list[WebhookDelivery]:
    """The newest first: those with a smaller id than `before`."""
    values = {"owner": owner, "webhook": webhook, "before": before, "count": count, "status": status}
    return [WebhookDelivery(*row) for row in connection.run(_DELIVERIES, **values)]


def delivery(owner: Owner, connection: Connection, webhook: str, number: int) -> WebhookDelivery | None:
    rows = connection.run(_DELIVERY_OF, owner=owner, webhook=webhook, id=number)
    return WebhookDelivery(*rows[0]) if rows else None


class Redelivery(msgspec.Struct, frozen=True):
    owner: Owner
    webhook: str
    delivery: int
    actor: str


def _redeliver(connection: Connection, orders: Sequence[Redelivery]) -> list[bool]:
    """Whether it is due now. Not if it is unknown or a test, or if its webhook is disabled."""
    answers = []
    for order in orders:
        rows = connection.run(_AGAIN, owner=order.owner, webhook=order.webhook, id=order.delivery)
        if rows:
            given = {"delivery": order.delivery}
            said = audit_log.Change(order.owner, order.actor, "webhook.redeliver", order.webhook, given)
            audit_log.record(connection, [said])
        answers.append(bool(rows))
    return answers


class Tested(msgspec.Struct, frozen=True):
    """What came of a test that was sent."""

    owner: Owner
    webhook: str
    error: str | None
    """None: it was delivered."""
    answer_status: int | None
    answer: str | None


def _record_test(connection: Connection, tests: Sequence[Tested]) -> list[WebhookDelivery | None]:
    answers = []
    for test in tests:
        values = {"owner": test.owner, "webhook": test.webhook, "error": test.error}
        values |= {"status": "DELIVERED" if test.error is None else "FAILED", "answer": test.answer}
        rows = connection.run(_TESTED, answer_status=test.answer_status, **values)
        answers.append(delivery(test.owner, connection, test.webhook, rows[0][0]) if rows else None)
    return answers


CREATE_WEBHOOK = Verb("create_webhook", _create)
CHANGE_WEBHOOK = Verb("change_webhook", _change)
DELETE_WEBHOOK = Verb("delete_webhook", _delete)
REDELIVER = Verb("redeliver", _redeliver, notifies=any)
TESTED_WEBHOOK = Verb("tested_webhook", _record_test)
