"""What the verbs of steps share: a step as a row, and the status that a document shows while a step runs.

These statements cross owners (I10)."""

from collections.abc import Sequence

from penstock.ledger.database.connection import Connection, Row
from penstock.ledger.database.statements import Statement
from penstock.ledger.engine.outbox import StepEvent
from penstock.model.events import EventKind
from penstock.model.nouns import DocumentId, GenerationId, Lease, Owner, RunId, Step, StepId, Token
from penstock.model.states import SHOWN_AS, WORKING, DocumentStatus

STEP = (
    "id, lease_token, epoch, resource_key, run_id, document_id, generation_id, owner, snapshot, position, "
    "kind, name, priority, rank, attempts, crashes, errors, pool, forgiven, refused"
)


def step_of(row: Row) -> Step:
    return Step(
        lease=Lease(StepId(row[0]), Token(row[1]), row[2], row[3]),
        run_id=RunId(row[4]),
        document_id=DocumentId(row[5]),
        generation_id=GenerationId(row[6]),
        owner=Owner(row[7]),
        snapshot=row[8],
        position=row[9],
        kind=row[10],
        name=row[11],
        priority=row[12],
        rank=row[13],
        attempts=row[14],
        crashes=row[15],
        errors=row[16],
        pool=row[17],
        forgiven=row[18],
        refused=row[19],
    )


# A document that has ended is never changed by a step that outlived its run.
LIVE = ", ".join(f"'{status}'" for status in (DocumentStatus.PENDING, *WORKING))

# What unlocks a document is forgotten once its pages are there.
KEPT_PASSWORD = "CASE WHEN {} IN ('PENDING', 'EXTRACTING') THEN documents.password END"

SETTINGS = "coalesce((SELECT b.body FROM run_settings b WHERE b.fingerprint = x.settings), x.settings)"
"""The settings of a run x. The row of a run has only their fingerprint, and rows of earlier versions have the text."""

_SHOW = Statement(
    f"UPDATE documents SET status = r.status, password = {KEPT_PASSWORD.format('r.status')}, "
    "updated_at = {now} FROM {rows} "
    f"WHERE {{documents.id = r.id}} AND documents.status <> r.status AND documents.status IN ({LIVE})",
    rows="id text, status text",
)


def show(connection: Connection, steps: Sequence[tuple[DocumentId, str]]) -> None:
    """A document shows what its running step does; custom kinds leave it as it is."""
    shown = [(document, SHOWN_AS[kind]) for document, kind in steps if kind in SHOWN_AS]
    if shown:
        connection.run(_SHOW, shown)


# An epoch is given once: a step that is COMPLETED in the epoch of a lease was completed under that lease.
COMPLETED_UNDER_LEASE = Statement(
    "SELECT s.id, n.id, n.lease_token FROM {rows} JOIN steps s ON s.id = r.step AND s.epoch = r.epoch "
    "AND s.status = 'COMPLETED' LEFT JOIN steps n ON n.run_id = s.run_id AND n.position = r.following",
    rows="step bigint, epoch int, following int",
)


def step_ended(step: Step, meta: str) -> StepEvent:
    return StepEvent(EventKind.STEP_END, step, "COMPLETED", f'{{"meta":{meta}}}')
