"""On PostgreSQL every claim leaves an old row behind, and the next claim walks over those at the left end of its index
till somebody sweeps (I11). The server's own sweeper looks once a minute: a busy queue cannot wait for that."""

import asyncio

from penstock.ledger.database.connection import Connection
from penstock.ledger.database.database import Database
from penstock.ledger.database.postgres import PostgresConnection
from penstock.ledger.database.statements import Statement

MANY = 50_000
"""Old rows: a claim takes a third longer by then."""
_OLD = Statement("SELECT coalesce(max(n_dead_tup), 0) FROM pg_stat_user_tables WHERE relid = to_regclass('steps')")


def is_due(connection: Connection) -> bool:
    return connection.dialect == "postgres" and bool(connection.run(_OLD)[0][0] > MANY)


def sweep(connection: Connection) -> None:
    """Nobody is kept waiting by it; where somebody sweeps already, it is left to them."""
    connection.script("VACUUM (SKIP_LOCKED, TRUNCATE FALSE) steps")


async def sweep_up(database: Database) -> None:
    """On a connection of its own, so that whoever is told to stop can end it in its middle."""
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
