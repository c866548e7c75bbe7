"""Real documents: each ends as it should, and damaged copies of them harm nobody."""

import asyncio
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.conftest import StartApp
from tests.kit import corpus

pytestmark = [
    pytest.mark.corpus,
    pytest.mark.skipif(not corpus.CORPUS.exists(), reason="the corpus is not here"),
]
LONG = bool(os.environ.get("PENSTOCK_LONG"))
FUZZED = 1000 if LONG else 60
TEXTLESS = ("NOT_INDEXABLE", "UNSUPPORTED")


def test_every_file_of_the_corpus_has_an_expectation() -> None:
    assert {f"{path.parent.name}/{path.name}" for path in corpus.files()} == set(corpus.expected())


def test_the_text_of_nearly_all_files_is_read() -> None:
    ends = corpus.expected().values()
    damaged = {end.name for end in ends if end.name.startswith("damaged/")}
    unread = [end for end in ends if end.name not in damaged and end.status == "FAILED"]
    assert len(unread) <= 0.03 * (len(ends) - len(damaged)), unread


@pytest.mark.timeout(1200)
async def test_every_file_of_the_corpus_ends_as_expected(start_app: StartApp) -> None:
    app = await start_app()
    expected = corpus.expected()
    await app.ingest([str(path) for path in corpus.files()])
    found = {end.name: end for end in await corpus.ends(app)}
    assert set(found) == set(expected)
    other = []
    for name, end in expected.items():
        got = found[name]
        same = (got.status, got.reason, got.pages) == (end.status, end.reason, end.pages)
        if not same or got.characters < end.characters:
            other.append((end, got))
    assert not other
    assert (await app.check()).ok


@pytest.fixture
def temporary_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder for temporary files, which must be empty at the end."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", None)
    yield folder
    assert not list(folder.iterdir())


@pytest.mark.timeout(7200 if LONG else 600)
async def test_damaged_copies_crash_no_worker_and_leave_nothing_behind(
    start_app: StartApp, tmp_path: Path, temporary_files: Path
) -> None:
    """Damage is random with fixed seeds. Large files are left out: they say no more than small ones."""
    sources = [path for path in corpus.files() if 0 < path.stat().st_size < 400_000]
    folder = tmp_path / "fuzzed"
    folder.mkdir()
    for number in range(FUZZED):
        path = sources[number * 7 % len(sources)]
        data = corpus.mutated(path.read_bytes(), f"{number} {path.name}")
        (folder / f"{number:04}{path.suffix}").write_bytes(data)
    app = await start_app(parsers={"timeout_s": 20, "memory_mb": 512})
    async with asyncio.timeout(7000 if LONG else 550):
        summary = await app.ingest(folder)
    ended = summary.completed + summary.not_indexable + summary.unsupported + summary.failed + summary.skipped
    assert ended >= FUZZED
    assert summary.pending == 0
    documents = await app.list_documents(limit=10_000)
    letters = await app.list_dead_letters(limit=2000)
    assert sum(d.status == "FAILED" for d in documents) == letters.total
    assert not {"crash_loop", "unknown"} & set(letters.by_reason), "no worker died, and each failure has a reason"
    assert (await app.check()).ok
    shutil.rmtree(folder)


def test_no_parser_process_is_left() -> None:
    """Of this process: those of other tests belong to other processes."""
    children = Path(f"/proc/self/task/{os.getpid()}/children")
    names = (
        [Path(f"/proc/{pid}/cmdline").read_bytes() for pid in children.read_text().split()] if children.exists() else []
    )
    assert not [name for name in names if b"penstock.worker.parsers" in name]
