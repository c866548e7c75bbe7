"""Targets in an outage: a provider, a bucket, an index table. A row of `targets` is an open breaker.

`hold` opens or extends it, for all workers. After `held_until` one worker at a time may `probe` the target with one
step. `answered` (refusals.py) closes the breaker, and the waiting steps continue. A waiting step has status ERROR and
names the target in `waiting_on`. An index table is probed under its lock: `locks.paused_until` is its hold, and the
breaker closes when a group of steps that succeeded releases the lock (`_RELEASE` in locks.py). The same holds for every
target whose name begins with one of `LOCKED`, because it is the key of a lock.

These statements cross owners (I10)."""

from collections.abc import Sequence
from enum import StrEnum

import msgspec

from penstock.ledger.database.connection import Connection, Row
from penstock.ledger.database.statements import Statement
from penstock.ledger.database.writer import Verb
from penstock.ledger.engine import claims
from penstock.ledger.engine.refusals import Answered
from penstock.ledger.engine.resource_keys import FREED, GROUP_KEYS, hand_on, ready_steps
from penstock.ledger.engine.steps import STEP
from penstock.model.nouns import Owner, Step, StepId, Token, WorkerId

LOCKED = ("index:", GROUP_KEYS)
OWN = "own:"
"""The prefix for targets that users' steps name. The owner comes next."""
FIRST_S, LONGEST_S = 0.5, 60.0
TRIES = 3
"""Number of consecutive failures after which a call that has only steps waiting for the target ends."""
WAIT_S = 86_400.0
"""A waiting step is tried again after this time, even if its target has not answered."""
FORGET_S = 600.0
"""The row of a target is deleted if no step waits for it and its hold ended this long ago."""
UNTRIED_S = 3_600.0
"""A rate limit counts as new if the target was not tried for this long."""


class State(StrEnum):
    AWAY = "away"
    LIMITED = "limited"
    UNAUTHORIZED = "unauthorized"


class Failure(msgspec.Struct, frozen=True):
    """A failure of a target."""

    state: State
    error: str
    random: float
    retry_after: float | None = None
    setting: str | None = None
    """The setting that the user must change."""
    owner: Owner | None = None
    """The only owner who may read the error, if it comes from a custom step; None: all."""
    probe: Token | None = None
    """The token of the probe that failed."""


class Wait(msgspec.Struct, frozen=True):
    """A step that waits for a target. `failure`: the failure that the step met; None: the worker knew that the target
    is held."""

    step: Step
    name: str
    failure: Failure | None = None
    moved: bool = False
    """The step made progress before: its refusals are forgotten."""


class Hold(msgspec.Struct, frozen=True):
    """An open breaker."""

    name: str
    state: State
    error: str
    failures: int
    held_s: float
    """Seconds until it may be probed; negative: now."""
    age_s: float
    """Seconds since the outage began."""


class Waits(msgspec.Struct, frozen=True):
    took: bool
    hold: Hold | None
    """None: the target works again, and the step does not wait."""


class Pause(msgspec.Struct, frozen=True):
    """The holder of a table's lock releases it, because the table cannot be used."""

    key: str
    token: Token
    error: str
    random: float
    retry_after: float | None = None


class Probe(msgspec.Struct, frozen=True):
    """A worker's request to probe a target with one step of its queues."""

    name: str
    worker: WorkerId
    token: Token
    queues: tuple[str, ...]
    held: tuple[str, ...]
    """Queues in which every step needs the target. If no suitable step waits for the target, a PENDING step of these
    queues is used."""
    lease_s: float


class Probed(msgspec.Struct, frozen=True):
    hold: Hold | None
    """None: the target is no longer held."""
    claimed: claims.Claimed | None = None


def own(owner: Owner) -> str:
    """The prefix for the targets that an owner's steps name."""
    return f"{OWN}{owner}/"


def hold_s(failures: int, random: float, retry_after: float | None = None) -> float:
    """Seconds for which a target is held after a failure. `failures`: the number of consecutive failures before it. The
    time grows exponentially with full jitter above FIRST_S, and is never shorter than the target requested."""
    longest = min(LONGEST_S, FIRST_S * 2.0 ** min(failures, 20))
    seconds = FIRST_S + random * max(0.0, longest - FIRST_S)
    return seconds if retry_after is None else max(seconds, retry_after + random * FIRST_S)


_OPEN = Statement(
    "INSERT INTO targets (name, state, error, setting, owner, since, failures, held_until) "
    "VALUES (:name, :state, :error, :setting, :owner, {now}, 1, {now} + :seconds) "
    "ON CONFLICT (name) DO NOTHING RETURNING name"
)
_COLUMNS = "name, state, error, failures, held_until - {now}, {now} - since"
_LOOK = Statement(f"SELECT {_COLUMNS}, probe_token FROM targets WHERE name = :name {{hold}}")
_ALL = Statement(f"SELECT {_COLUMNS} FROM targets ORDER BY name")
_AGAIN = Statement(
    "UPDATE targets SET since = CASE WHEN state = :state THEN since ELSE {now} END, state = :state, error = :error, "
    "setting = :setting, owner = :owner, failures = failures + 1, held_until = {now} + :seconds, probe_token = NULL, "
    f"probe_step = NULL WHERE name = :name RETURNING {_COLUMNS}"
)
_PROLONG = Statement(
    "UPDATE targets SET held_until = {now} + :seconds WHERE name = :name AND held_until < {now} + :seconds "
    f"RETURNING {_COLUMNS}"
)


def _hold_of(row: Row) -> Hold:
    return Hold(row[0], State(row[1]), *row[2:6])


def _fail(connection: Connection, name: str, failure: Failure, *, probes: bool = False) -> Hold:
    """Open the breaker, or extend its hold. If many steps fail at once, only the first failure is counted; after that,
    only failures of probes. But every failure with `retry_after` can extend the hold. `probes`: treat this as the
    failure of a probe."""
    values: dict[str, object] = {"name": name, "state": failure.state.value, "error": failure.error}
    values |= {"setting": failure.setting, "owner": failure.owner}
    while True:
        seconds = hold_s(0, failure.random, failure.retry_after)
        if connection.run(_OPEN, seconds=seconds, **values):
            return Hold(name, failure.state, failure.error, 1, seconds, 0.0)
        found = connection.run(_LOOK, name=name)
        # Otherwise the breaker was closed in between.
        if found:
            break
    if probes or (failure.probe is not None and found[0][6] == failure.probe):
        seconds = hold_s(found[0][3], failure.random, failure.retry_after)
        return _hold_of(connection.run(_AGAIN, seconds=seconds, **values)[0])
    longer = connection.run(_PROLONG, name=name, seconds=failure.retry_after or 0.0) if failure.retry_after else []
    return _hold_of(longer[0] if longer else found[0])


_WAIT = Statement(
    "UPDATE steps SET status = CASE WHEN r.target IS NULL THEN 'PENDING' ELSE 'ERROR' END, lease_token = NULL, "
    "alone = 0, waiting_on = r.target, not_before = CASE WHEN r.target IS NULL THEN NULL ELSE {now} + :wait_s END, "
    "attempts = CASE WHEN attempts > 0 THEN attempts - 1 ELSE 0 END, error = r.why, "
    "refused = CASE WHEN r.moved = 1 THEN 0 ELSE refused END "
    "FROM {rows} WHERE {steps.id = r.step} AND steps.lease_token = r.token RETURNING id",
    rows="step bigint, token text, target text, why text, moved int",
)


def _hold(connection: Connection, waits: Sequence[Wait]) -> list[Waits]:
    """Let steps wait for their targets. The attempt is not counted."""
    holds: list[Hold | None] = []
    for wait in waits:
        if wait.failure is not None:
            holds.append(_fail(connection, wait.name, wait.failure))
        else:
            found = connection.run(_LOOK, name=wait.name)
            holds.append(_hold_of(found[0]) if found else None)
    rows = [
        (
            wait.step.lease.step_id,
            wait.step.lease.token,
            hold and hold.name,
            wait.failure and wait.failure.error,
            int(wait.moved),
        )
        for wait, hold in zip(waits, holds, strict=True)
    ]
    took = {StepId(row[0]) for row in connection.run(_WAIT, rows, wait_s=WAIT_S)}
    ready_steps(connection, [StepId(row[0]) for row in rows if row[2] is None and row[0] in took])
    return [Waits(wait.step.lease.step_id in took, hold) for wait, hold in zip(waits, holds, strict=True)]


_PAUSE = Statement(
    f"UPDATE locks SET {FREED}, paused_until = {{now}} + :seconds WHERE resource_key = :key AND token = :token "
    "RETURNING resource_key"
)
_REPAUSE = Statement("UPDATE locks SET paused_until = {now} + :seconds WHERE resource_key = :key")


def _pause(connection: Connection, pauses: Sequence[Pause]) -> list[Hold | None]:
    """Hold an index table and release its lock. Every holder of the lock counts as a probe. Returns None if the lock
    was lost."""
    answers: list[Hold | None] = []
    for pause in pauses:
        hold = None
        if connection.run(_PAUSE, key=pause.key, token=pause.token, seconds=LONGEST_S):
            failure = Failure(State.AWAY, pause.error, pause.random, pause.retry_after)
            hold = _fail(connection, pause.key, failure, probes=True)
            connection.run(_REPAUSE, key=pause.key, seconds=hold.held_s)
            hand_on(connection, pause.key)
        answers.append(hold)
    return answers


# A probe lasts as long as its step has the lease token of the probe.
_GRANT = Statement(
    "UPDATE targets SET probe_token = :token, probe_step = NULL WHERE name = :name AND held_until <= {now} "
    "AND (probe_token IS NULL OR NOT EXISTS (SELECT 1 FROM steps s WHERE s.id = targets.probe_step "
    "AND s.lease_token = targets.probe_token)) RETURNING name"
)
_GRANTED = Statement("UPDATE targets SET probe_step = :step WHERE name = :name AND probe_token = :token")
_UNGRANT = Statement(
    "UPDATE targets SET probe_token = NULL, probe_step = NULL, held_until = {now} + :seconds "
    "WHERE name = :name AND probe_token = :token RETURNING name"
)
# Nothing was tried: `held_until` stays, so that _FORGET can tell when the target was last tried.
_NOT_TRIED = Statement(
    "UPDATE targets SET probe_token = NULL, probe_step = NULL WHERE name = :name AND probe_token = :token"
)
_FORGET = Statement(
    "DELETE FROM targets WHERE name = :name AND held_until < {now} - :forget_s AND NOT EXISTS "
    "(SELECT 1 FROM steps s WHERE s.status = 'ERROR' AND s.waiting_on = :name)"
)
# Steps that have not failed themselves come first, then the step that waits longest. So a document for which alone the
# target fails is not used for every probe.
_PICK = Statement(
    "SELECT s.id, s.resource_key, s.error IS NULL AND s.refused = 0 FROM steps s "
    "JOIN {rows} ON coalesce(s.pool, s.kind) = r.queue WHERE s.status = 'ERROR' AND s.waiting_on = :name "
    "ORDER BY CASE WHEN s.error IS NULL AND s.refused = 0 THEN 0 ELSE 1 END, s.not_before LIMIT 1",
    rows="queue text",
)
_PICK_NEW = Statement(
    "SELECT id, resource_key, 1 FROM steps WHERE status = 'PENDING' AND resource_key IS NULL "
    "AND coalesce(pool, kind) = :queue ORDER BY priority DESC, rank LIMIT 1 {skip}"
)
_TAKE_KEY = Statement(
    "UPDATE locks SET token = :token, worker_id = :worker, purpose = 'step', lease_until = {now} + :lease_s "
    "WHERE resource_key = :key AND token IS NULL AND (wanted_until IS NULL OR wanted_until < {now}) "
    "AND (paused_until IS NULL OR paused_until < {now}) RETURNING resource_key"
)
_DUE = Statement(
    "UPDATE steps SET status = 'PENDING', waiting_on = NULL, not_before = NULL WHERE id = :step AND status = 'ERROR'"
)
_CLAIM = Statement(
    "UPDATE steps SET status = 'RUNNING', lease_token = :token, epoch = epoch + 1, attempts = attempts + 1, "
    "lease_until = {now} + :lease_s, worker_id = :worker, started_at = coalesce(started_at, {now}), "
    "waiting_on = NULL, timeout_at = NULL WHERE id = :step AND status = 'PENDING' "
    f"RETURNING {STEP}"
)


def _probe(connection: Connection, probes: Sequence[Probe]) -> list[Probed]:
    return [_probe_one(connection, probe) for probe in probes]


def _probe_one(connection: Connection, probe: Probe) -> Probed:
    claimed = None
    # Lock the row first: a statement that waits for the row lock would see the steps as they were before it waited.
    connection.run(_LOOK, name=probe.name)
    if connection.run(_GRANT, name=probe.name, token=probe.token):
        claimed = _claim_one(connection, probe)
        if claimed is not None:
            step = claimed.step.lease.step_id
            connection.run(_GRANTED, name=probe.name, token=probe.token, step=step)
        else:
            connection.run(_FORGET, name=probe.name, forget_s=FORGET_S)
            connection.run(_NOT_TRIED, name=probe.name, token=probe.token)
    found = connection.run(_LOOK, name=probe.name)
    return Probed(_hold_of(found[0]) if found else None, claimed)


def _claim_one(connection: Connection, probe: Probe) -> claims.Claimed | None:
    values = {"token": probe.token, "worker": probe.worker, "lease_s": probe.lease_s}
    picked = connection.run(_PICK, [(queue,) for queue in probe.queues], name=probe.name) if probe.queues else []
    if not picked or not picked[0][2]:
        new = (connection.run(_PICK_NEW, queue=queue) for queue in probe.held)
        picked = next(filter(None, new), picked)
    for step, key, _ in picked:
        if key is not None and not connection.run(_TAKE_KEY, key=key, **values):
            return None
        connection.run(_DUE, step=step)
        claimed = claims.begun(connection, connection.run(_CLAIM, step=step, **values))
        if claimed:
            return claimed[0]
    return None


def _end_probe(connection: Connection, answers: Sequence[Answered]) -> list[bool]:
    """End probes without a result. Others may probe the target after FIRST_S."""
    return [bool(connection.run(_UNGRANT, name=a.name, token=a.token, seconds=FIRST_S)) for a in answers]


# A rate-limited target has named a time, and is not tried before it.
_TRY_ALL = Statement("UPDATE targets SET held_until = 0 WHERE held_until > {now} AND state <> 'limited'")
_FROM_NOW_ON = Statement("UPDATE targets SET since = {now} WHERE state = 'limited' AND held_until < {now} - :untried_s")
_TRY_TABLES = Statement("UPDATE locks SET paused_until = 0 WHERE paused_until > {now}")


def _try_all(connection: Connection, items: Sequence[None]) -> list[list[Hold]]:
    connection.run(_TRY_ALL)
    connection.run(_FROM_NOW_ON, untried_s=UNTRIED_S)
    connection.run(_TRY_TABLES)
    holds = all_held(connection)
    return [holds for _ in items]


def all_held(connection: Connection) -> list[Hold]:
    return [_hold_of(row) for row in connection.run(_ALL)]


# Steps that wait for a lock are PENDING, and so are steps that workers do not claim because their queue is held.
_LASTING = "({}.failures >= :tries OR {}.held_until > {{now}} + :longest_s)"
_HELD_UP = Statement(
    f"SELECT o.name, o.error, o.setting, o.owner FROM targets o WHERE {_LASTING.format('o', 'o')} "
    "AND NOT EXISTS (SELECT 1 FROM steps s WHERE s.status IN ('PENDING', 'RUNNING', 'ERROR') "
    "AND NOT EXISTS (SELECT 1 FROM targets t "
    f"WHERE {_LASTING.format('t', 't')} AND (t.name = s.resource_key OR s.status = 'ERROR' AND t.name = s.waiting_on)) "
    "AND NOT (s.status = 'PENDING' AND coalesce(s.pool, s.kind) IN (SELECT r.queue FROM {rows}))) "
    "ORDER BY o.name LIMIT 1",
    rows="queue text",
)


def held_up(connection: Connection, queues: Sequence[str] = ()) -> str | None:
    """The error of a target, if all remaining steps wait for targets that failed TRIES times in a row or are held for
    longer than LONGEST_S; otherwise None. `queues`: queues in which every step needs a held target."""
    for name, error, setting, owner in connection.run(
        _HELD_UP, [(queue,) for queue in queues], tries=TRIES, longest_s=LONGEST_S
    ):
        # The error of a custom step is shown only to its owner.
        said = error.rstrip(".") if owner is None else f"{name} is away"
        return said if setting is None else f"{said}. Set {setting}"
    return None


HOLD = Verb("hold", _hold, of=lambda wait: wait.step.lease.step_id)
PAUSE = Verb("pause", _pause)
PROBE = Verb("probe", _probe)
END_PROBE = Verb("end_probe", _end_probe)
TRY_ALL = Verb("try_all", _try_all)
"""Allow probes of all targets now, except rate-limited ones. The counts of failures are kept, so that the next hold is
not shorter."""
