"""`check --repair` mends what is kept, and says what it cannot."""

import asyncio
import shutil
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from tests.kit.apps import chunks, metas, until
from tests.kit.damage import (
    BIG,
    clean,
    document_id,
    finds,
    generation_of,
    kinds,
    put_rows,
    raw_of,
    remove_rows,
    segment_of,
    sql,
    table_of,
    write_big,
    write_files,
)

from penstock.app import App, open_app
from penstock.errors import IndexBroken, NotFound
from penstock.upkeep import repair_rows


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("repair")
    write_files(folder / "files")
    write_big(folder / "files" / "big.txt")

    async def ingest() -> None:
        async with open_app(home=str(folder / "home"), embedder="fake") as app:
            assert (await app.ingest([folder / "files"])).completed == 8
            assert await (await table_of(app)).count() > BIG

    asyncio.run(ingest())
    return folder / "home"


@pytest.fixture(scope="module")
def pristine_small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("small")
    write_files(folder / "files")

    async def ingest() -> None:
        async with open_app(home=str(folder / "home"), embedder="fake") as app:
            assert (await app.ingest([folder / "files"])).completed == 7

    asyncio.run(ingest())
    return folder / "home"


@pytest.fixture
async def app(home: Path) -> AsyncIterator[App]:
    async with open_app(home=str(home), embedder="fake") as app:
        yield app


async def test_a_well_home_is_left_alone(app: App) -> None:
    report = await app.check(repair=True)
    assert clean(report)
    assert report.repaired == []


async def test_missing_rows_come_back(app: App, home: Path) -> None:
    remove_rows(home, f"generation = {generation_of(home, '3.txt')}")
    assert not await finds(app, "topic3", "3.txt")
    report = await app.check(repair=True)
    assert report.ok
    assert kinds(report.repaired) == {"row_missing"}
    assert clean(await app.check())
    assert await finds(app, "topic3", "3.txt")


async def test_a_long_document_comes_back_in_pieces(app: App, home: Path) -> None:
    remove_rows(home, f"generation = {generation_of(home, 'big.txt')} AND (ordinal < 2300 OR ordinal = 2400)")
    assert not await finds(app, "word7", "big.txt")
    report = await app.check(repair=True)
    assert [(r.kind, r.count) for r in report.repaired] == [("row_missing", 2301)]
    assert clean(await app.check())
    assert await finds(app, "word7", "big.txt")


async def test_a_lost_index_is_built_again(app: App, home: Path) -> None:
    before = await (await table_of(app)).count()
    shutil.rmtree(home / "index")
    assert (await app.check(repair=True)).ok
    async with open_app(home=str(home), embedder="fake") as fresh:
        assert clean(await fresh.check())
        assert await (await table_of(fresh)).count() == before
        assert await finds(fresh, "topic3", "3.txt")


async def test_a_lost_index_is_built_again_in_few_commits(tmp_path: Path) -> None:
    folder = tmp_path / "files"
    folder.mkdir()
    for number in range(60):
        (folder / f"{number}.txt").write_text(f"note {number}")
    async with open_app(home=str(tmp_path / "home"), embedder="fake") as app:
        await app.ingest([folder])
        shutil.rmtree(tmp_path / "home" / "index")
    async with open_app(home=str(tmp_path / "home"), embedder="fake") as app:
        assert (await app.check(repair=True)).ok
        state = await (await table_of(app)).state()
        assert state is not None
        assert state.version < 10
        assert await finds(app, "note 59", "59.txt")


async def test_an_index_that_cannot_be_read_is_built_again(home: Path) -> None:
    for file in (home / "index" / "default" / "default" / "v1.lance" / "data").iterdir():
        file.write_bytes(b"nonsense")
    async with open_app(home=str(home), embedder="fake") as app:
        report = await app.check(repair=True)
        assert report.problems == []
        assert kinds(report.repaired) == {"table_broken", "row_missing"}
        assert await finds(app, "topic3", "3.txt")


async def test_an_index_whose_manifest_is_damaged_is_built_again(home: Path) -> None:
    """It opens without columns. A bare KeyError came of that, and dead letters of healthy documents."""
    newest = min((home / "index" / "default" / "default" / "v1.lance" / "_versions").glob("*.manifest"))
    data = newest.read_bytes()
    without_columns = [start for start in range(0, len(data), 8) if _columns(newest, data, start) == 0]
    start = without_columns[len(without_columns) // 2]
    newest.write_bytes(data[:start] + bytes(64) + data[start + 64 :])
    async with open_app(home=str(home), embedder="fake") as app:
        with pytest.raises(IndexBroken, match="check --repair"):
            await app.search("topic3")
        await app.ingest(data=b"a healthy document", name="new.txt", wait=False)
        working = asyncio.create_task(app.work())
        await until(lambda: _paused(home))
        app.stop()
        await working
        assert (await app.list_dead_letters()).letters == [], "no document is to blame"
        report = await app.check(repair=True)
        assert report.problems == []
        assert kinds(report.repaired) == {"table_broken", "row_missing"}
        assert await finds(app, "topic3", "3.txt")
    async with open_app(home=str(home), embedder="fake") as app:
        assert (await app.run()).completed == 1
        assert await finds(app, "healthy", "new.txt")


async def _paused(home: Path) -> bool:
    return bool(sql(home, "SELECT 1 FROM targets WHERE failures > 0"))


def _columns(manifest: Path, data: bytes, start: int) -> int:
    import lance

    manifest.write_bytes(data[:start] + bytes(64) + data[start + 64 :])
    try:
        return len(lance.dataset(str(manifest.parent.parent)).schema)
    except BaseException:
        return -1
    finally:
        manifest.write_bytes(data)


async def test_a_document_half_indexed_survives_the_loss_of_the_index(home: Path, tmp_path: Path) -> None:
    """What an index step noted about rows that are gone with the table must not be believed."""
    write_big(tmp_path / "second.txt")
    async with open_app(home=str(home), embedder="fake") as app:
        await app.ingest([tmp_path / "second.txt"])
    building = generation_of(home, "second.txt")
    sql(home, "UPDATE generations SET state = 'BUILDING' WHERE id = ?", building)
    sql(home, "UPDATE runs SET status = 'OPEN' WHERE generation_id = ?", building)
    sql(home, "UPDATE steps SET status = 'PENDING' WHERE generation_id = ? AND kind = 'index'", building)
    sql(home, "DROP TRIGGER documents_transition")
    sql(home, "UPDATE documents SET status = 'INDEXING' WHERE name = 'second.txt'")
    sql(
        home,
        "UPDATE artifacts SET state = 'BUILDING', cursor = '{\"rows\": 2000}' WHERE id = (SELECT artifact_id "
        "FROM artifact_refs WHERE generation_id = ? AND step = 'index')",
        building,
    )
    shutil.rmtree(home / "index")
    async with open_app(home=str(home), embedder="fake") as app:
        assert (await app.check(repair=True)).ok
        await app.run()
        assert generation_of(home, "second.txt") == building
        assert clean(await app.check())


@pytest.mark.parametrize("damage", ["differs", "extra", "unequal double"])
async def test_wrong_rows_are_put_right(app: App, home: Path, damage: str) -> None:
    generation = generation_of(home, "3.txt")
    if damage == "differs":
        remove_rows(home, f"generation = {generation} AND ordinal = 1")
    await put_rows(app, generation, [700 if damage == "extra" else 1])
    assert await finds(app, "stray", "3.txt")
    report = await app.check(repair=True)
    assert report.ok
    assert clean(await app.check())
    assert not await finds(app, "stray", "3.txt")
    assert await finds(app, "topic3", "3.txt")


async def test_rows_of_a_document_without_text_go(app: App, home: Path) -> None:
    await put_rows(app, generation_of(home, "blank.txt"), [0])
    assert kinds((await app.check(repair=True)).repaired) == {"row_extra"}
    assert clean(await app.check())


async def test_i3_doubles_and_rows_of_the_dead_go(app: App, home: Path) -> None:
    before = await (await table_of(app)).count()
    await put_rows(app, generation_of(home, "4.txt"), [0, 1], like=await document_id(app, "4.txt"))
    await put_rows(app, 987_654, [0, 1])
    report = await app.check(repair=True)
    assert kinds(report.repaired) == {"row_double", "dead_rows"}
    assert clean(report)
    assert await (await table_of(app)).count() == before


async def test_rows_in_the_wrong_table_go(app: App, home: Path) -> None:
    await put_rows(app, generation_of(home, "5.txt"), [0], collection="other")
    report = await app.check(repair=True)
    assert kinds(report.repaired) == {"row_misplaced"}
    assert report.ok


async def test_a_broken_segment_is_cut_and_made_again(app: App, home: Path) -> None:
    before = await chunks(app, await document_id(app, "2.txt"))
    segment_of(home, "2.txt", "chunk").unlink()
    report = await app.check(repair=True)
    assert clean(report)
    assert kinds(report.repaired) == {"segment_broken", "artifacts_missing"}
    assert (report.queued, report.queued_count) == ([await document_id(app, "2.txt")], 1)
    assert await finds(app, "topic2", "2.txt")
    assert (await app.run()).completed == 1
    assert (await metas(app, report.queued[0]))["extract"]["reused"], "only what is broken is made again"
    assert await chunks(app, report.queued[0]) == before
    assert (await app.check()).problems == []


async def test_a_cut_artifact_is_made_again_by_who_needs_it(app: App, home: Path, tmp_path: Path) -> None:
    """The same bytes under another name use the artifacts of the first, and finish what was cut."""
    segment_of(home, "2.txt", "chunk").unlink()
    segment_of(home, "2.txt", "embed").unlink()
    assert (await app.check(repair=True)).ok
    shutil.copy(raw_of(home, "2.txt"), tmp_path / "copy.txt")
    assert (await app.ingest([tmp_path / "copy.txt"])).completed == 1
    assert (await app.check()).problems == []
    assert await finds(app, "topic2", "copy.txt")


async def test_rows_whose_vectors_are_gone_are_made_again_from_raw_bytes(app: App, home: Path) -> None:
    segment_of(home, "2.txt", "embed").unlink()
    remove_rows(home, f"generation = {generation_of(home, '2.txt')}")
    report = await app.check(repair=True)
    assert clean(report)
    assert kinds(report.repaired) == {"segment_broken", "row_missing", "artifacts_missing"}
    assert report.queued_count == 1
    assert not await finds(app, "topic2", "2.txt")
    await app.run()
    assert await finds(app, "topic2", "2.txt")


def lose_segments(home: Path) -> None:
    """As a power cut does: they are not fsynced."""
    for file in (home / "blobs" / "default" / "segments").rglob("*"):
        if file.is_file():
            file.write_bytes(b"")


def lose_index(home: Path) -> None:
    shutil.rmtree(home / "index")


@pytest.mark.parametrize(
    "losses",
    [[lose_segments], [lose_index], [lose_segments, lose_index], [lose_index, lose_segments]],
    ids=lambda losses: " then ".join(loss.__name__ for loss in losses),
)
@pytest.mark.parametrize("between", [True, False], ids=["repaired between", "at once"])
async def test_i9_what_is_lost_is_made_again_from_raw_bytes(
    pristine_small: Path, tmp_path: Path, losses: list[Callable[[Path], None]], between: bool
) -> None:
    home = tmp_path / "home"
    shutil.copytree(pristine_small, home)
    async with open_app(home=str(home), embedder="fake") as app:
        documents = {entry.name: entry.id for entry in await app.list_documents()}
        before = {name: await chunks(app, documents[name]) for name in documents}
    for i, loss in enumerate(losses):
        loss(home)
        if between or i == len(losses) - 1:
            async with open_app(home=str(home), embedder="fake") as app:
                report = await app.check(repair=True)
                assert report.problems == []
                if loss is lose_segments:
                    assert report.queued_count == len(documents)
                if lose_index not in losses:
                    assert await finds(app, "topic3", "3.txt"), "it stays searchable meanwhile"
    async with open_app(home=str(home), embedder="fake") as app:
        await app.run()
        assert (await app.check()).problems == []
        for name, document in documents.items():
            assert await chunks(app, document) == before[name]
            if name != "blank.txt":
                assert await finds(app, f"topic{name[0].replace('s', '0')}", name)
                progress = (await app.status(document)).progress
                assert progress.chunks == progress.indexed == len(before[name])


async def test_lost_artifacts_are_said_and_a_retry_makes_them_again(app: App, home: Path) -> None:
    document = await document_id(app, "2.txt")
    segment_of(home, "2.txt", "chunk").unlink()
    sql(
        home,
        "UPDATE artifacts SET state = 'BUILDING', items = 0, segments = 0, cursor = '{}' WHERE id IN "
        "(SELECT artifact_id FROM artifact_refs WHERE generation_id = ? AND step = 'chunk')",
        generation_of(home, "2.txt"),
    )
    sql(home, "DELETE FROM segments WHERE artifact_id IN (SELECT id FROM artifacts WHERE state = 'BUILDING')")
    assert kinds((await app.check()).problems) == {"artifacts_missing"}
    with pytest.raises(NotFound, match="check --repair"):
        await chunks(app, document)
    assert await app.retry([document], dropped=True) == {document}
    assert (await app.check()).problems == [], "it is queued"
    await app.run()
    assert len(await chunks(app, document)) == 3


async def test_a_document_without_raw_bytes_is_not_queued_to_fail(app: App, home: Path) -> None:
    segment_of(home, "2.txt", "embed").unlink()
    raw_of(home, "2.txt").unlink()
    report = await app.check(repair=True)
    assert kinds(report.problems) == {"raw_missing", "artifacts_missing"}
    assert report.queued == []
    assert (await app.list_documents(name="2.txt"))[0].status == "COMPLETED"
    assert await finds(app, "topic2", "2.txt")


async def test_raw_bytes_cannot_be_mended(app: App, home: Path) -> None:
    raw_of(home, "1.txt").unlink()
    report = await app.check(repair=True)
    assert kinds(report.problems) == {"raw_missing"}
    assert "submit the file again" in report.problems[0].what
    assert report.repaired == []


async def test_a_stuck_document_goes_on(app: App, home: Path, tmp_path: Path) -> None:
    (tmp_path / "new.txt").write_text("This is the newest of them. " * 200)
    await app.ingest([tmp_path / "new.txt"], wait=False)
    sql(home, "UPDATE steps SET status = 'CANCELLED' WHERE status = 'PENDING'")
    report = await app.check(repair=True)
    assert kinds(report.repaired) == {"stuck"}
    assert report.ok
    await app.run()
    assert await finds(app, "newest", "new.txt")


async def test_a_lost_wakeup_is_heard_again(app: App, home: Path, tmp_path: Path) -> None:
    (tmp_path / "new.txt").write_text("This is the newest of them. " * 200)
    await app.ingest([tmp_path / "new.txt"])
    generation = generation_of(home, "new.txt")
    sql(home, "DROP TRIGGER documents_transition")
    sql(home, "UPDATE generations SET state = 'BUILDING' WHERE id = ?", generation)
    sql(home, "UPDATE runs SET status = 'OPEN' WHERE generation_id = ?", generation)
    sql(home, "UPDATE documents SET status = 'INDEXING' WHERE name = 'new.txt'")
    sql(home, "UPDATE steps SET status = 'PENDING' WHERE generation_id = ? AND kind = 'index'", generation)
    sql(home, "UPDATE locks SET ready = 0")
    report = await app.check(repair=True)
    assert kinds(report.repaired) == {"lost_wakeup", "group_miscounted"}
    assert (await app.run()).completed == 1


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        ("UPDATE documents SET deleted_at = 1 WHERE id = '{d}'", "deleted_visible"),
        ("UPDATE generations SET state = 'SUPERSEDED' WHERE id = {g}", "purge_missing"),
        (
            "INSERT INTO purges SELECT id, owner, collection, index_version, 9e9 FROM generations WHERE id = {g}",
            "purge_of_active",
        ),
        ("DELETE FROM placements WHERE generation_id = {g}", "not_placed"),
        ("UPDATE placements SET state = 'BUILDING' WHERE generation_id = {g}", "not_placed"),
    ],
)
async def test_the_ledger_agrees_with_itself_again(app: App, home: Path, change: str, kind: str) -> None:
    sql(home, change.format(d=await document_id(app, "5.txt"), g=generation_of(home, "5.txt")))
    report = await app.check(repair=True)
    assert kind in kinds(report.repaired)
    assert kind not in kinds(report.problems)


async def test_i9_a_failed_document_gets_its_dead_letter(app: App, home: Path, tmp_path: Path) -> None:
    (tmp_path / "new.txt").write_text("This is new. " * 200)
    await app.ingest([tmp_path / "new.txt"], wait=False)
    sql(home, "UPDATE steps SET status = 'CANCELLED' WHERE status = 'PENDING'")
    sql(home, "UPDATE runs SET status = 'FAILED' WHERE status = 'OPEN'")
    sql(home, "UPDATE documents SET status = 'FAILED' WHERE status = 'PENDING'")
    assert (await app.check(repair=True)).ok
    assert (await app.list_dead_letters()).by_reason == {"unknown": 1}
    await app.replay()
    assert (await app.run()).completed == 1


async def test_a_busy_index_is_left_alone(app: App, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repair_rows, "WAIT_S", 0.2)
    remove_rows(home, f"generation = {generation_of(home, '3.txt')}")
    sql(home, "UPDATE locks SET token = 'x', worker_id = 'x', lease_until = 9e9")
    report = await app.check(repair=True)
    assert kinds(report.problems) == {"row_missing", "not_repaired"}
    sql(home, "UPDATE locks SET lease_until = 1")
    assert (await app.check(repair=True)).ok
