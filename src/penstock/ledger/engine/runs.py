"""Runs of documents that are in the ledger: look them up, start new ones, stop, reopen and end them. The verbs that
users call (submit, cancel, delete, retry, start) are made of these."""

from collections.abc import Sequence

import msgspec

from penstock.ledger.database.connection import Connection
from penstock.ledger.database.statements import Statement
from penstock.ledger.engine import children, dead_letters, generations, groups, metadata, outbox, submissions
from penstock.ledger.engine.generations import GRACE_S
from penstock.ledger.engine.resource_keys import ready_steps
from penstock.ledger.engine.steps import SETTINGS
from penstock.ledger.engine.submissions import Beginning, NewDocument, Submission
from penstock.model import settings
from penstock.model.nouns import DocumentId, Owner, RunId, StepId

LAST_RUN = (
    "coalesce((SELECT a.id FROM generations a WHERE a.document_id = d.id AND a.state = 'ACTIVE' "
    "AND d.status = 'COMPLETED'), (SELECT max(generation_id) FROM runs WHERE runs.document_id = d.id))"
)
"""The generation of the run that made a document d what it is. After the undo or the cancel of a re-index, that is not
the newest one."""

_KNOWN = Statement(
    f"SELECT d.id, d.source, d.sha256, d.status, x.id, {SETTINGS}, x.generation_id, g.raw_key, x.group_id, "
    "d.media_type, CASE WHEN d.status = 'FAILED' THEN EXISTS (SELECT 1 FROM dead_letters l WHERE l.run_id = x.id "
    "AND l.reason IN ('raw_missing', 'raw_damaged', 'short_read')) ELSE false END, g.found, d.size, d.parent_id, "
    "g.state = 'BUILDING' AND EXISTS (SELECT 1 FROM steps s WHERE s.run_id = x.id) "
    "FROM {rows} "
    "JOIN {documents d: d.source = r.source AND {d.owner} AND d.collection = :collection "
    "AND d.deleted_at IS NULL} JOIN runs x ON x.document_id = d.id "
    f"AND x.generation_id = {LAST_RUN} JOIN generations g ON g.id = x.generation_id",
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
    media_type: str | None = None
    raw_lost: bool = False
    """It failed because its raw bytes are missing or damaged: submitting the same bytes again helps."""
    found: str | None = None
    """Metadata that its steps found, as JSON: it says whether there were scanned pages."""
    size: int = 0
    parent_id: DocumentId | None = None
    is_building: bool = True
    """Whether the run can go on. A re-index that was cancelled has given its generation up, and a run that was held has
    no steps."""

    def made_with(self, now: str) -> bool:
        """False: these settings may lead to another outcome than those of its newest run."""
        # A new reader may also recognise what was not supported, so the versions of all count.
        media_type = None if self.status == "UNSUPPORTED" else self.media_type
        scanned = self.status != "COMPLETED" or '"ocr":true' in (self.found or "")
        return settings.same(self.settings, now, media_type, scanned=scanned)


def known(owner: Owner, connection: Connection, collection: str, sources: Sequence[str]) -> dict[str, Known]:
    rows = connection.run(_KNOWN, [(source,) for source in sources], owner=owner, collection=collection)
    return {row[1]: Known(row[0], *row[2:]) for row in rows}


class Selected(msgspec.Struct, frozen=True):
    owner: Owner
    documents: tuple[DocumentId, ...]
    forget: bool = False
    """For a delete: keep their sources away from now on."""


_MINE = Statement(
    "SELECT id, status FROM documents WHERE {owner} AND deleted_at IS NULL "
    "AND id IN (SELECT r.document FROM {rows}) ORDER BY id {hold}",
    rows="document text",
    plan_anew=True,
)


def hold(owner: Owner, connection: Connection, documents: Sequence[DocumentId]) -> dict[DocumentId, str]:
    """The status of those that exist. On PostgreSQL no other transaction changes them until this one ends."""
    rows = connection.run(_MINE, [(document,) for document in documents], owner=owner)
    return {DocumentId(row[0]): row[1] for row in rows}


_CHANGED = Statement(
    "UPDATE documents SET size = r.bytes, sha256 = r.hash, name = r.title, metadata = r.info, error = NULL, "
    "media_type = NULL, revision = CASE WHEN sha256 = r.hash THEN revision END, updated_at = {now}, "
    "status = CASE WHEN :entry = 'HELD' OR status IN ('HELD', 'COMPLETED', 'NOT_INDEXABLE', 'UNSUPPORTED', 'FAILED', "
    "'CANCELLED') THEN :entry ELSE status END "
    "FROM {rows} WHERE {documents.id = r.document}",
    rows="document text, bytes bigint, hash text, title text, info text",
)


def start_runs(
    connection: Connection, s: Submission, changed: Sequence[tuple[NewDocument, Known]], *, seal: bool = False
) -> None:
    """Start new runs of existing documents: for changed bytes, changed settings or another workflow."""
    if not changed:
        return
    ids = [old.id for _, old in changed]
    drop_held(connection, ids)
    stop_runs(connection, ids)
    generations.retire(connection, ids, GRACE_S)
    dead_letters.close(s.owner, connection, ids, "REPLAYED")
    texts = metadata.renew(s.owner, connection, [(old.id, d.metadata) for d, old in changed])
    connection.run(
        _CHANGED, [(old.id, d.size, d.sha256, d.name, texts[old.id]) for d, old in changed], entry=s.entry_status
    )
    if s.parent is None:
        children.reset_counts(s.owner, connection, ids)
    begin = [
        Beginning(
            d.run_id,
            old.id,
            d.raw_key or old.raw_key,
            d.size,
            d.sha256,
            None if s.held else s.parent.group_id if s.parent else old.group_id,
            d.data,
        )
        for d, old in changed
    ]
    submissions.begin(connection, s, begin, seal=seal)


_PASSWORD = Statement(
    "UPDATE documents SET password = :password WHERE {owner} AND id IN (SELECT r.document FROM {rows})",
    rows="document text",
)


def keep_password(connection: Connection, s: Submission, documents: Sequence[DocumentId]) -> None:
    if s.password is not None and documents:
        connection.run(_PASSWORD, [(document,) for document in documents], password=s.password, owner=s.owner)


# Runs are read first, and their steps by run. As one statement with three tables, PostgreSQL with stale statistics
# compared every step with every run for every document: minutes for a thousand documents.
_OPEN_RUNS = Statement(
    "SELECT x.id FROM {rows} JOIN runs x ON x.document_id = r.document WHERE x.status = 'OPEN'",
    rows="document text",
    plan_anew=True,
)

_STOP_STEPS = Statement(
    "UPDATE steps SET status = 'CANCELLED', lease_token = NULL, finished_at = {now}, waiting_on = NULL "
    "WHERE status IN ('PENDING', 'RUNNING', 'ERROR') AND run_id IN (SELECT r.run FROM {rows})",
    rows="run text",
    plan_anew=True,
)

_ACTIVE_STEPS = Statement(
    "SELECT s.id FROM {rows} JOIN steps s ON s.run_id = r.run AND s.status IN ('PENDING', 'RUNNING', 'ERROR') LIMIT 1",
    rows="run text",
    plan_anew=True,
)

_STOP_RUNS = Statement(
    "UPDATE runs SET status = 'CANCELLED', finished_at = {now} WHERE status IN ('OPEN', 'HELD') "
    "AND document_id IN (SELECT r.document FROM {rows}) RETURNING owner, snapshot, id, document_id, group_id",
    rows="document text",
    plan_anew=True,
)


def stop_runs(connection: Connection, documents: Sequence[DocumentId]) -> set[DocumentId]:
    """Cancel open runs. Leases on their steps are lost."""
    rows = [(document,) for document in documents]
    # On PostgreSQL a next step may be inserted while we wait for the one before it: repeat until none is left.
    runs = connection.run(_OPEN_RUNS, rows)
    while connection.run(_ACTIVE_STEPS, runs):
        connection.run(_STOP_STEPS, runs)
    stopped = connection.run(_STOP_RUNS, rows)
    groups.close(connection, [row[4] for row in stopped])
    outbox.tell_cancelled(connection, [row[:4] for row in stopped])
    return {DocumentId(row[3]) for row in stopped}


_DROP_HELD = Statement(
    "DELETE FROM runs WHERE status = 'HELD' AND document_id IN (SELECT r.document FROM {rows}) RETURNING generation_id",
    rows="document text",
    plan_anew=True,
)
_NEVER_BEGUN = Statement(
    "UPDATE generations SET state = 'PURGED', staging = 0 WHERE state = 'BUILDING' "
    "AND id IN (SELECT r.generation FROM {rows})",
    rows="generation bigint",
)


def drop_held(connection: Connection, documents: Sequence[DocumentId]) -> None:
    """Remove runs that were held: others take their place. Nothing was made by them."""
    dropped = connection.run(_DROP_HELD, [(document,) for document in documents])
    if dropped:
        connection.run(_NEVER_BEGUN, dropped)


_REOPEN = Statement(
    "UPDATE runs SET status = 'OPEN', finished_at = NULL WHERE id IN (SELECT r.run FROM {rows}) RETURNING group_id",
    rows="run text",
)

_REVIVE = Statement(
    "UPDATE steps SET status = 'PENDING', attempts = 0, crashes = 0, errors = 0, forgiven = 0, refused = 0, "
    "not_before = NULL, finished_at = NULL "
    "WHERE status IN ('FAILED', 'CANCELLED') AND run_id IN (SELECT r.run FROM {rows}) RETURNING id",
    rows="run text",
)

_RETRIED = Statement(
    "UPDATE documents SET status = 'PENDING', error = NULL, retry_count = retry_count + 1, updated_at = {now} "
    "WHERE status IN ('FAILED', 'CANCELLED') AND id IN (SELECT r.document FROM {rows}) RETURNING id",
    rows="document text",
)


def replay_runs(connection: Connection, owner: Owner, old: Sequence[Known]) -> None:
    """The same run goes on from its checkpoint, attempts at zero."""
    if not old:
        return
    taken = {row[0] for row in connection.run(_RETRIED, [(k.id,) for k in old])}
    old = [k for k in old if k.id in taken]
    groups.reopen(connection, [row[0] for row in connection.run(_REOPEN, [(k.run_id,) for k in old])])
    revived = connection.run(_REVIVE, [(k.run_id,) for k in old])
    ready_steps(connection, [StepId(row[0]) for row in revived])
    dead_letters.close(owner, connection, [k.id for k in old], "REPLAYED")


_END_RUN = Statement(
    "UPDATE runs SET status = r.status, finished_at = {now} FROM {rows} "
    "WHERE {runs.id = r.run} AND runs.status = 'OPEN' RETURNING group_id",
    rows="run text, status text",
)


def end_runs(connection: Connection, runs: Sequence[tuple[RunId, str]]) -> None:
    """Runs end with these statuses, and their groups count them."""
    groups.close(connection, [row[0] for row in connection.run(_END_RUN, runs)])
