"""Small files and segments are in the ledger: no files, the same promises."""

import asyncio
import os
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import StartApp
from tests.kit.apps import chunks, named
from tests.kit.damage import clean, kinds

from penstock import restore
from penstock.app import App, open_app
from penstock.blobs.small import is_small, small_key
from penstock.errors import BlobMissing, Refused
from penstock.ledger.engine import small_blobs
from penstock.verbs.accepting import Gatherer, Order
from penstock.verbs.accepting import named as upload_of

SMALL: dict[str, Any] = {"small_bytes": 4096, "keep_artifacts": "always"}
LARGE = "A longer text about reservoirs and dams. " * 400


def files(app: App) -> list[Path]:
    folder = app.config.blobs_path
    assert folder is not None
    return [path for path in folder.rglob("*") if path.is_file() and ".submits" not in path.parts]


async def stored(app: App) -> dict[str, int]:
    return {info.key: info.size async for info in app.blobs.list("") if is_small(info.key)}


@pytest.fixture
async def app(start_app: StartApp, database_url: str) -> App:
    app = await start_app(database=database_url, **SMALL)
    for i in range(5):
        await app.ingest(data=f"The note number{i} is short.".encode(), name=f"{i}.txt")
    return app


async def test_small_documents_make_no_files_and_large_ones_do(app: App) -> None:
    assert files(app) == []
    assert len(await stored(app)) == 5 * 5
    assert [hit.name for hit in await app.search("number3", 1, mode="text")] == ["3.txt"]
    assert "number3" in (await chunks(app, (await named(app, "3.txt")).id))[0].text
    await app.ingest(data=LARGE.encode(), name="large.txt")
    assert files(app)
    assert clean(await app.check())


@pytest.mark.parametrize("small_bytes", [4096, 0])
async def test_i1_an_upload_of_four_blocks_is_stored_by_the_commit_that_names_it(
    start_app: StartApp, small_bytes: int
) -> None:
    app = await start_app(small_bytes=small_bytes)
    scope, gatherer, order = app.for_owner(app.owner), Gatherer(), Order("default")
    sizes = {16_384: small_bytes > 0, 16_385: False}
    for size in sizes:
        await gatherer.accept(scope, order, upload_of(None, f"{size}.bin"), os.urandom(size))
    assert sorted((await stored(app)).values()) == [size for size, small in sizes.items() if small]
    assert sorted(path.stat().st_size for path in files(app)) == [size for size, small in sizes.items() if not small]
    assert clean(await app.check())


async def test_every_way_of_reading_finds_them(app: App) -> None:
    key = next(key for key in await stored(app) if len(key) == len(small_key("default", "0" * 26)))
    data = await app.blobs.get(key)
    assert data.startswith(b"The note number")
    assert await app.blobs.read_range(key, 4, 4) == b"note"
    info = await app.blobs.stat(key)
    assert info is not None
    assert info.size == len(data)
    missing = small_key("default", "none")
    assert [type(one) for one in await app.blobs.get_many([missing, key])] == [BlobMissing, bytes]
    [seen, none] = await app.blobs.sums([key, missing], content=False)
    assert (seen, type(none)) == ((len(data), None), BlobMissing)
    async with app.blobs.file(key) as path:
        assert path.read_bytes() == data
    assert await app.blobs.stat(missing) is None
    # The wall between owners: the keys of one are not listed for another.
    assert [info.key async for info in app.blobs.list("other")] == []


async def test_a_parser_process_reads_a_small_file(app: App) -> None:
    await app.ingest(data=b"<html><body><h1>Sluice</h1><p>The sluice is open.</p></body></html>", name="s.html")
    assert [hit.name for hit in await app.search("sluice", 1, mode="text")] == ["s.html"]


async def test_i1_the_bytes_are_written_by_the_transaction_that_names_them(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever follows in the transaction fails: neither rows nor bytes are there."""
    before, keep = await stored(app), small_blobs.keep

    def fail(*arguments: Any) -> None:
        keep(*arguments)
        raise ValueError("the disk burns")

    monkeypatch.setattr(small_blobs, "keep", fail)
    if app.ledger.database.dialect == "sqlite":
        with pytest.raises(Refused, match="burns"):
            await app.ingest(data=b"never accepted", name="never.txt")
    assert await stored(app) == before
    assert len(await app.list_documents()) == 5


async def test_what_is_replaced_or_deleted_is_pruned_and_nothing_else(app: App) -> None:
    before = await stored(app)
    await app.ingest(data=b"The note number0 is longer now.", name="0.txt")
    await app.delete([(await named(app, "1.txt")).id])
    await app.ledger.read(lambda c: c.script("UPDATE purges SET not_before = 0"))
    assert (await app.prune()).bytes == 0, "it is younger than a day"
    gone = await app.prune(older_than_s=0)
    after = await stored(app)
    assert gone.blobs == 10
    assert len(after) == len(before) + 5 - 10
    assert clean(await app.check())
    assert [hit.name for hit in await app.search("longer", 1, mode="text")] == ["0.txt"]
    assert (await app.prune(older_than_s=0)).blobs == 0


@pytest.mark.parametrize("kind", ["raw_missing", "segment_broken"])
async def test_i9_lost_bytes_are_found_and_segments_are_made_again(
    start_app: StartApp, tmp_path: Path, kind: str
) -> None:
    app = await start_app(**SMALL)
    await app.ingest(data=b"The note is short.", name="a.txt")
    with sqlite3.connect(tmp_path / "home" / "ledger.db") as db:
        raw = "(SELECT raw_key FROM generations)"
        db.execute(f"DELETE FROM small_blobs WHERE key {'IN' if kind == 'raw_missing' else 'NOT IN'} {raw}")
    assert kind in kinds((await app.check()).problems)
    if kind == "segment_broken":
        await app.check(repair=True)
        assert (await app.run()).failed == 0
        assert clean(await app.check())


async def test_a_backup_holds_them_and_gives_them_back_to_either_database(
    app: App, tmp_path: Path, make_postgres: Any
) -> None:
    await app.ingest(data=LARGE.encode(), name="large.txt")
    report = await app.backup(tmp_path / "backup")
    assert report.damaged == []
    assert report.blobs == len(files(app))
    other = make_postgres() if app.ledger.database.dialect == "sqlite" else f"sqlite:///{tmp_path / 'other.db'}"
    told = {"home": str(tmp_path / "restored"), "embedder": "fake", "database": other, **SMALL}
    restored = await restore(tmp_path / "backup", **told)
    assert restored.restored.damaged == []
    assert restored.check.ok
    again = await app.backup(tmp_path / "backup")
    assert again.copied == 0


async def test_a_trial_reads_them_from_the_ledger_of_the_app(start_app: StartApp) -> None:
    app = await start_app(**SMALL)
    for word in ("sluice", "weir"):
        await app.ingest(data=f"The {word} is open.".encode(), name=f"{word}.txt")
    async with app.resources.open_trial(app.config, app.config.home_path / "trial") as inside:
        for key, size in (await stored(app)).items():
            assert len(await inside.blobs.get(key)) == size


async def test_several_processes_submit_at_once(tmp_path: Path) -> None:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PENSTOCK_")} | {
        "PENSTOCK_HOME": str(tmp_path / "home"),
        "PENSTOCK_EMBEDDER": "fake",
    }
    commands = []
    for number in range(3):
        folder = tmp_path / f"notes{number}"
        folder.mkdir()
        for i in range(30):
            (folder / f"{number}-{i}.txt").write_text(f"The note {i} of process {number}.")
        commands.append([sys.executable, "-m", "penstock.cli.main", "ingest", str(folder), "--json"])
    running = [subprocess.Popen(one, env=environment, stdout=subprocess.DEVNULL) for one in commands]
    assert [await asyncio.to_thread(one.wait, 300) for one in running] == [0, 0, 0]
    async with open_app(home=str(tmp_path / "home"), embedder="fake", **SMALL) as app:
        assert len(await app.list_documents()) == 90
        assert files(app) == []
        assert clean(await app.check())
