"""Storage that fails under a worker: it says so once, waits, and goes on when there is room."""

import asyncio
import errno
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import StartApp
from tests.integration.test_bad_places import small_disk as small_disk
from tests.kit.apps import text, until

from penstock.app import App, open_app
from penstock.blobs import local
from penstock.errors import LedgerDamaged, StorageError
from penstock.ledger.database.sqlite import SqliteConnection
from penstock.worker import outage

Files = Callable[..., Path]


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outage, "FIRST_S", 0.1)
    monkeypatch.setattr(outage, "LONGEST_S", 0.4)


async def completed(app: App, count: int) -> None:
    async def all_are() -> bool:
        return bool((await app.status()).documents.get("COMPLETED") == count)

    await until(all_are, 60)


async def hear(said: list[str], count: int) -> None:
    async def heard() -> bool:
        return len(said) >= count

    await until(heard, 60)


def fill(place: Path) -> Path:
    """A file that takes all the room there is."""
    with (place / "filler").open("wb", buffering=0) as file:
        for piece in (bytes(1 << 16), bytes(1 << 10), b"\0"):
            try:
                while True:
                    file.write(piece)
            except OSError as error:
                assert error.errno == errno.ENOSPC  # noqa: PT017
    return place / "filler"


def grow(place: Path) -> None:
    """Make sure that the disk cannot be full again."""
    subprocess.run(["mount", "-o", "remount,size=400m", str(place)], check=True)


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """While `left` is above 0, every segment that is written fails, and counts down."""
    state = {"left": 0, "failed": 0}
    write = local._Temporary.write

    def fail(self: Any, data: bytes) -> None:
        if state["left"] > 0 and "/segments/" in self._place:
            state["left"] -= 1
            state["failed"] += 1
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        write(self, data)

    monkeypatch.setattr(local._Temporary, "write", fail)
    return state


async def test_a_worker_waits_for_room_on_a_full_disk_and_goes_on(small_disk: Path, files: Files) -> None:
    async with open_app(home=str(small_disk / "home"), embedder="fake") as app:
        folder = files(**{f"{i}.txt": text(200, f"w{i}x") for i in range(4)})
        await app.ingest([folder], wait=False)
        filler = fill(small_disk)
        said: list[str] = []
        working = asyncio.create_task(app.work(report=said.append))
        await hear(said, 1)
        await asyncio.sleep(1)
        assert not working.done()
        assert len(said) == 1, said
        assert "Waiting for it; what is done is kept." in said[0]
        filler.unlink()
        grow(small_disk)
        await completed(app, 4)
        assert said[1:] == ["It can be written again: going on."]
        app.stop()
        assert (await working).completed == 4
        assert (await app.status()).dead_letters == 0
        assert (await app.check()).ok


async def test_a_worker_tries_again_ever_more_rarely_and_says_only_that_it_is_not_over(
    start_app: StartApp, files: Files, broken: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder takes the probe, but not what is written: each try ends as the one before."""
    app = await start_app()
    await app.ingest([files(**{"a.txt": text(3)})], wait=False)
    broken["left"] = 10**9
    waits: list[float] = []
    sleep = outage.Outage._sleep

    async def noted(self: outage.Outage, seconds: float) -> None:
        waits.append(seconds)
        await sleep(self, seconds)

    monkeypatch.setattr(outage.Outage, "_sleep", noted)
    said: list[str] = []
    working = asyncio.create_task(app.work(report=said.append))
    await until(lambda: asyncio.sleep(0, len(waits) >= 5), 60)
    assert waits[:5] == [0.1, 0.2, 0.4, 0.4, 0.4]
    assert len(said) == 3, said
    assert said[-1].startswith("It still fails: ")
    assert broken["failed"] <= len(waits), "one step a try"
    broken["left"] = 0
    await completed(app, 1)
    app.stop()
    await working


async def test_a_worker_that_waits_for_its_disk_is_stopped_at_once(
    start_app: StartApp, files: Files, broken: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outage, "FIRST_S", 1000.0)
    app = await start_app()
    await app.ingest([files(**{"a.txt": text(3)})], wait=False)
    broken["left"] = 10**9
    said: list[str] = []
    working = asyncio.create_task(app.work(report=said.append))
    await hear(said, 1)
    app.stop()
    async with asyncio.timeout(10):
        assert (await working).interrupted


async def test_a_second_outage_is_reported_as_well(start_app: StartApp, broken: dict[str, int]) -> None:
    app, other = await start_app(), await start_app()
    said: list[str] = []
    working = asyncio.create_task(app.work(report=said.append))
    for number in (1, 2):
        await other.ingest(data=text(3, f"w{number}x").encode(), name=f"{number}.txt", wait=False)
        broken["left"] = 1
        await other.ingest(data=text(3, f"v{number}x").encode(), name=f"{number}b.txt", wait=False)
        await hear(said, 2 * number)
        await completed(other, 2 * number)
    assert len(said) == 4, said
    app.stop()
    await working


async def test_ingest_ends_with_a_sentence_on_a_disk_that_fails(app: App, files: Files, broken: dict[str, int]) -> None:
    folder = files(**{"a.txt": text(3)})
    await app.ingest([folder], wait=False)
    broken["left"] = 10**9
    with pytest.raises(StorageError, match="Input/output error"):
        await app.run()


async def test_a_worker_does_not_wait_for_a_ledger_that_is_damaged(
    start_app: StartApp, files: Files, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    import sqlite3

    (tmp_path / "garbage.db").write_bytes(b"no database at all " * 1000)
    with pytest.raises(LedgerDamaged, match="restore it from a backup"):
        SqliteConnection(tmp_path / "garbage.db", (await start_app()).runtime)
    app = await start_app()
    said: list[str] = []
    working = asyncio.create_task(app.work(report=said.append))
    await asyncio.sleep(0.3)
    error = sqlite3.DatabaseError("database disk image is malformed")
    error.sqlite_errorcode = sqlite3.SQLITE_CORRUPT

    class Damaged:
        def execute(self, *values: object) -> None:
            raise error

        def close(self) -> None:
            pass

    await app.runtime.run_blocking("read", lambda: [app.ledger._take() for _ in range(3)])
    # Whoever of the worker reads first: several do.
    for _ in range(3):
        app.ledger._idle.put(_with(SqliteConnection, app, Damaged()))
    with pytest.raises(LedgerDamaged):
        await working
    assert said == []


def _with(kind: type[SqliteConnection], app: App, database: Any) -> SqliteConnection:
    connection = kind(app.ledger.database.path, app.runtime)
    connection._db.close()
    connection._db = database
    return connection
