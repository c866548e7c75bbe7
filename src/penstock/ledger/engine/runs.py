"""The start and the end of runs: submit, cancel, retry, delete. Each is one transaction over a whole batch."""

import json
from collections.abc import Container, Sequence
from typing import Literal

import msgspec

from penstock.errors import UsageError
from penstock.ledger.database.database import Connection, Statement
from penstock.ledger.database.writer import NotAtOnce, Verb
from penstock.ledger.engine import dead_letters, generations, groups, outbox, submissions
from penstock.ledger.engine.queue import GRACE_S, ready_steps
from penstock.ledger.engine.submissions import Beginning, FirstStep, NewDocument, Submission
from penstock.model.nouns import DocumentId, Owner, RunId, StepId

Outcome = Literal["submitted", "resumed", "skipped"]
ENTER_TRIES = 5


class Submitted(msgspec.Struct, frozen=True):
    document_id: DocumentId
    outcome: Outcome
    status: str
    stale_settings: bool = False
    """It is COMPLETED, but with other settings than today's: only a re-index changes that."""
    needs_bytes: bool = False
    """It changed under our feet: nothing was submitted, the caller has to store the bytes and come again."""


_KNOWN = Statement(
    "SELECT d.id, d.source, d.sha256, d.status, x.id, x.settings, x.generation_id, g.raw_key, x.group_id, "
    "CASE WHEN d.status = 'FAILED' THEN EXISTS (SELECT 1 FROM dead_letters l WHERE l.run_id = x.id "
    "AND l.reason IN ('raw_missing', 'raw_damaged', 'short_read')) ELSE false END FROM {rows} "
    "JOIN {documents d: d.source = r.source AND {d.owner} AND d.collection = :collection "
    "AND d.deleted_at IS NULL} JOIN runs x ON x.document_id = d.id "
    "AND x.generation_id = (SELECT max(generation_id) FROM runs WHERE runs.document_id = d.id) "
    "JOIN generations g ON g.id = x.generation_id",
    rows="source text",
    plan_anew=True,
)


class Known(msgspec.Struct, frozen=True):
    """What the ledger holds under a source: the document and its newest run."""

    id: DocumentId
    sha256: str
    status: str
    run_id: RunId
    settings: str
    generation: int
    raw_key: str
    group_id: str | None = None
    raw_lost: bool = False
    """It failed because its raw bytes are gone or damaged: the same bytes are as good as new ones."""


def known(owner: Owner, connection: Connection, collection: str, sources: Sequence[str]) -> dict[str, Known]:
    rows = connection.run(_KNOWN, [(source,) for source in sources], owner=owner, collection=collection)
    return {row[1]: Known(row[0], *row[2:]) for row in rows}


_CHANGED = Statement(
    "UPDATE documents SET size = r.bytes, sha256 = r.hash, name = r.title, metadata = r.info, error = NULL, "
    "media_type = NULL, updated_at = {now}, "
    "status = CASE WHEN status IN ('COMPLETED', 'NOT_INDEXABLE', 'FAILED', 'CANCELLED') THEN 'PENDING' ELSE status END "
    "FROM {rows} WHERE {documents.id = r.document}",
    rows="document text, bytes bigint, hash text, title text, info text",
)
_PASSWORD = Statement(
    "UPDATE documents SET password = :password WHERE {owner} AND id IN (SELECT r.document FROM {rows})",
    rows="document text",
)
_BATCH = Statement(
    "UPDATE documents SET batch = :batch WHERE {owner} AND (batch IS NULL OR batch <> :batch) "
    "AND id IN (SELECT r.document FROM {rows})",
    rows="document text",
)
_KEYS = Statement(
    "SELECT k.key, k.sha256, k.document_id, d.status FROM {rows} JOIN idempotency_keys k "
    "ON k.owner = :owner AND k.key = r.key JOIN documents d ON d.id = k.document_id",
    rows="key text",
)
_KEEP_KEY = Statement(
    "INSERT INTO idempotency_keys (owner, key, sha256, document_id, created_at) "
    "SELECT :owner, r.key, r.sha256, r.document, {now} FROM {rows} WHERE true",
    rows="key text, sha256 text, document text",
)


def _submit(connection: Connection, orders: Sequence[Submission]) -> list[list[Submitted]]:
    return [_submit_one(connection, order) for order in orders]


_BEGUN = Statement("SELECT x.id FROM {rows} JOIN runs x ON x.id = r.run", rows="run text")


def _recall_submitted(connection: Connection, orders: Sequence[Submission]) -> list[list[Submitted] | None]:
    """Of new documents only, one for each order: what is known takes a transaction. Nobody else makes runs of their
    ids."""
    begun = {row[0] for row in connection.run(_BEGUN, [(d.run_id,) for s in orders for d in s.documents])}
    return [
        [Submitted(d.id, "submitted", "PENDING") for d in s.documents] if s.documents[0].run_id in begun else None
        for s in orders
    ]


def _submit_one(connection: Connection, s: Submission) -> list[Submitted]:
    keyed = _answers_by_key(connection, s)
    asked = [d for d in s.documents if d.key is None or d.key not in keyed]
    # With all bytes here nothing will be asked for again.
    whole = all(d.raw_key is not None for d in asked)
    new, there = _enter(connection, s, asked, seal=whole)
    answers: dict[str, Submitted] = {}
    start: list[tuple[NewDocument, Known]] = []
    replay: list[Known] = []
    for document in s.documents:
        if document.key is not None and document.key in keyed:
            answers[document.source] = keyed[document.key]
            continue
        if document.id in new:
            answers[document.source] = Submitted(document.id, "submitted", "PENDING")
            continue
        old = there.get(document.source)
        if old is None or (document.raw_key is None and (old.raw_lost or old.sha256 != document.sha256)):
            answers[document.source] = Submitted(document.id, "skipped", "PENDING", needs_bytes=True)
            continue
        verdict = _again(document, old, s)
        if verdict == "start":
            start.append((document, old))
            answers[document.source] = Submitted(old.id, "submitted", "PENDING")
            continue
        if verdict == "replay":
            replay.append(old)
        stale = old.status == "COMPLETED" and old.settings != s.settings
        outcome: Outcome = "skipped" if verdict == "skip" else "resumed"
        answers[document.source] = Submitted(old.id, outcome, old.status, stale_settings=stale)
    again = any(answer.needs_bytes for answer in answers.values())
    _start(connection, s, start, seal=not again)
    _replay(connection, s.owner, replay)
    _keep_password(connection, s, [answer.document_id for answer in answers.values() if answer.outcome != "skipped"])
    _keep_keys(connection, s, answers, keyed)
    if s.batch is not None and len(new) < len(s.documents):
        connection.run(_BATCH, [(a.document_id,) for a in answers.values()], owner=s.owner, batch=s.batch)
    is_sealed = start or (new and whole)
    if s.group is not None and s.group.seal and not is_sealed and not again:
        groups.seal(connection, [s.group.id])
    return [answers[document.source] for document in s.documents]


def _enter(
    connection: Connection, s: Submission, asked: Sequence[NewDocument], *, seal: bool
) -> tuple[set[DocumentId], dict[str, Known]]:
    """Most are new: whether one is, its insert says. The others are known, by their source."""
    new: set[DocumentId] = set()
    there: dict[str, Known] = {}
    unknown = [d for d in asked if d.raw_key is not None]
    for _ in range(ENTER_TRIES):
        new |= submissions.enter(connection, s, unknown, seal=seal)
        rest = [d for d in asked if d.id not in new]
        if rest and connection.alone:
            raise NotAtOnce
        there = _known_and_held(connection, s, [d.source for d in rest])
        # Deleted while we waited for them: now they are new.
        unknown = [d for d in rest if d.raw_key is not None and d.source not in there]
        if not unknown:
            break
    return new, there


def _known_and_held(connection: Connection, s: Submission, sources: Sequence[str]) -> dict[str, Known]:
    """Nobody deletes, cancels or retries them between our look and our write."""
    there = known(s.owner, connection, s.collection, sources) if sources else {}
    if there and connection.dialect == "postgres":
        _statuses(connection, Selected(s.owner, tuple(old.id for old in there.values())))
        there = known(s.owner, connection, s.collection, sources)
    return there


def _again(document: NewDocument, old: Known, s: Submission) -> Literal["start", "skip", "resume", "replay"]:
    """The rules of "Again": what a second submit of one source means."""
    if old.raw_lost or old.sha256 != document.sha256:
        return "start"
    if old.status == "COMPLETED":
        return "skip"
    if old.status not in ("FAILED", "NOT_INDEXABLE", "CANCELLED"):
        return "resume"
    changed = old.settings != s.settings
    unlocked = s.password is not None and old.status == "FAILED"
    if not (s.retry or unlocked) and (not changed or old.status == "CANCELLED"):
        return "skip"
    return "start" if changed or old.status == "NOT_INDEXABLE" else "replay"


def _start(
    connection: Connection, s: Submission, changed: Sequence[tuple[NewDocument, Known]], *, seal: bool = False
) -> None:
    """New runs of documents that are there: changed bytes, changed settings of what had failed, another workflow."""
    if not changed:
        return
    ids = [old.id for _, old in changed]
    _stop_runs(connection, ids)
    generations.retire(connection, ids, GRACE_S)
    dead_letters.close(s.owner, connection, ids, "REPLAYED")
    connection.run(_CHANGED, [(old.id, d.size, d.sha256, d.name, json.dumps(d.metadata)) for d, old in changed])
    begin = [
        Beginning(d.run_id, old.id, d.raw_key or old.raw_key, d.size, d.sha256, old.group_id) for d, old in changed
    ]
    submissions.begin(connection, s, begin, seal=seal)


def _answers_by_key(connection: Connection, s: Submission) -> dict[str, Submitted]:
    keys = {d.key: d for d in s.documents if d.key is not None}
    if not keys:
        return {}
    answers = {}
    for key, sha256, document, status in connection.run(_KEYS, [(key,) for key in keys], owner=s.owner):
        if keys[key].sha256 != sha256:
            raise UsageError(
                f"the idempotency key {key!r} was used before with other bytes (document {document}): "
                "use a new key for new content"
            )
        answers[key] = Submitted(DocumentId(document), "skipped", status)
    return answers


def _keep_password(connection: Connection, s: Submission, documents: Sequence[DocumentId]) -> None:
    if s.password is not None and documents:
        connection.run(_PASSWORD, [(document,) for document in documents], password=s.password, owner=s.owner)


def _keep_keys(connection: Connection, s: Submission, answers: dict[str, Submitted], keyed: Container[str]) -> None:
    rows = [
        (d.key, d.sha256, answers[d.source].document_id)
        for d in s.documents
        if d.key is not None and d.key not in keyed and not answers[d.source].needs_bytes
    ]
    if rows:
        # Where another submit kept one of them since we looked, this is refused, and run again.
        connection.run(_KEEP_KEY, rows, owner=s.owner)


_STOP_STEPS = Statement(
    "UPDATE steps SET status = 'CANCELLED', lease_token = NULL, finished_at = {now}, waiting_on = NULL "
    "WHERE status IN ('PENDING', 'RUNNING', 'ERROR') AND run_id IN (SELECT x.id FROM {rows} "
    "JOIN runs x ON x.document_id = r.document WHERE x.status = 'OPEN')",
    rows="document text",
    plan_anew=True,
)
_ACTIVE_STEPS = Statement(
    "SELECT s.id FROM {rows} JOIN runs x ON x.document_id = r.document AND x.status = 'OPEN' "
    "JOIN steps s ON s.run_id = x.id AND s.status IN ('PENDING', 'RUNNING', 'ERROR') LIMIT 1",
    rows="document text",
    plan_anew=True,
)
_STOP_RUNS = Statement(
    "UPDATE runs SET status = 'CANCELLED', finished_at = {now} WHERE status = 'OPEN' "
    "AND document_id IN (SELECT r.document FROM {rows}) RETURNING owner, snapshot, id, document_id, group_id",
    rows="document text",
    plan_anew=True,
)


def _stop_runs(connection: Connection, documents: Sequence[DocumentId]) -> set[DocumentId]:
    """Open runs end here; whoever holds a lease on their steps has lost it."""
    rows = [(document,) for document in documents]
    # On PostgreSQL a step may be chained while we wait for the one before it: look again until none is left.
    while connection.run(_ACTIVE_STEPS, rows):
        connection.run(_STOP_STEPS, rows)
    stopped = connection.run(_STOP_RUNS, rows)
    groups.close(connection, [row[4] for row in stopped])
    outbox.tell_cancelled(connection, [row[:4] for row in stopped])
    return {DocumentId(row[3]) for row in stopped}


_CANCEL = Statement(
    "UPDATE documents SET status = 'CANCELLED', updated_at = {now} "
    "WHERE {owner} AND id IN (SELECT r.document FROM {rows})",
    rows="document text",
)
_MINE = Statement(
    "SELECT id, status FROM documents WHERE {owner} AND deleted_at IS NULL "
    "AND id IN (SELECT r.document FROM {rows}) ORDER BY id {hold}",
    rows="document text",
    plan_anew=True,
)


class Selected(msgspec.Struct, frozen=True):
    owner: Owner
    documents: tuple[DocumentId, ...]


def _statuses(connection: Connection, chosen: Selected) -> dict[DocumentId, str]:
    rows = connection.run(_MINE, [(document,) for document in chosen.documents], owner=chosen.owner)
    return {DocumentId(row[0]): row[1] for row in rows}


def _cancel(connection: Connection, requests: Sequence[Selected]) -> list[set[DocumentId]]:
    answers = []
    for request in requests:
        stopped = _stop_runs(connection, list(_statuses(connection, request)))
        if stopped:
            connection.run(_CANCEL, [(document,) for document in stopped], owner=request.owner)
        answers.append(stopped)
    return answers


_TOMBSTONE = Statement(
    "UPDATE documents SET deleted_at = {now}, updated_at = {now}, password = NULL "
    "WHERE {owner} AND id IN (SELECT r.document FROM {rows})",
    rows="document text",
)
_FORGET_KEYS = Statement(
    "DELETE FROM idempotency_keys WHERE owner = :owner AND document_id IN (SELECT r.document FROM {rows})",
    rows="document text",
)


def _delete(connection: Connection, requests: Sequence[Selected]) -> list[set[DocumentId]]:
    """Cancel, tombstone and purge rows in one transaction: no search that starts after this finds them (I5)."""
    answers = []
    for request in requests:
        there = _statuses(connection, request)
        if there:
            rows = [(document,) for document in there]
            stopped = _stop_runs(connection, list(there))
            if stopped:
                connection.run(_CANCEL, [(document,) for document in stopped], owner=request.owner)
            generations.retire(connection, list(there), GRACE_S, active=True)
            connection.run(_TOMBSTONE, rows, owner=request.owner)
            connection.run(_FORGET_KEYS, rows, owner=request.owner)
            dead_letters.close(request.owner, connection, list(there), "DISCARDED")
        answers.append(set(there))
    return answers


_RUNS = (
    "SELECT d.id, d.sha256, d.status, x.id, x.settings, x.generation_id, g.raw_key, x.group_id, d.source, d.name, "
    "d.size, d.metadata FROM {rows} JOIN documents d ON d.id = r.document AND {d.owner} "
    "AND d.deleted_at IS NULL JOIN runs x ON x.document_id = d.id "
    "AND x.generation_id = (SELECT max(generation_id) FROM runs WHERE runs.document_id = d.id) "
    "JOIN generations g ON g.id = x.generation_id "
)
_THERE = Statement(_RUNS, rows="document text", plan_anew=True)
_LAST_RUNS = Statement(
    _RUNS + "WHERE d.status IN ('FAILED', 'CANCELLED', 'NOT_INDEXABLE')", rows="document text", plan_anew=True
)
_REOPEN = Statement(
    "UPDATE runs SET status = 'OPEN', finished_at = NULL WHERE id IN (SELECT r.run FROM {rows}) RETURNING group_id",
    rows="run text",
)
_REVIVE = Statement(
    "UPDATE steps SET status = 'PENDING', attempts = 0, crashes = 0, errors = 0, not_before = NULL, finished_at = NULL "
    "WHERE status IN ('FAILED', 'CANCELLED') AND run_id IN (SELECT r.run FROM {rows}) RETURNING id",
    rows="run text",
)
_RETRIED = Statement(
    "UPDATE documents SET status = 'PENDING', error = NULL, retry_count = retry_count + 1, updated_at = {now} "
    "WHERE status IN ('FAILED', 'CANCELLED') AND id IN (SELECT r.document FROM {rows}) RETURNING id",
    rows="document text",
)


def _replay(connection: Connection, owner: Owner, old: Sequence[Known]) -> None:
    """The same run goes on from its checkpoint, attempts at zero."""
    if not old:
        return
    taken = {row[0] for row in connection.run(_RETRIED, [(k.id,) for k in old])}
    old = [k for k in old if k.id in taken]
    groups.reopen(connection, [row[0] for row in connection.run(_REOPEN, [(k.run_id,) for k in old])])
    revived = connection.run(_REVIVE, [(k.run_id,) for k in old])
    ready_steps(connection, [StepId(row[0]) for row in revived])
    dead_letters.close(owner, connection, [k.id for k in old], "REPLAYED")


class Retry(msgspec.Struct, frozen=True):
    """A retry; where today's settings differ from the run's, or nothing failed (NOT_INDEXABLE), a new run starts."""

    submission: Submission
    """Carries owner, snapshot and settings; its documents name (id, run id) of what to retry."""


def _retry(connection: Connection, requests: Sequence[Retry]) -> list[set[DocumentId]]:
    answers = []
    for request in requests:
        s = request.submission
        _statuses(connection, Selected(s.owner, tuple(d.id for d in s.documents)))
        rows = connection.run(_LAST_RUNS, [(d.id,) for d in s.documents], owner=s.owner)
        old = {DocumentId(row[0]): Known(*row[:8]) for row in rows}
        # What the document is now is in the ledger; the caller may have looked at it long ago.
        now = {row[0]: (row[8], row[9], row[1], row[10], None, json.loads(row[11])) for row in rows}
        fresh = {i for i, k in old.items() if k.settings != s.settings or k.status == "NOT_INDEXABLE"}
        _replay(connection, s.owner, [k for i, k in old.items() if i not in fresh])
        _start(
            connection,
            s,
            [(NewDocument(d.id, d.run_id, *now[d.id]), old[d.id]) for d in s.documents if d.id in fresh],
        )
        _keep_password(connection, s, list(old))
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
    _statuses(connection, Selected(s.owner, tuple(d.id for d in s.documents)))
    rows = connection.run(_THERE, [(d.id,) for d in s.documents], owner=s.owner)
    old = {DocumentId(row[0]): (Known(*row[:8]), row[8:]) for row in rows}
    fresh, done, working = [], 0, 0
    for d in s.documents:
        if d.id not in old:
            continue
        known, (source, name, size, metadata) = old[d.id]
        same = known.settings == s.settings
        if same and known.status == "COMPLETED" and not request.again:
            done += 1
        elif same and known.status not in ("COMPLETED", "FAILED", "CANCELLED", "NOT_INDEXABLE"):
            working += 1
        else:
            now = NewDocument(d.id, d.run_id, source, name, known.sha256, size, None, json.loads(metadata))
            fresh.append((now, known))
    _start(connection, s, fresh)
    return Started(tuple(d.id for d, _ in fresh), done, working)


class CancelGroup(msgspec.Struct, frozen=True):
    owner: Owner
    group: str
    count: int


_OPEN_OF_GROUP = Statement(
    "SELECT document_id FROM runs WHERE group_id = :group AND owner = :owner AND status = 'OPEN' LIMIT :count"
)


def _cancel_group(connection: Connection, requests: Sequence[CancelGroup]) -> list[int]:
    """Some of its open runs; 0: none is left."""
    answers = []
    for r in requests:
        rows = connection.run(_OPEN_OF_GROUP, group=r.group, owner=r.owner, count=r.count)
        chosen = Selected(r.owner, tuple(DocumentId(row[0]) for row in rows))
        answers.append(len(_cancel(connection, [chosen])[0]) if rows else 0)
    return answers


class Remake(msgspec.Struct, frozen=True):
    """Documents at their end whose artifacts are gone in whole or in part, each with the id of a new run."""

    owner: Owner
    documents: tuple[tuple[DocumentId, RunId], ...]


_LOST = Statement(
    "SELECT d.id, d.sha256, d.status, x.id, x.settings, g.id, g.raw_key, d.source, d.name, d.size, d.metadata, "
    "d.collection, x.snapshot, x.priority, s.name, s.kind, s.pool, s.resource_key FROM {rows} "
    "JOIN documents d ON d.id = r.document AND {d.owner} AND d.deleted_at IS NULL "
    "AND d.status IN ('COMPLETED', 'NOT_INDEXABLE') JOIN generations g ON g.document_id = d.id AND g.state = 'ACTIVE' "
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
        _statuses(connection, Selected(request.owner, tuple(names)))
        rows = connection.run(_LOST, [(document,) for document in names], owner=request.owner)
        for row in rows:
            old = Known(*row[:7])
            new = NewDocument(old.id, names[old.id], row[7], row[8], old.sha256, row[9], None, json.loads(row[10]))
            first = FirstStep(*row[14:18])
            s = Submission(request.owner, row[11], (new,), row[12], "", old.settings, first, priority=row[13])
            _start(connection, s, [(new, old)])
        answers.append({DocumentId(row[0]) for row in rows})
    return answers


SUBMIT = Verb(
    "submit",
    _submit,
    at_once=lambda orders: len(orders) == 1 and submissions.is_one_statement(orders[0]),
    wakes=lambda answers: any(one.outcome != "skipped" for answer in answers for one in answer),
    counts=True,
    recall=_recall_submitted,
)
CANCEL = Verb("cancel", _cancel, counts=True)
DELETE = Verb("delete", _delete, counts=True)
RETRY = Verb("retry", _retry, wakes=any, counts=True)
START = Verb("start", _begin, wakes=lambda answers: any(answer.started for answer in answers), counts=True)
CANCEL_GROUP = Verb("cancel_group", _cancel_group, counts=True)
REMAKE = Verb("remake", _remake, wakes=any, counts=True)
