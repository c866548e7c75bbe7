"""The queries of `check` and `prune`. They are written independently of the engine's statements, so that they find the
engine's mistakes. Each query is one statement, so that it sees one snapshot; long results are paged by key.

These statements cross owners (I10); `owner` "" means all. `repairs.py` contains the writes, and `audit_index.py` the
queries about the expected content of the index."""

import re
from collections.abc import Sequence

import msgspec

from penstock.ledger.database.connection import Connection
from penstock.ledger.database.statements import VALUES_LIMIT, Statement
from penstock.ledger.engine.collections import VERSION_OF_G

PAGE = 500
AT_ONCE = VALUES_LIMIT
"""Maximum number of artifacts in one call of `pieces_of`."""

# Fragments that several statements share.
_WORDS = {
    "live": "g.state IN ('ACTIVE', 'BUILDING') AND d.deleted_at IS NULL",
    "ends": "('COMPLETED', 'NOT_INDEXABLE', 'UNSUPPORTED', 'FAILED', 'CANCELLED')",
    "used": "EXISTS (SELECT 1 FROM artifact_refs f JOIN generations g ON g.id = f.generation_id "
    "AND g.state IN ('ACTIVE', 'BUILDING') WHERE f.artifact_id = a.id)",
    "unused": "NOT EXISTS (SELECT 1 FROM artifact_refs f WHERE f.artifact_id = a.id)",
    "built": "EXISTS (SELECT 1 FROM steps s WHERE s.id = a.builder AND s.lease_token = a.token)",
    "newest": "x.generation_id = (SELECT max(n.generation_id) FROM runs n WHERE n.document_id = d.id)",
    "last": "s.position = (SELECT max(n.position) FROM steps n WHERE n.run_id = x.id)",
    "document": "SELECT d.id, d.name, d.status FROM documents d WHERE d.id > :after AND d.deleted_at IS NULL",
    "documents": "(:owner = '' OR d.owner = :owner) ORDER BY d.id LIMIT :count",
    "generation": "SELECT g.id, g.document_id, d.name FROM generations g JOIN documents d ON d.id = g.document_id "
    "WHERE g.id > :after AND (:owner = '' OR g.owner = :owner)",
    "purge": "EXISTS (SELECT 1 FROM purges p WHERE p.generation_id = g.id)",
    "raw": "g.id, g.document_id, d.name, g.raw_key, g.size, g.sha256",
    "piece": "p.artifact_id, p.ordinal, p.key, p.sha256, p.size, p.items, p.first, a.kind",
}
_WORD = re.compile(r"<(\w+)>")
_OWNED = re.compile(r"<(\w)\.owned>")


def question(text: str, rows: str = "") -> Statement:
    """A statement in which `<used>` and the other names of `_WORDS` are replaced, and `<g.owned>` by the condition for
    the owner."""
    text = _OWNED.sub(r"(:owner = '' OR \1.owner = :owner)", text)
    return Statement(_WORD.sub(lambda match: _WORDS[match[1]], text), rows)


class Raw(msgspec.Struct, frozen=True):
    """A generation whose raw bytes must exist."""

    generation: int
    document: str
    name: str
    key: str
    size: int
    sha256: str


_RAWS = question(
    "SELECT <raw> FROM generations g JOIN documents d ON d.id = g.document_id "
    "WHERE g.id > :after AND <live> AND <g.owned> ORDER BY g.id LIMIT :count"
)
_RAWS_AGAIN = question(
    "SELECT <raw> FROM {rows} JOIN generations g ON g.id = r.generation JOIN documents d ON d.id = g.document_id "
    "WHERE <live>",
    rows="generation bigint",
)


def raws(connection: Connection, owner: str, after: int) -> list[Raw]:
    return [Raw(*row) for row in connection.run(_RAWS, owner=owner, after=after, count=PAGE)]


def raws_again(connection: Connection, generations: Sequence[int]) -> list[Raw]:
    """The generations among these whose raw bytes must still exist."""
    return [Raw(*row) for row in connection.run(_RAWS_AGAIN, [(one,) for one in generations])]


class BoughtSegment(msgspec.Struct, frozen=True):
    """A segment of bought answers."""

    id: int
    owner: str
    key: str
    size: int
    sha256: str


_BOUGHT = question(
    "SELECT s.id, s.owner, s.key, s.size, s.sha256 FROM answer_segments s WHERE s.id > :after AND <s.owned> "
    "ORDER BY s.id LIMIT :count"
)
_BOUGHT_AGAIN = Statement(
    "SELECT s.id, s.owner, s.key, s.size, s.sha256 FROM {rows} JOIN answer_segments s ON s.key = r.key", rows="key text"
)


def bought(connection: Connection, owner: str, after: int) -> list[BoughtSegment]:
    return [BoughtSegment(*row) for row in connection.run(_BOUGHT, owner=owner, after=after, count=PAGE)]


def bought_again(connection: Connection, keys: Sequence[str]) -> list[BoughtSegment]:
    """Those among these segments that still exist."""
    return [BoughtSegment(*row) for row in connection.run(_BOUGHT_AGAIN, [(key,) for key in keys])]


class Piece(msgspec.Struct, frozen=True):
    """A segment that an active or building generation needs."""

    artifact: int
    ordinal: int
    key: str
    sha256: str
    size: int
    items: int
    first: int
    kind: str


_PIECES = question(
    "SELECT <piece> FROM segments p JOIN artifacts a ON a.id = p.artifact_id "
    "WHERE (p.artifact_id, p.ordinal) > (:artifact, :ordinal) AND <a.owned> AND <used> "
    "ORDER BY p.artifact_id, p.ordinal LIMIT :count"
)
_PIECES_AGAIN = question(
    "SELECT <piece> FROM {rows} JOIN segments p ON p.artifact_id = r.artifact AND p.ordinal = r.ordinal "
    "JOIN artifacts a ON a.id = p.artifact_id WHERE <used>",
    rows="artifact bigint, ordinal int",
)
_PIECES_OF = question(
    "SELECT <piece> FROM {rows} JOIN segments p ON p.artifact_id = r.artifact JOIN artifacts a ON a.id = p.artifact_id "
    "WHERE (p.artifact_id, p.ordinal) > (:artifact, :ordinal) ORDER BY p.artifact_id, p.ordinal LIMIT :count",
    rows="artifact bigint",
)
_USER = question(
    "SELECT d.id, d.name FROM artifact_refs f JOIN generations g ON g.id = f.generation_id "
    "AND g.state IN ('ACTIVE', 'BUILDING') JOIN documents d ON d.id = g.document_id "
    "WHERE f.artifact_id = :artifact ORDER BY g.id LIMIT 1"
)


def pieces(connection: Connection, owner: str, after: tuple[int, int]) -> list[Piece]:
    rows = connection.run(_PIECES, owner=owner, artifact=after[0], ordinal=after[1], count=PAGE)
    return [Piece(*row) for row in rows]


def pieces_again(connection: Connection, wanted: Sequence[tuple[int, int]]) -> list[Piece]:
    return [Piece(*row) for row in connection.run(_PIECES_AGAIN, wanted)]


def pieces_of(connection: Connection, artifacts: Sequence[int], after: tuple[int, int]) -> list[Piece]:
    """A page of the segments of at most AT_ONCE artifacts, in order."""
    wanted = [(artifact,) for artifact in artifacts]
    rows = connection.run(_PIECES_OF, wanted, artifact=after[0], ordinal=after[1], count=PAGE)
    return [Piece(*row) for row in rows]


def user_of(connection: Connection, artifact: int) -> tuple[str, str] | None:
    """The id and name of a document that needs the artifact."""
    rows = connection.run(_USER, artifact=artifact)
    return (rows[0][0], rows[0][1]) if rows else None


# Ordinals are unique. So if their number is that of the artifact, the lowest is 0 and the highest is one less than the
# number, they are consecutive.
_UNEVEN = question(
    "SELECT a.id, a.kind, a.segments, a.items, count(p.ordinal), coalesce(sum(p.items), 0) FROM artifacts a "
    "LEFT JOIN (SELECT artifact_id, ordinal, items, first, coalesce(sum(items) OVER (PARTITION BY artifact_id "
    "ORDER BY ordinal ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), 0) AS due FROM segments "
    "WHERE artifact_id > :after AND artifact_id <= :until) AS p ON p.artifact_id = a.id "
    "WHERE a.id > :after AND a.id <= :until AND <a.owned> AND <used> GROUP BY a.id "
    "HAVING count(p.ordinal) <> a.segments OR coalesce(min(p.ordinal), 0) <> 0 "
    "OR coalesce(max(p.ordinal), -1) <> a.segments - 1 OR coalesce(sum(p.items), 0) <> a.items "
    "OR coalesce(max(abs(p.first - p.due)), 0) <> 0"
)
_LAST_ARTIFACT = question("SELECT coalesce(max(id), 0) FROM artifacts")


class Uneven(msgspec.Struct, frozen=True):
    """An artifact whose segments do not match its row."""

    artifact: int
    kind: str
    segments: int
    items: int
    segments_found: int
    items_found: int


def uneven(connection: Connection, owner: str, after: int, until: int) -> list[Uneven]:
    rows = connection.run(_UNEVEN, owner=owner, after=after, until=until)
    return [Uneven(row[0], row[1], row[2], row[3], row[4], int(row[5])) for row in rows]


def last_artifact(connection: Connection) -> int:
    last: int = connection.run(_LAST_ARTIFACT)[0][0]
    return last


_DOCUMENTS = {
    "not_searchable": question(
        "<document> AND d.status = 'COMPLETED' AND NOT EXISTS (SELECT 1 FROM generations g "
        "WHERE g.document_id = d.id AND g.state = 'ACTIVE') AND <documents>"
    ),
    "stuck": question(
        "<document> AND ((d.status NOT IN <ends> AND NOT EXISTS (SELECT 1 FROM runs x WHERE x.document_id = d.id "
        "AND x.status = CASE d.status WHEN 'HELD' THEN 'HELD' ELSE 'OPEN' END)) OR EXISTS (SELECT 1 FROM runs x "
        "WHERE x.document_id = d.id AND x.status = 'OPEN' AND NOT EXISTS (SELECT 1 FROM steps s WHERE s.run_id = x.id "
        "AND s.status IN ('PENDING', 'RUNNING', 'ERROR')))) AND <documents>"
    ),
    "orphan_child": question(
        "<document> AND d.parent_id IS NOT NULL AND NOT EXISTS (SELECT 1 FROM documents p WHERE p.id = d.parent_id "
        "AND p.deleted_at IS NULL) AND <documents>"
    ),
    "no_dead_letter": question(
        "<document> AND d.status = 'FAILED' AND NOT EXISTS (SELECT 1 FROM runs x JOIN dead_letters l "
        "ON l.run_id = x.id WHERE x.document_id = d.id AND <newest> AND l.state IN ('OPEN', 'DISCARDED')) "
        "AND <documents>"
    ),
}
DOCUMENT_QUESTIONS = tuple(_DOCUMENTS)


def documents(connection: Connection, question: str, owner: str, after: str) -> list[tuple[str, str, str]]:
    """Documents in a state that the engine never produces: id, name, status."""
    rows = connection.run(_DOCUMENTS[question], owner=owner, after=after, count=PAGE)
    return [(row[0], row[1], row[2]) for row in rows]


_GENERATIONS = {
    "deleted_visible": question(
        "<generation> AND g.state = 'ACTIVE' AND d.deleted_at IS NOT NULL ORDER BY g.id LIMIT :count"
    ),
    "purge_missing": question(
        "<generation> AND (g.state = 'SUPERSEDED' OR (g.state = 'BUILDING' AND d.deleted_at IS NOT NULL)) "
        "AND NOT <purge> ORDER BY g.id LIMIT :count"
    ),
    # Artifacts that were dropped on purpose are not missing. An open run makes missing ones again: a run of this
    # document, or a run that was rewound because of a damaged segment and shares the artifact.
    "artifacts_missing": question(
        "<generation> AND g.state = 'ACTIVE' AND g.artifacts_dropped_at IS NULL AND d.deleted_at IS NULL "
        "AND d.status IN ('COMPLETED', 'NOT_INDEXABLE', 'UNSUPPORTED') AND ((g.chunks > 0 AND NOT EXISTS "
        "(SELECT 1 FROM artifact_refs f JOIN artifacts a ON a.id = f.artifact_id AND a.kind = 'chunk' "
        "WHERE f.generation_id = g.id)) OR EXISTS (SELECT 1 FROM artifact_refs f JOIN artifacts a "
        "ON a.id = f.artifact_id AND a.state <> 'COMPLETE' AND a.kind <> 'index' WHERE f.generation_id = g.id "
        "AND NOT EXISTS (SELECT 1 FROM artifact_refs o JOIN runs x ON x.generation_id = o.generation_id "
        "AND x.status = 'OPEN' WHERE o.artifact_id = a.id))) "
        "AND NOT EXISTS (SELECT 1 FROM runs x WHERE x.document_id = d.id AND x.status = 'OPEN') "
        "ORDER BY g.id LIMIT :count"
    ),
    "not_placed": question(
        "<generation> AND g.state = 'ACTIVE' AND g.written = 1 AND d.deleted_at IS NULL AND NOT EXISTS "
        "(SELECT 1 FROM placements p WHERE p.generation_id = g.id AND p.state = 'READY' AND p.version = "
        f"{VERSION_OF_G}) ORDER BY g.id LIMIT :count"
    ),
    "purge_of_active": question(
        "<generation> AND g.state IN ('ACTIVE', 'BUILDING') AND <purge> ORDER BY g.id LIMIT :count"
    ),
}
GENERATION_QUESTIONS = tuple(_GENERATIONS)


def generations(connection: Connection, question: str, owner: str, after: int) -> list[tuple[int, str, str]]:
    """Generations in a state that the engine never produces: id, document, name."""
    rows = connection.run(_GENERATIONS[question], owner=owner, after=after, count=PAGE)
    return [(row[0], row[1], row[2]) for row in rows]


# A step that begins to wait sets ready = 1 in its own transaction, also while the lock is held.
_UNHEARD = question(
    "SELECT s.resource_key, coalesce(s.pool, s.kind) AS queue, count(*) FROM steps s "
    "LEFT JOIN locks l ON l.resource_key = s.resource_key "
    "WHERE s.status = 'PENDING' AND s.resource_key IS NOT NULL AND <s.owned> "
    "AND (l.resource_key IS NULL OR l.ready = 0 OR l.kind IS NULL OR (l.kind <> coalesce(s.pool, s.kind) "
    "AND NOT EXISTS (SELECT 1 FROM steps o WHERE o.status = 'PENDING' AND o.resource_key IS NOT NULL "
    "AND o.resource_key = s.resource_key AND coalesce(o.pool, o.kind) = l.kind))) "
    "GROUP BY s.resource_key, coalesce(s.pool, s.kind) ORDER BY s.resource_key, queue"
)


def unheard(connection: Connection, owner: str) -> list[tuple[str, str, int]]:
    """Resource keys that steps wait for, but that no claim would find: key, queue, number of steps."""
    return [(row[0], row[1], row[2]) for row in connection.run(_UNHEARD, owner=owner)]


_MISCOUNTED = question(
    "SELECT q.id, q.open_runs, (SELECT count(*) FROM runs x WHERE x.group_id = q.id AND x.status = 'OPEN') AS there "
    "FROM groups q WHERE q.id > :after AND <q.owned> AND (q.open_runs <> (SELECT count(*) FROM runs x "
    "WHERE x.group_id = q.id AND x.status = 'OPEN') OR (q.sealed = 1 AND (q.open_runs = 0) <> "
    "(q.finished_at IS NOT NULL))) ORDER BY q.id LIMIT :count"
)


def miscounted(connection: Connection, owner: str, after: str) -> list[tuple[str, int, int]]:
    """Groups with a wrong number of open runs, or wrongly marked as ended or not ended: id, stored number, actual
    number."""
    rows = connection.run(_MISCOUNTED, owner=owner, after=after, count=PAGE)
    return [(row[0], row[1], row[2]) for row in rows]


_NAMED = question(
    "SELECT r.key FROM {rows} WHERE EXISTS (SELECT 1 FROM generations g WHERE g.raw_key = r.key "
    "AND g.state <> 'PURGED') OR EXISTS (SELECT 1 FROM segments p WHERE p.key = r.key) "
    "OR EXISTS (SELECT 1 FROM answer_segments b WHERE b.key = r.key) "
    "OR EXISTS (SELECT 1 FROM upload_parts u WHERE u.key = r.key)",
    rows="key text",
)


def named(connection: Connection, keys: Sequence[str]) -> set[str]:
    """The keys among these that a row names."""
    return {row[0] for row in connection.run(_NAMED, [(key,) for key in keys])}


_UNREFERENCED = question(
    "SELECT a.id, a.kind FROM artifacts a WHERE a.id > :after AND <a.owned> AND <unused> "
    "AND NOT <built> ORDER BY a.id LIMIT :count"
)


def unreferenced(connection: Connection, owner: str, after: int) -> list[tuple[int, str]]:
    """Artifacts that no generation needs, by page: id and kind."""
    return [(row[0], row[1]) for row in connection.run(_UNREFERENCED, owner=owner, after=after, count=PAGE)]


_LEASES = question("SELECT lease_token FROM steps WHERE status = 'RUNNING'")


def leases(connection: Connection) -> frozenset[str]:
    """The lease tokens of running steps. The keys of their segments contain these."""
    return frozenset(row[0] for row in connection.run(_LEASES))
