"""Leases, from heartbeat to expiry: heartbeat, go_alone, reap, due, leave.

Every write of a step is gated on its lease token (I3). These statements cross owners
(I10)."""

from collections.abc import Sequence

import msgspec

from penstock.ledger.database.connection import Connection, Row
from penstock.ledger.database.statements import Statement
from penstock.ledger.database.writer import Verb
from penstock.ledger.engine import groups, limits, outbox, webhook_sending
from penstock.ledger.engine.failures import StepFailure, fail_runs
from penstock.ledger.engine.resource_keys import FREED, ready_steps
from penstock.ledger.engine.steps import STEP, step_of
from penstock.model.nouns import Lease, StepId, Token, WorkerId

REAP_BATCH = 1000
SUSPECT = 2
"""Crashes without progress after which a step runs alone."""
SLOT = "slot"
"""`waiting_on` of a step that has not begun because its worker has no free slot."""
UNBEGUN = 20
"""Up to so many claims without progress, a step that had not begun when its worker died is not a suspect."""


class StepSignal(msgspec.Struct, frozen=True):
    """What is new about a step that its worker holds."""

    step: StepId
    waiting_on: str | None
    moved: bool
    """It made progress."""
    timeout_s: float | None = None
    """Seconds until the step is reaped; None: unchanged."""


class Beat(msgspec.Struct, frozen=True):
    worker: WorkerId
    leases: tuple[Lease, ...]
    locks: tuple[tuple[str, Token], ...]
    signs: tuple[StepSignal, ...]
    """For those leases that have news."""
    lease_s: float


class Reap(msgspec.Struct, frozen=True):
    held: frozenset[StepId]
    """Steps that the reaper itself runs: it never reaps those."""
    dead: tuple[WorkerId, ...]
    """Workers known to be dead, whatever their leases say."""
    crashes: int


class Reaped(msgspec.Struct, frozen=True):
    reset: tuple[str, ...]
    """Kinds of the steps that are PENDING again."""
    failed: tuple[str, ...]
    """Kinds of the steps that failed because they crashed their worker too often."""
    workers: int
    locks: int

    @property
    def steps(self) -> int:
        return len(self.reset) + len(self.failed)


# A heartbeat does not wait for row locks of steps: with a writer that locks steps in another order it would deadlock.
_AT_REST = Statement("SELECT id FROM steps WHERE id IN (SELECT r.step FROM {rows}) {skip}", rows="step bigint")
_STILL_OURS = Statement(
    "SELECT s.id FROM {rows} JOIN steps s ON s.id = r.step AND s.lease_token = r.token", rows="step bigint, token text"
)
_BEAT = Statement(
    "UPDATE steps SET lease_until = {now} + :lease_s FROM {rows} "
    "WHERE {steps.id = r.step} AND steps.lease_token = r.token RETURNING id",
    rows="step bigint, token text",
)
# The same for steps that have news.
_SIGN = Statement(
    "UPDATE steps SET lease_until = {now} + :lease_s, waiting_on = r.waiting, "
    "progress_at = CASE WHEN r.moved = 1 THEN {now} ELSE progress_at END, "
    "timeout_at = CASE WHEN r.timeout IS NULL THEN timeout_at ELSE {now} + r.timeout END FROM {rows} "
    "WHERE {steps.id = r.step} AND steps.lease_token = r.token RETURNING id",
    rows="step bigint, token text, waiting text, moved int, timeout float8",
)
_BEAT_LOCKS = Statement(
    "UPDATE locks SET lease_until = {now} + :lease_s FROM {rows} "
    "WHERE locks.resource_key = r.key AND locks.token = r.token RETURNING resource_key",
    rows="key text, token text",
)
_SEEN = Statement("UPDATE workers SET seen_at = {now} WHERE id = :worker")


class Beaten(msgspec.Struct, frozen=True):
    alive: frozenset[StepId]
    locks: frozenset[str]
    passed: frozenset[StepId] = frozenset()
    """Another transaction writes to these steps, so their news was not stored."""


def _heartbeat(connection: Connection, beats: Sequence[Beat]) -> list[Beaten]:
    """Extends the leases that are still ours and returns them. The others are lost."""
    answers = []
    for beat in beats:
        # Before the steps, because other transactions lock the resource first and then its steps.
        held = connection.run(_BEAT_LOCKS, list(beat.locks), lease_s=beat.lease_s) if beat.locks else []
        passed = _in_use(connection, beat.leases)
        signs = {sign.step: sign for sign in beat.signs}
        ours = [x for x in beat.leases if x.step_id not in passed]
        silent = [(x.step_id, x.token) for x in ours if x.step_id not in signs]
        told = [_sign_row(x, signs[x.step_id]) for x in ours if x.step_id in signs]
        rows = connection.run(_BEAT, silent, lease_s=beat.lease_s) if silent else []
        rows += connection.run(_SIGN, told, lease_s=beat.lease_s) if told else []
        if passed:
            rows += connection.run(_STILL_OURS, [(x.step_id, x.token) for x in beat.leases if x.step_id in passed])
        connection.run(_SEEN, worker=beat.worker)
        alive = frozenset(StepId(row[0]) for row in rows)
        answers.append(Beaten(alive, frozenset(row[0] for row in held), passed))
    return answers


def _in_use(connection: Connection, leases: Sequence[Lease]) -> frozenset[StepId]:
    """The steps that another transaction writes to. SQLite has one writer at a time."""
    if not leases or connection.dialect == "sqlite":
        return frozenset()
    steps = {lease.step_id for lease in leases}
    return frozenset(steps - {StepId(row[0]) for row in connection.run(_AT_REST, [(step,) for step in sorted(steps)])})


def _sign_row(lease: Lease, sign: StepSignal) -> tuple[object, ...]:
    return (lease.step_id, lease.token, sign.waiting_on, int(sign.moved), sign.timeout_s)


# `(SELECT {now})`, here and in due: PostgreSQL's clock changes while a statement runs, so without the subquery it would
# be read for each row, and the whole index would be scanned.
_EXPIRED = Statement(
    "SELECT id, lease_token FROM steps WHERE status = 'RUNNING' AND lease_until < (SELECT {now}) "
    "ORDER BY lease_until LIMIT :count"
)
_OVERDUE = Statement(
    "SELECT id, lease_token FROM steps WHERE status = 'RUNNING' AND timeout_at IS NOT NULL "
    "AND timeout_at < (SELECT {now}) ORDER BY timeout_at LIMIT :count"
)
_OF_THE_DEAD = Statement(
    "SELECT id, lease_token FROM steps WHERE status = 'RUNNING' AND worker_id IN (SELECT r.worker FROM {rows})",
    rows="worker text",
)
# Many steps are lost with a worker, and at most one of them crashed it. The first crashes count for every step; then a
# step is a suspect and runs alone, and only a crash while it ran alone counts. A step that had not begun is no suspect.
# That is known as of the last heartbeat only, so after `UNBEGUN` claims it is one all the same.
_REAP = Statement(
    "UPDATE steps SET status = CASE WHEN crashes + 1 >= :limit AND alone = 1 THEN 'FAILED' ELSE 'PENDING' END, "
    f"crashes = CASE WHEN alone = 0 AND (crashes >= {SUSPECT} OR waiting_on = '{SLOT}' AND attempts < {UNBEGUN}) "
    "THEN crashes ELSE crashes + 1 END, alone = 0, "
    "lease_token = NULL, waiting_on = NULL, "
    "error = 'the worker ' || worker_id || CASE WHEN r.overdue = 1 THEN ' hung in this step: no progress within its "
    "timeout' ELSE ' died or was stopped while this step ran' END "
    f"FROM {{rows}} WHERE {{steps.id = r.step}} AND steps.lease_token = r.lease "
    f"AND (r.overdue = 0 OR steps.timeout_at < {{now}}) RETURNING {STEP}, status",
    rows="step bigint, lease text, overdue int",
)
# A worker with a step that hangs still extends its leases and locks.
_FREE_HUNG = Statement(
    f"UPDATE locks SET {FREED} WHERE token IN (SELECT r.lease FROM {{rows}})",
    rows="lease text",
)
_SWEEP = Statement(
    f"UPDATE locks SET {FREED} "
    "WHERE token IS NOT NULL AND (lease_until < {now} OR worker_id IN (SELECT r.id FROM {rows})) "
    "RETURNING resource_key",
    rows="id text",
)
_REMOVE_WORKERS = Statement("DELETE FROM workers WHERE id IN (SELECT r.id FROM {rows}) RETURNING id", rows="id text")


def _reap(connection: Connection, requests: Sequence[Reap]) -> list[Reaped]:
    """Takes steps and locks back whose lease has expired or whose worker is dead, but never our own (I7). A step that
    hangs is taken from a live worker too; our own steps that hang are ended by this worker itself."""
    answers = []
    for request in requests:
        dead = [(worker,) for worker in request.dead]
        lapsed = connection.run(_EXPIRED, count=REAP_BATCH) + (connection.run(_OF_THE_DEAD, dead) if dead else [])
        found = dict.fromkeys(connection.run(_OVERDUE, count=REAP_BATCH), 1)
        found |= dict.fromkeys(lapsed, 0)
        taken = sorted((step, token, hung) for (step, token), hung in found.items() if step not in request.held)
        rows = connection.run(_REAP, taken, limit=request.crashes) if taken else []
        reaped = {row[0] for row in rows}
        hung = sorted({(token,) for step, token, hung in taken if hung and step in reaped})
        if hung:
            connection.run(_FREE_HUNG, hung)
        failed = [
            StepFailure(step_of((row[0], "", *row[2:])), "crash_loop", _crash_sentence(request.crashes, row))
            for row in rows
            if row[-1] == "FAILED"
        ]
        fail_runs(connection, failed)
        ready_steps(connection, [StepId(row[0]) for row in rows if row[-1] == "PENDING"])
        swept = connection.run(_SWEEP, dead)
        outbox.free(connection, request.dead)
        webhook_sending.free(connection, request.dead)
        limits.free(connection, request.dead)
        groups.seal_abandoned(connection, REAP_BATCH)
        removed = connection.run(_REMOVE_WORKERS, dead)
        reset = tuple(row[10] for row in rows if row[-1] == "PENDING")
        answers.append(Reaped(reset, tuple(f.step.kind for f in failed), len(removed), len(swept)))
    return answers


def _crash_sentence(limit: int, row: Row) -> str:
    return (
        f"step {row[11]!r} took its worker down, or hung it, {limit} times in a row without progress: the document may "
        f"be what does it. Look at it, then `penstock retry {row[5]}`"
    )


_ALONE = Statement(
    "UPDATE steps SET alone = 1 FROM {rows} WHERE {steps.id = r.step} AND steps.lease_token = r.lease RETURNING id",
    rows="step bigint, lease text",
)


def _go_alone(connection: Connection, leases: Sequence[Lease]) -> list[bool]:
    """A suspect begins, and nothing else runs in its worker: a crash now is caused by this step."""
    took = {row[0] for row in connection.run(_ALONE, [(lease.step_id, lease.token) for lease in leases])}
    return [lease.step_id in took for lease in leases]


# MATERIALIZED: PostgreSQL may run a plain subquery again for each row, with other results each time.
_DROP = Statement(
    "UPDATE steps SET status = 'CANCELLED', lease_token = NULL, finished_at = {now} FROM {rows} "
    "WHERE {steps.id = r.step} AND steps.lease_token = r.lease RETURNING id",
    rows="step bigint, lease text",
)


def _drop(connection: Connection, leases: Sequence[Lease]) -> list[None]:
    """Cancels steps whose document was deleted."""
    connection.run(_DROP, [(lease.step_id, lease.token) for lease in leases])
    return [None for _ in leases]


_HAND_OVER = Statement(
    "UPDATE steps SET status = 'PENDING', lease_token = NULL, waiting_on = NULL, alone = 0 "
    "WHERE status = 'RUNNING' AND worker_id = :worker RETURNING id"
)
_FREE_LOCKS = Statement(f"UPDATE locks SET {FREED} WHERE token IS NOT NULL AND worker_id = :worker")
_LEAVE = Statement("DELETE FROM workers WHERE id = :worker")


def _leave(connection: Connection, names: Sequence[WorkerId]) -> list[None]:
    """A worker stops. Steps that it still holds, from a claim that arrived while it stopped, are PENDING again."""
    for worker in names:
        left = [StepId(row[0]) for row in connection.run(_HAND_OVER, worker=worker)]
        connection.run(_FREE_LOCKS, worker=worker)
        limits.free(connection, [worker])
        ready_steps(connection, left)
        connection.run(_LEAVE, worker=worker)
    return [None for _ in names]


_DUE = Statement(
    "WITH picked AS MATERIALIZED (SELECT id FROM steps WHERE status = 'ERROR' AND not_before <= (SELECT {now}) "
    "ORDER BY not_before LIMIT :count {skip}) "
    "UPDATE steps SET status = 'PENDING', not_before = NULL, waiting_on = NULL "
    "WHERE id IN (SELECT id FROM picked) RETURNING id"
)


def _due(connection: Connection, counts: Sequence[int]) -> list[int]:
    answers = []
    for count in counts:
        moved = [StepId(row[0]) for row in connection.run(_DUE, count=count)]
        ready_steps(connection, moved)
        answers.append(len(moved))
    return answers


HEARTBEAT = Verb("heartbeat", _heartbeat)
DROP = Verb("drop", _drop)
LEAVE = Verb("leave", _leave, notifies=bool)
GO_ALONE = Verb("alone", _go_alone, of=lambda lease: lease.step_id)
REAP = Verb("reap", _reap, notifies=lambda answers: any(reaped.steps for reaped in answers))
DUE = Verb("due", _due, notifies=any)
