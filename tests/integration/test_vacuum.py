"""`vacuum` puts an index in order beside everybody else, and `check` knows what it left."""

import asyncio
import os
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import lance
import pytest
from tests.conftest import DIALECTS, StartApp
from tests.kit.apps import text
from tests.kit.damage import (
    clean,
    document_id,
    finds,
    generation_of,
    kinds,
    remove_rows,
    segment_of,
    sql,
    table_of,
    write_files,
)

from penstock.app import App, open_app
from penstock.errors import DiskFull, LeaseLost, NotFound
from penstock.indexes.base import Fence
from penstock.indexes.lance import LanceTable
from penstock.ledger.database import compaction
from penstock.ledger.database.sqlite import SqliteConnection

KEY = "index:default/default/1"


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("vacuum")
    write_files(folder / "files")

    async def ingest() -> None:
        async with open_app(home=str(folder / "home"), embedder="fake") as app:
            for file in sorted((folder / "files").iterdir()):
                await app.ingest([file])

    asyncio.run(ingest())
    return folder / "home"


@pytest.fixture
async def app(home: Path) -> AsyncIterator[App]:
    async with open_app(home=str(home), embedder="fake") as app:
        yield app


def files_of(home: Path) -> list[Path]:
    """The data of the latest version."""
    table = home / "index" / "default" / "default" / "v1.lance"
    parts = lance.dataset(str(table)).get_fragments()
    return [table / "data" / file.path for part in parts for file in part.metadata.files]


def flip_a_byte(path: Path) -> None:
    """Somewhere in the vectors, where no row of `check` looks."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


async def test_deleted_rows_go_small_files_become_one_and_everything_is_found(app: App, home: Path) -> None:
    rows = await (await table_of(app)).count()
    of_one = len([chunk async for chunk in app.show(await document_id(app, "3.txt"), "chunks")])
    await app.delete([await document_id(app, "3.txt")])
    sql(home, "UPDATE purges SET not_before = 0")
    assert len(files_of(home)) > 3
    [done] = (await app.vacuum()).collections
    assert (done.collection, done.version, done.rows, done.rows_removed, done.purged) == (
        *("default", 1, rows - of_one, of_one),
        1,
    )
    assert len(files_of(home)) == 1
    assert 0 < done.bytes_after < done.bytes_before
    assert done.bytes_old == 0
    assert done.checksum is not None
    assert len(done.checksum) == 64
    assert (await app.check()).problems == []
    assert "dead_rows" not in kinds((await app.check()).garbage)
    assert await finds(app, "topic4", "4.txt")
    assert not await finds(app, "topic3", "3.txt")
    assert sql(home, "SELECT count(*) FROM purges") == [(0,)]


async def test_what_may_still_be_read_is_kept(app: App, home: Path) -> None:
    await app.delete([await document_id(app, "3.txt")])
    [done] = (await app.vacuum()).collections
    assert (done.rows_removed, done.purged) == (0, 0)
    assert sql(home, "SELECT count(*) FROM purges") == [(1,)]


async def test_old_versions_go_when_nobody_reads_them(app: App) -> None:
    table = await table_of(app)
    async with table.reading():
        [first] = (await app.vacuum()).collections
        [again] = (await app.vacuum()).collections
        assert again.bytes_old == first.bytes_old > 0
    [later] = (await app.vacuum()).collections
    assert later.bytes_old == 0
    assert (later.checksum, later.bytes_after) == (first.checksum, first.bytes_after)
    assert clean(await app.check())


async def test_one_collection_or_all_of_an_owner_and_nobody_else_s(app: App, home: Path) -> None:
    await app.ingest(data=b"some words", name="a.txt", collection="other")
    await app.for_owner("bert").ingest(data=b"some words", name="a.txt")
    assert [one.collection for one in (await app.vacuum("other")).collections] == ["other"]
    assert [one.collection for one in (await app.vacuum()).collections] == ["default", "other"]
    assert sql(home, "SELECT owner, collection FROM index_checksums ORDER BY 2") == [
        ("default", "default"),
        ("default", "other"),
    ]
    with pytest.raises(NotFound, match="no collection 'nowhere'"):
        await app.vacuum("nowhere")
    assert (await app.for_owner("carl").vacuum()).collections == []


async def test_an_empty_collection_is_vacuumed_without_a_checksum(start_app: StartApp) -> None:
    app = await start_app()
    await app.ingest(data=b" \n ", name="blank.txt")
    [done] = (await app.vacuum()).collections
    assert (done.rows, done.bytes_before, done.bytes_after, done.checksum) == (0, 0, 0, None)
    assert (await app.list_locks()).locks == []
    assert (await app.check()).ok


async def test_a_held_index_is_left_alone_and_its_holder_named(app: App, home: Path) -> None:
    await app.ingest(data=b"some words", name="a.txt", collection="other")
    async with open_app(home=str(home), embedder="fake") as other, other.hold_index():
        report = await app.vacuum(wait_s=0.2)
        assert [one.collection for one in report.collections] == ["other"]
        [busy] = report.busy
        assert (busy.collection, busy.purpose, busy.pid) == ("default", "hold", os.getpid())
        waiting = asyncio.create_task(app.vacuum("default"))
        await asyncio.sleep(0.2)
    assert (await waiting).busy == []
    assert (await app.list_locks()).locks == []


async def test_force_takes_the_lock_away_and_that_is_written_down(app: App, home: Path) -> None:
    async def hold(other: App) -> None:
        async with other.hold_index():
            entered.set()
            await asyncio.sleep(0.5)

    entered = asyncio.Event()
    async with open_app(home=str(home), embedder="fake") as other:
        holding = asyncio.create_task(hold(other))
        await entered.wait()
        report = await app.vacuum(force=True, by="carl@desk", wait_s=0.2)
        with pytest.raises(LeaseLost):
            await holding
    assert len(report.collections) == 1
    [released] = (await app.list_locks()).released
    assert (released.key, released.purpose, released.released_by) == (KEY, "hold", "carl@desk")
    await app.vacuum(force=True)
    assert len((await app.list_locks()).released) == 1, "nobody held it"


async def test_i3_a_vacuum_whose_lock_is_taken_away_commits_and_stores_nothing(
    app: App, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = (await (await table_of(app)).state()), files_of(home)
    compact = LanceTable.compact

    async def late(table: LanceTable, verify: Fence, *, thorough: bool) -> None:
        [lock] = (await app.list_locks()).locks
        assert lock.purpose == "vacuum"
        await app.release_lock(KEY, force=True)
        await compact(table, verify, thorough=thorough)

    monkeypatch.setattr(LanceTable, "compact", late)
    with pytest.raises(LeaseLost):
        await app.vacuum()
    after = await (await table_of(app)).state()
    assert before[0] is not None
    assert after is not None
    assert (after.version, files_of(home)) == (before[0].version, before[1])
    assert sql(home, "SELECT * FROM index_checksums") == []
    assert (await app.check()).ok


async def test_a_lock_that_is_lost_at_the_very_end_stores_no_checksum(
    app: App, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checksum = LanceTable.checksum

    async def late(table: LanceTable) -> object:
        await app.release_lock(KEY, force=True)
        return await checksum(table)

    monkeypatch.setattr(LanceTable, "checksum", late)
    with pytest.raises(LeaseLost, match="vacuum again"):
        await app.vacuum()
    assert sql(home, "SELECT * FROM index_checksums") == []


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_workers_and_searches_go_on_beside_it(
    dialect: str, start_app: StartApp, request: pytest.FixtureRequest
) -> None:
    database = {"database": request.getfixturevalue("postgres")} if dialect == "postgres" else {}
    app, other = await start_app(**database), await start_app(**database)
    await app.ingest(data=text(60, "steady").encode(), name="steady.txt")
    for i in range(30):
        await app.ingest(data=text(20, f"word{i}x").encode(), name=f"{i}.txt", wait=False)
    working = asyncio.create_task(app.run())
    vacuumed = 0
    while not working.done():
        report = await other.vacuum(wait_s=10)
        vacuumed += len(report.collections)
        assert {hit.name for hit in await other.search("steady1", 5, mode="text")} == {"steady.txt"}
    assert (await working).completed == 30
    assert vacuumed
    assert (await other.vacuum()).collections[0].rows == await (await table_of(other)).count()
    assert clean(await other.check())


# What vacuum left


async def test_check_is_content_with_what_vacuum_left_and_with_what_ours_write_later(app: App, home: Path) -> None:
    await app.vacuum()
    assert clean(await app.check())
    await app.ingest(data=b"some new words", name="new.txt")
    assert clean(await app.check())
    async with app.hold_index():
        remove_rows(home, "ordinal > 10000")
        assert clean(await app.check())
    assert clean(await app.check())


async def test_a_changed_byte_is_reported_and_the_index_made_again(app: App, home: Path) -> None:
    await app.vacuum()
    [file] = files_of(home)
    flip_a_byte(file)
    [problem] = [p for p in (await app.check()).problems if p.kind == "index_changed"]
    assert "not those that vacuum left (other bytes)" in problem.what
    report = await app.check(repair=True)
    assert report.ok
    assert "index_changed" in kinds(report.repaired)
    assert sql(home, "SELECT * FROM index_checksums") == []
    assert clean(await app.check())
    assert await finds(app, "topic4", "4.txt")
    await app.vacuum()
    assert clean(await app.check())


async def test_it_is_told_after_others_had_the_lock_too_as_long_as_nobody_wrote(app: App, home: Path) -> None:
    await app.vacuum()
    async with app.hold_index():
        pass
    [file] = files_of(home)
    flip_a_byte(file)
    assert "index_changed" in kinds((await app.check()).problems)


async def test_a_vacuum_accepts_what_it_finds(app: App, home: Path) -> None:
    await app.vacuum()
    for part in (home / "index" / "default" / "default" / "v1.lance" / "_indices").rglob("*.lance"):
        part.write_bytes(part.read_bytes() + b"\0")
    assert kinds((await app.check()).problems) == {"index_changed"}
    await app.vacuum()
    assert clean(await app.check())


@pytest.mark.parametrize("what", ["a file", "the latest version", "the whole table"])
async def test_what_is_gone_is_reported_and_comes_back(what: str, app: App, home: Path) -> None:
    await app.vacuum()
    table = home / "index" / "default" / "default" / "v1.lance"
    if what == "a file":
        files_of(home)[0].unlink()
    elif what == "the latest version":
        min((table / "_versions").glob("*.manifest")).unlink()
        (table / "_versions" / "latest_version_hint.json").unlink()
    else:
        shutil.rmtree(table)
    async with open_app(home=str(home), embedder="fake") as other:
        found = kinds((await other.check()).problems)
        assert found & {"index_changed", "table_broken"}
        assert (await other.check(repair=True)).ok
        assert clean(await other.check())
        assert await finds(other, "topic4", "4.txt")


async def test_rows_written_past_the_lock_are_told_and_undone(app: App, home: Path) -> None:
    await app.vacuum()
    files = files_of(home)
    remove_rows(home, f"generation = {generation_of(home, '3.txt')}")
    report = await app.check()
    assert kinds(report.problems) == {"index_written_elsewhere", "row_missing"}
    report = await app.check(repair=True)
    assert report.ok
    assert kinds(report.repaired) == {"index_written_elsewhere"}, "the rows came back with the version"
    assert files_of(home) == files
    assert clean(await app.check())
    assert await finds(app, "topic3", "3.txt")


async def test_where_the_version_that_vacuum_left_is_damaged_too_the_index_is_made_again(app: App, home: Path) -> None:
    await app.vacuum()
    [damaged] = files_of(home)
    flip_a_byte(damaged)
    remove_rows(home, f"generation = {generation_of(home, '3.txt')} AND ordinal = 0")
    assert (await app.check(repair=True)).ok
    assert damaged not in files_of(home)
    assert clean(await app.check())
    assert await finds(app, "topic3", "3.txt")


async def test_what_one_of_ours_wrote_since_the_finding_is_not_undone(app: App, home: Path) -> None:
    """A repair holds the lock when it looks again."""
    from penstock.model.nouns import WorkerId
    from penstock.upkeep.check import survey
    from penstock.upkeep.repair import repair_findings

    await app.vacuum()
    remove_rows(home, "ordinal > 10000")
    found = await survey(app.resources.maintenance.stores(None))
    assert {finding.kind for finding in found} == {"index_written_elsewhere"}
    await app.ingest(data=b"written by one of ours", name="new.txt")
    await repair_findings(app.resources.maintenance.stores(None), WorkerId("me"), found)
    assert await finds(app, "ours", "new.txt")
    assert clean(await app.check())


async def test_an_index_that_cannot_be_made_again_is_not_given_up(app: App, home: Path) -> None:
    await app.vacuum()
    table = home / "index" / "default" / "default" / "v1.lance"
    for part in (table / "_indices").rglob("*.lance"):
        part.write_bytes(part.read_bytes() + b"\0")
    segment_of(home, "3.txt", "embed").unlink()
    for _ in range(2):
        report = await app.check(repair=True)
        assert {"index_changed", "not_repaired"} <= kinds(report.problems)
        assert await finds(app, "topic3", "3.txt")
        assert await finds(app, "topic4", "4.txt")
    await app.vacuum()
    assert (await app.check()).ok


def fill_and_free(home: Path, megabytes: int) -> None:
    """Leave free space in the ledger."""
    sql(home, "CREATE TABLE ballast (data BLOB)")
    for _ in range(megabytes):
        sql(home, "INSERT INTO ballast VALUES (zeroblob(1000000))")
    sql(home, "DROP TABLE ballast")


async def test_vacuum_writes_the_ledger_again_without_its_free_space(
    app: App, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = (await app.list_documents(), await app.check())
    assert (await app.vacuum()).ledger is None
    fill_and_free(home, 3)
    assert (await app.vacuum("default")).ledger is None
    with monkeypatch.context() as patch:
        patch.setattr(compaction, "LARGEST", 1 << 20)
        assert (await app.vacuum()).ledger is None
    # Somebody reads an older snapshot, and others write.
    async with app.hold_index() as held:
        async for _ in app.show(await document_id(app, "3.txt"), "chunks"):
            report = await app.vacuum(wait_s=0)
            break
        held.raise_if_lost()
    assert report.ledger is not None
    assert report.ledger.bytes_before - report.ledger.bytes_after > 2_900_000
    assert os.path.getsize(home / "ledger.db") == report.ledger.bytes_after
    await app.delete([await document_id(app, "3.txt")])
    assert len(await app.list_documents()) == len(before[0]) - 1
    assert (await app.check()).ok


async def test_a_ledger_on_a_full_disk_stays_as_it_is(app: App, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill_and_free(home, 2)
    script = SqliteConnection.script

    def fail(connection: SqliteConnection, text: str) -> object:
        if text == "VACUUM":
            raise DiskFull("the disk is full")
        return script(connection, text)

    monkeypatch.setattr(SqliteConnection, "script", fail)
    assert (await app.vacuum()).ledger is None
    assert (await app.check()).ok
