"""The lock of an index in a user's own hands, and taken out of whoever's hands by force."""

import asyncio
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import DIALECTS, StartApp

from penstock.app import App
from penstock.errors import LeaseLost, LockHeld, NotFound, UsageError
from penstock.indexes.base import Fence
from penstock.ledger.engine.locks import index_key
from penstock.model.events import EventKind
from penstock.model.nouns import Token
from penstock.worker import holding
from penstock.worker.indexing import Indexer

KEY = index_key("default", "default", 1)
SHORT = {"lease_s": 0.4}
HOLDER = """
import asyncio, sys
from penstock.app import open_app
async def main():
    async with open_app(home=sys.argv[1], embedder="fake") as app, app.hold_index():
        print("held", flush=True)
        await asyncio.sleep(60)
asyncio.run(main())
"""


async def test_one_block_holds_the_index_and_others_wait_for_it(app: App, start_app: StartApp) -> None:
    other, order = await start_app(), []

    async def wait() -> None:
        async with other.hold_index(max_wait=10):
            order.append("second")

    async with app.hold_index() as held:
        assert held.key == KEY
        waiting = asyncio.create_task(wait())
        await asyncio.sleep(0.3)
        order.append("first")
    await waiting
    assert order == ["first", "second"]
    assert (await app.list_locks()).locks == []
    assert await app.list_workers() == []


async def test_a_held_index_is_refused_at_once_or_after_the_wait(app: App, start_app: StartApp) -> None:
    other = await start_app()
    async with app.hold_index():
        for max_wait in (0.0, 0.3):
            began = time.monotonic()
            with pytest.raises(LockHeld, match=f"the lock {KEY} is held by another process"):
                async with other.hold_index(max_wait=max_wait):
                    raise AssertionError("two hold it")
            assert max_wait <= time.monotonic() - began < max_wait + 5
        async with other.hold_index("another", max_wait=0), other.for_owner("bert").hold_index(max_wait=0):
            pass


@pytest.fixture(params=DIALECTS)
async def pair(request: pytest.FixtureRequest, start_app: StartApp) -> tuple[App, App]:
    """Two that share a ledger."""
    database = {"database": request.getfixturevalue("postgres")} if request.param == "postgres" else {}
    return await start_app(**database), await start_app(**database)


async def test_documents_wait_behind_a_held_index(pair: tuple[App, App]) -> None:
    app, other = pair
    async with app.hold_index():
        working = asyncio.create_task(other.ingest(data=b"some words", name="a.txt"))
        await asyncio.sleep(0.5)
        assert await app.search("words") == []
    assert (await asyncio.wait_for(working, 20)).completed == 1


async def test_somebody_who_waited_in_vain_keeps_no_document_waiting(
    pair: tuple[App, App], monkeypatch: pytest.MonkeyPatch
) -> None:
    app, other = pair
    monkeypatch.setattr(holding, "WANTED_S", 20.0)
    async with app.hold_index():
        with pytest.raises(LockHeld):
            async with other.hold_index(max_wait=0.3):
                raise AssertionError("two hold it")
    began = time.monotonic()
    assert (await other.ingest(data=b"some words", name="a.txt")).completed == 1
    assert time.monotonic() - began < holding.WANTED_S


async def test_a_busy_indexer_lets_others_in(app: App, start_app: StartApp, monkeypatch: Any) -> None:
    """It takes the lock again as soon as it lets go of it."""
    from penstock.worker import claiming

    monkeypatch.setattr(claiming, "GROUP", 1)
    other = await start_app()
    for i in range(25):
        await app.ingest(data=f"the word {i}".encode(), name=f"{i}.txt", wait=False)
    working = asyncio.create_task(app.run())
    async for event in app.events(working):
        if event.kind is EventKind.ITEM_END:
            break
    async with other.hold_index(max_wait=2):
        done = (await other.status()).documents["COMPLETED"]
        await asyncio.sleep(0.1)
        assert (await other.status()).documents["COMPLETED"] == done < 25
    assert (await working).completed == 25


async def test_it_is_released_by_an_error_and_by_a_cancel(app: App, start_app: StartApp) -> None:
    other = await start_app()
    with pytest.raises(ZeroDivisionError):
        async with app.hold_index():
            _ = 1 / 0
    entered = asyncio.Event()

    async def hold() -> None:
        async with app.hold_index():
            entered.set()
            await asyncio.sleep(60)

    task = asyncio.create_task(hold())
    await entered.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    async with other.hold_index(max_wait=0):
        pass


async def test_a_block_that_takes_longer_than_the_lease_keeps_the_lock(start_app: StartApp) -> None:
    app, other = await start_app(worker=SHORT), await start_app(worker=SHORT)
    async with app.hold_index() as held:
        time.sleep(1.0)  # noqa: ASYNC251 – not even a block that blocks the loop loses it
        with pytest.raises(LockHeld):
            async with other.hold_index(max_wait=0.5):
                raise AssertionError("two hold it")
        held.raise_if_lost()


async def test_the_lock_of_a_killed_process_is_taken_over_soon(app: App, tmp_path: Path) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", HOLDER, str(tmp_path / "home"), stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    assert await process.stdout.readline() == b"held\n"
    [alive] = await app.list_workers()
    assert (alive.alive, alive.pid) == (True, process.pid)
    with pytest.raises(LockHeld):
        async with app.hold_index(max_wait=0):
            raise AssertionError("two hold it")
    waiting = asyncio.create_task(_hold_once(app))
    await asyncio.sleep(0.2)
    os.kill(process.pid, signal.SIGKILL)
    await process.communicate()
    await asyncio.wait_for(waiting, app.config.worker.lease_s / 2)


async def _hold_once(app: App) -> None:
    async with app.hold_index():
        pass


async def test_a_block_whose_lock_was_taken_away_is_reported(start_app: StartApp) -> None:
    app, other = await start_app(worker=SHORT), await start_app()

    async def lose() -> None:
        async with app.hold_index() as held:
            held.raise_if_lost()
            await other.release_lock(KEY, force=True, by="carl@desk")
            await _hold_once(other)
            await asyncio.sleep(0.5)
            with pytest.raises(LeaseLost):
                held.raise_if_lost()

    with pytest.raises(LeaseLost, match="was lost"):
        await lose()
    [released] = (await other.list_locks()).released
    assert (released.key, released.purpose, released.released_by) == (KEY, "hold", "carl@desk")


async def test_an_error_of_the_block_goes_before_the_loss(app: App) -> None:
    async def lose_and_fail() -> None:
        async with app.hold_index():
            await app.release_lock(KEY, force=True)
            _ = 1 / 0

    with pytest.raises(ZeroDivisionError):
        await lose_and_fail()


async def test_a_lock_is_not_taken_away_without_force(app: App) -> None:
    with pytest.raises(NotFound, match="is not held"):
        await app.release_lock(KEY)
    with pytest.raises(NotFound, match="is not held"):
        await app.release_lock(KEY, force=True)
    async with app.hold_index() as held:
        with pytest.raises(UsageError, match=rf"held by worker \w+ on .*, pid {os.getpid()} .*--force"):
            await app.release_lock(KEY)
        held.raise_if_lost()


async def test_an_index_step_whose_lock_is_taken_away_is_handed_back_and_done_again(
    pair: tuple[App, App], monkeypatch: pytest.MonkeyPatch
) -> None:
    app, other = pair
    at_the_door, go_on, refused = asyncio.Event(), asyncio.Event(), []
    original = Indexer.fence

    def fence(indexer: Indexer, key: str, token: Token) -> Fence:
        verify = original(indexer, key, token)

        async def wait_once() -> None:
            if not at_the_door.is_set():
                at_the_door.set()
                await go_on.wait()
            try:
                await verify()
            except LeaseLost as error:
                refused.append(str(error))
                raise

        return wait_once

    monkeypatch.setattr(Indexer, "fence", fence)
    working = asyncio.create_task(app.ingest(data=b"some words", name="a.txt"))
    await asyncio.wait_for(at_the_door.wait(), 10)
    [lock] = (await other.list_locks()).locks
    assert (lock.key, lock.purpose, lock.steps) == (KEY, "step", 1)
    assert (await other.release_lock(KEY, force=True)).steps == 1
    go_on.set()
    began = time.monotonic()
    summary = await working
    assert (summary.completed, summary.failed) == (1, 0)
    assert time.monotonic() - began < app.config.worker.lease_s / 2, "it was reaped, not handed back"
    assert len(refused) >= 1
    assert len(await other.search("words", 50)) == 1
    [step] = await other.list_steps(kind="index")
    assert (step.status, step.attempts) == ("COMPLETED", 1)
    assert (await other.check()).ok
