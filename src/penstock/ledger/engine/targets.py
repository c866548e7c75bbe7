"""Targets that do not work: a provider, a bucket, an index table. A row of `targets` is an open breaker.

`hold` opens or prolongs it, for all workers. After `held_until` one worker at a time may `probe` it with one step;
`answered` closes it, and the steps that waited go on. A waiting step has status ERROR and names the target in
`waiting_on`. An index table is probed under its lock, so `locks.paused_until` is its hold, and the release of the lock
by a group of steps that worked closes it (`_RELEASE` in locks.py). The names of these begin with `TABLES`.

These statements are the engine's own: they cross owners (I10)."""

from collections.abc import Sequence
from enum import StrEnum

import msgspec

from penstock.ledger.database.connection import Connection, Row
from penstock.ledger.database.statements import Statement
from penstock.ledger.database.writer import Verb
from penstock.ledger.engine import claims
from penstock.ledger.engine.resource_keys import FREED, hand_on, ready_steps
from penstock.ledger.engine.steps import STEP
from penstock.model.nouns import Owner, Step, StepId, Token, WorkerId

TABLES = "index:"
FIRST_S, LONGEST_S = 0.5, 60.0
TRIES = 3
"""Failures in a row after which a call that wants to end does not wait for the target any more."""
WAIT_S = 86_400.0
"""A waiting step is tried again after this, even if nobody says that its target answered."""
AGAIN_S = 10.0
"""Until a step is tried again for which alone its target did not work: the target answered the next one."""
FORGET_S = 600.0
"""A target that no step waits for, and that nobody has tried for so long, is forgotten."""


class State(StrEnum):
    AWAY = "away"
    LIMITED = "limited"
    UNAUTHORIZED = "unauthorized"


class Failure(msgspec.Struct, frozen=True):
    """A target did not work."""

    state: State
    error: str
    random: float
    retry_after: float | None = None
    setting: str | None = None
    """What a person has to change."""
    owner: Owner | None = None
    """Who alone may read the error, if it comes from a step of the owner's own."""
    probe: Token | None = None
    """Of the probe that found it out."""


class Wait(msgspec.Struct, frozen=True):
    """A step that waits for a target. With `failure` it has met it itself; else the worker knew before."""

    step: Step
    name: str
    failure: Failure | None = None


class Hold(msgspec.Struct, frozen=True):
    """An open breaker."""

    name: str
    state: State
    error: str
    failures: int
    held_s: float
    """Seconds until it may be probed; less than 0: now."""
    age_s: float
    """Seconds since it began."""


class Waits(msgspec.Struct, frozen=True):
    took: bool
    hold: Hold | None
    """None: the target answered meanwhile, and the step waits for nothing."""


class Pause(msgspec.Struct, frozen=True):
    """The holder of a table's lock gives it back, because the table cannot be used."""

    key: str
    token: Token
    error: str
    random: float
    retry_after: float | None = None


class Probe(msgspec.Struct, frozen=True):
    """A worker wants to try a target with one step of the queues that it works on."""

    name: str
    worker: WorkerId
    token: Token
    queues: tuple[str, ...]
    held: tuple[str, ...]
    """Queues of which every step needs the target: if no step waits for it, one that has not begun will do."""
    lease_s: float


class Probed(msgspec.Struct, frozen=True):
    hold: Hold | None
    """None: the target is not held any more."""
    claimed: claims.Claimed | None = None


class Answered(msgspec.Struct, frozen=True):
    """The probe with this token has come to an end."""

    name: str
    token: Token


def hold_s(failures: int, random: float, retry_after: float | None = None) -> float:
    """How long a target is left alone, after so many failures in a row before this one. Exponential with full jitter
    above the first wait; never shorter than what the target asked for."""
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
    """Opens the breaker. Of many steps that fail at once the first counts, later only what a probe finds; but all
    obey what the target asks for."""
    values: dict[str, object] = {"name": name, "state": failure.state.value, "error": failure.error}
    values |= {"setting": failure.setting, "owner": failure.owner}
    while True:
        seconds = hold_s(0, failure.random, failure.retry_after)
        if connection.run(_OPEN, seconds=seconds, **values):
            return Hold(name, failure.state, failure.error, 1, seconds, 0.0)
        found = connection.run(_LOOK, name=name)
        # Else somebody has closed it in between.
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
    "attempts = CASE WHEN attempts > 0 THEN attempts - 1 ELSE 0 END, error = coalesce(r.why, steps.error) "
    "FROM {rows} WHERE {steps.id = r.step} AND steps.lease_token = r.token RETURNING id",
    rows="step bigint, token text, target text, why text",
)


def _hold(connection: Connection, waits: Sequence[Wait]) -> list[Waits]:
    """Nobody is to blame: the attempt is given back, and nothing is counted."""
    holds: list[Hold | None] = []
    for wait in waits:
        if wait.failure is not None:
            holds.append(_fail(connection, wait.name, wait.failure))
        else:
            found = connection.run(_LOOK, name=wait.name)
            holds.append(_hold_of(found[0]) if found else None)
    rows = [
        (wait.step.lease.step_id, wait.step.lease.token, hold and hold.name, wait.failure and wait.failure.error)
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
    """The same for what is behind a lock: whoever holds that is the one who probes. None: it was not ours any more."""
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


# A probe lasts for as long as its step is leased under its token.
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
_FORGET = Statement(
    "DELETE FROM targets WHERE name = :name AND held_until < {now} - :forget_s AND NOT EXISTS "
    "(SELECT 1 FROM steps s WHERE s.status = 'ERROR' AND s.waiting_on = :name)"
)
# One that has not failed itself goes first, then the one that waits longest: a document for which alone the target
# does not work must not be asked about it again and again.
_PICK = Statement(
    "SELECT s.id, s.resource_key, s.error IS NULL FROM steps s JOIN {rows} ON coalesce(s.pool, s.kind) = r.queue "
    "WHERE s.status = 'ERROR' AND s.waiting_on = :name "
    "ORDER BY CASE WHEN s.error IS NULL THEN 0 ELSE 1 END, s.not_before LIMIT 1",
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
    # First hold the row: a statement that waits for it would look at the steps as they were before it waited.
    connection.run(_LOOK, name=probe.name)
    if connection.run(_GRANT, name=probe.name, token=probe.token):
        claimed = _claim_one(connection, probe)
        if claimed is not None:
            step = claimed.step.lease.step_id
            connection.run(_GRANTED, name=probe.name, token=probe.token, step=step)
        else:
            connection.run(_FORGET, name=probe.name, forget_s=FORGET_S)
            connection.run(_UNGRANT, name=probe.name, token=probe.token, seconds=0.0)
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


_CLOSE = Statement(
    "DELETE FROM targets WHERE name = :name AND probe_token = :token "
    "RETURNING CASE WHEN state = 'away' AND failures = 1 THEN 1 ELSE 0 END"
)
_GO_ON = Statement(
    "UPDATE steps SET status = 'PENDING', waiting_on = NULL, not_before = NULL, error = NULL "
    "WHERE status = 'ERROR' AND waiting_on = :name RETURNING id"
)
_LATER = Statement(
    "UPDATE steps SET waiting_on = NULL, not_before = {now} + :seconds "
    "WHERE status = 'ERROR' AND waiting_on = :name AND error IS NOT NULL"
)


def _answered(connection: Connection, answers: Sequence[Answered]) -> list[int | None]:
    """How many steps go on now; None: the probe was not ours any more."""
    counts: list[int | None] = []
    for answer in answers:
        closed = connection.run(_CLOSE, name=answer.name, token=answer.token)
        if not closed:
            counts.append(None)
            continue
        if closed[0][0]:
            # The first probe, with another step, was answered: those that failed may be the reason themselves.
            connection.run(_LATER, name=answer.name, seconds=AGAIN_S)
        going = [StepId(row[0]) for row in connection.run(_GO_ON, name=answer.name)]
        ready_steps(connection, going)
        counts.append(len(going))
    return counts


def _end_probe(connection: Connection, answers: Sequence[Answered]) -> list[bool]:
    """It has found out nothing: others may try, but not in a storm."""
    return [bool(connection.run(_UNGRANT, name=a.name, token=a.token, seconds=FIRST_S)) for a in answers]


# A target that has told us when to come back is not asked before.
_TRY_ALL = Statement("UPDATE targets SET held_until = 0 WHERE held_until > {now} AND state <> 'limited'")
_TRY_TABLES = Statement("UPDATE locks SET paused_until = 0 WHERE paused_until > {now}")


def _try_all(connection: Connection, items: Sequence[None]) -> list[list[Hold]]:
    connection.run(_TRY_ALL)
    connection.run(_TRY_TABLES)
    holds = all_held(connection)
    return [holds for _ in items]


def all_held(connection: Connection) -> list[Hold]:
    return [_hold_of(row) for row in connection.run(_ALL)]


# What is behind a lock waits as PENDING, and so does what a worker does not claim because its queue is held.
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
    """If all that is left to do waits for targets that failed again and again, or that asked for a long wait: what one
    of them said. `queues`: those of which every step needs a target that is held."""
    for name, error, setting, owner in connection.run(
        _HELD_UP, [(queue,) for queue in queues], tries=TRIES, longest_s=LONGEST_S
    ):
        # What a step of an owner's own has said is not for all.
        said = error.rstrip(".") if owner is None else f"{name} is away"
        return said if setting is None else f"{said}. Set {setting}"
    return None


HOLD = Verb("hold", _hold, of=lambda wait: wait.step.lease.step_id)
PAUSE = Verb("pause", _pause)
PROBE = Verb("probe", _probe)
ANSWERED = Verb("answered", _answered, notifies=any)
END_PROBE = Verb("end_probe", _end_probe)
TRY_ALL = Verb("try_all", _try_all)
"""Try all of it again now. It goes on failing where it left off: the next hold is no shorter."""
