"""Runs and their steps, as clients that think in runs list them."""

from collections.abc import Sequence

import msgspec

from penstock.ledger.database.connection import Connection, Row
from penstock.ledger.database.statements import Statement
from penstock.model.nouns import DocumentId, Owner
from penstock.model.states import StepStatus


class ListedRun(msgspec.Struct, frozen=True):
    id: str
    document_id: str
    group_id: str | None
    batch: str | None
    status: str
    """PENDING until its first step was claimed, then RUNNING, then how it ended."""
    priority: int
    sha256: str
    source: str
    name: str
    workflow: str
    params: str | None
    created_at: float
    started_at: float | None
    finished_at: float | None


class RunStep(msgspec.Struct, frozen=True):
    id: int
    run_id: str
    position: int
    name: str
    kind: str
    status: str
    attempts: int
    priority: int
    worker: str | None
    error: str | None
    meta: str
    """JSON."""
    created_at: float
    started_at: float | None
    finished_at: float | None


class _Named(msgspec.Struct):
    id: str
    asked: "_Asked | None" = None


class _Asked(msgspec.Struct):
    workflow: str | None = None
    params: str | None = None


_COLUMNS = (
    "SELECT x.id, x.document_id, x.group_id, d.batch, x.status, x.priority, g.sha256, d.source, d.name, s.body, "
    "x.created_at, (SELECT min(t.started_at) FROM steps t WHERE t.run_id = x.id), x.finished_at FROM "
)
_JOINED = (
    "JOIN documents d ON d.id = x.document_id AND d.deleted_at IS NULL JOIN generations g ON g.id = x.generation_id "
    "JOIN snapshots s ON s.hash = x.snapshot "
)
_OF_DOCUMENTS = Statement(
    _COLUMNS + "{rows} JOIN runs x ON x.document_id = r.document AND x.generation_id = "
    "(SELECT max(n.generation_id) FROM runs n WHERE n.document_id = r.document) " + _JOINED + "WHERE {x.owner}",
    rows="document text",
)
_OF_GROUP = Statement(
    _COLUMNS + "runs x " + _JOINED + "WHERE x.owner = :owner AND x.group_id = :group AND x.id > :after "
    "ORDER BY x.id LIMIT :count"
)
_GET = Statement(_COLUMNS + "runs x " + _JOINED + "WHERE x.owner = :owner AND x.id = :run")
_IN_BATCH = Statement(
    "SELECT id FROM documents WHERE owner = :owner AND batch = :batch AND deleted_at IS NULL AND id > :after "
    "AND (:status = '' OR status = :status) ORDER BY id LIMIT :count"
)
_RAW_IN_BATCH = Statement(
    "SELECT d.id, g.raw_key, g.sha256 FROM documents d JOIN generations g ON g.id = "
    "(SELECT max(n.generation_id) FROM runs n WHERE n.document_id = d.id) WHERE d.owner = :owner AND d.batch = :batch "
    "AND d.deleted_at IS NULL AND d.id > :after ORDER BY d.id LIMIT :count"
)
_STEP_COLUMNS = (
    "SELECT t.id, t.run_id, t.position, t.name, t.kind, t.status, t.attempts, t.priority, t.worker_id, t.error, "
    "t.meta, t.created_at, t.started_at, t.finished_at FROM "
)
_STEPS = Statement(
    _STEP_COLUMNS + "{rows} JOIN steps t ON t.run_id = r.run AND {t.owner} ORDER BY t.run_id, t.position",
    rows="run text",
)
_BY_HASH = Statement(
    "SELECT id FROM documents WHERE owner = :owner AND deleted_at IS NULL AND sha256 = :digits ORDER BY id DESC LIMIT 1"
)
_BY_PREFIX = Statement(
    "SELECT id, sha256 FROM documents WHERE owner = :owner AND deleted_at IS NULL AND sha256 {bytes} >= :low "
    "AND sha256 {bytes} < :high ORDER BY sha256, id DESC LIMIT 100"
)
_BY_SOURCE = Statement(
    "SELECT d.id, d.source, d.sha256 FROM {rows} JOIN documents d ON d.source = r.source AND {d.owner} "
    "WHERE d.deleted_at IS NULL",
    rows="source text",
)
_IN_SOURCE = Statement(
    "SELECT id, source, sha256 FROM documents WHERE owner = :owner AND deleted_at IS NULL AND source {bytes} >= :low "
    "AND source {bytes} < :high AND source {bytes} > :after ORDER BY source {bytes} LIMIT :count"
)
# The status stands in the text, because what runs or has failed has an index of its own.
_OF_STATUS = {
    status: Statement(
        _STEP_COLUMNS + "steps t JOIN documents d ON d.id = t.document_id AND d.deleted_at IS NULL "
        f"WHERE t.owner = :owner AND t.status = '{status}' ORDER BY t.id DESC LIMIT :count"
    )
    for status in StepStatus
}
WHOLE = 64
"""The number of digits of a SHA-256."""
_STEP_STATS = Statement(
    "SELECT t.name, t.kind, t.status, count(*), avg(t.finished_at - t.started_at), max(t.finished_at - t.started_at) "
    "FROM runs x JOIN steps t ON t.run_id = x.id WHERE x.owner = :owner AND x.group_id = :group "
    "GROUP BY t.name, t.kind, t.status ORDER BY min(t.position), t.status"
)


class StepStats(msgspec.Struct, frozen=True):
    """The steps of a group with one name and status."""

    step: str
    kind: str
    status: str
    count: int
    average_s: float | None
    longest_s: float | None


def of_documents(owner: Owner, connection: Connection, documents: Sequence[str]) -> list[ListedRun]:
    """The newest run of each document."""
    rows = connection.run(_OF_DOCUMENTS, [(one,) for one in documents], owner=owner) if documents else []
    return [_run(row) for row in rows]


def of_group(owner: Owner, connection: Connection, group: str, after: str, count: int) -> list[ListedRun]:
    return [_run(row) for row in connection.run(_OF_GROUP, owner=owner, group=group, after=after, count=count)]


def get(owner: Owner, connection: Connection, run: str) -> ListedRun | None:
    return next((_run(row) for row in connection.run(_GET, owner=owner, run=run)), None)


def in_batch(
    owner: Owner, connection: Connection, batch: str, after: str, count: int, status: str = ""
) -> list[DocumentId]:
    rows = connection.run(_IN_BATCH, owner=owner, batch=batch, after=after, count=count, status=status)
    return [DocumentId(row[0]) for row in rows]


def raw_in_batch(
    owner: Owner, connection: Connection, batch: str, after: str, count: int
) -> list[tuple[DocumentId, str, str]]:
    """The documents of a batch with the key and the SHA-256 of their newest raw bytes."""
    rows = connection.run(_RAW_IN_BATCH, owner=owner, batch=batch, after=after, count=count)
    return [(DocumentId(row[0]), row[1], row[2]) for row in rows]


def steps(owner: Owner, connection: Connection, runs: Sequence[str]) -> list[RunStep]:
    rows = connection.run(_STEPS, [(one,) for one in runs], owner=owner) if runs else []
    return [RunStep(*row) for row in rows]


def by_hash(owner: Owner, connection: Connection, digits: str) -> DocumentId | None:
    """The newest document with this SHA-256, or with the only one that begins so."""
    if len(digits) == WHOLE:
        rows = connection.run(_BY_HASH, owner=owner, digits=digits)
    else:
        rows = connection.run(_BY_PREFIX, owner=owner, low=digits, high=digits + "g")
        if len({row[1] for row in rows}) > 1:
            return None
    return next((DocumentId(row[0]) for row in rows), None)


def by_source(owner: Owner, connection: Connection, sources: Sequence[str]) -> list[tuple[DocumentId, str, str]]:
    """The documents with these sources, in all collections: id, source and SHA-256."""
    rows = connection.run(_BY_SOURCE, [(one,) for one in sources], owner=owner) if sources else []
    return [(DocumentId(row[0]), row[1], row[2]) for row in rows]


def in_source(
    owner: Owner, connection: Connection, low: str, high: str, after: str, count: int
) -> list[tuple[DocumentId, str, str]]:
    """The documents whose sources lie between two texts, by source, after one of them."""
    rows = connection.run(_IN_SOURCE, owner=owner, low=low, high=high, after=after, count=count)
    return [(DocumentId(row[0]), row[1], row[2]) for row in rows]


def of_status(owner: Owner, connection: Connection, status: str, count: int) -> list[RunStep]:
    """The newest steps with a status."""
    return [RunStep(*row) for row in connection.run(_OF_STATUS[StepStatus(status)], owner=owner, count=count)]


def step_stats(owner: Owner, connection: Connection, group: str) -> list[StepStats]:
    return [StepStats(*row) for row in connection.run(_STEP_STATS, owner=owner, group=group)]


def _run(row: Row) -> ListedRun:
    run, document, group, batch, status, priority, sha256, source, name, body, created, started, finished = row
    named = msgspec.json.decode(body, type=_Named)
    shown = status if status != "OPEN" else "PENDING" if started is None else "RUNNING"
    params = named.asked.params if named.asked is not None else None
    return ListedRun(
        run, DocumentId(document), group, batch, shown, priority, sha256, source, name, named.id, params,
        created, started, finished,
    )  # fmt: skip
