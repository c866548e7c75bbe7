"""Limits of targets that all workers share: calls in flight, requests and tokens a minute.

A worker leases slots for calls, and permits with the times at which requests may start, several at once. A row of
`limit_slots` holds the slots of one worker; they are free again when it gives them back, leaves, dies or does not renew
them. A row of `limits` holds the pace of one target (pacing.py).

These statements cross owners (I10)."""

from collections.abc import Sequence

import msgspec

from penstock.ledger.database.connection import Connection
from penstock.ledger.database.statements import Statement
from penstock.ledger.database.writer import Verb
from penstock.ledger.engine import pacing
from penstock.ledger.engine.pacing import Known, Pace
from penstock.model.nouns import WorkerId

TURN_S = 5.0
"""After this time a worker passes its only slot on, if another worker has none."""
WAITING_S = 3.0
"""A worker without a slot that does not ask again for this long no longer waits for one."""
PERMITS = 64
"""Most permits that are given at once."""


class Request(msgspec.Struct, frozen=True):
    """What a worker needs of a target now. The slots that it has beyond that are given back."""

    name: str
    worker: WorkerId
    known: Known
    in_use: int
    wanted: int
    """Slots that it could use, including those in use."""
    lease_s: float
    accepted: int = 0
    """Requests that the target has accepted since the last report."""
    permits: tuple[int, ...] = ()
    """The tokens of the requests that need a permit."""


class Grant(msgspec.Struct, frozen=True):
    slots: int
    """How many calls the worker may have in flight. If it has more, it starts none before some of them end."""
    wanted_elsewhere: bool
    """Another worker waits for slots: spare ones must be given back soon."""
    starts: list[float] | None
    """For the first requests, the seconds from now at which they may start; None: no permits are needed."""
    ready_s: float
    """When to ask for more permits."""
    held_s: float
    """The target must not be called before; permits given earlier are void."""


class Refusal(msgspec.Struct, frozen=True):
    """The target refused a request, because there were too many."""

    name: str
    known: Known
    random: float
    retry_after: float | None
    accepted: int = 0


class Stated(msgspec.Struct, frozen=True):
    """Limits that an answer of the target stated."""

    name: str
    requests_per_minute: float | None
    tokens_per_minute: float | None


_PACE = "next_at, tokens_at, held_until, learnt, ceiling, throttles, counted_from, counted, before_that"
_NEW = Statement("INSERT INTO limits (name) VALUES (:name) ON CONFLICT (name) DO NOTHING")
_LOOK = Statement(f"SELECT {{now}}, stated_requests, stated_tokens, {_PACE} FROM limits WHERE name = :name {{hold}}")
_KEEP = Statement(
    "UPDATE limits SET next_at = :next_at, tokens_at = :tokens_at, held_until = :held_until, learnt = :learnt, "
    "ceiling = :ceiling, throttles = :throttles, counted_from = :counted_from, counted = :counted, "
    "before_that = :before WHERE name = :name"
)
_STATE = Statement(
    "UPDATE limits SET stated_requests = coalesce(:requests, stated_requests), "
    "stated_tokens = coalesce(:tokens, stated_tokens) WHERE name = :name"
)
_STATED = Statement("SELECT stated_requests, stated_tokens FROM limits WHERE name = :name")
_LAPSED = Statement("DELETE FROM limit_slots WHERE name = :name AND lease_until < {now}")
_SLOTS = Statement("SELECT worker_id, slots, wanted, {now} - since FROM limit_slots WHERE name = :name")
_TAKE = Statement(
    "INSERT INTO limit_slots (name, worker_id, slots, wanted, since, lease_until) "
    "VALUES (:name, :worker, :slots, :wanted, {now}, {now} + :lease_s) ON CONFLICT (name, worker_id) DO UPDATE SET "
    "slots = excluded.slots, wanted = excluded.wanted, lease_until = excluded.lease_until, "
    "since = CASE WHEN (limit_slots.slots = 0 AND excluded.slots > 0) OR :turn = 1 THEN excluded.since "
    "ELSE limit_slots.since END"
)
_GIVE_BACK = Statement("DELETE FROM limit_slots WHERE name = :name AND worker_id = :worker")
FREE = Statement("DELETE FROM limit_slots WHERE worker_id IN (SELECT r.id FROM {rows})", rows="id text")
"""Frees the slots of workers that left or died."""


def _load(connection: Connection, name: str) -> tuple[float, float | None, float | None, Pace]:
    """The row of a target, locked: its time, the limits it stated, and its pace."""
    while True:
        if found := connection.run(_LOOK, name=name):
            now, requests, tokens, *pace = found[0]
            return now, requests, tokens, Pace(*pace)
        connection.run(_NEW, name=name)


def _store(connection: Connection, name: str, pace: Pace) -> None:
    connection.run(_KEEP, name=name, **msgspec.structs.asdict(pace))


def stated(connection: Connection, name: str) -> tuple[float | None, float | None]:
    """The requests and tokens a minute that the target stated."""
    rows = connection.run(_STATED, name=name)
    return (rows[0][0], rows[0][1]) if rows else (None, None)


def merged(known: Known, requests: float | None, tokens: float | None) -> Known:
    """A limit in the settings takes precedence over one that the target stated."""
    return Known(known.calls, known.requests_per_minute or requests, known.tokens_per_minute or tokens)


def _lease(connection: Connection, requests: Sequence[Request]) -> list[Grant]:
    return [_lease_one(connection, request) for request in requests]


def _lease_one(connection: Connection, request: Request) -> Grant:
    now, stated_requests, stated_tokens, pace = _load(connection, request.name)
    known = merged(request.known, stated_requests, stated_tokens)
    slots, elsewhere = _share(connection, request)
    before = msgspec.structs.replace(pace)
    pacing.count(pace, request.accepted, now)
    # No more than can start now, or started since the last request: what is not used in time is lost.
    most = min(PERMITS, max(slots - request.in_use, request.accepted + 1) if slots else 0)
    starts = pacing.permits(pace, known, now, list(request.permits[:most]))
    if pace != before:
        _store(connection, request.name, pace)
    return Grant(slots, elsewhere, starts, pacing.ready_in(pace, now), max(0.0, pace.held_until - now))


def _share(connection: Connection, request: Request) -> tuple[int, bool]:
    """Return how many slots the worker may use, and whether another one waits for some. A worker may have more than its
    share while no other worker wants them."""
    connection.run(_LAPSED, name=request.name)
    rows = {row[0]: row[1:] for row in connection.run(_SLOTS, name=request.name)}
    mine = rows.pop(request.worker, None)
    free = max(0, request.known.calls - sum(row[0] for row in rows.values()))
    fair = max(1, request.known.calls // (1 + sum(row[1] > 0 for row in rows.values())))
    short = [row for row in rows.values() if row[0] < min(row[1], fair)]
    since_s = mine[2] if mine is not None else 0.0
    # Workers without a slot come first, in the order in which they asked.
    earlier = sum(row[0] == 0 and row[2] > since_s for row in short)
    slots = min(request.wanted, max(free - earlier, min(request.in_use, free)))
    turn = False
    if short:
        slots = min(slots, fair)
        if slots == 1 and request.in_use and since_s > TURN_S and any(row[0] == 0 for row in short):
            slots, turn = 0, True
    held = max(slots, min(request.in_use, free))
    if held or request.wanted:
        connection.run(
            _TAKE, name=request.name, worker=request.worker, slots=held, wanted=request.wanted, turn=int(turn),
            lease_s=request.lease_s if held else min(request.lease_s, WAITING_S),
        )  # fmt: skip
    elif mine is not None:
        connection.run(_GIVE_BACK, name=request.name, worker=request.worker)
    return slots, bool(short)


def _refuse(connection: Connection, refusals: Sequence[Refusal]) -> list[float]:
    """Record refusals. Returns the seconds for which the target must not be called."""
    answers = []
    for refusal in refusals:
        now, requests, tokens, pace = _load(connection, refusal.name)
        pacing.count(pace, refusal.accepted, now)
        known = merged(refusal.known, requests, tokens)
        answers.append(pacing.refuse(pace, known, now, refusal.random, refusal.retry_after))
        _store(connection, refusal.name, pace)
    return answers


def _state(connection: Connection, stated: Sequence[Stated]) -> list[None]:
    for one in stated:
        _load(connection, one.name)
        connection.run(_STATE, name=one.name, requests=one.requests_per_minute, tokens=one.tokens_per_minute)
    return [None for _ in stated]


def free(connection: Connection, workers: Sequence[WorkerId]) -> None:
    if workers:
        connection.run(FREE, [(worker,) for worker in workers])


LEASE = Verb("lease_limit", _lease)
REFUSE = Verb("refuse_limit", _refuse)
STATE = Verb("state_limit", _state)
