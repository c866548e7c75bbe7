"""Index tables that cannot be used: contained, said, left alone for a while, tried again; no document is to blame."""

import asyncio
import logging
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import StartApp
from tests.integration.poison import PanicException
from tests.kit.apps import found, until
from tests.kit.workflows import define

from penstock.app import App
from penstock.errors import StorageError
from penstock.indexes.lance import LanceTable
from penstock.ledger.database.statements import Statement
from penstock.ledger.engine import targets
from penstock.runtime import Runtime
from penstock.stages.index import INDEX
from penstock.stages.registry import GROUPED
from penstock.upkeep import purge
from penstock.worker.tables import Notices

_EPOCHS = Statement("SELECT coalesce(max(epoch), 0) FROM steps WHERE kind = 'index'")
_PURGES_NOW = Statement("UPDATE purges SET not_before = 0")
TWICE = "id: twice\nsteps: {validate: , extract: , clean: , chunk: , embed: , index: {retries: 2}}\n"
OWN_CHUNKS = """\
id: own_chunks
steps:
  extract:
  clean:
  chunk: {method: tests.integration.poison.cut, retries: 2}
  embed:
  index: {retries: 2}
"""


@pytest.fixture
async def one(start_app: StartApp, database_url: str) -> App:
    return await start_app(database=database_url)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(targets, "LONGEST_S", 0.4)
    monkeypatch.setattr(targets, "FIRST_S", 0.1)


def table_of(app: App, owner: str) -> Path:
    assert app.config.index_path is not None
    return app.config.index_path / owner / "default" / "v1.lance"


def damage(table: Path) -> Path:
    """All manifests are garbage that ends as a manifest does. Returns a copy of what was."""
    saved = table.with_name("saved")
    shutil.copytree(table, saved)
    for manifest in (table / "_versions").glob("*.manifest"):
        manifest.write_bytes(b"\x07garbage" * 20 + b"LANC")
    return saved


async def epoch(app: App) -> int:
    """The most claims that an index step had."""
    return int((await app.ledger.read(lambda c: c.run(_EPOCHS)))[0][0])


async def statuses(app: App, owner: str) -> list[str]:
    return sorted({entry.status for entry in await app.for_owner(owner).list_documents()})


async def test_i9_one_owner_s_broken_table_stops_no_other_owner_and_is_tried_again(
    start_app: StartApp, database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    one = await start_app(database=database_url)
    for owner in ("ann", "bob"):
        await one.for_owner(owner).ingest(data=b"the weir", name="a.txt")
    saved = damage(table_of(one, "ann"))
    # Another process: nothing of the table is held open.
    two = await start_app(database=database_url)
    for number in range(5):
        for owner in ("ann", "bob"):
            await two.for_owner(owner).ingest(data=f"sluice {number}".encode(), name=f"{number}.txt", wait=False)
    working = asyncio.create_task(two.work())
    try:
        await until(lambda: _all_completed(two, "bob"))
        await until(lambda: _failures(two, 3))
        [waiting] = {
            step.waiting_on for step in (await two.for_owner("ann").status(await _newest(two, "ann"))).steps[-1:]
        }
        assert waiting == "index"
        assert not working.done()
        assert await epoch(two) < 40
        assert "the index table cannot be used" in str(await two.for_owner("ann").list_steps(kind="index"))
        said = [r.getMessage() for r in caplog.records if r.name == "penstock.worker"]
        assert [line for line in said if line.startswith("index:ann/default/1: ")] == said[:1] == said
        shutil.rmtree(table_of(two, "ann"))
        saved.rename(table_of(two, "ann"))
        await until(lambda: _all_completed(two, "ann"))
        await two.for_owner("bob").ingest(data=b"more", name="more.txt", wait=False)
        await until(lambda: _all_completed(two, "bob"))
    finally:
        two.stop()
        await working
    assert (await two.for_owner("ann").list_dead_letters()).letters == []
    assert await found(two.for_owner("ann"), "sluice") >= {"4.txt"}
    assert any("works again" in r.getMessage() for r in caplog.records)


async def _all_completed(app: App, owner: str) -> bool:
    return await statuses(app, owner) == ["COMPLETED"]


async def _newest(app: App, owner: str) -> str:
    return str((await app.for_owner(owner).list_documents())[0].id)


_FAILURES = Statement("SELECT max(failures) FROM targets")


async def _failures(app: App, count: int) -> bool:
    return bool((await app.ledger.read(lambda c: c.run(_FAILURES)))[0][0] >= count)


async def test_an_index_that_has_no_folder_ends_a_call_with_a_sentence(
    start_app: StartApp, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("no folder")
    app = await start_app(index=f"lancedb://{tmp_path}/file/index")
    async with asyncio.timeout(60):
        with pytest.raises(StorageError, match="the index table cannot be used"):
            await app.ingest(data=b"the weir", name="a.txt")
    assert targets.TRIES <= await epoch(app) <= targets.TRIES + 2
    assert (await app.list_dead_letters()).letters == []
    # Whoever tries again is not kept waiting: neither for the same sentence, nor once it is mended.
    monkeypatch.setattr(targets, "FIRST_S", 3600.0)
    monkeypatch.setattr(targets, "LONGEST_S", 3600.0)
    async with asyncio.timeout(60):
        with pytest.raises(StorageError, match="the index table cannot be used"):
            await app.run()
        (tmp_path / "file").unlink()
        assert (await app.run()).completed == 1


async def test_a_purge_of_a_broken_table_harms_no_other(
    start_app: StartApp, database_url: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = await start_app(database=database_url)
    for owner in ("ann", "bob"):
        for text in (b"the weir", b"the weir, changed"):
            await one.for_owner(owner).ingest(data=text, name="a.txt")
    damage(table_of(one, "ann"))
    await one.ledger.read(lambda c: c.run(_PURGES_NOW))
    two = await start_app(database=database_url)
    working = asyncio.create_task(two.work())
    try:

        async def bob_is_purged() -> bool:
            return [row[1] for row in await two.ledger.read(lambda c: c.run(_PURGES))] == ["ann"]

        await until(bob_is_purged)
        await two.for_owner("bob").ingest(data=b"more", name="more.txt", wait=False)
        await until(lambda: _all_completed(two, "bob"))
        assert not working.done()
    finally:
        two.stop()
        await working
    said = [r.getMessage() for r in caplog.records if r.name == "penstock.worker"]
    assert [line.split(": ")[0] for line in said] == ["index:ann/default/1, purge"]
    [(later, _)] = await two.ledger.read(lambda c: c.run(_PURGES))
    assert later > purge.AGAIN_S / 2


_PURGES = Statement("SELECT not_before - {now}, owner FROM purges ORDER BY owner")


@pytest.mark.parametrize("error", [KeyError("embedder"), PanicException("index out of bounds"), ValueError("Arrow")])
async def test_i9_an_index_that_raises_for_one_document_fails_that_one_alone(
    app: App, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    define(app, TWICE)
    monkeypatch.setattr(LanceTable, "put", _refusing(LanceTable.put, error))
    for name in ("a", "poison", "b"):
        await app.ingest(data=f"words of {name}".encode(), name=f"{name}.txt", workflow="twice", wait=False)
    async with asyncio.timeout(60):
        await app.run()
    [letter] = (await app.list_dead_letters()).letters
    assert letter.name == "poison.txt"
    assert type(error).__name__ in letter.error
    assert await found(app, "words") == {"a.txt", "b.txt"}
    assert await epoch(app) == 2


def _refusing(function: Callable[..., Any], error: BaseException) -> Callable[..., Any]:
    async def refuse(self: LanceTable, rows: Sequence[Any], fence: Any, *, fresh: bool) -> None:
        if any("poison" in chunk.text for part in rows for chunk in part.chunks):
            raise error
        await function(self, rows, fence, fresh=fresh)

    return refuse


async def test_i9_a_chunk_that_no_table_takes_fails_its_own_document(one: App) -> None:
    define(one, OWN_CHUNKS)
    for name in ("healthy", "text_number", "text_surrogate", "page_huge", "headings_number"):
        await one.ingest(data=f"words of {name}".encode(), name=f"{name}.txt", workflow="own_chunks", wait=False)
    async with asyncio.timeout(60):
        await one.run()
    letters = (await one.list_dead_letters()).letters
    assert sorted(str(letter.name) for letter in letters) == [
        "headings_number.txt",
        "page_huge.txt",
        "text_number.txt",
        "text_surrogate.txt",
    ]
    assert await statuses(one, "default") == ["COMPLETED", "FAILED"]


async def test_a_table_whose_text_index_cannot_be_kept_takes_documents(
    app: App, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def optimize(*_: Any, **__: Any) -> None:
        raise PanicException("no")

    monkeypatch.setattr(LanceTable, "optimize", optimize)
    for number in range(3):
        assert (await app.ingest(data=b"the weir", name=f"{number}.txt")).completed == 1
    assert all(r.levelno == logging.WARNING for r in caplog.records)
    assert len(await found(app, "weir")) == 3


async def test_storage_that_fails_within_an_index_step_stops_the_worker_and_blames_nobody(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(ctx: Any) -> Any:
        raise StorageError("the disk that holds the blobs may be failing")

    monkeypatch.setitem(GROUPED, "index", replace(INDEX, load=broken))
    async with asyncio.timeout(30):
        with pytest.raises(StorageError, match="may be failing"):
            await app.ingest(data=b"the weir", name="a.txt")
    assert await epoch(app) == 1
    assert (await app.list_dead_letters()).letters == []
    monkeypatch.undo()
    assert (await app.run()).completed == 1


def test_a_failure_that_differs_in_a_temporary_name_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    sayings = Notices(Runtime())
    for name in (".tmpLgTSi", ".tmp9wH9jl", ".tmpabc"):
        sayings.fails("index:ann/default/1", StorageError(f"Permission denied at {name}"), "Its documents wait")
    sayings.fails("index:ann/default/1", StorageError("No space left at .tmpLgTSi"), "Its documents wait")
    assert len(caplog.records) == 2, caplog.text
