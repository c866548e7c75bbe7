"""For people: run groups and batches with their statistics."""

from collections.abc import Sequence

import msgspec

from penstock.ledger.database.connection import Connection, Row
from penstock.ledger.database.statements import Statement
from penstock.ledger.engine import groups
from penstock.model.nouns import DocumentId, Owner

RECENT_S = 60.0
"""The pace of the last minute says how long the rest takes."""


class Group(msgspec.Struct, frozen=True):
    """Runs that were started together, counted. `pending`: not begun. `not_indexable`: nothing to search in them, which
    is no failure."""

    id: str
    status: str
    """SUBMITTING, RUNNING; at its end FAILED, CANCELLED or COMPLETED, after the worst that happened in it."""
    batch: str | None
    workflow: str
    params: str | None
    collection: str
    total: int
    completed: int
    not_indexable: int
    running: int
    pending: int
    failed: int
    cancelled: int
    completions: int
    """How often it has ended: once more after each retry."""
    created_at: float
    finished_at: float | None
    unsupported: int = 0
    """Of a format that is not read, which is no failure."""


class Durations(msgspec.Struct, frozen=True):
    """Seconds from the first claim of a run to its end, of those that completed."""

    average: float
    p50: float
    p95: float
    p99: float
    longest: float


class Pace(msgspec.Struct, frozen=True):
    durations: Durations | None
    """None: nothing has completed yet."""
    runs_per_s: float
    """Ended runs by the time from the start of the group to its end, or to now."""
    eta_s: float | None
    """Until the rest has ended, at the pace of the last minute; None: nothing is left, or there is no pace."""


_GROUPS = (
    "SELECT g.id, g.batch, g.workflow, g.params, g.collection, g.sealed, g.open_runs, g.completions, g.created_at, "
    "g.finished_at FROM groups g WHERE g.owner = :owner "
)
_LIST = Statement(_GROUPS + "AND (:batch = '' OR g.batch = :batch) ORDER BY g.id DESC LIMIT :count")
_GET = Statement(_GROUPS + "AND g.id = :id")
_LIKE = Statement(
    "SELECT id FROM groups WHERE owner = :owner AND (substr(id, 1, length(:name)) = :name "
    "OR substr(id, length(id) - length(:name) + 1) = :name) ORDER BY id LIMIT 2"
)
_BEGUN = Statement(
    "SELECT x.group_id, count(*) FROM {rows} JOIN runs x ON x.group_id = r.name AND x.status = 'OPEN' "
    "JOIN steps s ON s.run_id = x.id AND s.position = 0 AND s.epoch > 0 GROUP BY 1",
    rows="name text",
)


def newest(owner: Owner, connection: Connection, batch: str | None, count: int) -> list[Group]:
    return _counted(connection, connection.run(_LIST, owner=owner, batch=batch or "", count=count))


def get(owner: Owner, connection: Connection, group: str) -> Group | None:
    found = _counted(connection, connection.run(_GET, owner=owner, id=group))
    return found[0] if found else None


def resolve(owner: Owner, connection: Connection, name: str) -> str | None:
    """By its id, or by what it alone begins or ends with."""
    found = connection.run(_LIKE, owner=owner, name=name) if len(name) >= 4 else []
    return found[0][0] if len(found) == 1 else None


def _counted(connection: Connection, rows: Sequence[Row]) -> list[Group]:
    ids = [(row[0],) for row in rows]
    counts = groups.counts(connection, [row[0] for row in rows])
    begun = {row[0]: row[1] for row in connection.run(_BEGUN, ids)} if ids else {}
    return [_group(row, counts[row[0]], begun) for row in rows]


def _group(row: Row, counts: dict[str, int], begun: dict[str, int]) -> Group:
    group, batch, workflow, params, collection, sealed, open_runs, completions, created_at, finished_at = row
    running = begun.get(group, 0)
    if not sealed:
        status = "SUBMITTING"
    elif open_runs:
        status = "RUNNING"
    else:
        status = next((end for end in ("FAILED", "CANCELLED") if counts.get(end)), "COMPLETED")
    return Group(
        id=group,
        status=status,
        batch=batch,
        workflow=workflow,
        params=params,
        collection=collection,
        total=sum(counts.values()),
        completed=counts.get("COMPLETED", 0),
        not_indexable=counts.get("NOT_INDEXABLE", 0),
        running=running,
        pending=counts.get("OPEN", 0) - running,
        failed=counts.get("FAILED", 0),
        cancelled=counts.get("CANCELLED", 0),
        completions=completions,
        created_at=created_at,
        finished_at=finished_at,
        unsupported=counts.get("UNSUPPORTED", 0),
    )


_TOOK = (
    "FROM runs x LEFT JOIN steps s ON s.run_id = x.id AND s.position = 0 "
    "WHERE x.group_id = :group AND x.owner = :owner AND x.status = 'COMPLETED'"
)
_SECONDS = "x.finished_at - coalesce(s.started_at, x.created_at)"
_SUMS = Statement(f"SELECT count(*), avg({_SECONDS}), max({_SECONDS}) {_TOOK}")
_NTH = Statement(f"SELECT {_SECONDS} AS took {_TOOK} ORDER BY took LIMIT 1 OFFSET :place")
_PACE = Statement(
    "SELECT coalesce(g.finished_at, {now}) - g.created_at, {now} - g.created_at, g.open_runs, "
    "(SELECT count(*) FROM runs x WHERE x.group_id = g.id AND x.status <> 'OPEN'), "
    "(SELECT count(*) FROM runs x WHERE x.group_id = g.id AND x.status <> 'OPEN' AND x.finished_at > {now} - :recent) "
    "FROM groups g WHERE g.owner = :owner AND g.id = :group"
)


def pace(owner: Owner, connection: Connection, group: str) -> Pace:
    elapsed, age, left, ended, lately = connection.run(_PACE, owner=owner, group=group, recent=RECENT_S)[0]
    recent = lately / max(min(age, RECENT_S), 0.001)
    overall = ended / max(elapsed, 0.001)
    eta = left / (recent or overall) if left and (recent or overall) else None
    return Pace(_durations(owner, connection, group), overall, eta)


def _durations(owner: Owner, connection: Connection, group: str) -> Durations | None:
    count, average, longest = connection.run(_SUMS, owner=owner, group=group)[0]
    if not count:
        return None

    def at(percent: int) -> float:
        place = min(count * percent // 100, count - 1)
        seconds: float = connection.run(_NTH, owner=owner, group=group, place=place)[0][0]
        return seconds

    return Durations(average, at(50), at(95), at(99), longest)


_OF_GROUP = Statement(
    "SELECT x.document_id FROM runs x JOIN documents d ON d.id = x.document_id AND d.deleted_at IS NULL "
    "WHERE x.owner = :owner AND x.group_id = :group AND x.status = :status AND x.document_id > :after "
    "AND x.generation_id = (SELECT max(generation_id) FROM runs WHERE runs.document_id = x.document_id) "
    "ORDER BY x.document_id LIMIT :count"
)


def documents_of_group(
    owner: Owner, connection: Connection, group: str, status: str, after: str, count: int
) -> list[DocumentId]:
    """Those whose newest run belongs to the group and ended so."""
    rows = connection.run(_OF_GROUP, owner=owner, group=group, status=status, after=after, count=count)
    return [DocumentId(row[0]) for row in rows]


_OF_BATCH = Statement(
    "SELECT id, source, name, sha256, size, metadata FROM documents WHERE owner = :owner AND batch = :batch "
    "AND deleted_at IS NULL AND collection = :collection AND id > :after ORDER BY id LIMIT :count"
)


def documents_of_batch(
    owner: Owner, connection: Connection, batch: str, collection: str, after: str, count: int
) -> list[Row]:
    return connection.run(_OF_BATCH, owner=owner, batch=batch, collection=collection, after=after, count=count)


class Batch(msgspec.Struct, frozen=True):
    name: str
    collection: str
    documents: dict[str, int]
    """By status."""
    groups: int
    """Started for it."""
    created_at: float
    """Of its first document."""


_BATCHES = Statement(
    "SELECT d.batch, d.collection, d.status, count(*), min(d.created_at) FROM documents d WHERE d.owner = :owner "
    "AND d.batch IS NOT NULL AND d.deleted_at IS NULL GROUP BY d.batch, d.collection, d.status"
)
_STARTS = Statement(
    "SELECT batch, collection, count(*) FROM groups WHERE owner = :owner AND batch IS NOT NULL GROUP BY 1, 2"
)


def batches(owner: Owner, connection: Connection) -> list[Batch]:
    """The newest first."""
    starts = {(row[0], row[1]): row[2] for row in connection.run(_STARTS, owner=owner)}
    found: dict[tuple[str, str], list[Row]] = {}
    for row in connection.run(_BATCHES, owner=owner):
        found.setdefault((row[0], row[1]), []).append(row)
    listed = [
        Batch(*place, {r[2]: r[3] for r in sorted(rows)}, starts.get(place, 0), min(r[4] for r in rows))
        for place, rows in found.items()
    ]
    return sorted(listed, key=lambda batch: (-batch.created_at, batch.name))
