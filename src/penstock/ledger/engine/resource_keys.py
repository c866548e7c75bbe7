"""Which resource keys have steps waiting behind them. A claim looks for keys that are free and `ready`.

These statements cross owners (I10)."""

from collections.abc import Sequence

from penstock.ledger.database.connection import Connection
from penstock.ledger.database.statements import Statement
from penstock.model.nouns import StepId

OWN_KEYS = "step:"
"""What the keys begin with that workflows name for steps of their own: behind one of them runs one step at a time."""

GROUP_KEYS = "group:"
"""The prefix of the keys of groups of steps, except index steps: those have the key of their table."""

FREED = "token = NULL, worker_id = NULL, purpose = NULL, lease_until = NULL, released_at = {now}"
"""What a lock is set to when it is released."""

_READY = Statement(
    "INSERT INTO locks (resource_key, kind, ready) SELECT r.key, r.kind, 1 FROM {rows} WHERE true "
    "ON CONFLICT (resource_key) DO UPDATE SET ready = 1, kind = excluded.kind",
    rows="key text, kind text",
)

_READY_STEPS = Statement(
    "SELECT DISTINCT resource_key, coalesce(pool, kind) FROM steps JOIN {rows} ON {steps.id = r.step} "
    "WHERE resource_key IS NOT NULL",
    rows="step bigint",
)


def ready(connection: Connection, keys: Sequence[tuple[str | None, str]]) -> None:
    """Steps wait behind these keys. The row is written each time, even if it says so already: on PostgreSQL that
    makes us wait for a claim that is just about to find nothing there."""
    if keys:
        connection.run(_READY, sorted(dict(keys).items(), key=str))


def ready_steps(connection: Connection, steps: Sequence[StepId]) -> None:
    """The same for steps that came back to PENDING."""
    if steps:
        keys = connection.run(_READY_STEPS, [(step,) for step in steps])
        ready(connection, [(row[0], row[1]) for row in keys])


# Where different kinds wait behind one key, it goes to those of the first.
_HAND_ON = Statement(
    "UPDATE locks SET ready = 1, kind = (SELECT coalesce(s.pool, s.kind) FROM steps s WHERE s.status = 'PENDING' "
    "AND s.resource_key IS NOT NULL AND s.resource_key = :key ORDER BY s.priority DESC, s.rank LIMIT 1) "
    "WHERE resource_key = :key AND EXISTS (SELECT 1 FROM steps s WHERE s.status = 'PENDING' "
    "AND s.resource_key IS NOT NULL AND s.resource_key = :key)"
)


def hand_on(connection: Connection, key: str) -> None:
    """Call this after a statement that freed the key: on PostgreSQL, a step that begins to wait behind it now waits for
    this transaction."""
    connection.run(_HAND_ON, key=key)
