"""Removal of old rows: artifacts of completed documents, replaced runs, closed dead letters, delivered events and empty
groups. Every verb checks its rows again in its own transaction, and takes a batch by an index. Rows are removed first
and their blobs afterwards, so that a crash in between leaves blobs without a row, which prune finds.

These statements cross owners (I10)."""

from collections.abc import Sequence

import msgspec

from penstock.ledger.database.connection import Connection, Row
from penstock.ledger.database.statements import Statement
from penstock.ledger.database.writer import Verb
from penstock.ledger.engine import backup_guard
from penstock.ledger.upkeep import repairs
from penstock.ledger.upkeep.audit import question
from penstock.model.nouns import GenerationId

_COLLECTIONS = Statement("SELECT DISTINCT name FROM collections ORDER BY name")
_ENDED = "('COMPLETED', 'NOT_INDEXABLE', 'UNSUPPORTED')"
_DROPPABLE = Statement(
    "SELECT g.flipped_at, g.id FROM generations g JOIN documents d ON d.id = g.document_id "
    "WHERE g.collection = :collection AND g.state = 'ACTIVE' AND g.artifacts_dropped_at IS NULL "
    "AND (g.flipped_at, g.id) > (:time, :generation) AND g.flipped_at <= {now} - :kept_s "
    f"AND d.status IN {_ENDED} ORDER BY g.flipped_at, g.id LIMIT :count"
)


def collections(connection: Connection) -> list[str]:
    """The names of the collections of all owners."""
    return [row[0] for row in connection.run(_COLLECTIONS)]


def droppable(
    connection: Connection, collection: str, kept_s: float, after: tuple[float, int], count: int
) -> list[tuple[float, GenerationId]]:
    """Searchable generations of ended documents whose artifacts were kept for `kept_s` seconds: flip time, id."""
    values = {"collection": collection, "kept_s": kept_s, "time": after[0], "generation": after[1], "count": count}
    return [(row[0], GenerationId(row[1])) for row in connection.run(_DROPPABLE, **values)]


class Dropped(msgspec.Struct, frozen=True):
    generations: int
    artifacts: int
    """Number of removed artifacts, which nothing else refers to."""
    blobs: tuple[tuple[str, int], ...]


_MARK = Statement(
    "UPDATE generations SET artifacts_dropped_at = {now} FROM {rows} WHERE {generations.id = r.generation} "
    "AND generations.state = 'ACTIVE' AND generations.artifacts_dropped_at IS NULL "
    "AND (SELECT d.status FROM documents d WHERE d.id = generations.document_id) "
    f"IN {_ENDED} RETURNING id",
    rows="generation bigint",
)
_UNREFER = Statement(
    "DELETE FROM artifact_refs WHERE generation_id IN (SELECT r.generation FROM {rows}) RETURNING artifact_id",
    rows="generation bigint",
)
# Artifacts whose rows are locked, because a step is about to refer to them, are skipped. Prune removes them later.
_HOLD = question(
    "SELECT a.id FROM artifacts a WHERE a.id IN (SELECT r.id FROM {rows}) AND <unused> AND NOT <built> "
    "ORDER BY a.id {skip}",
    rows="id bigint",
)


def _drop(connection: Connection, batches: Sequence[tuple[GenerationId, ...]]) -> list[Dropped]:
    """Remove the references of generations to their artifacts. Artifacts without other references are removed with
    their segments."""
    answers = []
    if backup_guard.holds_prune(connection):
        return [Dropped(0, 0, ()) for _ in batches]
    for batch in batches:
        marked = connection.run(_MARK, [(generation,) for generation in batch])
        freed = sorted({row[0] for row in connection.run(_UNREFER, marked)}) if marked else []
        held = connection.run(_HOLD, [(artifact,) for artifact in freed]) if freed else []
        artifacts, blobs = repairs.remove_artifacts(connection, held)
        answers.append(Dropped(len(marked), artifacts, blobs))
    return answers


class Expire(msgspec.Struct, frozen=True):
    """Remove purged generations after the id `after` whose runs ended more than `older_than_s` seconds ago."""

    after: int
    older_than_s: float
    count: int


class Expired(msgspec.Struct, frozen=True):
    last: int
    """The id of the last generation that was examined; 0 at the end."""
    runs: int
    documents: int
    """Number of removed rows of deleted documents."""


_PURGED = Statement(
    "SELECT g.id, g.created_at < {now} - :older FROM generations g WHERE g.state = 'PURGED' AND g.id > :after "
    "ORDER BY g.id LIMIT :count {skip}"
)
# The newest run of a document that is not deleted is always kept: status shows it, and submit compares with it.
_OVER = Statement(
    "SELECT g.id, g.document_id FROM {rows} JOIN generations g ON g.id = r.generation "
    "JOIN documents d ON d.id = g.document_id WHERE (d.deleted_at < {now} - :older OR (d.deleted_at IS NULL "
    "AND g.id < (SELECT max(n.generation_id) FROM runs n WHERE n.document_id = d.id))) "
    "AND NOT EXISTS (SELECT 1 FROM runs x WHERE x.generation_id = g.id "
    "AND (x.status IN ('OPEN', 'HELD') OR x.finished_at >= {now} - :older)) "
    "AND NOT EXISTS (SELECT 1 FROM runs x JOIN dead_letters l ON l.run_id = x.id AND l.state = 'OPEN' "
    "WHERE x.generation_id = g.id) AND NOT EXISTS (SELECT 1 FROM purges p WHERE p.generation_id = g.id)",
    rows="generation bigint",
)
_RUNS = Statement("SELECT x.id FROM {rows} JOIN runs x ON x.generation_id = r.generation", rows="generation bigint")
_WITH_RUNS = tuple(
    Statement(f"DELETE FROM {table} WHERE {column} IN (SELECT r.run FROM {{rows}})", rows="run text")
    for table, column in (("steps", "run_id"), ("dead_letters", "run_id"), ("run_usage", "run_id"), ("runs", "id"))
)
"""Delete the rows that belong to a run, then the run."""
_WITH_GENERATIONS = tuple(
    Statement(f"DELETE FROM {table} WHERE {column} IN (SELECT r.generation FROM {{rows}})", rows="generation bigint")
    for table, column in (("artifact_refs", "generation_id"), ("placements", "generation_id"), ("generations", "id"))
)
_GONE = Statement(
    "SELECT DISTINCT d.id FROM {rows} JOIN documents d ON d.id = r.document WHERE d.deleted_at < {now} - :older "
    "AND NOT EXISTS (SELECT 1 FROM generations g WHERE g.document_id = d.id)",
    rows="document text",
)
# The dead letter of an event stays open until a user closes it. The event contains the id of the document too.
_UNNAME = Statement(
    "UPDATE dead_letters SET document_id = NULL WHERE event_id IS NOT NULL "
    "AND document_id IN (SELECT r.document FROM {rows})",
    rows="document text",
)
_WITH_DOCUMENTS = (
    _UNNAME,
    *(
        Statement(f"DELETE FROM {table} WHERE {column} IN (SELECT r.document FROM {{rows}})", rows="document text")
        for table, column in (("idempotency_keys", "document_id"), ("documents", "id"))
    ),
)


def _expire(connection: Connection, requests: Sequence[Expire]) -> list[Expired]:
    return [_expire_one(connection, request) for request in requests]


def _expire_one(connection: Connection, request: Expire) -> Expired:
    older = request.older_than_s
    page = connection.run(_PURGED, after=request.after, older=older, count=request.count)
    old = [(row[0],) for row in page if row[1]]
    if not old:
        # Ids increase with time, so the following generations are newer.
        return Expired(0, 0, 0)
    over = connection.run(_OVER, old, older=older)
    if not over:
        return Expired(page[-1][0], 0, 0)
    generations = [(row[0],) for row in over]
    runs = connection.run(_RUNS, generations)
    _delete(connection, _WITH_RUNS, runs)
    _delete(connection, _WITH_GENERATIONS, generations)
    documents = connection.run(_GONE, [(document,) for document in sorted({row[1] for row in over})], older=older)
    _delete(connection, _WITH_DOCUMENTS, documents)
    return Expired(page[-1][0], len(runs), len(documents))


def _delete(connection: Connection, statements: Sequence[Statement], rows: Sequence[Row]) -> None:
    for statement in statements if rows else ():
        connection.run(statement, rows)


class Clear(msgspec.Struct, frozen=True):
    """Remove rows of a table after the id `after` that are older than `older_than_s` seconds and no longer needed."""

    table: str
    after: int | str
    older_than_s: float
    count: int


class Cleared(msgspec.Struct, frozen=True):
    last: int | str
    """The id of the last row that was removed or, for groups, examined; 0 or "" at the end."""
    rows: int


_TIMES_UP = {
    # A discarded dead letter of a document that is still FAILED is kept, because it contains the reason.
    "dead_letters": Statement(
        "SELECT l.id FROM dead_letters l LEFT JOIN documents d ON d.id = l.document_id WHERE l.state <> 'OPEN' "
        "AND l.id > :after AND l.closed_at < {now} - :older AND (l.state <> 'DISCARDED' OR l.run_id IS NULL "
        "OR d.status <> 'FAILED' OR d.deleted_at IS NOT NULL) ORDER BY l.id LIMIT :count"
    ),
    "lock_releases": Statement(
        "SELECT id FROM lock_releases WHERE id > :after AND released_at < {now} - :older ORDER BY id LIMIT :count"
    ),
    # Ids increase with time, so only events before the first recent one are examined.
    "events": Statement(
        "SELECT e.id FROM events e WHERE e.id > :after AND e.id < coalesce((SELECT y.id FROM events y "
        "WHERE y.at >= {now} - :older ORDER BY y.id LIMIT 1), 9000000000000000000) AND e.dispatched = 1 "
        "AND NOT EXISTS (SELECT 1 FROM deliveries v WHERE v.event_id = e.id AND v.status = 'PENDING') "
        "AND NOT EXISTS (SELECT 1 FROM dead_letters l WHERE l.event_id = e.id "
        "AND (l.state = 'OPEN' OR l.closed_at >= {now} - :older)) ORDER BY e.id LIMIT :count"
    ),
    # The same.
    "webhook_deliveries": Statement(
        "SELECT d.id FROM webhook_deliveries d WHERE d.id > :after AND d.id < coalesce((SELECT y.id "
        "FROM webhook_deliveries y WHERE y.created_at >= {now} - :older ORDER BY y.id LIMIT 1), 9000000000000000000) "
        "AND (d.status <> 'PENDING' OR NOT EXISTS (SELECT 1 FROM webhooks w WHERE w.id = d.webhook_id)) "
        "ORDER BY d.id LIMIT :count"
    ),
}
"""For each history table: the rows to remove, in the order of their ids."""
GROUPS = "groups"
HISTORY = (*_TIMES_UP, GROUPS)
"""The order of removal: events of a group before the group."""
_CLEAR: dict[str, tuple[Statement, ...]] = {
    table: (Statement(f"DELETE FROM {table} WHERE id IN (SELECT r.id FROM {{rows}})", rows="id bigint"),)
    for table in _TIMES_UP
}
_WITH_EVENTS = tuple(
    Statement(f"DELETE FROM {table} WHERE event_id IN (SELECT r.id FROM {{rows}})", rows="id bigint")
    for table in ("deliveries", "dead_letters")
)
_CLEAR["events"] = (*_WITH_EVENTS, *_CLEAR["events"])
_CLEAR[GROUPS] = (Statement("DELETE FROM groups WHERE id IN (SELECT r.id FROM {rows})", rows="id text"),)
# Most old groups are kept as long as their documents. So one page of groups is examined, instead of all groups until
# enough are found.
_GROUPS = Statement(
    "SELECT g.id, g.sealed = 1 AND g.open_runs = 0 AND coalesce(g.finished_at, g.created_at) < {now} - :older "
    "AND NOT EXISTS (SELECT 1 FROM runs x WHERE x.group_id = g.id) "
    "AND NOT EXISTS (SELECT 1 FROM events e WHERE e.group_id = g.id AND e.completion IS NOT NULL) "
    "FROM groups g WHERE g.id > :after AND g.created_at < {now} - :older ORDER BY g.id LIMIT :count"
)


def _clear(connection: Connection, requests: Sequence[Clear]) -> list[Cleared]:
    answers = []
    for r in requests:
        values = {"after": r.after, "older": r.older_than_s, "count": r.count}
        page = connection.run(_GROUPS if r.table == GROUPS else _TIMES_UP[r.table], **values)
        rows = [(row[0],) for row in page if all(row[1:])]
        _delete(connection, _CLEAR[r.table], rows)
        answers.append(Cleared(page[-1][0] if page else type(r.after)(), len(rows)))
    return answers


# A concurrent submit is safe: its runs refer to the snapshot's row, and if the row was removed first, the submit is
# repeated and inserts it again. There is no index of runs by snapshot, because it would slow down submits. So each
# table is read once.
_NAMED = " AND ".join(f"hash NOT IN (SELECT snapshot FROM {table})" for table in ("runs", "groups", "events"))
_UNUSED = Statement(
    f"SELECT hash FROM snapshots WHERE added_at < {{now}} - :older AND {_NAMED} ORDER BY hash LIMIT :count"
)
_FORGET = Statement("DELETE FROM snapshots WHERE hash IN (SELECT r.hash FROM {rows})", rows="hash text")


class Unused(msgspec.Struct, frozen=True):
    older_than_s: float
    count: int


def _forget(connection: Connection, requests: Sequence[Unused]) -> list[int]:
    answers = []
    for r in requests:
        rows = connection.run(_UNUSED, older=r.older_than_s, count=r.count)
        if rows:
            connection.run(_FORGET, rows)
        answers.append(len(rows))
    return answers


_DUE_PURGES = Statement("SELECT count(*) FROM purges WHERE not_before <= {now}")
_RESTED = Statement("SELECT {now} - released_at FROM locks WHERE resource_key = :key AND token IS NULL")
_KNOWN_LOCK = Statement("SELECT 1 FROM locks WHERE resource_key = :key")


def due_purges(connection: Connection) -> int:
    count: int = connection.run(_DUE_PURGES)[0][0]
    return count


def is_due(connection: Connection, key: str, every_s: float) -> bool:
    """Whether a regular task is due: its lock is free, and was released at least `every_s` seconds ago or never
    taken."""
    rested = connection.run(_RESTED, key=key)
    return rested[0][0] >= every_s if rested else not connection.run(_KNOWN_LOCK, key=key)


DROP_ARTIFACTS = Verb("drop_artifacts", _drop)
EXPIRE = Verb("expire", _expire)
CLEAR = Verb("clear", _clear)
FORGET_SNAPSHOTS = Verb("forget_snapshots", _forget)
"""Remove workflow snapshots that no run, group or event refers to."""
