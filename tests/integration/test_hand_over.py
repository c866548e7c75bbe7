"""A worker that stops, however awkward the moment, leaves nothing that others have to wait for."""

import asyncio
import time
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager, ExitStack
from pathlib import Path

import pytest
from tests.conftest import StartApp
from tests.integration import own_steps

from penstock.ledger.database.connection import Connection
from penstock.ledger.database.liveness import FileLiveness
from penstock.ledger.database.sqlite import SqliteConnection
from penstock.ledger.database.statements import Statement
from penstock.ledger.database.writer import Verb
from penstock.model.nouns import WorkerId
from penstock.worker.context import Context
from penstock.worker.services import WorkerServices


def write(folder: Path, count: int) -> Path:
    folder.mkdir()
    for i in range(count):
        (folder / f"{i}.txt").write_text(f"file number {i}, with a few words in it\n" * 30)
    return folder


async def test_a_commit_that_is_slow_while_the_worker_stops_leaves_no_step_behind(
    start_app: StartApp, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = await start_app()
    commit = SqliteConnection.commit
    slow = False

    def slowly(self: SqliteConnection, ring: bool = False) -> None:
        if slow:
            time.sleep(1.5)
        commit(self, ring)

    monkeypatch.setattr(SqliteConnection, "commit", slowly)
    work = asyncio.create_task(app.ingest([write(tmp_path / "files", 300)]))
    while not (await app.status()).documents.get("COMPLETED"):
        await app.runtime.sleep(0.01)
    slow = True
    app.stop()
    await asyncio.sleep(1.2)
    slow = False
    summary = await work
    assert summary.interrupted
    assert "RUNNING" not in (await app.status()).steps
    again = await start_app()
    began = time.monotonic()
    await again.run()
    assert (await again.status()).documents == {"COMPLETED": 300}
    assert time.monotonic() - began < 14, "somebody waited for a lease to run out"


async def test_trouble_in_the_upkeep_ends_the_work_with_its_reason(
    start_app: StartApp, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = await start_app()
    folder = write(tmp_path / "files", 3)

    def too_many_files(self: FileLiveness, workers: Sequence[WorkerId], connection: Connection) -> list[WorkerId]:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(FileLiveness, "dead", too_many_files)
    with pytest.raises(OSError, match="Too many open files"):
        await asyncio.wait_for(app.ingest([folder]), 20)
    monkeypatch.undo()
    await app.run()
    assert (await app.status()).documents == {"COMPLETED": 3}


async def test_a_worker_that_cannot_load_its_model_leaves_nothing_running(
    start_app: StartApp, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import threading

    app = await start_app()
    folder = write(tmp_path / "files", 3)
    loaded = asyncio.Event()

    async def broken() -> None:
        raise RuntimeError("no model here")

    async def wait(texts: Sequence[str]) -> None:
        await loaded.wait()

    monkeypatch.setattr(app.ports.embedder, "warm_up", broken)
    monkeypatch.setattr(app.ports.embedder, "embed_documents", wait)
    for _ in range(3):
        with pytest.raises(RuntimeError, match="no model here"):
            await app.ingest([folder], retry=True)
    assert not [thread for thread in threading.enumerate() if thread.name == "penstock-heart"]
    monkeypatch.undo()
    await app.run()
    assert (await app.status()).documents == {"COMPLETED": 3}


async def test_i7_a_suspect_does_not_begin_before_the_models_are_loaded(
    start_app: StartApp, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = await start_app()
    await app.ingest([write(tmp_path / "files", 1)], wait=False)

    def suspect(connection: Connection) -> object:
        return connection.run(Statement("SELECT status, alone FROM steps WHERE crashes = 2"))

    def make_suspect(connection: Connection, _: Sequence[None]) -> list[None]:
        connection.run(Statement("UPDATE steps SET crashes = 2"))
        return [None]

    await app.ledger.write(Verb("suspect", make_suspect), None)
    loaded = asyncio.Event()
    monkeypatch.setattr(app.ports.embedder, "warm_up", loaded.wait)
    work = asyncio.create_task(app.run())
    while not (await app.status()).steps.get("RUNNING"):
        await app.runtime.sleep(0.01)
    await asyncio.sleep(0.3)
    assert await app.ledger.read(suspect) == [("RUNNING", 0)], "if the models kill us now, that is not its fault"
    loaded.set()
    assert (await work).completed == 1


async def test_i7_a_suspect_has_the_worker_for_itself_only_until_it_makes_progress(
    start_app: StartApp, tmp_path: Path
) -> None:
    own_steps.calls.clear()
    (tmp_path / "two.yaml").write_text("id: two\nsteps: {two: {kind: enrich, method: tests.integration.own_steps.two}}")
    app = await start_app()

    async def submit(name: str) -> None:
        await app.ingest(data=name.encode(), name=name, workflow=str(tmp_path / "two.yaml"), wait=False)

    def make_suspect(connection: Connection, _: Sequence[None]) -> list[None]:
        connection.run(Statement("UPDATE steps SET crashes = 2"))
        return [None]

    await submit("suspect")
    await app.ledger.write(Verb("suspect", make_suspect), None)
    work = asyncio.create_task(app.run())
    while not own_steps.calls:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    await submit("other")
    assert (await asyncio.wait_for(work, 10)).completed == 2
    assert own_steps.calls == [
        "suspect begins 1", "suspect ends 1", "suspect begins 2",
        "other begins 1", "other ends 1", "other begins 2", "other ends 2", "suspect ends 2",
    ]  # fmt: skip


async def test_i7_suspects_of_the_index_go_one_by_one_but_clear_the_rooms_once(
    start_app: StartApp, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = await start_app()
    await app.ingest([write(tmp_path / "files", 9)], wait=False)
    work = asyncio.create_task(app.work(pools="index=0,*=4"))

    def waiting(connection: Connection) -> object:
        return connection.run(Statement("SELECT count(*) FROM steps WHERE kind = 'index' AND status = 'PENDING'"))

    while await app.ledger.read(waiting) != [(9,)]:
        await app.runtime.sleep(0.02)
    app.stop()
    await work

    def make_suspects(connection: Connection, _: Sequence[None]) -> list[None]:
        connection.run(Statement("UPDATE steps SET crashes = 2 WHERE kind = 'index'"))
        return [None]

    again = await start_app()
    await again.ledger.write(Verb("suspect", make_suspects), None)
    cleared = 0
    all_slots = WorkerServices.all_slots

    def count(self: WorkerServices, ctx: Context) -> AbstractAsyncContextManager[ExitStack]:
        nonlocal cleared
        cleared += 1
        return all_slots(self, ctx)

    monkeypatch.setattr(WorkerServices, "all_slots", count)
    assert (await asyncio.wait_for(again.run(), 20)).completed == 9

    def went(connection: Connection) -> object:
        return connection.run(Statement("SELECT DISTINCT status, alone FROM steps WHERE kind = 'index'"))

    assert await again.ledger.read(went) == [("COMPLETED", 1)]
    assert cleared == 1
    assert (await again.check()).ok
