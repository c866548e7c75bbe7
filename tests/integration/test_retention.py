"""Artifacts that are not kept: dropped, search goes on, and what is needed again is made again from raw bytes."""

import asyncio
import os
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.conftest import StartApp
from tests.kit.apps import chunks, found, metas, named, slow, text, until_status
from tests.kit.damage import (
    clean,
    document_id,
    finds,
    generation_of,
    kinds,
    raw_of,
    remove_rows,
    sql,
)

from penstock.app import App, open_app
from penstock.config import load_config
from penstock.errors import ConfigError, NotFound
from penstock.upkeep.prune import DAY_S
from penstock.verbs import maintenance_runner

GONE: dict[str, Any] = {"keep_artifacts": "until_completed"}


@pytest.fixture
async def app(home: Path) -> AsyncIterator[App]:
    async with open_app(home=str(home), embedder="fake", **GONE) as app:
        yield app


def segments(home: Path) -> int:
    return sum(path.is_file() for path in (home / "blobs" / "default" / "segments").rglob("*"))


def raws(home: Path) -> int:
    return sum(path.is_file() for path in (home / "blobs" / "default" / "raw").rglob("*"))


async def test_dropped_documents_are_found_and_their_raw_bytes_stay(app: App, home: Path) -> None:
    before, hits = raws(home), await found(app, "topic3")
    gone = await app.prune()
    assert gone.dropped == 8
    assert gone.artifacts > 0
    assert gone.bytes > 0
    assert segments(home) == 0
    assert raws(home) == before
    assert await found(app, "topic3") == hits == {"3.txt"}
    assert clean(await app.check())
    assert (await app.prune()).dropped == 0


async def test_status_says_so_and_keeps_its_counts(app: App) -> None:
    document = await document_id(app, "1.txt")
    before = await app.status(document)
    assert before.artifacts_dropped_at is None
    await app.prune()
    after = await app.status(document)
    assert after.artifacts_dropped_at is not None
    assert after.artifacts_dropped_at > before.created_at
    checkpoint = before.progress.last_checkpoint
    assert msgspec.structs.replace(after.progress, last_checkpoint=checkpoint) == before.progress
    assert after.steps == before.steps
    assert after.searchable


async def test_show_says_that_they_were_dropped_and_how_to_get_them_again(app: App) -> None:
    document = await document_id(app, "1.txt")
    before = await chunks(app, document)
    await app.prune()
    for what in ("pages", "chunks"):
        with pytest.raises(NotFound, match=f"dropped.*penstock retry --dropped {document}"):
            [item async for item in app.show(document, what)]
    assert await app.retry([document], dropped=True) == {document}
    assert await found(app, "topic1") == {"1.txt"}
    assert (await app.run()).completed == 1
    assert await chunks(app, document) == before
    assert (await app.status(document)).artifacts_dropped_at is None
    assert clean(await app.check())


async def test_nothing_is_made_again_that_is_there(app: App) -> None:
    assert await app.retry([await document_id(app, "1.txt")], dropped=True) == set()


async def test_the_same_bytes_are_skipped_as_before(app: App, tmp_path: Path, home: Path) -> None:
    await app.ingest(data=b"some words to keep", name="new.txt")
    await app.prune()
    again = await app.ingest(data=b"some words to keep", name="new.txt")
    assert (again.skipped, again.submitted) == (1, 0)


async def test_what_is_dropped_cannot_be_used_again(home: Path, tmp_path: Path) -> None:
    """Another chunk size uses the pages that are there, and extracts anew where they were dropped."""
    reused = []
    data = raw_of(home, "2.txt").read_bytes()
    for keep in ("always", "until_completed"):
        case = tmp_path / keep
        shutil.copytree(home, case)
        settings: dict[str, Any] = {"home": str(case), "embedder": "fake", "keep_artifacts": keep}
        async with open_app(**settings) as app:
            await app.prune()
        async with open_app(**settings, chunk={"size": 300, "overlap": 0}) as app:
            await app.ingest(data=data, name="copy.txt")
            made = await metas(app, (await named(app, "copy.txt")).id)
            reused.append((made["extract"].get("reused", False), made["chunk"].get("reused", False)))
            assert "copy.txt" in await found(app, "topic2")
    assert reused == [(True, False), (False, False)]


async def test_i9_an_index_that_is_lost_is_made_again_from_raw_bytes(app: App, home: Path) -> None:
    await app.prune()
    shutil.rmtree(home / "index")
    report = await app.check()
    assert kinds(report.problems) == {"row_missing"}
    mended = await app.check(repair=True)
    assert mended.ok, mended.problems
    assert {entry.document_id for entry in mended.repaired} == {
        entry.id for entry in await app.list_documents() if entry.status == "PENDING"
    }
    assert "processes it again from its raw bytes" in mended.repaired[0].what
    assert (await app.check()).ok
    assert (await app.run()).completed == 7
    for i in range(6):
        assert await finds(app, f"topic{i}", f"{i}.txt")
    sql(home, "UPDATE purges SET not_before = 0")
    await app.prune(older_than_s=0)
    assert clean(await app.check())


async def test_rows_that_went_from_an_index_come_back(app: App, home: Path) -> None:
    """Part of one document; one whose artifacts are kept is mended at once."""
    keep = generation_of(home, "4.txt")
    sql(home, "UPDATE documents SET status = 'PENDING' WHERE name = '4.txt'")
    await app.prune()
    for status in ("INDEXING", "COMPLETED"):
        sql(home, f"UPDATE documents SET status = '{status}' WHERE name = '4.txt'")
    remove_rows(home, f"generation = {generation_of(home, '3.txt')} AND ordinal > 0")
    remove_rows(home, f"generation = {keep} AND ordinal > 0")
    report = await app.check(repair=True)
    assert report.ok
    assert {entry.generation for entry in report.repaired} == {keep, generation_of(home, "3.txt")}
    assert (await named(app, "4.txt")).status == "COMPLETED"
    assert (await named(app, "3.txt")).status == "PENDING"
    assert (await app.run()).completed == 1
    assert (await app.check()).ok
    assert len([hit for hit in await app.search("topic3", 50, mode="text") if hit.name == "3.txt"]) == 3


async def test_artifacts_that_vanished_are_a_problem(app: App, home: Path) -> None:
    document = await document_id(app, "5.txt")
    sql(home, "DELETE FROM artifact_refs WHERE generation_id = ?", generation_of(home, "5.txt"))
    report = await app.check()
    assert kinds(report.problems) == {"artifacts_missing"}
    assert document in report.problems[0].what
    assert await app.retry([document], dropped=True) == {document}
    await app.run()
    assert (await app.check()).ok


async def test_each_collection_keeps_as_it_is_reported(start_app: StartApp) -> None:
    keep = {name: {"keep_artifacts": value} for name, value in (("a", "always"), ("w", 7), ("c", "until_completed"))}
    app = await start_app(collections=keep, keep_artifacts="always")
    for name in ("a", "w", "c", "default"):
        await app.ingest(data=f"words of {name}".encode(), name=f"{name}.txt", collection=name)

    async def dropped() -> set[str]:
        entries = [await app.status(entry.id) for entry in await app.list_documents()]
        return {entry.collection for entry in entries if entry.artifacts_dropped_at is not None}

    await app.prune()
    assert await dropped() == {"c"}
    home = app.config.home_path
    sql(home, "UPDATE generations SET flipped_at = flipped_at - ?", 7 * DAY_S - 60)
    await app.prune()
    assert await dropped() == {"c"}
    sql(home, "UPDATE generations SET flipped_at = flipped_at - 61")
    await app.prune()
    assert await dropped() == {"c", "w"}


async def test_what_a_collection_that_keeps_shares_stays(start_app: StartApp) -> None:
    app = await start_app(collections={"kept": {"keep_artifacts": "always"}}, keep_artifacts="until_completed")
    for collection in ("kept", "default"):
        await app.ingest(data=b"shared words", name="same.txt", collection=collection)
    gone = await app.prune()
    assert (gone.dropped, gone.artifacts, gone.blobs) == (1, 0, 0)
    [kept] = await app.list_documents(collection="kept")
    assert len(await chunks(app, kept.id)) == 1


async def test_i3_a_document_that_works_with_shared_artifacts_keeps_them(app: App, home: Path) -> None:
    """The first lets go of them while the second reads them, and while a third waits for its turn."""
    slow(app, 0.6)
    data = text(400).encode()
    await app.ingest(data=data, name="first.txt")
    await app.ingest(data=data, name="second.txt", collection="other", wait=False)
    sql(home, "DELETE FROM artifact_refs WHERE step = 'embed'")
    sql(home, "DELETE FROM segments WHERE artifact_id IN (SELECT id FROM artifacts WHERE kind = 'embed')")
    sql(home, "DELETE FROM artifacts WHERE kind = 'embed'")
    working = asyncio.create_task(app.run())
    await until_status(app, "EMBEDDING", name="second.txt")
    await app.ingest(data=data, name="third.txt", collection="third", wait=False)
    assert (await app.prune()).dropped == 9
    assert (await working).completed == 2
    assert (await metas(app, (await named(app, "second.txt")).id))["chunk"]["reused"]
    assert (await app.check()).ok
    for name, collection in (("first.txt", "default"), ("second.txt", "other"), ("third.txt", "third")):
        assert name in await found(app, "subject7", 50, collection=collection)


async def test_a_dry_run_says_what_would_go_and_takes_nothing(app: App, home: Path) -> None:
    folder = home / "blobs" / "default" / "raw" / "open"
    folder.mkdir()
    (folder / "bytes.tmp-1").write_bytes(b"never finished")
    dead = home / "workers" / "01DEAD"
    dead.parent.mkdir(exist_ok=True)
    dead.touch()
    for path in (folder / "bytes.tmp-1", dead):
        os.utime(path, (1, 1))
    await app.delete([await document_id(app, "1.txt")])
    sql(home, "UPDATE purges SET not_before = 0")
    before = segments(home), raws(home), sql(home, "SELECT * FROM generations")
    would = await app.prune(dry_run=True)
    assert (segments(home), raws(home), sql(home, "SELECT * FROM generations")) == before
    assert dead.exists()
    did = await app.prune()
    assert (would.purged, would.dropped, would.workers) == (1, 7, 1)
    # What was removed makes one more blob unreferenced, which waits for a day.
    assert msgspec.structs.replace(would, waiting=0) == msgspec.structs.replace(did, waiting=0)
    assert not dead.exists()


async def test_history_goes_after_its_days(start_app: StartApp) -> None:
    app = await start_app(retention={"history_days": 2})
    for word in ("former", "latter"):
        await app.ingest(data=f"the {word} words".encode(), name="a.txt")
    home = app.config.home_path
    sql(home, "UPDATE purges SET not_before = 0")
    assert (await app.prune()).runs == 0
    for table, column in (("runs", "finished_at"), ("generations", "created_at")):
        sql(home, f"UPDATE {table} SET {column} = {column} - ?", 2 * DAY_S + 1)
    assert (await app.prune(older_than_s=3 * DAY_S)).runs == 0
    assert (await app.prune()).runs == 1
    assert await found(app, "latter") == {"a.txt"}
    assert (await app.check()).ok
    assert (await app.ingest(data=b"the latter words", name="a.txt")).skipped == 1


async def test_a_live_worker_s_file_stays_however_old(app: App, home: Path) -> None:
    async with app.resources.maintenance.alive() as heart:
        os.utime(home / "workers" / heart.worker, (1, 1))
        assert (await app.prune()).workers == 0
        assert (home / "workers" / heart.worker).exists()


async def test_a_worker_prunes_beside_its_work_and_then_rests(
    app: App, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maintenance_runner, "TEND_S", 0.05)
    working = asyncio.create_task(app.work())
    async with asyncio.timeout(20):
        while segments(home):  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        await app.ingest(data=b"words that come later", name="later.txt", wait=False)
        while (await named(app, "later.txt")).status != "COMPLETED":  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    await asyncio.sleep(0.3)
    app.stop()
    await working
    later = await app.status((await named(app, "later.txt")).id)
    assert later.artifacts_dropped_at is None, "it came less than an hour after the last prune"
    assert sql(home, "SELECT count(*) FROM locks WHERE resource_key LIKE 'prune:%' AND token IS NULL") == [(2,)]


@pytest.mark.parametrize("value", ["never", "0", "-1", "1.5", "", "until completed", "7 days"])
def test_a_wrong_keep_is_refused(value: str) -> None:
    with pytest.raises(ConfigError, match="use always, unless_small, until_completed, or a number of days"):
        load_config({"keep_artifacts": value}, environment={})
    with pytest.raises(ConfigError, match="keep_artifacts"):
        load_config({"collections": {"a": {"keep_artifacts": value}}}, environment={})


@pytest.mark.parametrize("days", ["0", "-3", "inf", "nan"])
def test_wrong_days_of_history_are_refused(days: str) -> None:
    with pytest.raises(ConfigError, match="history_days"):
        load_config({}, environment={"PENSTOCK_RETENTION__HISTORY_DAYS": days})


def test_days_may_come_as_text() -> None:
    assert load_config({}, environment={"PENSTOCK_KEEP_ARTIFACTS": "7"}).keep_days("any") == 7.0
    assert load_config({"keep_artifacts": 30}, environment={}).keep_days("any") == 30.0
