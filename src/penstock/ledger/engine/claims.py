"""Claims: the next steps of some kinds, in one statement; or a free lock, and the steps behind it.

These statements cross owners (I10)."""

from collections.abc import Iterator, Sequence
from functools import cache

import msgspec

from penstock.ledger.database.connection import Connection, Row
from penstock.ledger.database.statements import Statement
from penstock.ledger.database.writer import Verb
from penstock.ledger.engine import documents, outbox, postgres_statements
from penstock.ledger.engine.outbox import StepEvent
from penstock.ledger.engine.resource_keys import FREED, OWN_KEYS, hand_on
from penstock.ledger.engine.steps import STEP, show, step_of
from penstock.model.events import EventKind
from penstock.model.nouns import Owner, Step, StepId, Token, WorkerId


class ClaimRequest(msgspec.Struct, frozen=True):
    worker: WorkerId
    kinds: tuple[str, ...]
    """Or the pools that steps name."""
    count: int
    token: Token
    lease_s: float


class KeyedClaim(msgspec.Struct, frozen=True):
    """A claim of a kind, or pool, that has resource keys: take a free lock, then steps behind it."""

    worker: WorkerId
    kind: str
    count: int
    token: Token
    lease_s: float


class ClaimThese(msgspec.Struct, frozen=True):
    """A claim of given steps. Those that others have claimed meanwhile are left out."""

    worker: WorkerId
    steps: tuple[StepId, ...]
    token: Token
    lease_s: float


class Waiting(msgspec.Struct, frozen=True):
    step: StepId
    owner: Owner
    size: int
    """Bytes of its document."""


class Claimed(msgspec.Struct, frozen=True):
    step: Step
    document: documents.Live | None
    """None: the document was deleted."""


_WIDTH = len(STEP.split(","))


@cache
def _claim_statement(kinds: int) -> Statement:
    """One subselect per kind, each with its own order and limit: the planner walks the left end of the index (I11)."""
    selects = " UNION ALL ".join(
        "SELECT * FROM (SELECT id, priority, rank FROM steps WHERE status = 'PENDING' AND resource_key IS NULL "
        f"AND coalesce(pool, kind) = :kind{i} ORDER BY priority DESC, rank LIMIT :count {{skip}}) AS k{i}"
        for i in range(kinds)
    )
    return Statement(
        "UPDATE steps SET status = 'RUNNING', lease_token = :token, epoch = epoch + 1, attempts = attempts + 1, "
        "lease_until = {now} + :lease_s, worker_id = :worker, started_at = coalesce(started_at, {now}), "
        "waiting_on = NULL, timeout_at = NULL "
        f"WHERE id IN (SELECT id FROM ({selects}) AS candidates "
        f"ORDER BY priority DESC, rank LIMIT :count) RETURNING {STEP}"
    )


def _claim(connection: Connection, requests: Sequence[ClaimRequest]) -> list[list[Claimed]]:
    answers = []
    for request in requests:
        kinds = {f"kind{i}": kind for i, kind in enumerate(request.kinds)}
        common = {"count": request.count, "token": request.token, "lease_s": request.lease_s, "worker": request.worker}
        if connection.dialect == "postgres":
            rows = connection.run(postgres_statements.claim(len(kinds)), **common, **kinds)
            claimed = [Claimed(step_of(row), documents.live_row(row[_WIDTH:])) for row in rows]
        else:
            claimed = _with_documents(connection, connection.run(_claim_statement(len(kinds)), **common, **kinds))
        claimed.sort(key=lambda c: (-c.step.priority, c.step.rank))
        outbox.add_events(connection, _started([c.step for c in claimed]))
        answers.append(claimed)
    return answers


def _with_documents(connection: Connection, rows: Sequence[Row]) -> list[Claimed]:
    steps = [step_of(row) for row in rows]
    show(connection, [(step.document_id, step.kind) for step in steps])
    found = documents.live(connection, [(step.document_id, step.generation_id) for step in steps]) if steps else {}
    return [Claimed(step, found.get(step.generation_id)) for step in steps]


_CLAIM_THESE = Statement(
    "UPDATE steps SET status = 'RUNNING', lease_token = :token, epoch = epoch + 1, attempts = attempts + 1, "
    "lease_until = {now} + :lease_s, worker_id = :worker, started_at = coalesce(started_at, {now}), waiting_on = NULL, "
    "timeout_at = NULL WHERE status = 'PENDING' AND id IN (SELECT s.id FROM steps s WHERE s.status = 'PENDING' "
    "AND s.resource_key IS NULL AND s.id IN (SELECT r.step FROM {rows}) {skip}) "
    f"RETURNING {STEP}",
    rows="step bigint",
)
_WAITING = Statement(
    "SELECT w.id, w.owner, g.size FROM (SELECT id, owner, generation_id, priority, rank FROM steps "
    "WHERE status = 'PENDING' AND resource_key IS NULL AND coalesce(pool, kind) = :kind "
    "ORDER BY priority DESC, rank LIMIT :count) AS w JOIN generations g ON g.id = w.generation_id "
    "ORDER BY w.priority DESC, w.rank"
)


def waiting(connection: Connection, kinds: Sequence[str], count: int) -> list[Waiting]:
    """The next so many steps of each kind, or pool, in the order in which they would be claimed."""
    rows = [row for kind in kinds for row in connection.run(_WAITING, kind=kind, count=count)]
    return [Waiting(StepId(row[0]), Owner(row[1]), row[2]) for row in rows]


def _claim_these(connection: Connection, requests: Sequence[ClaimThese]) -> list[list[Claimed]]:
    answers = []
    for request in requests:
        values = {"token": request.token, "lease_s": request.lease_s, "worker": request.worker}
        answers.append(begun(connection, connection.run(_CLAIM_THESE, [(step,) for step in request.steps], **values)))
    return answers


def begun(connection: Connection, rows: Sequence[Row]) -> list[Claimed]:
    """Steps that a statement of the caller has just claimed, with their documents, which show it from now on."""
    claimed = _with_documents(connection, rows)
    outbox.add_events(connection, _started([c.step for c in claimed]))
    return claimed


_TAKE_KEY = Statement(
    "UPDATE locks SET token = :token, worker_id = :worker, purpose = 'step', lease_until = {now} + :lease_s "
    "WHERE token IS NULL AND resource_key = (SELECT resource_key FROM locks WHERE kind = :kind AND ready = 1 "
    "AND token IS NULL AND (wanted_until IS NULL OR wanted_until < {now}) "
    "AND (paused_until IS NULL OR paused_until < {now}) "
    "ORDER BY released_at LIMIT 1 {skip}) RETURNING resource_key"
)
_CLAIM_KEYED = Statement(
    "UPDATE steps SET status = 'RUNNING', lease_token = :token, epoch = epoch + 1, attempts = attempts + 1, "
    "lease_until = {now} + :lease_s, worker_id = :worker, started_at = coalesce(started_at, {now}), waiting_on = NULL, "
    "timeout_at = NULL "
    "WHERE status = 'PENDING' AND id IN (SELECT id FROM steps WHERE status = 'PENDING' AND resource_key IS NOT NULL "
    "AND coalesce(pool, kind) = :kind AND resource_key = :key ORDER BY priority DESC, rank LIMIT :count) "
    f"RETURNING {STEP}"
)
_UNTAKE_KEY = Statement(f"UPDATE locks SET {FREED}, ready = 0 WHERE resource_key = :key AND token = :token")


def _claim_keyed(connection: Connection, requests: Sequence[KeyedClaim]) -> list[list[Step]]:
    answers: list[list[Step]] = []
    for request in requests:
        taken = {"token": request.token, "worker": request.worker, "lease_s": request.lease_s, "kind": request.kind}
        keys = connection.run(_TAKE_KEY, **taken)
        if not keys:
            answers.append([])
            continue
        key = keys[0][0]
        count = 1 if key.startswith(OWN_KEYS) else request.count
        rows = connection.run(_CLAIM_KEYED, key=key, count=count, **taken)
        if not rows:
            connection.run(_UNTAKE_KEY, key=key, token=request.token)
            hand_on(connection, key)
        steps = sorted((step_of(row) for row in rows), key=lambda step: (-step.priority, step.rank))
        show(connection, [(step.document_id, step.kind) for step in steps])
        outbox.add_events(connection, _started(steps))
        answers.append(steps)
    return answers


def _started(steps: Sequence[Step]) -> Iterator[StepEvent]:
    for step in steps:
        if step.position == 0 and step.lease.epoch == 1:
            yield StepEvent(EventKind.ITEM_START, step, of_step=False)
        yield StepEvent(EventKind.STEP_START, step, "RUNNING")


CLAIM = Verb("claim", _claim)
CLAIM_THESE = Verb("claim_these", _claim_these)
CLAIM_KEYED = Verb("claim_keyed", _claim_keyed)
