"""How much work is left, across owners: tells a worker whether to wait, and for how long."""

import msgspec

from penstock.ledger.database.connection import Connection
from penstock.ledger.database.statements import Statement
from penstock.ledger.database.writer import Verb
from penstock.ledger.engine import outbox

COMMITTED_S = 60.0


class RemainingWork(msgspec.Struct, frozen=True):
    claimable: bool
    running: bool
    backed_off: float | None
    """Seconds until the next backed-off step is due; negative if it is overdue."""
    due_events: bool = False
    """Events are due for delivery."""

    @property
    def steps(self) -> bool:
        return self.claimable or self.running or self.backed_off is not None

    @property
    def anything(self) -> bool:
        return self.steps or self.due_events


_LEFT = Statement(
    "SELECT EXISTS (SELECT 1 FROM steps WHERE status = 'PENDING' AND resource_key IS NULL) "
    "OR EXISTS (SELECT 1 FROM steps WHERE status = 'PENDING' AND resource_key IS NOT NULL), "
    "EXISTS (SELECT 1 FROM steps WHERE status = 'RUNNING'), "
    "(SELECT min(not_before) - {now} FROM steps WHERE status = 'ERROR')"
)
_DUE_IN = Statement("SELECT min(not_before) - {now} FROM steps WHERE status = 'ERROR'")
_OPEN = Statement("SELECT count(*) FROM runs WHERE status = 'OPEN'")
_ADDED = Statement("SELECT hash, body, added_at FROM snapshots WHERE added_at >= :since")
_SNAPSHOT = Statement("SELECT body FROM snapshots WHERE hash = :hash")
_PACES = Statement("SELECT kind, seconds FROM paces")
_PACE = Statement(
    "INSERT INTO paces (kind, seconds) SELECT r.name, r.pace FROM {rows} WHERE true "
    "ON CONFLICT (kind) DO UPDATE SET seconds = excluded.seconds",
    rows="name text, pace float8",
)


def left(connection: Connection) -> RemainingWork:
    claimable, running, backed_off = connection.run(_LEFT)[0]
    return RemainingWork(bool(claimable), bool(running), backed_off, outbox.waiting(connection).due)


def due_in(connection: Connection) -> float | None:
    """Seconds until the next backed-off step is due; None: there is none."""
    seconds: float | None = connection.run(_DUE_IN)[0][0]
    return seconds


def open_runs(connection: Connection) -> int:
    """For progress displays. It counts rows, so do not call it often."""
    count: int = connection.run(_OPEN)[0][0]
    return count


def snapshot(connection: Connection, digest: str) -> str:
    body: str = connection.run(_SNAPSHOT, hash=digest)[0][0]
    return body


def snapshots(connection: Connection, since: float) -> tuple[dict[str, str], float]:
    """The snapshots that came since then, by their hash; and from when on to ask the next time. What a transaction adds
    is seen only when it is committed: those of the last minute are read again."""
    rows = connection.run(_ADDED, since=since)
    newest = max((row[2] for row in rows), default=0.0)
    return {row[0]: row[1] for row in rows}, max(0.0, newest - COMMITTED_S) if rows else since


def paces(connection: Connection) -> dict[str, float]:
    """Seconds that a batch of each kind took, smoothed: kept so that a fresh process knows what fits its budget."""
    return {row[0]: row[1] for row in connection.run(_PACES)}


def _keep_paces(connection: Connection, measured: list[dict[str, float]]) -> list[None]:
    merged = {kind: pace for one in measured for kind, pace in one.items()}
    if merged:
        connection.run(_PACE, sorted(merged.items()))
    return [None for _ in measured]


KEEP_PACES: Verb[dict[str, float], None] = Verb("pace", lambda connection, items: _keep_paces(connection, list(items)))
