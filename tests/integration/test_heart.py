"""A worker on PostgreSQL is alive as long as its connection holds a lock; what happens to that connection."""

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import psycopg
import pytest
from tests.conftest import StartApp
from tests.integration import own_steps
from tests.kit.apps import until

from penstock.app import App
from penstock.ledger.database.connection import Connection
from penstock.ledger.database.database import Database
from penstock.ledger.database.liveness import AdvisoryLiveness
from penstock.ledger.database.store import Ledger
from penstock.model.nouns import WorkerId
from penstock.runtime import Runtime

WORKFLOW = "id: dozing\nsteps: {doze: {kind: enrich, method: tests.integration.own_steps.doze}}\n"
HOLDERS = "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND database = (SELECT oid FROM pg_database " \
    "WHERE datname = current_database())"  # fmt: skip


@pytest.fixture
async def server(postgres: str) -> AsyncIterator[psycopg.AsyncConnection]:
    own_steps.calls.clear()
    async with await psycopg.AsyncConnection.connect(postgres, autocommit=True) as connection:
        yield connection


async def holders(server: psycopg.AsyncConnection) -> list[int]:
    return [row[0] for row in await (await server.execute(HOLDERS)).fetchall()]


async def dozing(start_app: StartApp, postgres: str, folder: Path) -> tuple[App, "asyncio.Task[object]"]:
    """A worker in the middle of a step."""
    (folder / "dozing.yaml").write_text(WORKFLOW)
    app = await start_app(database=postgres)
    await app.ingest(data=b"words", name="a.txt", workflow=str(folder / "dozing.yaml"), wait=False)
    work: asyncio.Task[object] = asyncio.create_task(app.work())

    async def dozes() -> bool:
        return "doze" in own_steps.calls

    await until(dozes)
    return app, work


async def test_a_beat_that_met_a_deadlock_leaves_the_worker_alive(
    start_app: StartApp, postgres: str, server: psycopg.AsyncConnection, tmp_path: Path
) -> None:
    app, work = await dozing(start_app, postgres, tmp_path)
    [heart] = await holders(server)

    async def waits() -> bool:
        found = await server.execute("SELECT wait_event_type FROM pg_stat_activity WHERE pid = %s", [heart])
        return await found.fetchone() == ("Lock",)

    async with await psycopg.AsyncConnection.connect(postgres) as other:
        await other.execute("UPDATE workers SET seen_at = seen_at")
        await until(waits)
        # It holds the step and wants the worker, we the other way round: the one who waits for longer is ended.
        await other.execute("UPDATE steps SET waiting_on = waiting_on")
        await other.rollback()
    await asyncio.sleep(0.7)
    assert await holders(server) == [heart], "it gave up the lock by which others know that it lives"
    assert own_steps.calls == ["doze"]
    app.stop()
    await work


async def test_a_worker_that_lost_its_connection_and_was_reaped_is_known_again(
    start_app: StartApp, postgres: str, server: psycopg.AsyncConnection, tmp_path: Path
) -> None:
    app, work = await dozing(start_app, postgres, tmp_path)
    [mine] = await app.list_workers()
    [heart] = await holders(server)
    await server.execute("SELECT pg_terminate_backend(%s)", [heart])
    await server.execute("DELETE FROM workers")

    async def known() -> bool:
        return [w.id for w in await app.list_workers() if w.alive] == [mine.id]

    await until(known, 5)
    [again] = await holders(server)
    assert again != heart
    app.stop()
    await work
    assert await app.list_workers() == []


def test_a_worker_takes_its_lock_from_a_connection_that_only_it_has_lost(postgres: str, runtime: Runtime) -> None:
    database, mine, worker = Database(postgres, runtime), AdvisoryLiveness(), WorkerId("w")
    lost = database.connect(hot=True)
    mine.hold(worker, lost)
    others, again = database.connect(), database.connect(hot=True)
    again.script("SET lock_timeout = '5s'")
    # The server still keeps the first connection.
    mine.hold(worker, again)
    assert AdvisoryLiveness().dead([worker], others) == []
    again.close()

    async def is_dead() -> bool:
        return AdvisoryLiveness().dead([worker], others) == [worker]

    asyncio.run(until(is_dead, 5))
    for connection in (lost, others):
        connection.close()


@pytest.mark.parametrize("how", ["read", "snapshot"])
async def test_a_cancelled_read_that_ends_after_the_ledger_was_closed_leaves_no_connection(
    how: str, postgres: str, runtime: Runtime
) -> None:
    database = Database(postgres, runtime)
    ledger = Ledger(database)
    await ledger.open()
    begun, go_on = threading.Event(), threading.Event()
    made: list[Connection] = []
    connect = database.connect

    def slowly(*, hot: bool = False) -> Connection:
        begun.set()
        assert go_on.wait(30)
        made.append(connect(hot=hot))
        return made[-1]

    ledger._drain()
    database.connect = slowly  # type: ignore[method-assign]

    async def use() -> None:
        if how == "read":
            await ledger.read(lambda c: c.script("SELECT 1"))
        else:
            async with ledger.snapshot():
                raise AssertionError("unreachable")

    reading = asyncio.create_task(use())
    assert await asyncio.to_thread(begun.wait, 30)
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    await ledger.close()
    go_on.set()
    runtime.close()
    [connection] = made
    assert connection.broken
