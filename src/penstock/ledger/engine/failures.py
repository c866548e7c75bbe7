"""Error and fail: a step that failed waits for its next attempt, or ends its run as a dead letter.

These statements cross owners (I10)."""

import json
from collections.abc import Sequence

import msgspec

from penstock.ledger.database.connection import Connection
from penstock.ledger.database.statements import Statement
from penstock.ledger.database.writer import Verb
from penstock.ledger.engine import dead_letters, outbox
from penstock.ledger.engine.outbox import StepEvent
from penstock.ledger.engine.runs import end_runs
from penstock.ledger.engine.steps import LIVE
from penstock.model.events import EventKind
from penstock.model.nouns import Step, StepId


class StepFailure(msgspec.Struct, frozen=True):
    step: Step
    reason: str
    error: str
    traceback: str | None = None
    page: int | None = None
    retry_in: float | None = None
    """Seconds until the next attempt; None: it ends as a dead letter."""


_ERROR = Statement(
    "UPDATE steps SET status = 'ERROR', lease_token = NULL, errors = errors + 1, alone = 0, error = r.error, "
    "not_before = {now} + r.delay, waiting_on = NULL FROM {rows} "
    "WHERE {steps.id = r.step} AND steps.lease_token = r.token RETURNING id",
    rows="step bigint, token text, error text, delay float8",
)

_FAIL = Statement(
    "UPDATE steps SET status = 'FAILED', lease_token = NULL, errors = errors + 1, error = r.error, "
    "finished_at = {now}, waiting_on = NULL FROM {rows} "
    "WHERE {steps.id = r.step} AND steps.lease_token = r.token RETURNING id",
    rows="step bigint, token text, error text",
)

_FAIL_DOCUMENT = Statement(
    "UPDATE documents SET status = 'FAILED', error = r.error, updated_at = {now} FROM {rows} "
    f"WHERE {{documents.id = r.id}} AND documents.status IN ({LIVE})",
    rows="id text, error text",
)


def _error(connection: Connection, failures: Sequence[StepFailure]) -> list[bool]:
    """Back off while attempts remain; otherwise the run ends as a dead letter."""
    again = [f for f in failures if f.retry_in is not None]
    last = [f for f in failures if f.retry_in is None]
    took: set[StepId] = set()
    if again:
        rows = [(f.step.lease.step_id, f.step.lease.token, f.error, f.retry_in) for f in again]
        took |= {row[0] for row in connection.run(_ERROR, rows)}
        outbox.add_events(connection, (_step_failed(f, "ERROR") for f in again if f.step.lease.step_id in took))
    if last:
        rows_last = [(f.step.lease.step_id, f.step.lease.token, f.error) for f in last]
        failed = {row[0] for row in connection.run(_FAIL, rows_last)}
        fail_runs(connection, [f for f in last if f.step.lease.step_id in failed])
        took |= failed
    return [f.step.lease.step_id in took for f in failures]


def fail_runs(connection: Connection, failures: Sequence[StepFailure]) -> None:
    if not failures:
        return
    end_runs(connection, [(f.step.run_id, "FAILED") for f in failures])
    outbox.add_events(connection, (news for f in failures for news in _failed(f)))
    connection.run(_FAIL_DOCUMENT, [(f.step.document_id, f.error) for f in failures])
    dead_letters.insert(
        connection,
        [
            (
                f.step.owner,
                f.step.document_id,
                f.step.run_id,
                f.step.name,
                f.step.kind,
                f.reason,
                f.error,
                f.traceback,
                f.page,
                f.step.attempts,
            )
            for f in failures
        ],
    )


def _step_failed(f: StepFailure, status: str) -> StepEvent:
    body = json.dumps({"error": f.error, "meta": {"reason": f.reason, "page": f.page}})
    return StepEvent(EventKind.STEP_FAILED, f.step, status, body)


def _failed(f: StepFailure) -> tuple[StepEvent, StepEvent]:
    """The step, and its run with it; that says which step it was, too."""
    news = _step_failed(f, "FAILED")
    return news, msgspec.structs.replace(news, kind=EventKind.ITEM_FAILED)


ERROR = Verb("error", _error, of=lambda failure: failure.step.lease.step_id)
