"""Flip: the last step of a run ends, and its generation becomes the searchable one in the same transaction (I5).

These statements cross owners (I10)."""

import json
from collections.abc import Iterator, Sequence

import msgspec

from penstock.ledger.database.connection import Connection
from penstock.ledger.database.statements import Statement
from penstock.ledger.database.writer import Verb
from penstock.ledger.engine import checkpoints, generations, outbox, postgres_statements, usage
from penstock.ledger.engine.generations import GRACE_S
from penstock.ledger.engine.outbox import StepEvent
from penstock.ledger.engine.runs import end_runs
from penstock.ledger.engine.steps import COMPLETED_UNDER_LEASE, step_ended
from penstock.model.events import EventKind
from penstock.model.nouns import Step
from penstock.model.states import DocumentStatus
from penstock.model.usage import Booking


class Flip(msgspec.Struct, frozen=True):
    """The end of a run: the generation becomes the searchable one in the transaction of COMPLETED (I5)."""

    step: Step
    status: DocumentStatus
    pages: int | None
    chunks: int
    meta: str
    output: checkpoints.Output | None = None
    found: str | None = None
    """Metadata of the document that its steps found, as JSON."""
    media_type: str | None = None
    """What the document was found to be, if this step found it."""
    usage: tuple[Booking, ...] = ()
    """What was saved since the last checkpoint of this step."""
    staging: bool = False
    """It is made by a re-index: it becomes searchable with the switch to the next version, and not here."""


# The five conditions of I5 in one statement: lease, lock, run, document, generation. Scalar subqueries, not EXISTS:
# PostgreSQL turns the latter into joins, whose plan goes bad as the tables grow.
_FLIP = Statement(
    "UPDATE steps SET status = 'COMPLETED', lease_token = NULL, finished_at = {now}, meta = r.meta, error = NULL, "
    "waiting_on = NULL FROM {rows} WHERE {steps.id = r.step} AND steps.lease_token = r.token "
    "AND (steps.resource_key IS NULL OR (SELECT locks.lease_until FROM locks "
    "WHERE locks.resource_key = steps.resource_key AND locks.token = r.token) > {now}) "
    "AND (SELECT runs.status FROM runs WHERE runs.id = steps.run_id) = 'OPEN' "
    "AND (SELECT documents.deleted_at IS NULL FROM documents WHERE documents.id = steps.document_id) "
    "AND (SELECT g.state FROM generations g WHERE g.id = steps.generation_id) = 'BUILDING' "
    "AND coalesce((SELECT a.id FROM generations a WHERE a.document_id = steps.document_id AND a.state = 'ACTIVE'), 0) "
    "< steps.generation_id RETURNING id",
    rows="step bigint, token text, meta text",
)

_END_DOCUMENT = Statement(
    "UPDATE documents SET status = r.status, error = NULL, password = NULL, updated_at = {now} FROM {rows} "
    "WHERE {documents.id = r.id}",
    rows="id text, status text",
)

_TYPED = Statement(
    "UPDATE documents SET media_type = r.found FROM {rows} WHERE {documents.id = r.id}", rows="id text, found text"
)


def _flip_single(connection: Connection, flips: Sequence[Flip]) -> list[bool]:
    rows, segments = [], []
    for f in flips:
        lease = f.step.lease
        rows.append(
            (
                lease.step_id,
                lease.token,
                f.meta,
                f.status,
                f.pages,
                f.chunks,
                f.found,
                *checkpoints.output_row(f.output),
            )
        )
        segments += checkpoints.output_segments(f.output)
    made = any(f.output is not None for f in flips)
    placed = any(_is_placed(f) for f in flips)
    statement = postgres_statements.flip(made, placed, checkpoints.are_small(f.output for f in flips))
    answers = connection.run(statement, rows, segments if made else None, grace=GRACE_S)
    took = {row[0] for row in answers}
    return [f.step.lease.step_id in took for f in flips]


def _flip(connection: Connection, flips: Sequence[Flip]) -> list[bool]:
    if any(f.staging for f in flips):
        direct = iter(_flip(connection, [f for f in flips if not f.staging]))
        staged = iter(_flip_each(connection, [f for f in flips if f.staging]))
        return [next(staged if f.staging else direct) for f in flips]
    if not flips:
        return []
    if connection.dialect == "postgres":
        answers = _flip_single(connection, flips)
        done = [f for f, took in zip(flips, answers, strict=True) if took]
        _keep_types(connection, done)
        usage.book(connection, [booking for f in done for booking in f.usage])
        outbox.add_events(connection, _flipped(done))
        return answers
    return _flip_each(connection, flips)


def _flip_each(connection: Connection, flips: Sequence[Flip]) -> list[bool]:
    """All of them are for the current version, or all are staged."""
    rows = [(f.step.lease.step_id, f.step.lease.token, f.meta) for f in flips]
    took = {row[0] for row in connection.run(_FLIP, rows)}
    done = [f for f in flips if f.step.lease.step_id in took]
    if done:
        checkpoints.finish(connection, [f.output for f in done if f.output is not None])
        if done[0].staging:
            generations.stage(connection, [(f.step.generation_id, f.pages, f.chunks, f.found) for f in done])
        else:
            made = [(f.step.generation_id, f.step.document_id, f.pages, f.chunks, f.found) for f in done]
            generations.activate(connection, made, GRACE_S)
        generations.place(connection, [f.step.generation_id for f in done if _is_placed(f)])
        connection.run(_END_DOCUMENT, [(f.step.document_id, f.status) for f in done])
        _keep_types(connection, done)
        end_runs(connection, [(f.step.run_id, "COMPLETED") for f in done])
        usage.book(connection, [booking for f in done for booking in f.usage])
        outbox.add_events(connection, _flipped(done))
    return [f.step.lease.step_id in took for f in flips]


def _keep_types(connection: Connection, flips: Sequence[Flip]) -> None:
    """A separate statement, because only documents without text end in the step that finds their type."""
    if typed := [(f.step.document_id, f.media_type) for f in flips if f.media_type is not None]:
        connection.run(_TYPED, typed)


def _is_placed(flip: Flip) -> bool:
    """Whether rows of it are in the index."""
    return flip.step.kind == "index"


def _flipped(flips: Sequence[Flip]) -> Iterator[StepEvent]:
    for f in flips:
        yield step_ended(f.step, f.meta)
        counts = json.dumps({"meta": {"pages": f.pages, "chunks": f.chunks}})
        yield StepEvent(EventKind.ITEM_END, f.step, f.status, counts, of_step=False)


def _recall_flipped(connection: Connection, flips: Sequence[Flip]) -> list[bool | None]:
    rows = [(f.step.lease.step_id, f.step.lease.epoch, f.step.position) for f in flips]
    took = {row[0] for row in connection.run(COMPLETED_UNDER_LEASE, rows)}
    return [f.step.lease.step_id in took or None for f in flips]


FLIP = Verb(
    "flip",
    _flip,
    single_statement=lambda flips: (
        outbox.is_silent(flip.step.snapshot for flip in flips)
        and all(flip.media_type is None and not flip.usage and not flip.staging for flip in flips)
    ),
    of=lambda flip: flip.step.lease.step_id,
    recall=_recall_flipped,
)
