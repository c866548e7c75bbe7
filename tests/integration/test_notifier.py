"""Idle workers cost next to nothing, and are told when there is something to do."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest
from tests.conftest import StartApp
from tests.kit.apps import slow, text, until, until_status
from tests.kit.ledger import ANNA, Desk

from penstock.app import App
from penstock.errors import StorageError, Transient
from penstock.ledger.database import notifier
from penstock.ledger.database.database import Database
from penstock.ledger.database.notifier import PostgresListener
from penstock.ledger.database.statements import Statement
from penstock.ledger.database.store import Ledger
from penstock.ledger.engine import cancellations, runs
from penstock.runtime import Runtime
from penstock.worker import periodic, pool

Files = Callable[..., Path]

LISTENERS = "FROM pg_stat_activity WHERE query = 'LISTEN penstock' AND datname = current_database()"


@pytest.fixture
def never_poll(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody looks by himself: what is not told is not done."""
    monkeypatch.setattr(pool, "POLL_S", 600.0)


@pytest.fixture(params=["sqlite", "postgres"])
def database(request: pytest.FixtureRequest) -> str | None:
    return None if request.param == "sqlite" else request.getfixturevalue("postgres")


@pytest.fixture
async def heard(postgres: str) -> AsyncIterator[Callable[[float], Awaitable[int]]]:
    """How often the bell rings within some seconds."""
    connection = await psycopg.AsyncConnection.connect(postgres, autocommit=True)
    await connection.execute("LISTEN penstock")

    async def count(seconds: float) -> int:
        return len([note async for note in connection.notifies(timeout=seconds)])

    yield count
    await connection.close()


async def completed(app: App, count: int) -> None:
    async def reached() -> bool:
        return bool((await app.status()).documents.get("COMPLETED", 0) == count)

    await until(reached, 10)


async def stopped(app: App, work: "asyncio.Task[Any]") -> Any:
    app.stop()
    return await asyncio.wait_for(work, 5)


@pytest.mark.usefixtures("never_poll")
async def test_a_submit_elsewhere_wakes_an_idle_worker(start_app: StartApp, files: Files, database: str | None) -> None:
    app, other = await start_app(database=database), await start_app(database=database)
    work = asyncio.create_task(app.work())
    await asyncio.sleep(0.5)
    for number in range(3):
        folder = files(**{f"{number}.txt": text(3, f"word{number}x")})
        assert (await other.ingest([folder], wait=False)).submitted == 1
        await completed(app, number + 1)
    summary = await stopped(app, work)
    assert (summary.completed, summary.made["pages"], summary.interrupted) == (3, 3, True)


async def test_i11_a_look_does_not_gather_all_that_waits(fresh_postgres: str, runtime: Runtime) -> None:
    ledger = Ledger(Database(fresh_postgres, runtime))
    plan = Statement(f"EXPLAIN {notifier._CLAIMABLE.text}", rows="kind text")
    lines = [row[0] for row in await ledger.read(lambda c: c.run(plan, [("extract",), ("index",)]))]
    assert [line for line in lines if "steps_claim" in line]
    assert not [line for line in lines if "hashed" in line or "Seq Scan" in line]
    await ledger.close()


async def test_a_worker_that_ends_at_once_leaves_no_connection(postgres: str, runtime: Runtime) -> None:
    ears = PostgresListener(Database(postgres, runtime))
    opening = asyncio.create_task(ears.open())
    await asyncio.sleep(0)
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    async with await psycopg.AsyncConnection.connect(postgres, autocommit=True) as other:
        listening = f"SELECT count(*) {LISTENERS}"

        async def gone() -> bool:
            return await (await other.execute(listening)).fetchone() == (0,)

        await until(gone, 2)


@pytest.mark.usefixtures("never_poll")
async def test_work_that_was_there_before_is_found(start_app: StartApp, files: Files, database: str | None) -> None:
    app = await start_app(database=database)
    await app.ingest([files(**{"a.txt": text(3)})], wait=False)
    work = asyncio.create_task(app.work())
    await completed(app, 1)
    await stopped(app, work)


@pytest.mark.usefixtures("never_poll")
async def test_who_waits_for_the_work_of_others_learns_soon_that_it_is_done(
    start_app: StartApp, files: Files, database: str | None
) -> None:
    app, other = await start_app(database=database), await start_app(database=database)
    slow(app, 1.0)
    folder = files(**{"a.txt": text(3)})
    await app.ingest([folder], wait=False)
    work = asyncio.create_task(app.work())
    await until_status(other, "EMBEDDING")
    assert (await asyncio.wait_for(other.ingest([folder]), 10)).completed == 1
    await stopped(app, work)


async def test_an_idle_worker_hardly_writes(start_app: StartApp, database: str | None) -> None:
    app = await start_app(database=database)
    work = asyncio.create_task(app.work())
    before = -1
    while before != app.ledger.commits:
        before = app.ledger.commits
        await asyncio.sleep(0.5)
    began = time.monotonic()
    await asyncio.sleep(1.6)
    looks = 1 + (time.monotonic() - began) // periodic.UPKEEP_S
    assert app.ledger.commits - before <= looks, "looks for the dead"
    await stopped(app, work)


@pytest.mark.usefixtures("never_poll")
async def test_a_backed_off_step_goes_on_when_it_is_due(
    start_app: StartApp, files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = await start_app(worker={"lease_s": 2400.0})
    embed, calls = app.ports.embedder.embed_documents, 0

    async def shaky(texts: list[str]) -> object:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise Transient("the embedder stumbled")
        return await embed(texts)

    monkeypatch.setattr(periodic, "UPKEEP_S", 600.0)
    monkeypatch.setattr(app.ports.embedder, "embed_documents", shaky)
    work = asyncio.create_task(app.work())
    await asyncio.sleep(0.3)
    await app.ingest([files(**{"a.txt": text(3)})], wait=False)
    await completed(app, 1)
    assert calls == 2
    await stopped(app, work)


async def test_a_released_step_is_taken_up_by_another_worker(
    start_app: StartApp, files: Files, database: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "POLL_S", 600.0)
    first, second = await start_app(database=database), await start_app(database=database)
    begun = asyncio.Event()

    async def stuck(texts: list[str]) -> object:
        begun.set()
        await asyncio.sleep(60)
        raise AssertionError("unreachable")

    monkeypatch.setattr(first.ports.embedder, "embed_documents", stuck)
    working = asyncio.create_task(first.work())
    await first.ingest([files(**{"a.txt": text(3)})], wait=False)
    await asyncio.wait_for(begun.wait(), 10)
    waiting = asyncio.create_task(second.work())
    await asyncio.sleep(0.5)
    await stopped(first, working)
    await completed(second, 1)
    await stopped(second, waiting)


async def test_the_bell_rings_seldom_and_the_last_submit_is_heard(
    postgres: str, runtime: Runtime, heard: Callable[[float], Awaitable[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notifier, "NOTIFY_EVERY_S", 1.5)
    ledger = Ledger(Database(postgres, runtime))
    for number in range(8):
        await Desk(ledger).submit(f"/{number}")
    assert await heard(0.1) == 1
    assert await heard(1.7) == 1, "the rest at once, later"
    assert await heard(0.5) == 0
    await ledger.close()


async def test_a_process_that_ends_does_not_keep_the_bell_to_itself(
    postgres: str, runtime: Runtime, heard: Callable[[float], Awaitable[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notifier, "NOTIFY_EVERY_S", 60.0)
    ledger = Ledger(Database(postgres, runtime))
    for source in ("/a", "/b"):
        await Desk(ledger).submit(source)
    assert await heard(0.2) == 1
    await ledger.close()
    assert await heard(0.2) == 1


async def test_what_is_known_already_wakes_nobody(
    postgres: str, runtime: Runtime, heard: Callable[[float], Awaitable[int]]
) -> None:
    ledger = Ledger(Database(postgres, runtime))
    desk = Desk(ledger)
    document = (await desk.submit("/a")).document_id
    await ledger.write(cancellations.CANCEL, runs.Selected(ANNA, (document,)))
    await heard(0.1)
    assert (await desk.submit("/a")).outcome == "skipped"
    assert await heard(0.2) == 0
    await ledger.close()


async def test_chained_steps_ring_nobody(
    start_app: StartApp, postgres: str, files: Files, heard: Callable[[float], Awaitable[int]]
) -> None:
    app = await start_app(database=postgres)
    await app.ingest([files(**{f"{i}.txt": text(3, f"w{i}x") for i in range(20)})], wait=False)
    await heard(0.2)
    assert (await app.run()).completed == 20
    assert await heard(0.2) <= 1, "only that a worker left"


async def test_a_worker_that_lost_its_ears_opens_them_again(postgres: str, runtime: Runtime) -> None:
    ears = PostgresListener(Database(postgres, runtime))
    await ears.open()
    await asyncio.wait_for(ears.change(), 5)
    waiting = asyncio.create_task(ears.change())
    async with await psycopg.AsyncConnection.connect(postgres, autocommit=True) as other:
        await other.execute(f"SELECT pg_terminate_backend(pid) {LISTENERS}")
        with pytest.raises(StorageError):
            await asyncio.wait_for(waiting, 5)
        await ears.open()
        await ears.change()
        await other.execute("NOTIFY penstock")
        await asyncio.wait_for(ears.change(), 5)
    ears.close()
