"""Workers sweep up after their claims on PostgreSQL, where nobody else does it soon enough (I11)."""

import asyncio
import time
from typing import Any

import pytest
from tests.conftest import StartApp

from penstock.ledger.database.database import Database
from penstock.ledger.engine import steps_vacuum
from penstock.runtime import Runtime
from penstock.worker import periodic

SWEPT = "SELECT vacuum_count, n_dead_tup FROM pg_stat_user_tables WHERE relname = 'steps'"


@pytest.fixture
def tired(fresh_postgres: str) -> str:
    """A ledger with many old rows of steps, which the server leaves as they are."""
    connection = Database(fresh_postgres, Runtime()).connect()
    connection.script("ALTER TABLE steps SET (autovacuum_enabled = off)")
    connection.script(
        "INSERT INTO steps (run_id, position, document_id, generation_id, owner, snapshot, name, kind, status, "
        "priority, rank, created_at) SELECT 'r' || i, 0, 'd', 1, 'anna', 's', 'one', 'one', 'COMPLETED', 0, i, 0 "
        "FROM generate_series(1, 300) AS n(i)"
    )
    connection.script("UPDATE steps SET rank = rank + 1")
    connection.script("SELECT pg_stat_force_next_flush()")
    connection.close()
    return fresh_postgres


def swept(url: str) -> Any:
    connection = Database(url, Runtime()).connect()
    try:
        return connection.script(SWEPT)[0]
    finally:
        connection.close()


async def test_i11_a_worker_sweeps_up(tired: str, start_app: StartApp, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps_vacuum, "MANY", 200)
    monkeypatch.setattr(periodic, "UPKEEP_S", 0.05)
    app = await start_app(database=tired)
    working = asyncio.create_task(app.work())
    for _ in range(200):
        await asyncio.sleep(0.05)
        if swept(tired)[0]:
            break
    app.stop()
    await working
    assert swept(tired)[0] >= 1
    assert swept(tired)[1] < 200


async def test_few_old_rows_are_left_to_the_server(
    tired: str, start_app: StartApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(periodic, "UPKEEP_S", 0.05)
    app = await start_app(database=tired)
    working = asyncio.create_task(app.work())
    await asyncio.sleep(0.5)
    app.stop()
    await working
    assert swept(tired)[0] == 0


async def test_whoever_is_told_to_stop_does_not_wait_for_the_end(tired: str, monkeypatch: pytest.MonkeyPatch) -> None:
    began = asyncio.Event()
    loop = asyncio.get_running_loop()

    def slow(connection: Any) -> None:
        loop.call_soon_threadsafe(began.set)
        connection.script("SELECT pg_sleep(30)")

    monkeypatch.setattr(steps_vacuum, "sweep", slow)
    runtime = Runtime()
    task = asyncio.create_task(steps_vacuum.sweep_up(Database(tired, runtime)))
    await began.wait()
    await asyncio.sleep(0.1)
    at = time.monotonic()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert time.monotonic() - at < 2
    runtime.close()
