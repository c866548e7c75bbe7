"""Whatever people hand in: it is told apart, told in a sentence, and harms nothing else."""

import asyncio
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import StartApp
from tests.kit.apps import found, named, only, penstock, text
from tests.kit.damage import sql
from tests.kit.texts import SCREEN_DUMP

from penstock.app import App
from penstock.errors import UsageError
from penstock.sources import folder as folder_source

Files = Callable[..., Path]
LONG = bool(os.environ.get("PENSTOCK_LONG"))
GARBAGE = b"\x7fELF\x02\x01" + bytes(range(256)) * 40


async def test_an_empty_file_is_not_indexable(app: App, files: Files) -> None:
    summary = await app.ingest([files(**{"empty.txt": b"", "empty.pdf": b"", "blank.txt": b"\n \t\r\n\f"})])
    assert (summary.not_indexable, summary.failed) == (3, 0)
    assert (await app.status()).dead_letters == 0


async def test_i9_binary_garbage_is_unsupported_whatever_its_name_and_affects_no_other(app: App, files: Files) -> None:
    summary = await app.ingest([files(**{"bad.bin": GARBAGE, "bad.txt": GARBAGE, "good.txt": "good words"})])
    assert (summary.completed, summary.unsupported, summary.failed) == (1, 2, 0)
    assert await found(app, "good") == {"good.txt"}
    assert (await app.list_dead_letters()).total == 0
    unsupported = await app.list_documents(status="UNSUPPORTED")
    assert {d.name for d in unsupported} == {"bad.bin", "bad.txt"}
    assert all((d.media_type or "").startswith("application/") for d in unsupported)
    assert (summary.reasons, (await app.check()).ok) == ({"unsupported_type": 2}, True)


async def test_data_settings_and_source_code_are_read_as_text(app: App, files: Files) -> None:
    names = ("a.csv", "b.tsv", "c.json", "d.jsonl", "e.yaml", "f.xml", "g.rst", "h.py", "i.log", "j.ini", "k.toml")
    summary = await app.ingest([files(**{name: f"heron = {i}" for i, name in enumerate(names)})])
    assert (summary.completed, summary.unsupported, summary.failed) == (len(names), 0, 0)
    assert {hit.name for hit in await app.search("heron", 50)} == set(names)


ODD_NAMES = [b"new\nline.txt", b"tab\t.txt", b"caf\xe9.txt", b"\xff\xfe.txt", "日本語.txt".encode(), b"quote'\".txt",
             b"back\\slash.txt", b"-dash.txt", b"star*?.txt", b" space .txt", b"percent%s.txt",
             b"\x1b[31mred.txt"]  # fmt: skip


async def test_files_with_odd_names_are_known_each_by_its_own(app: App, tmp_path: Path) -> None:
    folder = tmp_path / "odd"
    folder.mkdir()
    for i, name in enumerate(ODD_NAMES):
        Path(os.fsdecode(os.path.join(os.fsencode(folder), name))).write_text(f"the words of file{i}")
    summary = await app.ingest([folder])
    assert (summary.completed, summary.failed, summary.problems) == (len(ODD_NAMES), 0, [])
    assert (await app.ingest([folder])).skipped == len(ODD_NAMES)
    entries = await app.list_documents()
    assert len({entry.source for entry in entries}) == len(ODD_NAMES)
    for entry in entries:
        entry.source.encode()
    assert await found(app, "file2") == {r"caf\xe9.txt"}
    assert (await app.ingest([folder], prune=True)).deleted == 0, "the files are still there"


def test_the_command_line_takes_odd_names_and_prints_them_visibly(tmp_path: Path) -> None:
    folder = tmp_path / "odd"
    folder.mkdir()
    paths = [os.path.join(os.fsencode(folder), name) for name in (b"new\nline.txt", b"caf\xe9.txt")]
    for path in paths:
        Path(os.fsdecode(path)).write_text("some words")
    ran = penstock(tmp_path / "home", "--json", "ingest", "--", *paths)
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout)["completed"] == 2
    listed = penstock(tmp_path / "home", "list")
    assert listed.returncode == 0
    listed.stdout.decode()
    assert b"new\nline" not in listed.stdout


SAMPLES = {
    "utf-8": "Grüße aus Köln, naïve façade – “quoted” €100",
    "utf-8-sig": "Grüße aus Köln, naïve façade – “quoted” €100",
    "utf-16-le": "Plain words in two bytes each, line after line of them.",
    "utf-16-be": "Plain words in two bytes each, line after line of them.",
    "utf-16": "Grüße aus Köln with a byte order mark",
    "latin-1": "Grüße aus Köln: die Straße ist naß, das Mädchen läuft über die Brücke.",
    "cp1252": "“Curly quotes” – and dashes… cost €100, naïve façade, Grüße.",
    "shift_jis": "メロスは激怒した。必ず、かの邪智暴虐の王を除かなければならぬと決意した。"
    "メロスには政治がわからぬ。笛を吹き、羊と遊んで暮して来た。",
    "gb18030": "话说天下大势，分久必合，合久必分。周末七国分争，并入于秦。及秦灭之后，楚、汉分争，又并入于汉。",
    "koi8-r": "Все счастливые семьи похожи друг на друга, "
    "каждая несчастливая семья несчастлива по-своему. Все смешалось в доме.",
}  # fmt: skip


@pytest.mark.parametrize("encoding", list(SAMPLES))
async def test_every_encoding_is_read(app: App, encoding: str) -> None:
    sample = "\n".join([SAMPLES[encoding]] * 5)
    assert (await app.ingest(data=sample.encode(encoding), name="a.txt")).completed == 1
    pages = [page.text async for page in app.show((await only(app)).id, "pages")]
    assert "".join(pages) == sample


async def test_a_folder_that_vanishes_during_the_walk_is_reported(
    app: App, files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = files(**{"a.txt": "words"})
    (folder / "deep").mkdir()
    (folder / "deep" / "b.txt").write_text("more words")
    scandir = os.scandir

    def vanishing(path: Any) -> Any:
        if str(path).endswith("deep"):
            raise FileNotFoundError(2, "No such file or directory", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", vanishing)
    summary = await app.ingest([folder], prune=True)
    monkeypatch.undo()
    assert (summary.completed, summary.refused) == (1, 1)
    assert any("deep: No such file" in problem for problem in summary.problems)
    assert summary.deleted == 0, "a folder that could not be read proves nothing"


async def test_a_file_that_vanishes_before_it_is_read_is_reported(
    app: App, files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = files(**{"a.txt": "words", "gone.txt": "words"})
    steady = folder_source._steady

    def vanishing(place: folder_source._Place, most: int) -> bytes | None:
        if place.path.name == "gone.txt":
            place.path.unlink()
        return steady(place, most)

    monkeypatch.setattr(folder_source, "_steady", vanishing)
    summary = await app.ingest([folder])
    assert (summary.completed, summary.refused) == (1, 1)
    assert summary.problems == [f"{folder / 'gone.txt'}: No such file or directory"]


@pytest.mark.parametrize("size", [1000, 3_000_000])
async def test_i1_a_file_that_keeps_changing_is_refused(
    app: App, files: Files, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    """Half of one version and half of another is nobody's document."""
    folder = files(**{"log.txt": "x" * size, "quiet.txt": "quiet words"})
    same = folder_source._same

    def changing(before: os.stat_result, after: os.stat_result) -> bool:
        with (folder / "log.txt").open("a") as file:
            file.write("more and more\n")
        return same(before, os.stat(folder / "log.txt")) if after.st_size >= size else same(before, after)

    with monkeypatch.context() as patch:
        patch.setattr(folder_source, "_same", changing)
        summary = await app.ingest([folder], wait=False)
    assert (summary.submitted, summary.refused) == (1, 1)
    assert "keeps changing while it is read" in summary.problems[0]
    assert (await app.ingest([folder], wait=False)).submitted == 2


async def test_i1_a_file_that_is_written_meanwhile_is_taken_as_it_was_at_one_moment(app: App, files: Files) -> None:
    line = "a line of ten words or so, whole or not\n"
    folder = files(**{"log.txt": ""})
    stop = threading.Event()

    def write() -> None:
        with (folder / "log.txt").open("a") as file:
            while not stop.is_set():
                file.write(line)
                file.flush()

    writer = threading.Thread(target=write)
    writer.start()
    try:
        summaries = [await app.ingest([folder], wait=False) for _ in range(10)]
    finally:
        stop.set()
        writer.join()
    assert all(summary.submitted + summary.refused + summary.skipped == 1 for summary in summaries)
    for entry in await app.list_documents():
        assert entry.size % len(line) == 0


async def test_a_path_that_is_not_there_is_refused(app: App, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such file or folder"):
        await app.ingest([tmp_path / "nowhere"])
    assert penstock(tmp_path / "home2", "ingest", str(tmp_path / "nowhere")).returncode == 2


async def test_an_unreadable_file_is_reported_and_the_others_go_on(
    app: App, files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Root reads everything, so the refusal comes from the door that reads."""
    folder = files(**{"a.txt": "words", "locked.txt": "secret"})
    opened = os.open

    def refusing(path: Any, *args: Any, **options: Any) -> int:
        if path == folder / "locked.txt":
            raise PermissionError(13, "Permission denied", str(path))
        return opened(path, *args, **options)

    monkeypatch.setattr(os, "open", refusing)
    summary = await app.ingest([folder])
    assert (summary.completed, summary.refused) == (1, 1)
    assert summary.problems == [f"{folder / 'locked.txt'}: Permission denied"]


async def test_two_documents_whose_bytes_go_missing_end_as_dead_letters(app: App, files: Files, tmp_path: Path) -> None:
    await app.ingest([files(**{"a.txt": text(5), "b.txt": text(6)})], wait=False)
    for row in sql(tmp_path / "home", "SELECT raw_key FROM generations"):
        (tmp_path / "home" / "blobs" / str(row[0])).unlink()
    assert (await app.run()).failed == 2
    assert (await app.list_dead_letters()).by_reason == {"raw_missing": 2}


@pytest.mark.parametrize("damage", ["gone", "shorter", "longer", "other"])
@pytest.mark.parametrize("size", [5, 30_000])
async def test_i9_raw_bytes_that_are_damaged_are_a_dead_letter_until_they_come_again(
    app: App, files: Files, tmp_path: Path, damage: str, size: int
) -> None:
    """Small ones are read once, large ones in pieces. Nothing is extracted from bytes that nobody accepted."""
    folder = files(**{"a.txt": text(size), "b.txt": "good words"})
    await app.ingest([folder], wait=False)
    [[key]] = sql(tmp_path / "home", "SELECT raw_key FROM generations ORDER BY size DESC LIMIT 1")
    raw = tmp_path / "home" / "blobs" / str(key)
    data = raw.read_bytes()
    half = len(data) // 2
    raw.unlink()
    if damage != "gone":
        raw.write_bytes(
            {"shorter": data[:-1], "longer": data + b"x", "other": data[:half] + b"~" + data[half + 1 :]}[damage]
        )
    summary = await app.run()
    assert (summary.completed, summary.failed) == (1, 1)
    [letter] = (await app.list_dead_letters()).letters
    assert letter.reason == ("raw_missing" if damage == "gone" else "raw_damaged")
    assert "submit the file again" in letter.error
    summary = await app.ingest([folder])
    assert (summary.skipped, summary.completed, summary.failed) == (1, 1, 0)
    assert await found(app, "matter3") == {"a.txt"}
    assert (await app.status()).dead_letters == 0
    assert (await app.ingest([folder])).skipped == 2


async def test_a_link_that_leads_out_of_the_folder_is_left_alone(app: App, files: Files, tmp_path: Path) -> None:
    (tmp_path / "secret.txt").write_text("a secret")
    folder = files(**{"a.txt": "words"})
    (folder / "link.txt").symlink_to(tmp_path / "secret.txt")
    (folder / "loop").symlink_to(folder)
    (folder / "broken.txt").symlink_to(folder / "nothing")
    summary = await app.ingest([folder])
    assert (summary.submitted, summary.completed) == (1, 1)
    assert await found(app, "secret") == set()


async def test_a_pipe_in_a_folder_does_not_hang(app: App, files: Files) -> None:
    folder = files(**{"a.txt": "words"})
    os.mkfifo(folder / "pipe")
    async with asyncio.timeout(10):
        assert (await app.ingest([folder])).completed == 1


MEASURE = """
import asyncio, resource, sys
from penstock.app import open_app
async def main():
    async with open_app(home=sys.argv[1], embedder="fake") as app:
        async def embed(texts):
            import numpy as np
            return np.ones((len(texts), 16), np.float32) / 4
        app.ports.embedder.embed_documents = embed
        summary = await app.ingest([sys.argv[2]])
        assert summary.completed == 1, summary
asyncio.run(main())
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


def _peak(home: Path, path: Path) -> float:
    """Megabytes that a process held at most while it ingested a file."""
    ran = subprocess.run([sys.executable, "-c", MEASURE, str(home), str(path)], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    return int(ran.stdout.split()[-1]) / 1024


def test_a_large_text_never_stands_in_memory_whole(tmp_path: Path) -> None:
    megabytes = 500 if LONG else 30
    tiny, large = tmp_path / "tiny.txt", tmp_path / "large.txt"
    tiny.write_text("a few words")
    paragraph = text(1000).encode() + b"\n\n"
    with large.open("wb") as file:
        for _ in range((megabytes << 20) // len(paragraph)):
            file.write(paragraph)
    grown = _peak(tmp_path / "h2", large) - _peak(tmp_path / "h1", tiny)
    assert grown < 150, f"{grown:.0f} MB for a text of {megabytes} MB"


async def test_i5_an_unsupported_version_replaces_the_good_one(start_app: StartApp, files: Files) -> None:
    app = await start_app()
    folder = files(**{"a.txt": "good words"})
    await app.ingest([folder])
    files(**{"a.txt": GARBAGE})
    await app.ingest([folder])
    entry = await named(app, "a.txt")
    assert (entry.status, entry.searchable, entry.stale) == ("UNSUPPORTED", False, False)
    assert await found(app, "good") == set()
    assert await app.retry([entry.id]) == {entry.id}
    assert (await app.run()).unsupported == 1
    files(**{"a.txt": "good words again"})
    assert (await app.ingest([folder])).completed == 1
    assert await found(app, "good") == {"a.txt"}


async def test_i9_a_screen_dump_is_searchable(app: App, files: Files, capfd: pytest.CaptureFixture[str]) -> None:
    html = f"<html><body><pre>{SCREEN_DUMP.strip('`')}</pre></body></html>"
    summary = await app.ingest([files(**{"dump.md": SCREEN_DUMP, "dump.html": html})])
    assert (summary.completed, summary.failed) == (2, 0)
    assert await found(app, "another") == {"dump.md", "dump.html"}
    assert "panicked" not in capfd.readouterr().err
