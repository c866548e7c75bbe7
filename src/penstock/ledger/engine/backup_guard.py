"""A backup that is being made: nothing goes meanwhile that its copy of the ledger names."""

from penstock.ledger.database.connection import Connection
from penstock.ledger.database.statements import Statement

LOCK = "backup"
"""The lock that a backup holds. It lives as its holder does."""
RUNNING = f"EXISTS (SELECT 1 FROM locks b WHERE b.resource_key = '{LOCK}' AND b.lease_until > {{now}})"
_RUNNING = Statement(f"SELECT 1 WHERE {RUNNING}")
_PRUNE = Statement("SELECT pg_advisory_xact_lock_shared(7236748365903)")
_OUTLAST_PRUNE = Statement("SELECT pg_advisory_xact_lock(7236748365903)")


def is_running(connection: Connection) -> bool:
    return bool(connection.run(_RUNNING))


def holds_prune(connection: Connection) -> bool:
    """The same, within a transaction that would remove rows and then the blobs that they name. SQLite has one writer at
    a time; on PostgreSQL a backup that begins now waits for this transaction before it looks."""
    if connection.dialect == "postgres":
        connection.run(_PRUNE)
    return is_running(connection)


def outlast_prune(connection: Connection) -> None:
    """After the lock was taken: whoever did not see it has ended."""
    if connection.dialect == "postgres":
        connection.begin()
        connection.run(_OUTLAST_PRUNE)
        connection.commit()
