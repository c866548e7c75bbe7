"""Bulk actions: one verb on many documents, which were chosen when the action began. What was done to a document and
that it was done are one transaction, so an action that is interrupted acts on no document twice."""

from collections.abc import Sequence
from typing import Any

import msgspec

from penstock.ledger.database.connection import Connection
from penstock.ledger.database.statements import Statement
from penstock.ledger.database.writer import Verb
from penstock.model.nouns import DocumentId, Owner

CHOOSING, WORKING, DONE, CANCELLED = "CHOOSING", "WORKING", "DONE", "CANCELLED"


class Action(msgspec.Struct, frozen=True):
    id: str
    owner: Owner
    verb: str
    state: str
    request: str
    """What it was asked for, as JSON."""
    place: str
    """Documents with a smaller id are still to be looked at."""
    total: int
    """The number of chosen documents."""
    changed: int
    unchanged: int
    failed: int
    error: str | None
    created_at: float
    finished_at: float | None


_COLUMNS = "id, owner, verb, state, request, place, total, changed, unchanged, failed, error, created_at, finished_at"


class Start(msgspec.Struct, frozen=True):
    id: str
    owner: Owner
    verb: str
    request: str
    ids: tuple[str, ...] | None
    """The documents, if they are named. None: they are chosen by a filter."""


_START = Statement(
    "INSERT INTO actions (id, owner, verb, state, request, place, total, lease_until, created_at) "
    f"VALUES (:id, :owner, :verb, :state, :request, :id, :total, 0, {{now}}) RETURNING {_COLUMNS}"
)
_ITEM = Statement(
    "INSERT INTO action_items (action_id, ordinal, item, state) SELECT :action, r.ordinal, r.item, 'WAITING' "
    "FROM {rows} WHERE true",
    rows="ordinal bigint, item text",
)


def _start(connection: Connection, requests: Sequence[Start]) -> list[Action]:
    answers = []
    for r in requests:
        ids = r.ids or ()
        given = {"id": r.id, "owner": r.owner, "verb": r.verb, "request": r.request, "total": len(ids)}
        rows = connection.run(_START, state=CHOOSING if r.ids is None else WORKING, **given)
        if ids:
            connection.run(_ITEM, list(enumerate(ids)), action=r.id)
        answers.append(Action(*rows[0]))
    return answers


_GET = Statement(f"SELECT {_COLUMNS} FROM actions WHERE owner = :owner AND id = :id")
_NEWEST = Statement(f"SELECT {_COLUMNS} FROM actions WHERE owner = :owner ORDER BY id DESC LIMIT :count")
_FAILURES = Statement(
    "SELECT i.item, i.error FROM actions a JOIN action_items i ON i.action_id = a.id AND i.state = 'FAILED' "
    "WHERE a.owner = :owner AND a.id = :id ORDER BY i.ordinal LIMIT :count"
)
_WAITING = Statement(
    "SELECT i.ordinal, i.item FROM actions a JOIN action_items i ON i.action_id = a.id AND i.state = 'WAITING' "
    "WHERE a.owner = :owner AND a.id = :id ORDER BY i.ordinal LIMIT :count"
)


def get(owner: Owner, connection: Connection, action: str) -> Action | None:
    rows = connection.run(_GET, owner=owner, id=action)
    return Action(*rows[0]) if rows else None


def newest(owner: Owner, connection: Connection, count: int) -> list[Action]:
    return [Action(*row) for row in connection.run(_NEWEST, owner=owner, count=count)]


def failures(owner: Owner, connection: Connection, action: str, count: int) -> list[tuple[str, str]]:
    """Documents on which the verb failed, and why."""
    return [(row[0], row[1]) for row in connection.run(_FAILURES, owner=owner, id=action, count=count)]


def waiting(owner: Owner, connection: Connection, action: str, count: int) -> list[tuple[int, DocumentId]]:
    """The next chosen documents."""
    rows = connection.run(_WAITING, owner=owner, id=action, count=count)
    return [(row[0], DocumentId(row[1])) for row in rows]


_IS_WAITING = Statement(
    "SELECT 1 FROM actions WHERE state IN ('CHOOSING', 'WORKING') AND (token IS NULL OR lease_until < {now}) LIMIT 1"
)


def is_waiting(connection: Connection) -> bool:
    """Whether there is an action, of any owner, that nobody works on."""
    return bool(connection.run(_IS_WAITING))


class Take(msgspec.Struct, frozen=True):
    token: str
    lease_s: float


_TAKE = Statement(
    "UPDATE actions SET token = :token, lease_until = {now} + :lease WHERE id = (SELECT a.id FROM actions a "
    "WHERE a.state IN ('CHOOSING', 'WORKING') AND (a.token IS NULL OR a.lease_until < {now}) "
    f"ORDER BY a.id LIMIT 1 {{skip}}) RETURNING {_COLUMNS}"
)
_LEASE = Statement(
    "UPDATE actions SET lease_until = {now} + :lease WHERE id = :id AND token = :token "
    f"AND state IN ('CHOOSING', 'WORKING') RETURNING {_COLUMNS}"
)


def _take(connection: Connection, requests: Sequence[Take]) -> list[Action | None]:
    """An action of any owner that nobody works on."""
    found = [connection.run(_TAKE, token=r.token, lease=r.lease_s) for r in requests]
    return [Action(*rows[0]) if rows else None for rows in found]


class Held(msgspec.Struct, frozen=True):
    """An action that this process works on."""

    id: str
    token: str
    lease_s: float


class Choice(msgspec.Struct, frozen=True):
    held: Held
    ids: tuple[str, ...]
    """In the order in which they were found."""
    over: bool
    """There are no more."""


_CHOSEN = Statement(
    "UPDATE actions SET total = total + :count, place = coalesce(:place, place), "
    "state = CASE WHEN :over = 1 THEN 'WORKING' ELSE state END WHERE id = :id"
)


def _choose(connection: Connection, requests: Sequence[Choice]) -> list[bool]:
    """False: the lease was lost, or the action cancelled."""
    answers = []
    for r in requests:
        rows = connection.run(_LEASE, id=r.held.id, token=r.held.token, lease=r.held.lease_s)
        if rows:
            first = Action(*rows[0]).total
            connection.run(_ITEM, [(first + i, item) for i, item in enumerate(r.ids)], action=r.held.id)
            last = r.ids[-1] if r.ids else None
            connection.run(_CHOSEN, id=r.held.id, count=len(r.ids), place=last, over=int(r.over))
        answers.append(bool(rows))
    return answers


class Act(msgspec.Struct, frozen=True):
    """A write on documents of an action, or only what became of them."""

    held: Held
    items: tuple[tuple[int, str], ...]
    """The documents of the action that the write is about, with their ordinals."""
    verb: Any = None
    """A verb whose result is the documents that it changed. None: nothing is written."""
    item: Any = None
    error: str | None = None
    """Why the verb failed on them."""


_MARK = Statement(
    "UPDATE action_items SET state = r.status, error = :error FROM {rows} WHERE action_items.action_id = :action "
    "AND action_items.ordinal = r.ordinal AND action_items.state = 'WAITING' RETURNING action_items.ordinal",
    rows="ordinal bigint, status text",
)
_COUNT = Statement(
    "UPDATE actions SET changed = changed + :changed, unchanged = unchanged + :unchanged, failed = failed + :failed "
    "WHERE id = :id"
)


def _act(connection: Connection, requests: Sequence[Act]) -> list[Any]:
    """The result of the verb; None: the lease was lost, or the action cancelled, and nothing was done."""
    answers: list[Any] = []
    for r in requests:
        if not connection.run(_LEASE, id=r.held.id, token=r.held.token, lease=r.held.lease_s):
            answers.append(None)
            continue
        done = set() if r.verb is None else r.verb.function(connection, [r.item])[0]
        states = {i: "FAILED" if r.error is not None else "CHANGED" if d in done else "UNCHANGED" for i, d in r.items}
        if r.items:
            connection.run(_MARK, list(states.items()), action=r.held.id, error=r.error)
            found = list(states.values())
            numbers = {name: found.count(name.upper()) for name in ("changed", "unchanged", "failed")}
            connection.run(_COUNT, id=r.held.id, **numbers)
        answers.append(done)
    return answers


_END = Statement(
    "UPDATE actions SET state = 'DONE', finished_at = {now}, token = NULL WHERE id = :id AND token = :token "
    "AND state = 'WORKING' RETURNING id"
)
_CANCEL = Statement(
    "UPDATE actions SET state = 'CANCELLED', finished_at = {now}, token = NULL WHERE owner = :owner AND id = :id "
    "AND state IN ('CHOOSING', 'WORKING') RETURNING id"
)
_LET_GO = Statement("UPDATE actions SET token = NULL WHERE id = :id AND token = :token")


def _end(connection: Connection, requests: Sequence[Held]) -> list[bool]:
    return [bool(connection.run(_END, id=r.id, token=r.token)) for r in requests]


def _let_go(connection: Connection, requests: Sequence[Held]) -> list[None]:
    for r in requests:
        connection.run(_LET_GO, id=r.id, token=r.token)
    return [None for _ in requests]


def _cancel(connection: Connection, requests: Sequence[tuple[Owner, str]]) -> list[bool]:
    return [bool(connection.run(_CANCEL, owner=owner, id=action)) for owner, action in requests]


START_ACTION = Verb("start_action", _start)
TAKE_ACTION = Verb("take_action", _take)
CHOOSE = Verb("choose", _choose)
ACT = Verb("act", _act, notifies=any, counts=True)
END_ACTION = Verb("end_action", _end)
LET_ACTION_GO = Verb("let_action_go", _let_go)
CANCEL_ACTION = Verb("cancel_action", _cancel)
