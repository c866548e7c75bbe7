"""The schema is the sum of its migrations; a ledger opens only where it is safe to."""

import asyncio
import sqlite3
import sys
from pathlib import Path
from typing import Any

import pytest
from scripts import schema

from penstock.errors import LedgerTooNew, StorageError, UsageError
from penstock.ledger.database import statements
from penstock.ledger.database.connection import Connection
from penstock.ledger.database.database import Database
from penstock.ledger.database.migrations import LATEST, MIGRATIONS
from penstock.ledger.database.store import Ledger
from penstock.runtime import Runtime

OPEN = """
import asyncio, sys
from penstock.app import open_app
async def main():
    async with open_app(home=sys.argv[1], database=sys.argv[2] or None):
        pass
asyncio.run(main())
"""


async def open_ledger(url: str, *, migrate: bool = True) -> None:
    runtime = Runtime()
    ledger = Ledger(Database(url, runtime))
    try:
        await ledger.open(migrate=migrate)
    finally:
        await ledger.close()
        runtime.close()


def test_schema_sql_is_what_the_migrations_add_up_to() -> None:
    assert schema.FILE.read_text(encoding="utf-8") == schema.schema(), "run `python scripts/schema.py`"


async def test_a_ledger_that_was_just_made_has_that_schema(tmp_path: Path) -> None:
    await open_ledger(f"sqlite:///{tmp_path / 'ledger.db'}")
    with sqlite3.connect(tmp_path / "ledger.db") as connection:
        assert schema.HEAD + schema.dump(connection) == schema.FILE.read_text(encoding="utf-8")
    connection.close()


async def test_a_new_ledger_is_the_same_as_one_that_was_migrated_step_by_step(tmp_path: Path) -> None:
    await open_ledger(f"sqlite:///{tmp_path / 'ledger.db'}")
    with sqlite3.connect(tmp_path / "ledger.db") as made, sqlite3.connect(":memory:") as migrated:
        for statements_of in MIGRATIONS:
            for text in statements_of("sqlite"):
                migrated.execute(text)
        assert schema.dump(made) == schema.dump(migrated)
        for connection in (made, migrated):
            assert connection.execute("SELECT * FROM sqlite_sequence WHERE seq > 0").fetchall() == []
    made.close()
    migrated.close()


async def test_migrating_twice_changes_nothing(database_url: str) -> None:
    await open_ledger(database_url)
    first = await _versions(database_url)
    await open_ledger(database_url)
    assert await _versions(database_url) == first
    assert [row[0] for row in first] == list(range(1, LATEST + 1))


async def _versions(url: str, change: str = "") -> list[Any]:
    runtime = Runtime()
    connection = Database(url, runtime).connect()
    if change:
        connection.script(change)
    rows = connection.script("SELECT version, applied_at FROM schema_versions ORDER BY version")
    connection.close()
    runtime.close()
    return rows


async def test_a_ledger_of_a_newer_penstock_is_refused(tmp_path: Path, fresh_postgres: str) -> None:
    for url in (f"sqlite:///{tmp_path / 'ledger.db'}", fresh_postgres):
        await open_ledger(url)
        await _versions(url, f"INSERT INTO schema_versions VALUES ({LATEST + 1}, 0)")
        with pytest.raises(LedgerTooNew, match=f"has version {LATEST + 1}; this Penstock knows {LATEST}"):
            await open_ledger(url)


async def test_an_older_shared_ledger_is_migrated_only_on_request(fresh_postgres: str, monkeypatch: Any) -> None:
    from penstock.ledger.database import versions

    monkeypatch.setattr(versions, "LATEST", LATEST + 1)
    monkeypatch.setattr(versions, "MIGRATIONS", (*MIGRATIONS, lambda dialect: ["CREATE TABLE later (id INTEGER)"]))
    with pytest.raises(UsageError, match="run `penstock db migrate`"):
        await open_ledger(fresh_postgres, migrate=False)
    await open_ledger(fresh_postgres, migrate=True)
    assert [row[0] for row in await _versions(fresh_postgres)] == [*range(1, LATEST + 2)]


async def test_a_migration_that_fails_leaves_nothing_behind(tmp_path: Path, monkeypatch: Any) -> None:
    from penstock.ledger.database import versions

    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    await open_ledger(url)
    bad = ["CREATE TABLE later (id INTEGER)", "CREATE TABLE later (id INTEGER)"]
    monkeypatch.setattr(versions, "LATEST", LATEST + 1)
    monkeypatch.setattr(versions, "MIGRATIONS", (*MIGRATIONS, lambda dialect: bad))
    with pytest.raises(Exception, match="already exists"):
        await open_ledger(url)
    assert [row[0] for row in await _versions(url)] == [*range(1, LATEST + 1)]


@pytest.mark.parametrize("dialect", ["sqlite", "postgres"])
async def test_two_processes_that_open_a_new_home_at_once_both_succeed(
    tmp_path: Path, dialect: str, request: pytest.FixtureRequest
) -> None:
    url = "" if dialect == "sqlite" else request.getfixturevalue("empty_postgres")
    home = str(tmp_path / "home")
    racing = [
        await asyncio.create_subprocess_exec(sys.executable, "-c", OPEN, home, url, stderr=asyncio.subprocess.PIPE)
        for _ in range(4)
    ]
    for process in racing:
        _, errors = await process.communicate()
        assert process.returncode == 0, errors.decode()


async def test_i1_a_server_with_fsync_off_is_refused(postgres: str, monkeypatch: Any) -> None:
    """Its settings cannot be changed while others use it: the question is changed instead."""
    import psycopg

    class Careless(psycopg.Connection[Any]):
        def execute(self, query: Any, *args: Any, **options: Any) -> Any:
            return super().execute(query.replace("current_setting('fsync')", "'off'"), *args, **options)

    monkeypatch.setattr(psycopg, "connect", Careless.connect)
    with pytest.raises(UsageError, match="fsync=off: a power failure would lose accepted documents"):
        Database(postgres, Runtime()).connect()


def test_i1_commits_are_synchronous(postgres: str, tmp_path: Path) -> None:
    runtime = Runtime()
    connection: Connection = Database(postgres + "&options=-csynchronous_commit%3Doff", runtime).connect()
    assert connection.script("SHOW synchronous_commit") == [("on",)]
    connection.close()
    connection = Database(f"sqlite:///{tmp_path / 'x.db'}", runtime).connect()
    assert connection.script("PRAGMA synchronous") == [(2,)]
    assert connection.script("PRAGMA journal_mode") == [("wal",)]
    assert connection.script("PRAGMA foreign_keys") == [(1,)]
    connection.close()


@pytest.mark.parametrize("url", ["mysql://x", "sqlite:relative.db", ""])
def test_an_unknown_database_is_refused(url: str) -> None:
    with pytest.raises(UsageError, match=r"use sqlite:///FILE or postgresql://"):
        Database(url, Runtime())


async def test_what_is_no_ledger_is_refused_with_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "ledger.db").write_bytes(b"certainly not a database" * 100)
    with pytest.raises(StorageError, match="is not a Penstock ledger, or is damaged"):
        await open_ledger(f"sqlite:///{tmp_path / 'ledger.db'}")


async def test_a_server_that_does_not_answer_is_named_without_its_password() -> None:
    with pytest.raises(StorageError, match="does not answer") as caught:
        await open_ledger("postgresql://me:secret@127.0.0.1:1/none")
    assert "secret" not in str(caught.value)


def test_the_clock_stands_in_one_place() -> None:
    """A simulation replaces two texts: nothing else in the ledger asks the database for the time."""
    folder = Path(statements.__file__).parent
    for path in folder.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        if path.name == "statements.py":
            text = text.replace(statements.NOW["sqlite"], "").replace(statements.NOW["postgres"], "")
        for word in ("julianday", "clock_timestamp", "unixepoch", "CURRENT_TIMESTAMP", "now()"):
            assert word not in text, f"{path.name}: {word}"
