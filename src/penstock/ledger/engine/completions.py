"""Complete: a step ends, its artifact is complete, and the next step of the run is inserted, and claimed if asked for.

Every write of a step is gated on its lease token (I3) and says whether it took. These statements cross owners (I10)."""

from collections.abc import Iterator, Sequence

import msgspec

from penstock.ledger.database.connection import Connection
from penstock.ledger.database.statements import Statement
from penstock.ledger.database.writer import Verb
from penstock.ledger.engine import checkpoints, outbox, postgres_statements, usage
from penstock.ledger.engine.outbox import StepEvent
from penstock.ledger.engine.resource_keys import ready
from penstock.ledger.engine.steps import COMPLETED_UNDER_LEASE, show, step_ended
from penstock.model.events import EventKind
from penstock.model.nouns import Lease, RunId, Step, StepId, Token, WorkerId
from penstock.model.states import SHOWN_AS, DocumentStatus
from penstock.model.usage import Booking


class NextStep(msgspec.Struct, frozen=True):
    """What follows a completed step. With a token it is claimed in the same transaction."""

    position: int
    name: str
    kind: str
    resource_key: str | None
    token: Token | None
    fingerprint: str | None = None
    """Of the artifact that it makes: opened along, if the step is claimed along."""
    pool: str | None = None

    @property
    def queue(self) -> str:
        return self.pool or self.kind


class Completion(msgspec.Struct, frozen=True):
    step: Step
    worker: WorkerId
    lease_s: float
    meta: str
    next: NextStep
    output: checkpoints.Output | None = None
    media_type: str | None = None
    """What the step found the document to be."""
    usage: tuple[Booking, ...] = ()
    """What was saved since its last checkpoint."""


class Completed(msgspec.Struct, frozen=True):
    took: bool
    next: Step | None
    """The following step, claimed in the same transaction where that was asked for and nothing more urgent waits."""
    opened: checkpoints.Opened | None = None
    """Its artifact."""


_COMPLETE = Statement(
    "UPDATE steps SET status = 'COMPLETED', lease_token = NULL, finished_at = {now}, meta = r.meta, error = NULL, "
    "waiting_on = NULL FROM {rows} WHERE {steps.id = r.step} AND steps.lease_token = r.token RETURNING id",
    rows="step bigint, token text, meta text",
)

# The next step is claimed along, unless something more urgent waits.
_NEXT = Statement(
    "INSERT INTO steps (run_id, position, document_id, generation_id, owner, snapshot, name, kind, pool, status, "
    "priority, rank, resource_key, attempts, epoch, lease_token, lease_until, worker_id, created_at, started_at) "
    "SELECT run_id, position, document_id, generation_id, owner, snapshot, name, kind, pool, "
    "CASE WHEN token IS NULL THEN 'PENDING' ELSE 'RUNNING' END, priority, rank, resource_key, "
    "CASE WHEN token IS NULL THEN 0 ELSE 1 END, CASE WHEN token IS NULL THEN 0 ELSE 1 END, token, "
    "CASE WHEN token IS NOT NULL THEN {now} + :lease_s END, "
    "CASE WHEN token IS NOT NULL THEN :worker END, {now}, CASE WHEN token IS NOT NULL THEN {now} END "
    "FROM (SELECT r.run_id, r.position, r.document_id, r.generation_id, r.owner, r.snapshot, r.name, r.kind, r.pool, "
    "r.priority, r.rank, r.resource_key, CASE WHEN r.priority >= coalesce((SELECT s.priority FROM steps s "
    "WHERE s.status = 'PENDING' AND s.epoch = 0 ORDER BY s.priority DESC LIMIT 1), r.priority) THEN r.token END "
    "AS token FROM {rows}) AS n WHERE true RETURNING id, run_id, lease_token",
    rows="run_id text, position int, document_id text, generation_id bigint, owner text, snapshot text, name text, "
    "kind text, pool text, priority int, rank bigint, resource_key text, token text",
)

_MEDIA_TYPE = Statement(
    "UPDATE documents SET media_type = r.media FROM {rows} WHERE {documents.id = r.document}",
    rows="document text, media text",
)


def _following(done: Completion, step: int) -> Step:
    """The next step of a run as it was just claimed."""
    assert done.next.token is not None
    return msgspec.structs.replace(
        done.step,
        lease=Lease(StepId(step), done.next.token, 1, None),
        position=done.next.position,
        kind=done.next.kind,
        name=done.next.name,
        attempts=1,
        crashes=0,
        errors=0,
        forgiven=0,
        pool=done.next.pool,
    )


def _complete(connection: Connection, completions: Sequence[Completion]) -> list[Completed]:
    if connection.dialect == "postgres":
        answers = _open_next(connection, completions, _complete_single(connection, completions))
        _book(connection, completions, answers)
        outbox.add_events(connection, _completed(completions, answers))
        return answers
    took = _finish(connection, [(c.step.lease.step_id, c.step.lease.token, c.meta) for c in completions])
    done = [c for c in completions if c.step.lease.step_id in took]
    checkpoints.finish(connection, [c.output for c in done if c.output is not None])
    detected = [(c.step.document_id, c.media_type) for c in done if c.media_type is not None]
    if detected:
        connection.run(_MEDIA_TYPE, detected)
    following = _insert_next(connection, done)
    answers = [Completed(c.step.lease.step_id in took, following.get(c.step.run_id)) for c in completions]
    _book(connection, completions, answers)
    outbox.add_events(connection, _completed(completions, answers))
    return _open_next(connection, completions, answers)


def _book(connection: Connection, completions: Sequence[Completion], answers: Sequence[Completed]) -> None:
    done = zip(completions, answers, strict=True)
    usage.book(connection, [booking for c, answer in done if answer.took for booking in c.usage])


def _completed(completions: Sequence[Completion], answers: Sequence[Completed]) -> Iterator[StepEvent]:
    for c, answer in zip(completions, answers, strict=True):
        if answer.took:
            yield step_ended(c.step, c.meta)
        if answer.next is not None:
            yield StepEvent(EventKind.STEP_START, answer.next, "RUNNING")


def _open_next(connection: Connection, completions: Sequence[Completion], answers: list[Completed]) -> list[Completed]:
    """The artifacts of the steps that were claimed along."""
    wanted = [
        (i, checkpoints.Open(answer.next, c.next.fingerprint))
        for i, (c, answer) in enumerate(zip(completions, answers, strict=True))
        if answer.next is not None and c.next.fingerprint is not None
    ]
    if wanted:
        for (i, _), opened in zip(wanted, checkpoints.open_many(connection, [x for _, x in wanted]), strict=True):
            answers[i] = msgspec.structs.replace(answers[i], opened=opened)
    return answers


def _is_one_statement(completions: Sequence[Completion]) -> bool:
    return all(c.next.fingerprint is None and not c.usage for c in completions) and outbox.is_silent(
        c.step.snapshot for c in completions
    )


def _finish(connection: Connection, rows: Sequence[tuple[StepId, Token, str]]) -> set[StepId]:
    return {row[0] for row in connection.run(_COMPLETE, rows)}


def _insert_next(connection: Connection, done: Sequence[Completion]) -> dict[RunId, Step]:
    if not done:
        return {}
    rows = [
        (
            c.step.run_id,
            c.next.position,
            c.step.document_id,
            c.step.generation_id,
            c.step.owner,
            c.step.snapshot,
            c.next.name,
            c.next.kind,
            c.next.pool,
            c.step.priority,
            c.step.rank,
            c.next.resource_key,
            c.next.token,
        )
        for c in done
    ]
    inserted = connection.run(_NEXT, rows, lease_s=done[0].lease_s, worker=done[0].worker)
    by_run = {c.step.run_id: c for c in done}
    claimed = {RunId(row[1]): _following(by_run[row[1]], row[0]) for row in inserted if row[2] is not None}
    ready(connection, [(c.next.resource_key, c.next.queue) for c in done if c.next.resource_key is not None])
    before = {c.step.run_id: SHOWN_AS.get(c.step.kind) for c in done}
    show(
        connection,
        [(s.document_id, s.kind) for s in claimed.values() if SHOWN_AS.get(s.kind) != before[s.run_id]],
    )
    return claimed


def _complete_single(connection: Connection, completions: Sequence[Completion]) -> list[Completed]:
    visible = [_newly_shown(c) for c in completions]
    shown = any(status is not None or media is not None for status, media in visible)
    made = any(c.output is not None for c in completions)
    keyed = any(c.next.resource_key is not None for c in completions)
    rows: list[tuple[object, ...]] = []
    for c, seen in zip(completions, visible, strict=True):
        lease, following = c.step.lease, c.next
        row: tuple[object, ...] = (
            lease.step_id,
            lease.token,
            c.meta,
            following.position,
            following.name,
            following.kind,
        )
        row += (following.pool, following.resource_key, following.token, *(seen if shown else ()))
        rows.append((*row, *(checkpoints.output_row(c.output) if made else ())))
    segments = [segment for c in completions for segment in checkpoints.output_segments(c.output)] if made else None
    statement = postgres_statements.complete(shown, made, keyed, checkpoints.are_small(c.output for c in completions))
    answers = connection.run(statement, rows, segments, lease_s=completions[0].lease_s, worker=completions[0].worker)
    claimed = {done: (step, token) for done, step, token in answers}
    results = []
    for c in completions:
        step, token = claimed.get(c.step.lease.step_id, (None, None))
        results.append(Completed(step is not None, None if token is None else _following(c, step)))
    return results


def _newly_shown(c: Completion) -> tuple[DocumentStatus | None, str | None]:
    """What the document shows from now on, if that changes, and what it was found to be."""
    shown = SHOWN_AS.get(c.next.kind)
    return None if shown == SHOWN_AS.get(c.step.kind) else shown, c.media_type


def _recall_completed(connection: Connection, completions: Sequence[Completion]) -> list[Completed | None]:
    rows = [(c.step.lease.step_id, c.step.lease.epoch, c.next.position) for c in completions]
    found = {row[0]: row[1:] for row in connection.run(COMPLETED_UNDER_LEASE, rows)}
    answers: list[Completed | None] = []
    for c in completions:
        step, token = found.get(c.step.lease.step_id, (None, None))
        ours = token is not None and token == c.next.token
        answers.append(None if step is None else Completed(True, _following(c, step) if ours else None))
    return answers


COMPLETE = Verb(
    "complete",
    _complete,
    single_statement=_is_one_statement,
    of=lambda done: done.step.lease.step_id,
    recall=_recall_completed,
)
