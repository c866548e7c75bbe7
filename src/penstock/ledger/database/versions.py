"""The version of a ledger: which processes may open it, when it is migrated, and which workers must stop then.

A migration changes the tables for all processes. So no process migrates while a worker is alive, and each worker
checks now and then whether the ledger was migrated all the same."""

from collections.abc import Sequence
from pathlib import Path

from penstock.errors import LedgerTooNew, ReadOnly, UsageError
from penstock.ledger.database import liveness, workers
from penstock.ledger.database.connection import Connection
from penstock.ledger.database.database import Database
from penstock.ledger.database.migrations import LATEST, MIGRATIONS
from penstock.ledger.database.statements import Statement
from penstock.redaction import masked

_VERSION = Statement("SELECT max(version) FROM schema_versions")
_BORN = Statement("SELECT min(applied_at) FROM schema_versions")
_STAMP = Statement("INSERT INTO schema_versions (version, applied_at) VALUES (:version, {now})")
_SCHEMA = Path(__file__).with_name("schema.sql")
_TABLES = {
    "sqlite": "SELECT count(*) FROM sqlite_schema WHERE name = 'schema_versions'",
    "postgres": "SELECT count(*) FROM pg_tables WHERE tablename = 'schema_versions' "
    "AND schemaname = ANY (current_schemas(false))",
}


def born(connection: Connection) -> float:
    """When the ledger was made: no two have the same moment, and a copy keeps it."""
    moment: float = connection.run(_BORN)[0][0]
    return moment


def version(connection: Connection) -> int:
    """0: there is no ledger yet."""
    if not connection.script(_TABLES[connection.dialect])[0][0]:
        return 0
    return connection.run(_VERSION)[0][0] or 0


def bring_up(database: Database, connection: Connection, *, migrate: bool) -> None:
    """A new ledger is made, an older one is migrated where that is wanted, and a newer one is refused."""
    found = version(connection)
    if found == LATEST:
        return
    if found > LATEST:
        raise _too_new(database, found, "Upgrade Penstock, or point it at another home.")
    if database.read_only:
        raise ReadOnly(
            f"the ledger {masked(database.url)} has version {found} of {LATEST}, and cannot be migrated because it is "
            "read-only: open the home once with this Penstock where it can be written"
        )
    if found and not migrate:
        raise UsageError(
            f"the ledger {masked(database.url)} has version {found} of {LATEST}: run `penstock db migrate`"
        )
    _migrate(database, connection)


def still_ours(connection: Connection, database: Database) -> None:
    """For workers: raises if the ledger was migrated to a version that this Penstock does not know."""
    found: int = connection.run(_VERSION)[0][0]
    if found > LATEST:
        raise _too_new(
            database, found, "This worker has handed over what it worked on, and ends: upgrade it, and start it again."
        )


def _too_new(database: Database, found: int, advice: str) -> LedgerTooNew:
    return LedgerTooNew(
        f"the ledger {masked(database.url)} has version {found}; this Penstock knows {LATEST}. {advice}"
    )


def _migrate(database: Database, connection: Connection) -> None:
    """In one transaction, and one process at a time. Both databases have transactional DDL."""
    connection.begin()
    try:
        if connection.dialect == "postgres":
            connection.run(workers.MIGRATING)
        found = version(connection)
        if found == 0:
            connection.script(
                "CREATE TABLE IF NOT EXISTS schema_versions (version INTEGER PRIMARY KEY, "
                + ("applied_at REAL NOT NULL)" if connection.dialect == "sqlite" else "applied_at float8 NOT NULL)")
            )
        elif found < LATEST:
            _refuse_if_in_use(database, connection, found)
        for number in range(found + 1, LATEST + 1):
            for text in _statements(connection, found, number):
                connection.script(text)
            connection.run(_STAMP, version=number)
        connection.commit()
    except BaseException:
        connection.rollback()
        raise


def _statements(connection: Connection, found: int, number: int) -> Sequence[str]:
    """The statements of one version. A new ledger on SQLite gets the tables of all versions with the last one: each
    ALTER TABLE reads the whole schema again, and all migrations together take ten times as long."""
    if found or connection.dialect != "sqlite":
        return MIGRATIONS[number - 1](connection.dialect)
    return _SCHEMA.read_text(encoding="utf-8").split(";\n\n") if number == LATEST else ()


def _refuse_if_in_use(database: Database, connection: Connection, found: int) -> None:
    """In the transaction that migrates: a worker that starts now waits for it, and then finds that it is too old."""
    known = {worker.id: worker for worker in workers.everyone(connection)}
    names = liveness.of(database).alive(list(known), connection)
    if names:
        who = _listed([f"process {known[name].pid} on {known[name].host}" for name in names if name in known])
        raise UsageError(
            f"the ledger {masked(database.url)} has version {found}, and this Penstock would migrate it to {LATEST}; "
            f"but it is in use by {who or 'a process that has just started'}. Stop that first (SIGTERM or Ctrl-C: what "
            "it works on is kept), then run this again."
        )


def _listed(names: Sequence[str]) -> str:
    shown = [*names[:3], *([f"{len(names) - 3} more"] if len(names) > 3 else [])]
    return " and ".join([", ".join(shown[:-1]), shown[-1]]) if len(shown) > 1 else "".join(shown)
