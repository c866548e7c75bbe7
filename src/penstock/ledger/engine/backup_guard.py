"""While a backup runs, nothing is removed that its copy of the ledger refers to."""

from penstock.ledger.database.connection import Connection
from penstock.ledger.database.statements import Statement

LOCK = "backup"
"""The lock that a backup holds. It ends with its holder."""
RUNNING = f"EXISTS (SELECT 1 FROM locks b WHERE b.resource_key = '{LOCK}' AND b.lease_until > {{now}})"
_RUNNING = Statement(f"SELECT 1 WHERE {RUNNING}")
_PRUNE = Statement("SELECT pg_advisory_xact_lock_shared(7236748365903)")
_OUTLAST_PRUNE = Statement("SELECT pg_advisory_xact_lock(7236748365903)")


def is_running(connection: Connection) -> bool:
    return bool(connection.run(_RUNNING))


def holds_prune(connection: Connection) -> bool:
    """Whether a backup runs. Called in a transaction that removes rows, and later their blobs. SQLite has one writer at
    a time; on PostgreSQL a backup that starts now waits for this transaction before it reads."""
    if connection.dialect == "postgres":
        connection.run(_PRUNE)
    return is_running(connection)


def outlast_prune(connection: Connection) -> None:
    """Called after the lock was taken: waits for transactions that started before and did not see it."""
    if connection.dialect == "postgres":
        connection.begin()
        connection.run(_OUTLAST_PRUNE)
        connection.commit()
