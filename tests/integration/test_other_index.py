"""The whole way of a document with another index than Lance: one with many writers, no lock and no upkeep of ours."""

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import StartApp
from tests.kit.apps import found, named, text, until
from tests.kit.sqlite_index import SqliteIndex, SqliteTable
from tests.kit.tables import there

from penstock import wiring
from penstock.app import App
from penstock.errors import UsageError
from penstock.indexes.base import Fence, IndexRows, TableId, Traits
from penstock.ledger.database.statements import Statement
from penstock.upkeep.vacuum import BY_SERVER

Files = Callable[..., Path]
ROOT = Path(__file__).parents[2]
TABLE = TableId("default", "default", 1)
_KEYED = Statement("SELECT count(*) FROM steps WHERE kind = 'index' AND resource_key IS NOT NULL")
_LOCKS = Statement("SELECT count(*) FROM locks WHERE resource_key LIKE 'index:%'")
_PURGE_NOW = Statement("UPDATE purges SET not_before = 0")
_TAKE_AWAY = Statement("UPDATE steps SET lease_token = 'another' WHERE kind = 'index' AND status = 'RUNNING'")


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    register(monkeypatch.setitem)


def register(add: Callable[[Any, str, Any], None], traits: Traits | None = None) -> None:
    given = {} if traits is None else {"traits": traits}
    add(wiring.INDEXES._built_in, "sqlitetest", lambda one: SqliteIndex(one.folder(), one.runtime, **given))


@pytest.fixture
def start(start_app: StartApp, tmp_path: Path, database_url: str) -> Callable[[], Any]:
    return lambda: start_app(index=f"sqlitetest://{tmp_path / 'other'}", database=database_url)


async def count(app: App, statement: Statement) -> int:
    return int((await app.ledger.read(lambda connection: connection.run(statement)))[0][0])


async def rows(app: App) -> list[tuple[int, int]]:
    table = await there(app.ports.index, TABLE)
    return [row[:2] async for batch in table.scan() for row in batch]


async def test_ingest_search_change_delete_purge_check(start: Callable[[], Any]) -> None:
    app = await start()
    for name in ("otter", "heron", "beaver"):
        assert (await app.ingest(data=f"the {name} lives here".encode(), name=f"{name}.txt")).completed == 1
    assert await found(app, "otter") == {"otter.txt"}
    assert {hit.name for hit in await app.search("lives", 10)} == {"otter.txt", "heron.txt", "beaver.txt"}
    await app.ingest(data=b"the stork lives here", name="heron.txt")
    assert await found(app, "heron") == set()
    assert await found(app, "stork") == {"heron.txt"}
    await app.delete([(await named(app, "beaver.txt")).id])
    assert await found(app, "beaver") == set()
    assert len(await rows(app)) == 4, "rows stay for readers that began before"
    await app.ledger.read(lambda connection: connection.script(_PURGE_NOW.text))
    [vacuumed] = (await app.vacuum()).collections
    assert (vacuumed.rows, vacuumed.rows_removed, vacuumed.purged, vacuumed.note) == (2, 2, 2, BY_SERVER)
    assert len(await rows(app)) == 2
    report = await app.check()
    assert report.ok
    assert {entry.kind for entry in report.garbage} <= {"orphan_artifact", "orphan_blob"}
    assert await count(app, _KEYED) == 0
    assert await count(app, _LOCKS) == 0


async def test_check_finds_what_is_lost_and_repair_makes_it_again(start: Callable[[], Any]) -> None:
    app = await start()
    for number in range(3):
        await app.ingest(data=f"the otter of pool {number}".encode(), name=f"{number}.txt")
    await app.ports.index.drop(TABLE)
    assert {problem.kind for problem in (await app.check()).problems} == {"row_missing"}
    report = await app.check(repair=True)
    assert report.ok
    assert await found(app, "otter") == {"0.txt", "1.txt", "2.txt"}


async def test_purges_are_done_by_a_worker_without_a_lock(start: Callable[[], Any]) -> None:
    app = await start()
    await app.ingest(data=b"the otter", name="a.txt")
    await app.ingest(data=b"the heron", name="a.txt")
    await app.ledger.read(lambda connection: connection.script(_PURGE_NOW.text))
    working = asyncio.create_task(app.work())

    async def purged() -> bool:
        return len(await rows(app)) == 1

    await until(purged)
    app.stop()
    await working
    assert await count(app, _LOCKS) == 0


async def test_an_index_without_a_lock_has_none_to_hold(start: Callable[[], Any]) -> None:
    app = await start()
    await app.ingest(data=b"the otter", name="a.txt")
    with pytest.raises(UsageError, match="concurrent writers"):
        async with app.hold_index():
            pass


async def test_several_workers_write_one_table_at_once(
    start: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each waits in its first write until the other is in one, too: behind a lock they would wait for ever."""
    one, two = await start(), await start()
    for number in range(150):
        await one.ingest(data=f"the otter {number}".encode(), name=f"{number}.txt", wait=False)
    both = asyncio.Barrier(2)
    met: set[int] = set()
    put = SqliteTable.put

    async def together(self: SqliteTable, new: Any, fence: Fence, *, fresh: bool) -> None:
        if id(self._index) not in met:
            met.add(id(self._index))
            async with asyncio.timeout(30):
                await both.wait()
        await put(self, new, fence, fresh=fresh)

    monkeypatch.setattr(SqliteTable, "put", together)
    await asyncio.gather(one.run(), two.run())
    assert len(met) == 2
    assert {entry.status for entry in await one.list_documents(limit=1000)} == {"COMPLETED"}
    found_rows = await rows(one)
    assert len(found_rows) == len(set(found_rows)) == 150
    assert (await one.check()).ok


async def test_i3_nothing_is_written_for_a_step_whose_lease_is_lost(
    start: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    app = await start()
    await app.ports.index.create(TABLE, app.ports.embedder.model.dimensions)
    put = SqliteTable.put
    written: list[bool] = []

    async def late(self: SqliteTable, new: list[IndexRows], fence: Fence, *, fresh: bool) -> None:
        if not written:
            written.append(True)
            await app.ledger.read(lambda connection: connection.script(_TAKE_AWAY.text))
            try:
                await put(self, new, fence, fresh=fresh)
            finally:
                assert await self.count() == 0, "the fence is asked before the commit"
            return
        await put(self, new, fence, fresh=fresh)

    monkeypatch.setattr(SqliteTable, "put", late)
    await app.ingest(data=b"the otter", name="a.txt", wait=False)
    working = asyncio.create_task(app.work())
    await until(lambda: asyncio.sleep(0, bool(written)))
    await asyncio.sleep(0.3)
    assert not working.done()
    app.stop()
    await working
    assert await rows(app) == []


async def test_i5_search_leaves_out_what_the_index_cannot_filter(
    start_app: StartApp, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bare = Traits(single_writer=False, filters=frozenset(), max_hits=400)
    register(monkeypatch.setitem, bare)
    app = await start_app(index=f"sqlitetest://{tmp_path / 'other'}")
    for number in range(60):
        await app.ingest(data=f"the otter swims in pool {number}".encode(), name=f"{number}.txt")
    gone = [(await named(app, f"{number}.txt")).id for number in range(55)]
    await app.delete(gone)
    for mode in ("hybrid", "vector", "text"):
        hits = await app.search("otter", 5, mode=mode)
        assert {hit.name for hit in hits} == {f"{number}.txt" for number in range(55, 60)}


@pytest.mark.parametrize("mode", ["vector", "text"])
async def test_an_index_with_one_mode_searches_by_that_and_refuses_the_other(
    start_app: StartApp, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: Any
) -> None:
    register(monkeypatch.setitem, Traits(single_writer=False, modes=frozenset({mode})))
    app = await start_app(index=f"sqlitetest://{tmp_path / 'other'}")
    await app.ingest(data=b"the otter", name="a.txt")
    assert [hit.name for hit in await app.search("otter")] == ["a.txt"]
    other: Any = "text" if mode == "vector" else "vector"
    with pytest.raises(UsageError, match=f"cannot search with --mode {other}: use {mode}"):
        await app.search("otter", mode=other)


PLAYER = """
import asyncio, sys
from penstock.app import open_app
from tests.integration.test_other_index import register
register(lambda where, name, value: where.__setitem__(name, value))
async def main():
    home, files, database, index = sys.argv[1:]
    async with open_app(home=home, database=database or None, embedder="fake", index=index) as app:
        print("open", flush=True)
        await app.ingest([files])
asyncio.run(main())
"""


@pytest.fixture
def player(tmp_path: Path, database_url: str) -> Callable[[Path], Any]:
    def play(folder: Path) -> Any:
        index = f"sqlitetest://{tmp_path / 'other'}"
        arguments = [str(tmp_path / "home"), str(folder), database_url or "", index]
        pipe = asyncio.subprocess.PIPE
        return asyncio.create_subprocess_exec(sys.executable, "-c", PLAYER, *arguments, cwd=ROOT, stdout=pipe)

    return play


async def test_i5_killed_again_and_again_it_ends_as_if_it_was_not_killed(
    start: Callable[[], Any], files: Files, player: Callable[[Path], Any]
) -> None:
    contents = {f"{i}.txt": f"note{i}\n\n{text(60, f'w{i % 7}')}" for i in range(40)}
    folder = files(**contents)
    for moment in (0.15, 0.3, 0.45, 0.6, 0.8):
        process = await player(folder)
        await process.stdout.readline()
        await asyncio.sleep(moment)
        if process.returncode is None:
            os.kill(process.pid, signal.SIGKILL)
        await process.wait()
    app = await start()
    await app.ingest([folder])
    entries = await app.list_documents(limit=1000)
    assert {entry.name: entry.status for entry in entries} == dict.fromkeys(contents, "COMPLETED")
    assert await found(app, "note7") == {"7.txt"}
    report = await app.check()
    assert (report.ok, report.problems) == (True, [])


_EPOCH = Statement("SELECT coalesce(max(epoch), 0) FROM steps WHERE kind = 'index'")


async def test_i9_an_index_without_a_lock_that_fails_is_left_alone_and_no_document_fails_for_it(
    start: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    app = await start()

    async def away(self: SqliteIndex, table: TableId) -> SqliteTable:
        raise OSError("the server does not answer")

    await app.ingest(data=b"the otter", name="a.txt", wait=False)
    with monkeypatch.context() as patch:
        patch.setattr(SqliteIndex, "open", away)
        working = asyncio.create_task(app.work())
        await until(lambda: _tried(app))
        await asyncio.sleep(1.5)
        assert await count(app, _EPOCH) < 10, "it is not tried again and again"
    await until(lambda: _is_found(app), 60)
    app.stop()
    await working
    assert (await app.list_dead_letters()).total == 0


async def _tried(app: App) -> bool:
    return await count(app, _EPOCH) > 0


async def _is_found(app: App) -> bool:
    return await found(app, "otter") == {"a.txt"}
