"""A PostgreSQL server that goes away and comes back: a worker waits for it, and goes on."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest
from tests.conftest import StartApp
from tests.kit.apps import until

from penstock.app import App
from penstock.errors import LedgerAway
from penstock.ledger.database.database import Database
from penstock.ledger.database.store import Ledger
from penstock.ledger.engine import work
from penstock.runtime import Runtime

CUT = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s"
Switch = Callable[[bool], None]


@pytest.fixture
def switch(postgres_server: str, fresh_postgres: str) -> Switch:
    """switch(False): nobody reaches the database any more; switch(True): it is back."""
    name = fresh_postgres.partition("?")[0].rpartition("/")[2]

    def turn(on: bool) -> None:
        with psycopg.connect(postgres_server, autocommit=True) as connection:
            connection.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS {str(on).lower()}".encode())
            if not on:
                connection.execute(CUT, [name])

    return turn


def files(folder: Path, count: int) -> Path:
    folder.mkdir()
    for i in range(count):
        (folder / f"{i}.txt").write_text(f"{folder.name} number {i}\n" * 40)
    return folder


async def ended(app: App, count: int) -> None:
    async def all_are() -> bool:
        return bool((await app.status()).documents.get("COMPLETED") == count)

    await until(all_are, 20)


async def test_a_worker_outlasts_a_server_that_goes_away(
    start_app: StartApp, fresh_postgres: str, switch: Switch, tmp_path: Path
) -> None:
    app = await start_app(database=fresh_postgres)
    other = await start_app(database=fresh_postgres)
    said: list[str] = []
    working = asyncio.create_task(app.work(report=said.append))
    await other.ingest([files(tmp_path / "before", 3)], wait=False)
    await ended(other, 3)
    await other.ingest([files(tmp_path / "meanwhile", 30)], wait=False)
    switch(False)

    async def waits() -> bool:
        return bool(said)

    await until(waits, 10)
    assert "Waiting for it" in said[0]
    assert not working.done()
    await asyncio.sleep(1.5)
    switch(True)
    await other.ingest([files(tmp_path / "after", 2)], wait=False)
    await ended(other, 35)
    assert said[1:] == ["The database is back."]
    app.stop()
    summary = await working
    assert summary.completed >= 5, "what it did before counts as well"
    status = await other.status()
    assert status.dead_letters == 0
    assert (await other.check()).ok


async def test_a_worker_that_waits_for_its_server_is_stopped_at_once(
    start_app: StartApp, fresh_postgres: str, switch: Switch
) -> None:
    app = await start_app(database=fresh_postgres)
    said: list[str] = []
    working = asyncio.create_task(app.work(report=said.append))
    await asyncio.sleep(0.5)
    switch(False)

    async def waits() -> bool:
        return bool(said)

    await until(waits, 10)
    app.stop()
    async with asyncio.timeout(3):
        summary = await working
    assert summary.interrupted
    switch(True)


async def test_connections_that_were_cut_while_idle_are_made_anew(postgres: str, runtime: Runtime) -> None:
    ledger = Ledger(Database(postgres, runtime))
    await asyncio.gather(*(ledger.read(work.left) for _ in range(4)))
    await ledger.write(work.KEEP_PACES, {"extract": 1.0})
    with psycopg.connect(postgres, autocommit=True) as connection:
        connection.execute(CUT + " AND pid <> pg_backend_pid()", [connection.info.dbname])
    assert not (await ledger.read(work.left)).anything
    async with ledger.snapshot() as snapshot:
        assert not (await snapshot.read(work.left)).anything
    await ledger.write(work.KEEP_PACES, {"extract": 2.0})
    assert await ledger.is_there()
    await ledger.close()


async def test_a_server_that_is_away_is_said_to_be(fresh_postgres: str, switch: Switch, runtime: Runtime) -> None:
    ledger = Ledger(Database(fresh_postgres, runtime))
    await ledger.write(work.KEEP_PACES, {"extract": 1.0})
    switch(False)
    with pytest.raises(LedgerAway, match="does not answer"):
        await ledger.read(work.left)
    with pytest.raises(LedgerAway, match="does not answer"):
        await ledger.write(work.KEEP_PACES, {"extract": 2.0})
    assert not await ledger.is_there()
    switch(True)
    assert await ledger.is_there()
    await ledger.close()
