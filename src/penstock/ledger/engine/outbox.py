"""The outbox of lifecycle events (I8). An event is inserted in the transaction that causes it, if the workflow of its
run or group names a handler for it. Then it is delivered at least once to each handler.

These statements cross owners (I10)."""

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from penstock.ledger.database.connection import Connection, Row
from penstock.ledger.database.statements import Statement
from penstock.ledger.database.writer import Verb
from penstock.model.events import EventKind
from penstock.model.nouns import DocumentId, Handler, Owner, RunId, Step, Token, WorkerId

FAN_OUT = 500
"""Maximum number of events for which one transaction inserts deliveries."""


class _Snapshot(msgspec.Struct):
    lifecycle_events: dict[str, tuple[Handler, ...]] = {}


_handlers: dict[str, dict[str, tuple[Handler, ...]]] = {}
"""Handlers by workflow snapshot and event. Never invalidated, because a snapshot never changes."""
_BODIES = Statement("SELECT s.hash, s.body FROM {rows} JOIN snapshots s ON s.hash = r.hash", rows="hash text")


def _known(connection: Connection, snapshots: Iterable[str]) -> None:
    unknown = sorted({snapshot for snapshot in snapshots if snapshot not in _handlers})
    if unknown:
        for digest, body in connection.run(_BODIES, [(snapshot,) for snapshot in unknown]):
            learn(digest, body)


def learn(snapshot: str, body: str) -> None:
    if snapshot not in _handlers:
        told = msgspec.json.decode(body, type=_Snapshot).lifecycle_events
        _handlers[snapshot] = {event.upper(): handlers for event, handlers in told.items() if handlers}


def is_silent(snapshots: Iterable[str]) -> bool:
    """Whether these workflows certainly have no handlers, so that no outbox row is needed."""
    return all(_handlers.get(snapshot, True) == {} for snapshot in snapshots)


def has_handlers(snapshot: str, kind: EventKind) -> bool:
    """Whether a workflow snapshot has handlers for an event. The snapshot must have been loaded."""
    return kind in _handlers[snapshot]


class StepEvent(msgspec.Struct, frozen=True):
    """An event of a run or of one of its steps."""

    kind: EventKind
    step: Step
    status: str | None = None
    body: str = "{}"
    """JSON."""
    of_step: bool = True


_TELL = Statement(
    "INSERT INTO events (kind, owner, snapshot, run_id, document_id, step, step_kind, attempt, status, body, at) "
    "SELECT r.kind, r.owner, r.snapshot, r.run, r.document, r.step, r.step_kind, r.attempt, r.status, r.body, {now} "
    "FROM {rows} WHERE true",
    rows="kind text, owner text, snapshot text, run text, document text, step text, step_kind text, attempt int, "
    "status text, body text",
)


def add_events(connection: Connection, news: Iterable[StepEvent]) -> None:
    """Insert the events that have handlers into the outbox."""
    all_news = list(news)
    _known(connection, {n.step.snapshot for n in all_news})
    rows = [
        (
            n.kind,
            n.step.owner,
            n.step.snapshot,
            n.step.run_id,
            n.step.document_id,
            n.step.name if n.of_step else None,
            n.step.kind if n.of_step else None,
            n.step.attempts if n.of_step else 0,
            n.status,
            n.body,
        )
        for n in all_news
        if n.kind in _handlers.get(n.step.snapshot, {})
    ]
    if rows:
        connection.run(_TELL, rows)


def tell_cancelled(connection: Connection, runs: Sequence[Row]) -> None:
    """Insert the events of runs that were cancelled: (owner, snapshot, run, document) of each."""
    _known(connection, {row[1] for row in runs})
    rows = [
        (EventKind.ITEM_END, *row, None, None, 0, "CANCELLED", "{}")
        for row in runs
        if EventKind.ITEM_END in _handlers.get(row[1], {})
    ]
    if rows:
        connection.run(_TELL, rows)


_TELL_GROUP = Statement(
    "INSERT INTO events (kind, owner, snapshot, group_id, completion, at) "
    "SELECT :kind, r.owner, r.snapshot, r.id, r.completion, {now} FROM {rows} WHERE true "
    "ON CONFLICT (group_id, kind, completion) WHERE completion IS NOT NULL DO NOTHING",
    rows="owner text, snapshot text, id text, completion int",
)


def add_group_events(connection: Connection, kind: EventKind, groups: Sequence[tuple[str, str, str, int]]) -> None:
    """Insert the events of groups: (owner, snapshot, group, completion number) of each. An event that exists already
    for a group and completion is not inserted again."""
    if groups:
        connection.run(_TELL_GROUP, groups, kind=kind)


# Deliveries of events to handlers.


class Delivery(msgspec.Struct, frozen=True):
    """An event that is being delivered to one handler, with its lease."""

    event_id: int
    handler: int
    """Its position among the handlers of the event."""
    to: Handler
    attempts: int
    """Including this one."""
    token: Token
    kind: EventKind
    owner: Owner
    snapshot: str
    group_id: str | None
    completion: int | None
    run_id: RunId | None
    document_id: DocumentId | None
    step: str | None
    step_kind: str | None
    attempt: int
    status: str | None
    body: str
    at: float


class Take(msgspec.Struct, frozen=True):
    worker: WorkerId
    token: Token
    count: int
    margin_s: float
    """The lease is longer than the handler's timeout by this time."""


class Undelivered(msgspec.Struct, frozen=True):
    delivery: Delivery
    reason: str
    error: str
    traceback: str | None = None
    retry_in: float | None = None
    """Seconds until the next attempt; None: it ends as a dead letter."""
    given_back: bool = False
    """Whether the delivery was interrupted. Then the attempt does not count."""


_NEW = Statement("SELECT id, kind, owner, snapshot FROM events WHERE dispatched = 0 ORDER BY id LIMIT :count {skip}")
_DISPATCHED = Statement("UPDATE events SET dispatched = 1 WHERE id IN (SELECT r.id FROM {rows})", rows="id bigint")
_DELIVERY = Statement(
    "INSERT INTO deliveries (event_id, handler, name, owner, status, not_before) "
    "SELECT r.event, r.handler, r.name, r.owner, 'PENDING', {now} FROM {rows} WHERE true "
    "ON CONFLICT (event_id, handler) DO NOTHING",
    rows="event bigint, handler int, name text, owner text",
)


def _dispatch(connection: Connection, counts: Sequence[int]) -> list[int]:
    """Insert a delivery for each handler of new events. Returns the numbers of events."""
    answers = []
    for count in counts:
        new = connection.run(_NEW, count=count)
        _known(connection, {row[3] for row in new})
        rows = [
            (event, i, handler.name, owner)
            for event, kind, owner, snapshot in new
            for i, handler in enumerate(_handlers.get(snapshot, {}).get(kind, ()))
        ]
        if rows:
            connection.run(_DELIVERY, rows)
        if new:
            connection.run(_DISPATCHED, [(row[0],) for row in new])
        answers.append(len(new))
    return answers


# `not_before` is also the end of the lease: a delivery that was taken is due again after it.
_TAKE = Statement(
    "WITH picked AS MATERIALIZED (SELECT event_id, handler FROM deliveries WHERE status = 'PENDING' "
    "AND not_before <= (SELECT {now}) ORDER BY not_before LIMIT :count {skip}) "
    "UPDATE deliveries SET token = :token, worker_id = :worker, attempts = attempts + 1 "
    "WHERE (event_id, handler) IN (SELECT event_id, handler FROM picked) RETURNING event_id, handler, attempts"
)
_LEASE = Statement(
    "UPDATE deliveries SET not_before = {now} + r.seconds FROM {rows} "
    "WHERE deliveries.event_id = r.event AND deliveries.handler = r.place",
    rows="event bigint, place int, seconds float8",
)
_EVENTS = Statement(
    "SELECT e.id, e.kind, e.owner, e.snapshot, e.group_id, e.completion, e.run_id, e.document_id, e.step, "
    "e.step_kind, e.attempt, e.status, e.body, e.at FROM {rows} JOIN events e ON e.id = r.id",
    rows="id bigint",
)


def _take(connection: Connection, requests: Sequence[Take]) -> list[list[Delivery]]:
    answers = []
    for request in requests:
        taken = sorted(connection.run(_TAKE, token=request.token, worker=request.worker, count=request.count))
        found = connection.run(_EVENTS, [(event,) for event in sorted({row[0] for row in taken})]) if taken else []
        _known(connection, {row[3] for row in found})
        events = {row[0]: row[1:] for row in found}
        deliveries = []
        for event, place, attempts in taken:
            kind, owner, snapshot, *rest = events[event]
            to = _handlers[snapshot][kind][place]
            deliveries.append(
                Delivery(event, place, to, attempts, request.token, EventKind(kind), owner, snapshot, *rest)
            )
        if deliveries:
            connection.run(_LEASE, [(d.event_id, d.handler, d.to.timeout + request.margin_s) for d in deliveries])
        answers.append(deliveries)
    return answers


_DELIVERED = Statement(
    "UPDATE deliveries SET status = 'DELIVERED', token = NULL, error = NULL, finished_at = {now} FROM {rows} "
    "WHERE deliveries.event_id = r.event AND deliveries.handler = r.place AND deliveries.token = r.lease "
    "RETURNING event_id, handler",
    rows="event bigint, place int, lease text",
)
_AGAIN = Statement(
    "UPDATE deliveries SET token = NULL, error = r.said, not_before = {now} + r.delay, attempts = attempts - r.back "
    "FROM {rows} "
    "WHERE deliveries.event_id = r.event AND deliveries.handler = r.place AND deliveries.token = r.lease "
    "RETURNING event_id, handler",
    rows="event bigint, place int, lease text, said text, delay float8, back int",
)
_GIVE_UP = Statement(
    "UPDATE deliveries SET status = 'FAILED', token = NULL, error = r.said, finished_at = {now} FROM {rows} "
    "WHERE deliveries.event_id = r.event AND deliveries.handler = r.place AND deliveries.token = r.lease "
    "RETURNING event_id, handler",
    rows="event bigint, place int, lease text, said text",
)
_ADD_LETTERS = Statement(
    "INSERT INTO dead_letters (owner, event_id, handler, document_id, step, kind, reason, error, traceback, attempts, "
    "state, created_at) SELECT r.owner, r.event, r.place, r.document, r.name, r.kind, r.reason, r.said, r.trace, "
    "r.attempts, 'OPEN', {now} FROM {rows} WHERE true",
    rows="owner text, event bigint, place int, document text, name text, kind text, reason text, said text, "
    "trace text, attempts int",
)


def _delivered(connection: Connection, done: Sequence[Delivery]) -> list[bool]:
    took = {tuple(row) for row in connection.run(_DELIVERED, [(d.event_id, d.handler, d.token) for d in done])}
    return [(d.event_id, d.handler) in took for d in done]


def _undelivered(connection: Connection, failures: Sequence[Undelivered]) -> list[bool]:
    """Schedule the next attempt, or end the delivery with a dead letter. Returns whether the lease was still valid."""
    again = [f for f in failures if f.retry_in is not None]
    last = [f for f in failures if f.retry_in is None]
    took: set[tuple[Any, ...]] = set()
    if again:
        rows = [
            (f.delivery.event_id, f.delivery.handler, f.delivery.token, f.error, f.retry_in, int(f.given_back))
            for f in again
        ]
        took |= {tuple(row) for row in connection.run(_AGAIN, rows)}
    if last:
        rows_last = [(f.delivery.event_id, f.delivery.handler, f.delivery.token, f.error) for f in last]
        gone = {tuple(row) for row in connection.run(_GIVE_UP, rows_last)}
        letters = [
            (
                f.delivery.owner, f.delivery.event_id, f.delivery.handler, f.delivery.document_id, f.delivery.to.name,
                f.delivery.kind, f.reason, f.error, f.traceback, f.delivery.attempts,
            )
            for f in last
            if (f.delivery.event_id, f.delivery.handler) in gone
        ]  # fmt: skip
        if letters:
            connection.run(_ADD_LETTERS, letters)
        took |= gone
    return [(f.delivery.event_id, f.delivery.handler) in took for f in failures]


_FREE = Statement(
    "UPDATE deliveries SET token = NULL, not_before = {now} WHERE status = 'PENDING' AND token IS NOT NULL "
    "AND worker_id IN (SELECT r.id FROM {rows})",
    rows="id text",
)


def free(connection: Connection, workers: Sequence[str]) -> None:
    """Make the deliveries of dead workers due now."""
    if workers:
        connection.run(_FREE, [(worker,) for worker in workers])


_DUE_IN = Statement(
    "SELECT EXISTS (SELECT 1 FROM events WHERE dispatched = 0), "
    "(SELECT min(not_before) - {now} FROM deliveries WHERE status = 'PENDING')"
)


class Waiting(msgspec.Struct, frozen=True):
    new: bool
    """Whether there are events without deliveries."""
    due_in: float | None
    """Seconds until the next delivery is due; negative if it is overdue; None if there is none."""

    @property
    def due(self) -> bool:
        return self.new or (self.due_in is not None and self.due_in <= 0)


def waiting(connection: Connection) -> Waiting:
    new, due_in = connection.run(_DUE_IN)[0]
    return Waiting(bool(new), due_in)


DISPATCH = Verb("dispatch", _dispatch, notifies=any)
TAKE = Verb("take", _take)
DELIVERED = Verb("delivered", _delivered)
UNDELIVERED = Verb("undelivered", _undelivered)
