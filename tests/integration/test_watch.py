"""`ingest --watch` keeps on: what is new, changed or gone in a folder is so in the collection, and never by halves."""

import asyncio
import contextlib
import shutil
import signal
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import StartApp
from tests.kit.apps import found, named, until
from tests.kit.cli import Cli, Result

from penstock.app import App
from penstock.errors import NotFound, SourceChanged, UsageError
from penstock.sources.base import Found
from penstock.sources.folder import CHANGING, FolderSource
from penstock.sources.folder_events import FolderEvents
from penstock.verbs import watch
from penstock.verbs.jobs import Summary

Files = Callable[..., Path]
LONG_S = 60.0


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, seconds in {"REST_S": 0.3, "GATHER_S": 0.1, "LOOK_S": 0.1, "TROUBLE_S": 0.2, "TICK_S": 0.05}.items():
        monkeypatch.setattr(watch, name, seconds)


class Watched:
    """A watch that runs, and what it has said."""

    summary: Summary

    def __init__(self) -> None:
        self.problems: list[str] = []


@contextlib.asynccontextmanager
async def watching(app: App, folder: Path, **options: Any) -> AsyncIterator[Watched]:
    """Watch meanwhile, then stop the app."""
    watched = Watched()
    task = asyncio.create_task(app.watch(folder, on_problem=watched.problems.append, **options))
    try:
        yield watched
        assert not task.done(), "it keeps on"
    finally:
        app.stop()
        watched.summary = await asyncio.wait_for(task, LONG_S)


async def until_found(app: App, query: str, *names: str) -> None:
    async def reached() -> bool:
        try:
            return await found(app, query) == set(names)
        except NotFound:
            # Nothing was ingested yet.
            return False

    await until(reached, LONG_S)


async def test_what_is_new_changed_renamed_or_gone_in_the_folder_is_so_in_the_collection(
    start_app: StartApp, files: Files, database_url: str
) -> None:
    app = await start_app(database=database_url)
    folder = files(**{"a.txt": "the weir", "b.txt": "the sluice"})
    async with watching(app, folder, prune=True) as watched:
        await until_found(app, "weir", "a.txt")
        first = (await named(app, "a.txt")).id
        (folder / "deep" / "er").mkdir(parents=True)
        (folder / "deep" / "er" / "c.txt").write_text("the turbine")
        (folder / "a.txt").write_text("the penstock")
        await until_found(app, "turbine", "c.txt")
        await until_found(app, "penstock", "a.txt")
        assert (await named(app, "a.txt")).id == first, "a new version of the same document"
        assert await found(app, "weir") == set()
        (folder / "b.txt").unlink()
        (folder / "deep").rename(folder / "other")
        await until_found(app, "sluice")

        async def moved() -> bool:
            return [d.source for d in await app.list_documents(name="c.txt")] == [str(folder / "other/er/c.txt")]

        await until(moved, LONG_S)
        await until_found(app, "turbine", "c.txt")
    s = watched.summary
    assert (s.submitted, s.completed, s.deleted, s.pending, s.problems, watched.problems) == (5, 5, 2, 0, [], [])


async def test_without_prune_what_is_gone_stays(app: App, files: Files) -> None:
    folder = files(**{"a.txt": "the weir"})
    async with watching(app, folder) as watched:
        await until_found(app, "weir", "a.txt")
        (folder / "a.txt").unlink()
        (folder / "b.txt").write_text("the sluice")
        await until_found(app, "sluice", "b.txt")
        assert await found(app, "weir") == {"a.txt"}
    assert watched.summary.deleted == 0


async def test_a_file_is_accepted_only_when_its_writer_is_done(
    app: App, files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "REST_S", 2.0)
    folder = files(**{"a.txt": "the weir"})
    async with watching(app, folder) as watched:
        await until_found(app, "weir", "a.txt")
        with (folder / "slow.txt").open("w") as file:
            for i in range(60):
                file.write(f"piece{i}\n\n")
                file.flush()
                await asyncio.sleep(0.05)
                assert [d.name for d in await app.list_documents()] == ["a.txt"]
        await until_found(app, "piece59", "slow.txt")
        assert await found(app, "piece0") == {"slow.txt"}
    assert watched.summary.submitted == 2, "once, and whole"


async def test_a_file_that_changes_while_it_is_read_is_taken_later_and_is_no_problem(
    app: App, files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads, read = [0], FolderSource.read_now

    def changing(source: FolderSource, one: Found, most: int) -> bytes | None:
        reads[0] += 1
        if reads[0] <= 2:
            raise SourceChanged(CHANGING)
        return read(source, one, most)

    monkeypatch.setattr(FolderSource, "read_now", changing)
    async with watching(app, files(**{"a.txt": "the weir"}), prune=True) as watched:
        await until_found(app, "weir", "a.txt")
    assert (watched.summary.submitted, watched.summary.refused, watched.problems) == (1, 0, [])
    assert reads[0] == 3, "what has not changed is not read again"


async def test_without_any_notification_the_next_rescan_finds_it(
    app: App, files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def deaf(events: FolderEvents, folders: Sequence[Path]) -> None:
        return

    monkeypatch.setattr(FolderEvents, "follow", deaf)
    monkeypatch.setattr(watch, "RESCAN_S", 0.5)
    folder = files(**{"a.txt": "the weir"})
    async with watching(app, folder, prune=True):
        await until_found(app, "weir", "a.txt")
        (folder / "a.txt").write_text("the sluice")
        await until_found(app, "sluice", "a.txt")
        (folder / "a.txt").unlink()
        await until_found(app, "sluice")


async def test_a_folder_that_goes_and_comes_back_is_followed_and_loses_nothing_meanwhile(
    app: App, files: Files
) -> None:
    folder = files(**{"a.txt": "the weir"})
    async with watching(app, folder, prune=True) as watched:
        await until_found(app, "weir", "a.txt")
        kept = folder.with_name("kept")
        folder.rename(kept)
        async with asyncio.timeout(LONG_S):
            while not watched.problems:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        assert await found(app, "weir") == {"a.txt"}
        shutil.copytree(kept, folder)
        (folder / "b.txt").write_text("the sluice")
        await until_found(app, "sluice", "b.txt")
        (folder / "c.txt").write_text("the turbine")
        await until_found(app, "turbine", "c.txt")
    assert watched.problems == [f"{folder}: it is not there now; its documents are kept"]
    assert (watched.summary.deleted, watched.summary.refused) == (0, 0)


async def test_a_damaged_file_is_reported_once_and_does_not_end_it(app: App, files: Files) -> None:
    folder = files(**{"bad.pdf": b"%PDF-1.4 rubbish", "bad.txt": "words", "bad.txt.meta.json": "{"})
    async with watching(app, folder) as watched:
        async with asyncio.timeout(LONG_S):
            while len(watched.problems) < 2:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        (folder / "good.txt").write_text("the weir")
        await until_found(app, "weir", "good.txt")
    s = watched.summary
    assert (s.failed, s.completed, s.refused, len(s.problems), len(watched.problems)) == (1, 1, 1, 1, 2)
    assert [remark.name for remark in s.remarks] == ["bad.pdf"]


async def test_only_this_machine_can_be_watched(app: App) -> None:
    with pytest.raises(UsageError, match="only files and folders of this machine can be watched"):
        await app.watch("https://example.com/a.txt")
    with pytest.raises(UsageError, match="nothing to watch"):
        await app.watch([])


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_command_with_0_and_one_object(tmp_path: Path, number: signal.Signals) -> None:
    folder = tmp_path / "notes"
    folder.mkdir()
    (folder / "a.txt").write_text("the weir")
    cli = Cli(tmp_path / "home", tmp_path, {})
    mode = ["--no-wait"] if number == signal.SIGTERM else []
    process = cli.start("ingest", "notes", "--watch", "--json", *mode)
    try:
        assert process.stderr is not None
        said = process.stderr.readline()
        while said and b"submitted" not in said:
            said = process.stderr.readline()
        if not mode:
            while said and b"completed" not in said:
                said = process.stderr.readline()
        process.send_signal(number)
        out, err = process.communicate(timeout=LONG_S)
    finally:
        process.kill()
    answer = Result(process.returncode, out.decode(), err.decode())
    assert answer.code == 0, answer
    counts = {name: answer.json[name] for name in ("submitted", "completed", "pending", "interrupted")}
    done = not mode
    assert counts == {"submitted": 1, "completed": int(done), "pending": int(not done), "interrupted": False}
    assert cli("run", "--json").json["completed"] == int(not done)


def test_what_has_no_meaning_for_it_is_refused(tmp_path: Path) -> None:
    cli = Cli(tmp_path / "home", tmp_path, {})
    for more in (["--dry-run"], ["--budget", "5s"], ["--strict"]):
        refused = cli("ingest", tmp_path, "--watch", *more)
        assert (refused.code, "cannot be used with --watch" in refused.err) == (2, True), refused
    assert cli("ingest", "https://example.com/a.txt", "--watch").code == 2
