"""Work again on documents that are in the ledger: retry those that failed, start a workflow for some, and remake
artifacts that are lost. Each is one transaction over a whole set."""

import json
from collections.abc import Sequence
from typing import Any

import msgspec

from penstock.ledger.database.connection import Connection
from penstock.ledger.database.statements import Statement
from penstock.ledger.database.writer import Verb
from penstock.ledger.engine.runs import LAST_RUN, Known, hold, keep_password, replay_runs, start_runs
from penstock.ledger.engine.steps import SETTINGS
from penstock.ledger.engine.submissions import FirstStep, NewDocument, Submission
from penstock.model.nouns import DocumentId, Owner, RunId
from penstock.model.states import TEXTLESS

_RUNS = (
    f"SELECT d.id, d.sha256, d.status, x.id, {SETTINGS}, x.generation_id, g.raw_key, x.group_id, d.media_type, "
    "d.source, d.name, d.size, d.metadata, g.found, "
    "g.state = 'BUILDING' AND EXISTS (SELECT 1 FROM steps s WHERE s.run_id = x.id) FROM {rows} "
    "JOIN documents d ON d.id = r.document AND {d.owner} "
    f"AND d.deleted_at IS NULL JOIN runs x ON x.document_id = d.id AND x.generation_id = {LAST_RUN} "
    "JOIN generations g ON g.id = x.generation_id "
)

_THERE = Statement(_RUNS, rows="document text", plan_anew=True)

_LAST_RUNS = Statement(
    _RUNS + "WHERE d.status IN ('FAILED', 'CANCELLED', 'NOT_INDEXABLE', 'UNSUPPORTED')",
    rows="document text",
    plan_anew=True,
)


def _known(row: Sequence[Any]) -> Known:
    return msgspec.structs.replace(Known(*row[:9]), found=row[13], is_building=bool(row[14]))


class Retry(msgspec.Struct, frozen=True):
    """A retry; where today's settings differ from the run's, or nothing failed (NOT_INDEXABLE, UNSUPPORTED), a new
    run starts."""

    submission: Submission
    """Carries owner, snapshot and settings; its documents name (id, run id) of what to retry."""


def _retry(connection: Connection, requests: Sequence[Retry]) -> list[set[DocumentId]]:
    answers = []
    for request in requests:
        s = request.submission
        hold(s.owner, connection, [d.id for d in s.documents])
        rows = connection.run(_LAST_RUNS, [(d.id,) for d in s.documents], owner=s.owner)
        old = {DocumentId(row[0]): _known(row) for row in rows}
        # What the document is now is in the ledger; the caller may have looked at it long ago.
        now = {row[0]: (row[9], row[10], row[1], row[11], None, json.loads(row[12])) for row in rows}
        fresh = {i for i, k in old.items() if not k.made_with(s.settings) or k.status in TEXTLESS or not k.is_building}
        replay_runs(connection, s.owner, [k for i, k in old.items() if i not in fresh])
        start_runs(
            connection,
            s,
            [(NewDocument(d.id, d.run_id, *now[d.id]), old[d.id]) for d in s.documents if d.id in fresh],
        )
        keep_password(connection, s, list(old))
        answers.append(set(old))
    return answers


class Start(msgspec.Struct, frozen=True):
    """A workflow is started for documents that are there: each gets a new run, in the submission's group."""

    submission: Submission
    """Its documents name (id, run id); the group is given."""
    again: bool = False
    """Also for those that are COMPLETED with the same settings."""


class Started(msgspec.Struct, frozen=True):
    started: tuple[DocumentId, ...]
    done: int
    """COMPLETED with the same settings: left as they are."""
    working: int
    """Being worked on, with the same settings."""


def _begin(connection: Connection, requests: Sequence[Start]) -> list[Started]:
    return [_begin_one(connection, request) for request in requests]


def _begin_one(connection: Connection, request: Start) -> Started:
    """What another run works on with other settings is superseded, as by a changed submit. What is searchable stays so
    until the new run has ended."""
    s = request.submission
    hold(s.owner, connection, [d.id for d in s.documents])
    rows = connection.run(_THERE, [(d.id,) for d in s.documents], owner=s.owner)
    old = {DocumentId(row[0]): (_known(row), row[9:13]) for row in rows}
    fresh, done, working = [], 0, 0
    for d in s.documents:
        if d.id not in old:
            continue
        known, (source, name, size, metadata) = old[d.id]
        same = known.made_with(s.settings)
        if same and known.status == "COMPLETED" and not request.again:
            done += 1
        elif same and known.status not in ("HELD", "COMPLETED", "FAILED", "CANCELLED", *TEXTLESS):
            working += 1
        else:
            now = NewDocument(d.id, d.run_id, source, name, known.sha256, size, None, json.loads(metadata))
            fresh.append((now, known))
    start_runs(connection, s, fresh)
    return Started(tuple(d.id for d, _ in fresh), done, working)


class Remake(msgspec.Struct, frozen=True):
    """Documents at their end whose artifacts are gone in whole or in part, each with the id of a new run."""

    owner: Owner
    documents: tuple[tuple[DocumentId, RunId], ...]


_LOST = Statement(
    f"SELECT d.id, d.sha256, d.status, x.id, {SETTINGS}, g.id, g.raw_key, d.source, d.name, d.size, d.metadata, "
    "d.collection, x.snapshot, x.priority, s.name, s.kind, s.pool, s.resource_key FROM {rows} "
    "JOIN documents d ON d.id = r.document AND {d.owner} AND d.deleted_at IS NULL "
    "AND d.status IN ('COMPLETED', 'NOT_INDEXABLE', 'UNSUPPORTED') "
    "JOIN generations g ON g.document_id = d.id AND g.state = 'ACTIVE' "
    "JOIN runs x ON x.document_id = d.id AND x.generation_id = g.id JOIN steps s ON s.run_id = x.id AND s.position = 0 "
    "WHERE g.artifacts_dropped_at IS NOT NULL OR (g.chunks > 0 AND NOT EXISTS (SELECT 1 FROM artifact_refs f "
    "JOIN artifacts a ON a.id = f.artifact_id AND a.kind = 'chunk' WHERE f.generation_id = g.id)) "
    "OR EXISTS (SELECT 1 FROM artifact_refs f JOIN artifacts a ON a.id = f.artifact_id AND a.state <> 'COMPLETE' "
    "AND a.kind <> 'index' WHERE f.generation_id = g.id)",
    rows="document text",
)


def _remake(connection: Connection, requests: Sequence[Remake]) -> list[set[DocumentId]]:
    """Made again from their raw bytes, as their last run made them; what is searchable stays until then."""
    answers = []
    for request in requests:
        names = dict(request.documents)
        hold(request.owner, connection, list(names))
        rows = connection.run(_LOST, [(document,) for document in names], owner=request.owner)
        for row in rows:
            old = Known(*row[:7])
            new = NewDocument(old.id, names[old.id], row[7], row[8], old.sha256, row[9], None, json.loads(row[10]))
            first = FirstStep(*row[14:18])
            s = Submission(request.owner, row[11], (new,), row[12], "", old.settings, first, priority=row[13])
            start_runs(connection, s, [(new, old)])
        answers.append({DocumentId(row[0]) for row in rows})
    return answers


RETRY = Verb("retry", _retry, notifies=any, counts=True)

START = Verb("start", _begin, notifies=lambda answers: any(answer.started for answer in answers), counts=True)

REMAKE = Verb("remake", _remake, notifies=any, counts=True)
