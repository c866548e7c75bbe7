"""The bench of the queue, in a place of its own."""

import asyncio
import threading
import time
from pathlib import Path

import pytest

from penstock.bench import bare
from penstock.bench.place import open_place
from penstock.bench.queue import measure, percentile
from penstock.ledger.database.connection import Connection, Row
from penstock.ledger.database.database import Database
from penstock.ledger.database.postgres import PostgresConnection
from penstock.runtime import Runtime
from penstock.worker.heartbeat import Heartbeat


def left(url: str, runtime: Runtime) -> list[object]:
    """What is there beside the database, or in it."""
    database = Database(url, runtime)
    if database.dialect == "sqlite":
        return list(database.path.parent.iterdir())
    connection = database.connect()
    try:
        rows = connection.script("SELECT nspname FROM pg_namespace WHERE nspname LIKE 'penstock_bench_%'")
    finally:
        connection.close()
    return [row[0] for row in rows]


@pytest.mark.parametrize("moment", [0.0, 0.01, 0.1, 0.5, 1.0])
async def test_whenever_it_is_cancelled_nothing_stays(database_url: str, runtime: Runtime, moment: float) -> None:
    task = asyncio.create_task(measure(database_url, runtime, documents=200))
    await asyncio.sleep(moment)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert left(database_url, runtime) == []


async def test_a_schema_that_is_just_being_made_does_not_stay(
    postgres: str, runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, made = threading.Event(), threading.Event()
    script = PostgresConnection.script

    def slowly(connection: PostgresConnection, text: str) -> list[Row]:
        if not text.startswith("CREATE SCHEMA"):
            return script(connection, text)
        begun.set()
        time.sleep(0.3)
        answer = script(connection, text)
        made.set()
        return answer

    monkeypatch.setattr(PostgresConnection, "script", slowly)
    task = asyncio.create_task(measure(postgres, runtime, documents=1))
    await asyncio.get_running_loop().run_in_executor(None, begun.wait)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await asyncio.get_running_loop().run_in_executor(None, made.wait)
    assert left(postgres, runtime) == []


async def test_a_worker_that_just_starts_is_not_left_alive(
    database_url: str, runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = threading.Event()
    connect, drop = Heartbeat._connect, Heartbeat.stop
    ended: list[Heartbeat] = []

    def slowly(heart: Heartbeat) -> Connection:
        begun.set()
        time.sleep(0.2)
        return connect(heart)

    async def stop(heart: Heartbeat) -> None:
        ended.append(heart)
        await drop(heart)

    monkeypatch.setattr(Heartbeat, "_connect", slowly)
    monkeypatch.setattr(Heartbeat, "stop", stop)
    task = asyncio.create_task(measure(database_url, runtime, documents=1))
    await asyncio.get_running_loop().run_in_executor(None, begun.wait)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert len(ended) == 1


async def test_an_error_leaves_nothing_behind(database_url: str, runtime: Runtime) -> None:
    async def fail() -> None:
        async with open_place(database_url, runtime) as place:
            assert len(left(database_url, runtime)) == 1
            assert Database(place.url, runtime).dialect == Database(database_url, runtime).dialect
            _ = 1 / 0

    with pytest.raises(ZeroDivisionError):
        await fail()
    assert left(database_url, runtime) == []


async def test_options_of_the_url_are_kept(postgres: str, runtime: Runtime) -> None:
    async with open_place(postgres + "&options=-cwork_mem%3D5MB", runtime) as place:
        connection = Database(place.url, runtime).connect()
        assert connection.script("SHOW work_mem") == [("5MB",)]
        assert connection.script("SHOW search_path") == [(place.schema,)]
        connection.close()


async def test_the_bare_loop_runs_on_either_driver(
    postgres: str, runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    for claimer in (bare._claimer, bare._psycopg_claimer):
        monkeypatch.setattr(bare, "_claimer", claimer)
        async with open_place(postgres, runtime) as place:
            assert await bare.claim_rate(place, runtime, 5, 3, 2) > 0
            connection = Database(place.url, runtime).connect()
            assert connection.script("SELECT status, step FROM bare_step") == [("done", 3)] * 5
            connection.close()


async def test_a_folder_that_is_not_there_is_not_made(tmp_path: Path, runtime: Runtime) -> None:
    async with open_place(f"sqlite:///{tmp_path}/no/such/ledger.db", runtime) as place:
        assert place.folder.parent == tmp_path
    assert list(tmp_path.iterdir()) == []


def testpercentiles_are_values_that_were_measured() -> None:
    assert percentile([3, 1, 2], 50) == 2
    assert percentile(range(1, 101), 99) == 99
    assert percentile([5], 99) == 5
