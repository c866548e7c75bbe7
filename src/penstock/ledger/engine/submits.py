"""Submit: documents of one owner enter the ledger with their runs, in one transaction. What is known already follows
the rules of "Again" (DESIGN section 6)."""

from collections.abc import Container, Sequence
from typing import Literal

import msgspec

from penstock.errors import UsageError
from penstock.ledger.database.connection import Connection
from penstock.ledger.database.statements import Statement
from penstock.ledger.database.writer import NeedsTransaction, Verb
from penstock.ledger.engine import admission, children, groups, metadata, submissions
from penstock.ledger.engine.runs import Known, hold, keep_password, known, replay_runs, start_runs
from penstock.ledger.engine.submissions import NewDocument, Submission
from penstock.model.nouns import DocumentId
from penstock.model.states import TEXTLESS

Outcome = Literal["submitted", "held", "resumed", "updated", "skipped", "taken"]
"""`held`: as `submitted`, but the run waits until a user starts it. `taken`: the source belongs to a
document that is no child of this parent, or to a child, and this is none."""

WORK = ("submitted", "held", "resumed")
ENTER_TRIES = 5


class Submitted(msgspec.Struct, frozen=True):
    document_id: DocumentId
    outcome: Outcome
    status: str
    stale_settings: bool = False
    """It is COMPLETED, but with other settings than today's: only a re-index changes that."""
    needs_bytes: bool = False
    """The document changed meanwhile: nothing was submitted. The caller must store the bytes and submit again."""


_BATCH = Statement(
    "UPDATE documents SET batch = :batch, updated_at = {now} WHERE {owner} AND (batch IS NULL OR batch <> :batch) "
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


def _submit_one(connection: Connection, s: Submission) -> list[Submitted]:
    """One answer for each document; none if the lease of the step that found them is lost."""
    if s.parent is not None and not children.hold_lease(s.owner, connection, s.parent, len(s.documents)):
        return []
    before = admission.holdings(s.owner, connection) if s.quota.is_limited else None
    keyed = _answers_by_key(connection, s)
    asked = [d for d in s.documents if d.key is None or d.key not in keyed]
    # All bytes are stored, so no second submit will follow.
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
            answers[document.source] = _entered(s, document.id)
            continue
        old = there.get(document.source)
        if old is None or (document.raw_key is None and (old.raw_lost or old.sha256 != document.sha256)):
            answers[document.source] = Submitted(document.id, "skipped", "PENDING", needs_bytes=True)
            continue
        if old.parent_id != (s.parent.document_id if s.parent is not None else None):
            answers[document.source] = Submitted(old.id, "taken", old.status)
            continue
        verdict = _again(document, old, s)
        if verdict == "start":
            start.append((document, old))
            answers[document.source] = _entered(s, old.id)
            if old.status == "HELD" and old.sha256 == document.sha256 and not s.held:
                answers[document.source] = Submitted(old.id, "resumed", "PENDING")
            continue
        if verdict == "replay":
            replay.append(old)
        stale = old.status == "COMPLETED" and not old.made_with(s.settings)
        outcome: Outcome = "skipped" if verdict == "skip" else "resumed"
        answers[document.source] = Submitted(old.id, outcome, old.status, stale_settings=stale)
    _update_metadata(connection, s, answers, start, new)
    again = any(answer.needs_bytes for answer in answers.values())
    start_runs(connection, s, start, seal=not again)
    replay_runs(connection, s.owner, replay)
    keep_password(connection, s, [answer.document_id for answer in answers.values() if answer.outcome in WORK])
    _keep_keys(connection, s, answers, keyed)
    if s.batch is not None and len(new) < len(s.documents):
        ours = [(answer.document_id,) for answer in answers.values() if answer.outcome != "taken"]
        connection.run(_BATCH, ours, owner=s.owner, batch=s.batch)
    _adopt(connection, s, answers)
    is_sealed = start or (new and whole)
    if s.group is not None and s.group.seal and not is_sealed and not again:
        groups.seal(connection, [s.group.id])
    if before is not None:
        # Triggers have counted these documents by now.
        admission.check(s.owner, connection, s.quota, before)
    return [answers[document.source] for document in s.documents]


def _entered(s: Submission, document: DocumentId) -> Submitted:
    return Submitted(document, "held" if s.held else "submitted", s.entry_status)


def _is_ours(answer: Submitted) -> bool:
    return not answer.needs_bytes and answer.outcome != "taken"


def _adopt(connection: Connection, s: Submission, answers: dict[str, Submitted]) -> None:
    if s.parent is None:
        return
    own = [d for d in s.documents if _is_ours(answers[d.source])]
    found = [answers[d.source].document_id for d in own]
    children.adopt(s.owner, connection, s.parent, found, sum(d.size for d in own))


def _update_metadata(
    connection: Connection,
    s: Submission,
    answers: dict[str, Submitted],
    start: Sequence[tuple[NewDocument, Known]],
    new: Container[DocumentId],
) -> None:
    """Set the given metadata of known documents that get no new run."""
    starting = {d.source for d, _ in start}
    known = [
        (d, answers[d.source])
        for d in s.documents
        if d.metadata and d.id not in new and d.source not in starting and _is_ours(answers[d.source])
    ]
    if not known:
        return
    changes = [metadata.MetadataChange(s.owner, answer.document_id, d.metadata) for d, answer in known]
    changed = metadata.change(s.owner, connection, changes)
    for document, answer in known:
        if answer.document_id in changed and answer.outcome == "skipped":
            answers[document.source] = msgspec.structs.replace(answer, outcome="updated")


def _enter(
    connection: Connection, s: Submission, asked: Sequence[NewDocument], *, seal: bool
) -> tuple[set[DocumentId], dict[str, Known]]:
    """Insert the documents. Those whose source exists already are looked up instead."""
    new: set[DocumentId] = set()
    there: dict[str, Known] = {}
    unknown = [d for d in asked if d.raw_key is not None]
    for _ in range(ENTER_TRIES):
        new |= submissions.enter(connection, s, unknown, seal=seal)
        rest = [d for d in asked if d.id not in new]
        if rest and connection.single_statement:
            raise NeedsTransaction
        there = _known_and_held(connection, s, [d.source for d in rest])
        # These were deleted while we waited for their rows: now they are new.
        unknown = [d for d in rest if d.raw_key is not None and d.source not in there]
        if not unknown:
            break
    return new, there


def _known_and_held(connection: Connection, s: Submission, sources: Sequence[str]) -> dict[str, Known]:
    """Look up and lock: no other transaction changes them before our write."""
    there = known(s.owner, connection, s.collection, sources) if sources else {}
    if there and connection.dialect == "postgres":
        hold(s.owner, connection, [old.id for old in there.values()])
        there = known(s.owner, connection, s.collection, sources)
    return there


def _again(document: NewDocument, old: Known, s: Submission) -> Literal["start", "skip", "resume", "replay"]:
    """The rules of "Again": what a second submit of one source means."""
    if old.raw_lost or old.sha256 != document.sha256:
        return "start"
    if old.status == "COMPLETED":
        return "skip"
    if old.status == "HELD":
        return "skip" if s.held and old.made_with(s.settings) else "start"
    if old.status not in ("FAILED", "CANCELLED", *TEXTLESS):
        return "resume"
    changed = not old.made_with(s.settings)
    unlocked = s.password is not None and old.status == "FAILED"
    if not (s.retry or unlocked) and (not changed or old.status == "CANCELLED"):
        return "skip"
    return "start" if s.held or changed or old.status in TEXTLESS or not old.is_building else "replay"


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


def _keep_keys(connection: Connection, s: Submission, answers: dict[str, Submitted], keyed: Container[str]) -> None:
    rows = [
        (d.key, d.sha256, answers[d.source].document_id)
        for d in s.documents
        if d.key is not None and d.key not in keyed and not answers[d.source].needs_bytes
    ]
    if rows:
        # If another submit has stored one of them meanwhile, this fails and the group runs again.
        connection.run(_KEEP_KEY, rows, owner=s.owner)


_BEGUN = Statement("SELECT x.id FROM {rows} JOIN runs x ON x.id = r.run", rows="run text")


def _recall_submitted(connection: Connection, orders: Sequence[Submission]) -> list[list[Submitted] | None]:
    """Only for new documents, one for each order: known ones take a transaction. Run ids are unique, so a run with this
    id is ours."""
    begun = {row[0] for row in connection.run(_BEGUN, [(d.run_id,) for s in orders for d in s.documents])}
    return [[_entered(s, d.id) for d in s.documents] if s.documents[0].run_id in begun else None for s in orders]


SUBMIT = Verb(
    "submit",
    _submit,
    single_statement=lambda orders: len(orders) == 1 and submissions.is_one_statement(orders[0]),
    notifies=lambda answers: any(one.outcome in ("submitted", "resumed") for answer in answers for one in answer),
    counts=True,
    recall=_recall_submitted,
)
