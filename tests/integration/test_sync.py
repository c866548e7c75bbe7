"""`penstock.sync`: the library without await, from scripts, threads and inside a running loop."""

import asyncio
import inspect
import os
import signal
import subprocess
import sys
import textwrap
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import penstock.sync
from penstock import App, ConfigError, EventKind, LockHeld, NotFound, OwnerScope, UsageError
from penstock.config import Config, ConfigKeywords, WorkerConfig
from penstock.sync import SyncApp, SyncScope


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    folder = tmp_path / "notes"
    folder.mkdir()
    (folder / "turbine.txt").write_text("The turbine runs at 375 revolutions a minute.\n")
    (folder / "dam.md").write_text("# Dam\n\nThe dam is inspected every spring.\n")
    return folder


def open_app(tmp_path: Path) -> SyncApp:
    return penstock.sync.open_app(home=tmp_path / "home", embedder="fake", worker=WorkerConfig(slots=2))


def test_a_script_needs_no_await(tmp_path: Path, notes: Path) -> None:
    threads = set(threading.enumerate())
    with open_app(tmp_path) as app:
        assert app.ingest(str(notes)).completed == 2
        assert app.ingest(notes).skipped == 2
        [hit] = app.search("turbine", k=1, mode="text")
        assert hit.name == "turbine.txt"
        assert [page.number for page in app.show(hit.document_id, "pages")] == [1]
        assert [receipt.outcome for receipt in app.submit(data=b"new", name="new.txt")] == ["submitted"]
        assert app.run().completed == 1
        assert app.status().documents == {"COMPLETED": 3}
        assert app.status(hit.document_id).name == "turbine.txt"
        assert app.workflow("default").steps[0].name == "validate"
        assert app.for_owner("acme").list_documents() == []
        assert (app.owner, app.config.worker.slots) == ("default", 2)
        with app.hold_index(max_wait=5) as held:
            held.raise_if_lost()
            with pytest.raises(LockHeld), app.hold_index(max_wait=0):
                pass
        with pytest.raises(NotFound):
            app.status("01NOSUCHDOCUMENT")
    assert not [thread for thread in set(threading.enumerate()) - threads if thread.name == "penstock"]
    app.close()
    with pytest.raises(UsageError, match="the app is closed"):
        app.status()


def test_it_works_where_a_loop_runs_already(tmp_path: Path, notes: Path) -> None:
    """As in a notebook."""

    async def cell() -> int:
        with open_app(tmp_path) as app:
            return app.ingest(notes).completed

    assert asyncio.run(cell()) == 2


def test_events_are_an_iterator(tmp_path: Path, notes: Path) -> None:
    with open_app(tmp_path) as app, ThreadPoolExecutor(1) as pool:
        events = app.events(until=pool.submit(app.ingest, notes))
        kinds = [event.kind for event in events]
        assert kinds.count(EventKind.ITEM_END) == 2 or kinds == []
        listened = app.events()
        app.ingest(data=b"one more", name="more.txt")
        assert next(listened).kind == "ITEM_START"


def test_every_public_method_of_the_async_classes_is_there() -> None:
    for sync, of in ((SyncScope, OwnerScope), (SyncApp, App)):
        for name, method in inspect.getmembers(of, inspect.isfunction):
            if name.startswith("_"):
                continue
            made = getattr(sync, name)
            assert not inspect.iscoroutinefunction(made), name
            assert list(inspect.signature(made).parameters)[1:] == list(inspect.signature(method).parameters)[1:], name


def test_a_function_that_is_called_back_cannot_block_the_loop(tmp_path: Path, notes: Path) -> None:
    told: list[str] = []

    def report(progress: object) -> None:
        with pytest.raises(UsageError, match="cannot call the app itself"):
            app.status()
        told.append("refused")

    with open_app(tmp_path) as app:
        assert app.ingest(notes, report=report).completed == 2
    assert told


def test_wrong_settings_are_refused_and_leave_no_thread(tmp_path: Path) -> None:
    before = threading.active_count()
    with pytest.raises(ConfigError, match=r"unknown setting `hoem`: did you mean `home`\?"):
        penstock.sync.open_app(hoem=tmp_path)  # type: ignore[call-arg]
    with pytest.raises(ConfigError, match=r"worker\.slots 0"):
        penstock.sync.open_app(Config(home=str(tmp_path), worker=WorkerConfig(slots=0)))
    with pytest.raises(UsageError, match=r"a Config or single settings, not both \(home\)"):
        penstock.sync.open_app(Config(), home=tmp_path)
    assert threading.active_count() == before
    assert not (tmp_path / "ledger.db").exists()


def test_the_keywords_are_the_settings() -> None:
    assert tuple(ConfigKeywords.__annotations__) == Config.__struct_fields__


def test_ctrl_c_stops_the_work_and_the_same_call_goes_on(tmp_path: Path) -> None:
    folder = tmp_path / "many"
    folder.mkdir()
    for number in range(60):
        (folder / f"{number}.txt").write_text(f"Note {number}. " * 2000)
    script = textwrap.dedent(f"""
        import penstock.sync
        app = penstock.sync.open_app(home={str(tmp_path / "home")!r}, embedder="fake")
        def report(progress):
            if progress.ended:
                print("working", flush=True)
        try:
            app.ingest({str(folder)!r}, report=report)
            print("ended")
        except KeyboardInterrupt:
            print("interrupted", flush=True)
        app.close()
        print("closed", flush=True)
    """)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}
    with subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "working\n"
        process.send_signal(signal.SIGINT)
        said = process.stdout.read().split()
        assert process.wait(60) == 0
    assert said[-2:] == ["interrupted", "closed"]
    with open_app(tmp_path) as app:
        app.ingest(folder)
        assert app.status().documents == {"COMPLETED": 60}
        assert app.check().ok
