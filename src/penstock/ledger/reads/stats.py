"""What `status`, `steps` and `lock list` show."""

import msgspec

from penstock.ledger.database.connection import Connection
from penstock.ledger.database.statements import Statement
from penstock.ledger.engine import targets
from penstock.ledger.engine.documents import WAITING_ON
from penstock.ledger.engine.locks import prefixes
from penstock.ledger.engine.resource_keys import GROUP_KEYS
from penstock.model.nouns import Owner
from penstock.model.states import WORKING, DocumentStatus, StepStatus

_DOCUMENTS = Statement(
    "SELECT status, count(*) FROM documents WHERE owner = :owner AND deleted_at IS NULL GROUP BY status ORDER BY status"
)
# An open run has one step that has not ended, and its document shows that it is open: the documents are counted in
# their index, and only what runs or is backed off among the steps. Those that wait have no index by owner, since every
# claim would pay for it, and completed ones are as many as there ever were.
_LIVE = " + ".join(
    f"(SELECT count(*) FROM documents WHERE owner = :owner AND deleted_at IS NULL AND status = '{status}')"
    for status in (DocumentStatus.PENDING, *WORKING)
)
_STEPS = Statement(
    f"SELECT {_LIVE}, "
    "(SELECT count(*) FROM steps WHERE status = 'RUNNING' AND owner = :owner), "
    "(SELECT count(*) FROM steps WHERE status = 'ERROR' AND owner = :owner)"
)
_FAILED_STEPS = Statement(
    "SELECT status, count(*) FROM steps WHERE owner = :owner AND status IN ('FAILED', 'CANCELLED') GROUP BY status"
)
_RUNNING = Statement(
    "SELECT kind, waiting_on, count(*) FROM steps WHERE owner = :owner AND status = 'RUNNING' "
    "GROUP BY kind, waiting_on ORDER BY kind, waiting_on"
)
_EVENTS = Statement(
    "SELECT (SELECT count(*) FROM events WHERE dispatched = 0 AND owner = :owner) "
    "+ (SELECT count(*) FROM deliveries WHERE status = 'PENDING' AND owner = :owner)"
)
_LETTERS = Statement("SELECT count(*) FROM dead_letters WHERE owner = :owner AND state = 'OPEN'")


def documents(owner: Owner, connection: Connection) -> dict[str, int]:
    return {row[0]: row[1] for row in connection.run(_DOCUMENTS, owner=owner)}


def steps(owner: Owner, connection: Connection) -> dict[str, int]:
    """By status, all but the completed ones."""
    [(live, running, backed_off)] = connection.run(_STEPS, owner=owner)
    counts = {"ERROR": backed_off, "PENDING": live - running - backed_off, "RUNNING": running}
    counts |= {row[0]: row[1] for row in connection.run(_FAILED_STEPS, owner=owner)}
    return {status: count for status, count in counts.items() if count > 0}


class RunningSteps(msgspec.Struct, frozen=True):
    """Steps of one kind that run, by what they wait on."""

    kind: str
    waiting_on: str | None
    steps: int


class WaitingEvents(msgspec.Struct, frozen=True):
    waiting: int
    """Events that were not delivered to all their handlers yet."""


def running(owner: Owner, connection: Connection) -> list[RunningSteps]:
    return [RunningSteps(*row) for row in connection.run(_RUNNING, owner=owner)]


def events(owner: Owner, connection: Connection) -> WaitingEvents:
    return WaitingEvents(connection.run(_EVENTS, owner=owner)[0][0])


def dead_letters(owner: Owner, connection: Connection) -> int:
    count: int = connection.run(_LETTERS, owner=owner)[0][0]
    return count


class ListedStep(msgspec.Struct, frozen=True):
    document_id: str
    document: str
    """Its name."""
    name: str
    kind: str
    status: str
    attempts: int
    worker: str | None
    waiting_on: str | None
    since: float
    """When it was created, last made progress or ended, depending on its status."""
    error: str | None


# A retry does not forget when a step first began, but it changes the document.
_SINCE = (
    "CASE WHEN s.status = 'PENDING' THEN s.created_at "
    "WHEN s.status IN ('RUNNING', 'ERROR') THEN (SELECT max(moved) FROM (SELECT s.started_at AS moved "
    "UNION ALL SELECT s.progress_at UNION ALL SELECT d.updated_at "
    "UNION ALL SELECT a.updated_at FROM artifact_refs f JOIN artifacts a "
    "ON a.id = f.artifact_id WHERE f.generation_id = s.generation_id AND f.step = s.name) AS moves) "
    "ELSE coalesce(s.finished_at, s.created_at) END"
)


def _listing(only: str = "", order: str = "id") -> Statement:
    return Statement(
        "SELECT * FROM (SELECT s.id, s.document_id, d.name AS document, s.name, s.kind, s.status, s.attempts, "
        f"CASE WHEN s.status = 'RUNNING' THEN s.worker_id END AS worker, {WAITING_ON}, {_SINCE} AS since, s.error "
        "FROM steps s CROSS JOIN documents d WHERE d.id = s.document_id AND s.owner = :owner "
        f"AND d.deleted_at IS NULL AND (:kind = '' OR s.kind = :kind){only}) AS listed "
        f"WHERE (:stuck_s < 0 OR since <= {{now}} - :stuck_s) ORDER BY {order} DESC LIMIT :count"
    )


_ENDED = " AND s.status IN ('FAILED', 'CANCELLED')"
# The status stands in the text, as in the condition of its index. SQLite uses an index if its primary key is not in the
# order.
_ALL = _listing()
_OF_STATUS = {
    status: _listing(
        _ENDED * (status in (StepStatus.FAILED, StepStatus.CANCELLED)) + f" AND s.status = '{status}'",
        "id" if status == StepStatus.COMPLETED else "+id",
    )
    for status in StepStatus
}


def list_steps(
    owner: Owner, connection: Connection, *, status: StepStatus | None, kind: str, stuck_s: float | None, count: int
) -> list[ListedStep]:
    """Steps, the newest first; `stuck_s`: only those that made no progress for so many seconds."""
    if status is not None:
        statements = [_OF_STATUS[StepStatus(status)]]
    elif stuck_s is not None:
        statements = [_OF_STATUS[StepStatus.RUNNING], _OF_STATUS[StepStatus.ERROR]]
    else:
        statements = [_ALL]
    least = -1.0 if stuck_s is None else stuck_s
    rows = [
        row
        for statement in statements
        for row in connection.run(statement, owner=owner, kind=kind, stuck_s=least, count=count)
    ]
    return [ListedStep(*row[1:]) for row in sorted(rows, key=lambda row: -row[0])[:count]]


class ListedLock(msgspec.Struct, frozen=True):
    key: str
    purpose: str
    worker: str
    host: str | None
    pid: int | None
    until: float
    steps: int
    """Steps of its holder."""


class LockRelease(msgspec.Struct, frozen=True):
    """A lock that was released by force."""

    key: str
    purpose: str
    worker: str
    until: float
    steps: int
    released_by: str
    released_at: float


_LOCKS = Statement(
    "SELECT l.resource_key, l.purpose, l.worker_id, w.host, w.pid, l.lease_until, (SELECT count(*) FROM steps s "
    "WHERE s.status = 'RUNNING' AND s.lease_token = l.token) FROM locks l LEFT JOIN workers w ON w.id = l.worker_id "
    "WHERE l.token IS NOT NULL AND (substr(l.resource_key, 1, length(:index)) = :index "
    "OR substr(l.resource_key, 1, length(:own)) = :own OR substr(l.resource_key, 1, length(:grouped)) = :grouped) "
    "ORDER BY l.resource_key"
)
_LOCK_RELEASES = Statement(
    "SELECT resource_key, purpose, worker_id, lease_until, steps, released_by, released_at FROM lock_releases "
    "WHERE owner = :owner ORDER BY id DESC LIMIT :count"
)


def locks(owner: Owner, connection: Connection) -> list[ListedLock]:
    """Those that are held."""
    index, own, grouped = prefixes(owner)
    return [ListedLock(*row) for row in connection.run(_LOCKS, index=index, own=own, grouped=grouped)]


def lock_releases(owner: Owner, connection: Connection, count: int) -> list[LockRelease]:
    """The newest first."""
    return [LockRelease(*row) for row in connection.run(_LOCK_RELEASES, owner=owner, count=count)]


class AwayTarget(msgspec.Struct, frozen=True):
    """A provider, a store or an index table that does not work."""

    target: str
    state: str
    """`away`, `limited` or `unauthorized`."""
    since: float
    failures: int
    error: str
    setting: str | None
    """What to change, if the key was refused."""
    retry_at: float
    """When it may be tried again."""


# Tables, and targets of an owner's own steps, are shown to their owner alone.
_AWAY = Statement(
    "SELECT CASE WHEN substr(name, 1, length(:own)) = :own THEN substr(name, length(:own) + 1) ELSE name END, state, "
    "since, failures, error, setting, held_until FROM targets WHERE substr(name, 1, length(:index)) = :index "
    "OR substr(name, 1, length(:table)) = :table OR substr(name, 1, length(:own)) = :own "
    "OR substr(name, 1, length(:grouped)) = :grouped "
    "OR (substr(name, 1, 6) NOT IN ('index:', 'table:', 'group:') AND substr(name, 1, 4) <> 'own:') ORDER BY name"
)


def away(owner: Owner, connection: Connection) -> list[AwayTarget]:
    mine = {"index": f"index:{owner}/", "table": f"table:{owner}/", "own": targets.own(owner)}
    mine["grouped"] = f"{GROUP_KEYS}{owner}/"
    rows = connection.run(_AWAY, **mine)
    return [AwayTarget(*row) for row in rows]
