"""Homes and disks that cannot be used: told in a sentence, and what was accepted is kept."""

import errno
import json
import os
import shutil
import sqlite3
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.kit.apps import found, penstock, text
from tests.kit.damage import sql

from penstock.app import App, open_app
from penstock.errors import LedgerTooNew, StorageError
from penstock.ledger.database import sqlite
from penstock.ledger.database.migrations import LATEST

Files = Callable[..., Path]
LONG = bool(os.environ.get("PENSTOCK_LONG"))
GARBAGE = b"\x7fELF\x02\x01" + bytes(range(256)) * 40


async def test_a_home_below_a_file_is_reported_in_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(StorageError, match="could not be written"):
        async with open_app(home=str(tmp_path / "file" / "home"), embedder="fake"):
            pass
    ran = penstock(tmp_path / "file" / "home", "--json", "ingest", __file__)
    assert ran.returncode == 1
    assert "could not be written" in json.loads(ran.stdout)["error"]


async def test_a_home_of_another_user_is_reported_in_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Root may look into all of them: so we say what the system would."""
    home, stat, connect = tmp_path / "home", os.stat, sqlite3.connect
    home.mkdir()

    def refuse(path: Any, *arguments: Any, **options: Any) -> os.stat_result:
        if home in Path(os.fsdecode(path)).parents:
            raise PermissionError(errno.EACCES, "Permission denied", path)
        return stat(path, *arguments, **options)

    def refuse_too(path: Any, *arguments: Any, **options: Any) -> Any:
        return connect(tmp_path / "nowhere" / "ledger.db", *arguments, **options)

    monkeypatch.setattr(os, "stat", refuse)
    monkeypatch.setattr(sqlite3, "connect", refuse_too)
    with pytest.raises(StorageError, match="is yours"):
        async with open_app(home=str(home), embedder="fake"):
            pass


async def test_a_ledger_of_a_newer_penstock_is_reported_in_a_sentence(app: App, tmp_path: Path) -> None:
    sql(tmp_path / "home", f"INSERT INTO schema_versions VALUES ({LATEST + 1}, 0)")
    with pytest.raises(LedgerTooNew):
        async with open_app(home=str(tmp_path / "home"), embedder="fake"):
            pass
    ran = penstock(tmp_path / "home", "--json", "status")
    assert ran.returncode == 2
    assert "Upgrade Penstock" in json.loads(ran.stdout)["error"]


async def test_a_ledger_that_another_program_holds_is_reported_in_a_sentence(
    app: App, files: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sqlite3

    folder = files(**{"a.txt": "words"})
    monkeypatch.setattr(sqlite, "BUSY_LIMIT_S", 0.3)
    holder = sqlite3.connect(tmp_path / "home" / "ledger.db", isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    try:
        with pytest.raises(StorageError, match="locked by another program"):
            await app.ingest([folder])
    finally:
        holder.execute("ROLLBACK")
        holder.close()
    assert (await app.ingest([folder])).completed == 1


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of three megabytes."""
    place = tmp_path / "small"
    place.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(place)], capture_output=True)
    if mounted.returncode:
        pytest.skip(f"no small disk can be mounted here: {mounted.stderr.decode().strip()}")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


async def test_i1_a_full_disk_stops_the_work_and_keeps_what_was_accepted(
    small_disk: Path, files: Files, tmp_path: Path
) -> None:
    home = str(small_disk / "home")
    async with open_app(home=home, embedder="fake") as app:
        assert (await app.ingest([files(**{"a.txt": text(20)})])).completed == 1
        for i in range(14):
            files(**{f"big{i}.txt": text(3000, f"w{i}x")})
        summary = await app.ingest([files()])
        assert summary.disk_full
        assert summary.refused == len(summary.problems) > 0
        accepted = [entry.name for entry in await app.list_documents()]
        refused = {Path(problem.rpartition(": ")[0]).name for problem in summary.problems}
        assert refused | set(accepted) == {path.name for path in files().iterdir()}
        assert not refused & set(accepted)
        assert "a.txt" in accepted
        assert await found(app, "matter5") >= {"a.txt"}
    subprocess.run(["mount", "-o", "remount,size=400m", str(small_disk)], check=True)
    async with open_app(home=home, embedder="fake") as app:
        assert sorted(e.name for e in await app.list_documents()) == sorted(accepted)
        summary = await app.ingest([files()])
        assert (summary.failed, summary.pending) == (0, 0)
        assert {e.status for e in await app.list_documents()} == {"COMPLETED"}
        assert (await app.check()).ok


async def test_a_full_disk_keeps_no_bytes_of_files_that_were_not_accepted(small_disk: Path, files: Files) -> None:
    home = small_disk / "home"
    async with open_app(home=str(home), embedder="fake") as app:
        for i in range(400):
            files(**{f"{i}.txt": text(150, f"w{i}x")})
        receipts = [receipt async for receipt in app.submit(files())]
        assert len(receipts) == 400
        accepted = {receipt.id for receipt in receipts if receipt.id is not None}
        assert 0 < len(accepted) < 400
        assert all("the disk is full" in (one.problem or "") for one in receipts if one.id is None)
        assert {document.id for document in await app.list_documents(limit=400)} == accepted
        report = await app.check()
        assert report.ok
        assert report.garbage == []


async def test_a_file_that_is_too_large_for_the_disk_is_refused_alone(small_disk: Path, files: Files) -> None:
    async with open_app(home=str(small_disk / "home"), embedder="fake") as app:
        for i in range(20):
            files(**{f"small{i}.txt": text(10, f"w{i}x")})
        for i in range(18):
            files(**{f"large{i}.txt": "x" * 5_000_000})
        receipts = [receipt async for receipt in app.submit(files())]
        assert {one.name for one in receipts if one.id is not None} == {f"small{i}.txt" for i in range(20)}
        assert sum("the disk is full" in (one.problem or "") for one in receipts) == 18
        summary = await app.ingest(files())
        assert (summary.completed, summary.refused, summary.disk_full) == (20, 18, True)
        assert (await app.check()).garbage == []


async def test_prune_and_delete_work_on_a_full_disk(small_disk: Path, files: Files) -> None:
    home = small_disk / "home"
    async with open_app(home=str(home), embedder="fake") as app:
        for i in range(30):
            files(**{f"{i}.txt": text(10, f"w{i}x")})
        await app.ingest(files(), wait=False)
        ballast = small_disk / "ballast"
        subprocess.run(["dd", "if=/dev/zero", f"of={ballast}", "bs=4k"], capture_output=True)
        assert shutil.disk_usage(small_disk).free == 0
        assert (await app.ingest(data=b"words" * 50_000, name="late.txt", wait=False)).disk_full
        await app.prune()
        assert (await app.delete_matching(path=f"{files()}/*.txt")).count == 30
        await app.prune()
        assert await app.list_documents() == []
        ballast.unlink()
        assert (await app.ingest(files())).completed == 30
        assert (await app.check()).ok


async def test_a_home_on_a_full_disk_can_be_opened(small_disk: Path, files: Files) -> None:
    """SQLite makes a file beside the ledger for the first process that opens it."""
    home = small_disk / "home"
    async with open_app(home=str(home), embedder="fake") as app:
        await app.ingest(files(**{f"{i}.txt": text(10, f"w{i}x") for i in range(3)}))
    ballast = small_disk / "ballast"
    reserve = home / "ledger.reserve"
    assert reserve.stat().st_size == 1 << 20
    for _ in range(3):
        subprocess.run(["dd", "if=/dev/zero", f"of={ballast}", "bs=4k"], capture_output=True)
        assert shutil.disk_usage(small_disk).free == 0
        async with open_app(home=str(home), embedder="fake") as app:
            assert await found(app, "matter5") == {"0.txt", "1.txt", "2.txt"}
            assert reserve.stat().st_size < 1 << 20
    async with open_app(home=str(home), embedder="fake") as app:
        assert (await app.delete_matching(path=f"{files()}/*.txt")).count == 3
        await app.prune()
    ballast.unlink()
    async with open_app(home=str(home), embedder="fake") as app:
        assert (await app.ingest(files())).completed == 3
        assert (await app.check()).ok
    assert reserve.stat().st_size == 1 << 20


async def test_a_full_disk_takes_as_many_files_as_fit(small_disk: Path, files: Files) -> None:
    """Not only whole groups of them."""
    async with open_app(home=str(small_disk / "home"), embedder="fake") as app:
        for i in range(100):
            files(**{f"{i}.txt": "x" * 900_000})
        receipts = [receipt async for receipt in app.submit(files())]
        assert len([one for one in receipts if one.id is not None]) < 100
        assert shutil.disk_usage(small_disk).free < 1_000_000
        assert (await app.check()).garbage == []
