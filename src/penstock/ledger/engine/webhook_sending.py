"""Sending to the webhooks of all owners. A worker takes a webhook with a lease, sends its oldest deliveries, and writes
what came of them, gated on the lease. So one that is slow or down delays neither others nor the handlers of workflows,
and is tried with one delivery at a time until it answers again.

These statements cross owners (I10)."""

import json
from collections.abc import Sequence

import msgspec

from penstock.ledger.database.connection import Connection, Row
from penstock.ledger.database.statements import Statement
from penstock.ledger.database.writer import Verb
from penstock.ledger.engine import audit_log, groups, webhooks
from penstock.ledger.engine.webhooks import Address
from penstock.model.events import EventKind, LifecycleEvent
from penstock.model.nouns import DocumentId, Owner, RunId, Token, WorkerId

LONG_S = 3 * 86_400.0
"""After this time without success, a delivery fails and its webhook is disabled."""

_PENDING = "webhook_deliveries d WHERE d.webhook_id = w.id AND d.status = 'PENDING'"
_DUE_IN = Statement(
    "SELECT s.first - {now}, s.held_until - {now}, s.lease_until - {now} FROM ("
    f"SELECT w.held_until, w.lease_until, (SELECT min(d.not_before) FROM {_PENDING}) AS first "
    "FROM webhooks w WHERE w.state = 'ACTIVE') AS s WHERE s.first IS NOT NULL"
)
_ANY = Statement("SELECT EXISTS (SELECT 1 FROM webhooks WHERE state = 'ACTIVE')")
_TAKE = Statement(
    "UPDATE webhooks SET token = :token, worker_id = :worker, lease_until = {now} + :lease_s, taken_at = {now} "
    "WHERE id IN (SELECT w.id FROM webhooks w WHERE w.state = 'ACTIVE' "
    "AND (w.lease_until IS NULL OR w.lease_until <= {now}) AND (w.held_until IS NULL OR w.held_until <= {now}) "
    f"AND EXISTS (SELECT 1 FROM {_PENDING} AND d.not_before <= {{now}}) "
    "ORDER BY coalesce(w.taken_at, 0), w.id LIMIT :count {skip}) RETURNING id, owner, url, secret, failures"
)
_OLDEST = Statement(
    "SELECT d.id, d.kind, d.attempts, d.run_id, d.document_id, d.group_id, d.completion, d.outcome, d.created_at "
    "FROM webhook_deliveries d WHERE d.webhook_id = :webhook AND d.status = 'PENDING' AND d.not_before <= {now} "
    "ORDER BY d.not_before LIMIT :count"
)


def due_in(connection: Connection) -> float | None:
    """Seconds until a webhook can be taken; negative if one waits for it; None: nothing is to be sent."""
    rows = connection.run(_DUE_IN)
    return min((max(one for one in row if one is not None) for row in rows), default=None)


def any_active(connection: Connection) -> bool:
    return bool(connection.run(_ANY)[0][0])


class TakeWebhooks(msgspec.Struct, frozen=True):
    worker: WorkerId
    token: Token
    count: int
    """How many webhooks."""
    at_once: int
    """How many deliveries of each."""
    lease_s: float


class Pending(msgspec.Struct, frozen=True):
    """A delivery that is due."""

    id: int
    kind: EventKind
    attempts: int
    """Before this one."""
    run_id: RunId | None
    document_id: DocumentId | None
    group_id: str | None
    completion: int | None
    outcome: str | None
    at: float

    @property
    def message(self) -> str:
        """The id of the event: the same for every attempt, and never used again, also not after a restore."""
        return f"{self.id}-{int(self.at * 1000)}"


class TakenWebhook(msgspec.Struct, frozen=True):
    """A webhook with the deliveries to send, under a lease."""

    to: Address
    token: Token
    failures: int
    """How many times in a row nothing was delivered."""
    pending: tuple[Pending, ...]


def _take(connection: Connection, requests: Sequence[TakeWebhooks]) -> list[list[TakenWebhook]]:
    answers = []
    for r in requests:
        rows = connection.run(_TAKE, worker=r.worker, token=r.token, count=r.count, lease_s=r.lease_s)
        taken = []
        for webhook, owner, url, secret, failures in sorted(rows):
            # One that failed is probed with a single delivery.
            count = 1 if failures else r.at_once
            pending = tuple(Pending(*row) for row in connection.run(_OLDEST, webhook=webhook, count=count))
            taken.append(TakenWebhook(Address(webhook, Owner(owner), url, secret), r.token, failures, pending))
        answers.append(taken)
    return answers


class Sent(msgspec.Struct, frozen=True):
    """What came of one attempt."""

    id: int
    error: str | None
    """None: it was delivered."""
    answer_status: int | None
    answer: str | None
    retry_in: float


class Settlement(msgspec.Struct, frozen=True):
    """What came of the deliveries of a webhook that was taken."""

    webhook: str
    owner: Owner
    token: Token
    sent: tuple[Sent, ...]
    """None of them: it is given back."""
    hold_s: float | None = None
    """If nothing was delivered: how long the webhook is left alone."""
    gone: str | None = None
    """Why nothing must be sent to it any more."""


_FREE = Statement("UPDATE webhooks SET token = NULL, lease_until = NULL WHERE id = :id AND token = :token RETURNING id")
_FAILING = Statement(
    "UPDATE webhooks SET failures = failures + 1, failing_since = coalesce(failing_since, {now}), "
    "held_until = {now} + :hold_s WHERE id = :id RETURNING failing_since <= {now} - :long_s"
)
_WORKING = Statement("UPDATE webhooks SET failures = 0, failing_since = NULL, held_until = NULL WHERE id = :id")
_DELIVERED = Statement(
    "UPDATE webhook_deliveries SET status = 'DELIVERED', attempts = attempts + 1, error = NULL, "
    "answer_status = r.answer_status, answer = r.answer, finished_at = {now} FROM {rows} "
    "WHERE {webhook_deliveries.id = r.delivery}",
    rows="delivery bigint, answer_status int, answer text",
)
_FAILED = Statement(
    "UPDATE webhook_deliveries SET attempts = attempts + 1, error = r.said, answer_status = r.answer_status, "
    "answer = r.answer, not_before = {now} + r.delay, "
    "status = CASE WHEN webhook_deliveries.since <= {now} - :long_s THEN 'FAILED' ELSE webhook_deliveries.status END, "
    "finished_at = CASE WHEN webhook_deliveries.since <= {now} - :long_s THEN {now} END "
    "FROM {rows} WHERE {webhook_deliveries.id = r.delivery} AND webhook_deliveries.status = 'PENDING'",
    rows="delivery bigint, said text, answer_status int, answer text, delay float8",
)
_DISABLE = Statement("UPDATE webhooks SET state = 'DISABLED', reason = :reason WHERE id = :id AND state = 'ACTIVE'")


def _settle(connection: Connection, settlements: Sequence[Settlement]) -> list[bool]:
    """Whether the lease was still valid. If not, others have sent the same deliveries, and say what came of them."""
    return [_settle_one(connection, settlement) for settlement in settlements]


def _settle_one(connection: Connection, s: Settlement) -> bool:
    if not connection.run(_FREE, id=s.webhook, token=s.token):
        return False
    done = [(one.id, one.answer_status, one.answer) for one in s.sent if one.error is None]
    failed = [
        (one.id, one.error, one.answer_status, one.answer, one.retry_in) for one in s.sent if one.error is not None
    ]
    if done:
        connection.run(_DELIVERED, done)
        connection.run(_WORKING, id=s.webhook)
    if failed:
        connection.run(_FAILED, failed, long_s=LONG_S)
    reason = s.gone
    if failed and not done:
        [(too_long,)] = connection.run(_FAILING, id=s.webhook, hold_s=s.hold_s or 0.0, long_s=LONG_S)
        if too_long and reason is None:
            reason = f"no delivery succeeded for {LONG_S / 86_400:.0f} days. The last error: {failed[0][1]}"
    if reason is not None:
        connection.run(_DISABLE, id=s.webhook, reason=reason)
        webhooks.end_pending(s.owner, connection, s.webhook, reason)
        said = audit_log.Change(s.owner, "penstock", "webhook.disable", s.webhook, {"reason": reason})
        audit_log.record(connection, [said])
    return True


_FREE_OF_DEAD = Statement(
    "UPDATE webhooks SET token = NULL, lease_until = NULL WHERE token IS NOT NULL "
    "AND worker_id IN (SELECT r.id FROM {rows})",
    rows="id text",
)


def free(connection: Connection, workers: Sequence[str]) -> None:
    """Give back the webhooks of dead workers."""
    if workers:
        connection.run(_FREE_OF_DEAD, [(worker,) for worker in workers])


# Events as webhooks receive them.

_OF_RUNS = Statement(
    "SELECT d.id, x.snapshot, g.pages, g.chunks, l.reason, l.error, l.page, c.collection, c.name, c.source, "
    "x.group_id, coalesce(f.batch, c.batch) FROM {rows} JOIN webhook_deliveries d ON d.id = r.id "
    "LEFT JOIN runs x ON x.id = d.run_id LEFT JOIN documents c ON c.id = d.document_id "
    "LEFT JOIN generations g ON g.id = x.generation_id LEFT JOIN groups f ON f.id = x.group_id "
    "LEFT JOIN dead_letters l ON l.id = (SELECT max(m.id) FROM dead_letters m WHERE m.run_id = d.run_id "
    "AND m.event_id IS NULL)",
    rows="id bigint",
)
_OF_GROUPS = Statement(
    "SELECT d.id, g.workflow, g.collection, g.batch FROM {rows} JOIN webhook_deliveries d ON d.id = r.id "
    "JOIN groups g ON g.id = d.group_id",
    rows="id bigint",
)
_WORKFLOW = Statement("SELECT s.hash, s.body FROM {rows} JOIN snapshots s ON s.hash = r.hash", rows="hash text")


def describe(connection: Connection, taken: Sequence[TakenWebhook]) -> dict[int, LifecycleEvent]:
    """The event of each delivery. What was removed from the ledger meanwhile is left out."""
    all_pending = [(one, webhook.to.owner) for webhook in taken for one in webhook.pending]
    of_runs = [(one.id,) for one, _ in all_pending if one.run_id is not None]
    of_groups = [(one.id,) for one, _ in all_pending if one.group_id is not None]
    runs = {row[0]: row[1:] for row in connection.run(_OF_RUNS, of_runs)} if of_runs else {}
    places = {row[0]: row[1:] for row in connection.run(_OF_GROUPS, of_groups)} if of_groups else {}
    counts = groups.counts(connection, sorted({one.group_id for one, _ in all_pending if one.group_id is not None}))
    hashes = sorted({row[0] for row in runs.values() if row[0] is not None})
    bodies = connection.run(_WORKFLOW, [(one,) for one in hashes]) if hashes else []
    workflows = {digest: json.loads(body)["id"] for digest, body in bodies}
    events = {}
    for one, owner in all_pending:
        if one.group_id is not None:
            events[one.id] = _of_group(one, owner, places.get(one.id), counts[one.group_id])
        else:
            events[one.id] = _of_run(one, owner, runs[one.id], workflows)
    return events


def _of_run(one: Pending, owner: Owner, row: Row, workflows: dict[str, str]) -> LifecycleEvent:
    snapshot, pages, chunks, reason, error, page, collection, name, source, group, batch = row
    failed = one.kind == EventKind.ITEM_FAILED
    ended = one.kind == EventKind.ITEM_END and one.outcome != "CANCELLED"
    return LifecycleEvent(
        id=one.message,
        kind=one.kind,
        at=one.at,
        owner=owner,
        collection=collection or "",
        workflow=workflows.get(snapshot, ""),
        document_id=one.document_id,
        name=name,
        source=source,
        run_id=one.run_id,
        group_id=group,
        batch=batch,
        status=one.outcome,
        error=error if failed else None,
        meta={"reason": reason, "page": page} if failed else {"pages": pages, "chunks": chunks} if ended else {},
    )


def _of_group(one: Pending, owner: Owner, row: Row | None, counts: dict[str, int]) -> LifecycleEvent:
    workflow, collection, batch = row or ("", "", None)
    return LifecycleEvent(
        id=one.message,
        kind=one.kind,
        at=one.at,
        owner=owner,
        collection=collection,
        workflow=workflow,
        group_id=one.group_id,
        batch=batch,
        completion=one.completion,
        counts=counts,
    )


TAKE_WEBHOOKS = Verb("take_webhooks", _take)
SETTLE_WEBHOOK = Verb("settle_webhook", _settle)
