"""I1: when a submit returns, the bytes and their row survive a power cut."""

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import StartApp
from tests.kit.apps import only, text
from tests.kit.damage import raw_of, sql

from penstock.app import App
from penstock.blobs import local
from penstock.errors import StorageError

Files = Callable[..., Path]


class Disk:
    """Notes what is flushed, and in which order with renames and commits."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.events: list[tuple[str, str]] = []
        fsync, rename = os.fsync, os.rename

        def noting_fsync(descriptor: int) -> None:
            fsync(descriptor)
            self.events.append(("fsync", os.readlink(f"/proc/self/fd/{descriptor}")))

        def noting_rename(old: Any, new: Any, **options: Any) -> None:
            rename(old, new, **options)
            self.events.append(("rename", os.fspath(new)))

        monkeypatch.setattr(os, "fsync", noting_fsync)
        monkeypatch.setattr(os, "rename", noting_rename)

    def flushed(self, path: Path) -> list[int]:
        return [i for i, event in enumerate(self.events) if event == ("fsync", str(path))]


@pytest.mark.parametrize("size", [500, 3_000_000])
async def test_i1_raw_bytes_and_their_folders_are_flushed_before_the_row_is_written(
    app: App, files: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    folder = files(**{"a.txt": "x" * size})
    disk = Disk(monkeypatch)
    seen: list[int] = []
    write = app.ledger.write

    async def noting_write(verb: Any, item: Any) -> Any:
        if verb.name == "submit":
            seen.append(len(disk.events))
        return await write(verb, item)

    monkeypatch.setattr(app.ledger, "write", noting_write)
    await app.ingest([folder], wait=False)
    [committed] = seen
    [key] = [row[0] for row in sql(tmp_path / "home", "SELECT raw_key FROM generations")]
    place = tmp_path / "home" / "blobs" / str(key)
    assert place.read_text() == "x" * size
    [renamed] = [i for i, event in enumerate(disk.events) if event == ("rename", str(place))]
    contents = [i for i, (kind, path) in enumerate(disk.events) if kind == "fsync" and local.TEMPORARY in path]
    assert contents
    assert contents[0] < renamed, "the bytes are flushed before they get their name"
    assert any(renamed < i < committed for i in disk.flushed(place.parent)), "so is the folder, before the row"
    for above in [*place.parent.parents][: len(place.relative_to(tmp_path / "home").parts) - 1]:
        assert any(i < committed for i in disk.flushed(above)), f"{above} has a new entry"


async def test_i1_each_generation_has_bytes_of_its_own(app: App, files: Files, tmp_path: Path) -> None:
    await app.ingest([files(**{"a.txt": "the same words", "b.txt": "the same words"})])
    keys = [row[0] for row in sql(tmp_path / "home", "SELECT raw_key FROM generations")]
    assert len(keys) == len(set(keys)) == 2
    assert raw_of(tmp_path / "home", "a.txt").read_text() == "the same words"


async def test_i1_a_row_is_never_written_for_bytes_that_were_not(
    app: App, files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    folder = files(**{"a.txt": "words"})
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(StorageError, match="the disk is full"):
            await app.ingest([folder], wait=False)
    assert await app.list_documents() == []
    assert (await app.ingest([folder])).completed == 1


async def test_submit_alone_does_no_work(app: App, files: Files) -> None:
    summary = await app.ingest([files(**{"a.txt": text(5)})], wait=False)
    assert (summary.submitted, summary.pending, summary.completed) == (1, 1, 0)
    assert (await only(app)).status == "PENDING"
    assert (await app.run()).completed == 1


async def test_many_files_come_in_several_batches(app: App, files: Files) -> None:
    folder = files(**{f"{i:04}.txt": f"note number{i}" for i in range(700)})
    summary = await app.ingest([folder], wait=False)
    assert (summary.submitted, summary.pending) == (700, 700)
    assert (await app.status()).documents == {"PENDING": 700}


async def test_small_and_large_files_come_together(app: App, files: Files) -> None:
    folder = files(**{"small.txt": "small", "large.txt": "large words " * 120_000, "empty.txt": ""})
    summary = await app.ingest([folder], wait=False)
    assert summary.submitted == 3
    sizes = {entry.name: entry.size for entry in await app.list_documents()}
    assert sizes == {"small.txt": 5, "large.txt": 1_440_000, "empty.txt": 0}


async def test_a_stream_is_stored_as_it_comes(app: App) -> None:
    import io

    summary = await app.ingest(data=io.BytesIO(b"streamed words " * 100_000), name="stream.txt", wait=False)
    assert summary.submitted == 1
    assert (await only(app)).size == 1_500_000


async def test_include_and_exclude_choose_files(app: App, files: Files) -> None:
    folder = files(**{"a.txt": "a", "b.md": "b", "c.log": "c"})
    (folder / "deep").mkdir()
    (folder / "deep" / "d.md").write_text("d")
    (folder / ".hidden.txt").write_text("h")
    await app.ingest([folder], include=["*.md", "*.txt"], exclude=["deep"], wait=False)
    assert sorted(entry.name for entry in await app.list_documents()) == ["a.txt", "b.md"]


async def test_priority_and_metadata_are_kept(app: App, files: Files, tmp_path: Path) -> None:
    await app.ingest([files(**{"a.txt": "words"})], priority=7, metadata={"lang": "en"}, batch="b1", wait=False)
    assert sql(tmp_path / "home", "SELECT priority FROM steps") == [(7,)]
    document = await only(app)
    assert (await app.status(document.id)).metadata == {"lang": "en"}
    await app.run()
    [hit] = await app.search("words")
    assert hit.metadata == {"lang": "en"}


async def test_two_calls_that_submit_one_changing_file_agree_in_the_end(start_app: StartApp, files: Files) -> None:
    one, two = await start_app(), await start_app()
    folder = files(**{"a.txt": "first words"})
    for round_ in range(5):
        files(**{"a.txt": f"words of round{round_}"})
        await asyncio.gather(one.ingest([folder]), two.ingest([folder]))
    assert len(await one.list_documents()) == 1
    hits = await one.search("words", 10, mode="text")
    assert [hit.text for hit in hits] == ["words of round4"]
