"""VACUUM of the steps table. On PostgreSQL every claim leaves a dead row version, and the next claims step over them at
the left end of their index until they are vacuumed (I11). Autovacuum runs once a minute: too seldom for a busy
queue."""

import asyncio

from penstock.ledger.database.connection import Connection
from penstock.ledger.database.database import Database
from penstock.ledger.database.postgres import PostgresConnection
from penstock.ledger.database.statements import Statement

MANY = 50_000
"""Dead row versions. With so many a claim takes a third longer."""
_OLD = Statement("SELECT coalesce(max(n_dead_tup), 0) FROM pg_stat_user_tables WHERE relid = to_regclass('steps')")


def is_due(connection: Connection) -> bool:
    return connection.dialect == "postgres" and bool(connection.run(_OLD)[0][0] > MANY)


def sweep(connection: Connection) -> None:
    """Blocks no other transaction, and is skipped if another VACUUM runs."""
    connection.script("VACUUM (SKIP_LOCKED, TRUNCATE FALSE) steps")


async def sweep_up(database: Database) -> None:
    """On its own connection, so that it can be interrupted when the worker stops."""
    runtime = database.runtime
    connection = await runtime.run_blocking("read", database.connect)
    assert isinstance(connection, PostgresConnection)
    sweeping = asyncio.ensure_future(runtime.run_blocking("upkeep", sweep, connection))
    try:
        await asyncio.shield(sweeping)
    finally:
        if not sweeping.done():
            connection.interrupt()
            await asyncio.wait([sweeping])
        connection.close()
