"""Lifecycle events on their way to the handlers of a workflow (I8)."""

import json
import logging
import re
import signal
import sqlite3
import subprocess
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import StartApp
from tests.integration import own_handlers
from tests.integration.own_handlers import contexts, heard
from tests.integration.test_metrics import Book
from tests.kit.apps import until
from tests.kit.busy import Stopwatch
from tests.kit.cli import COMMAND

from penstock.app import App
from penstock.events import dispatcher, retry
from penstock.ledger.upkeep import checksums
from penstock.model.events import EventKind
from penstock.model.nouns import WorkerId

ROOT = Path(__file__).parents[2]
STEPS = "steps: {validate: , extract: , clean: , chunk: , embed: , index: }"
BAD = b"%PDF-1.7\n" + bytes(range(256)) * 9


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    heard.clear()
    contexts.clear()
    monkeypatch.setattr(own_handlers, "broken", False)
    monkeypatch.setattr(retry, "METHOD_S", 0.01)


def workflow(folder: Path, events: str, handler: str = "hear", **more: Any) -> str:
    """The path of a workflow in which one handler is told of these events."""
    entry = json.dumps([{"name": "mine", "method": f"tests.integration.own_handlers.{handler}", **more}])
    lines = [f"  {event}: {entry}" for event in events.split()]
    path = folder / f"{handler}.yaml"
    path.write_text("\n".join([f"id: told\n{STEPS}\nlifecycle_events:", *lines]) + "\n")
    return str(path)


def kinds() -> Counter[str]:
    return Counter(event.kind for event in heard)


ALL = " ".join(kind.lower() for kind in EventKind)


async def test_i8_handlers_are_told_of_everything_that_they_asked_for_once(
    start_app: StartApp, tmp_path: Path, database_url: str
) -> None:
    app = await start_app(database=database_url)
    path = workflow(tmp_path, ALL, parameters={"colour": "red"})
    files = tmp_path / "files"
    files.mkdir()
    (files / "dam.txt").write_text("the dam is high")
    (files / "noise.bin").write_bytes(BAD)
    summary = await app.for_owner("anna").ingest([files], workflow=path, batch="spring", collection="papers")
    steps = ("validate", "extract", "clean", "chunk", "embed", "index")
    assert kinds() == {
        "GROUP_START": 1, "GROUP_END": 1, "ITEM_START": 2, "ITEM_END": 1, "ITEM_FAILED": 1,
        "STEP_START": 8, "STEP_END": 7, "STEP_FAILED": 1,
    }  # fmt: skip
    assert len({event.id for event in heard}) == len(heard)
    assert {(e.owner, e.collection, e.workflow, e.group_id, e.batch) for e in heard} == {
        ("anna", "papers", "told", summary.group, "spring")
    }
    documents = {d.name: d for d in await app.for_owner("anna").list_documents()}
    ended = next(e for e in heard if e.kind == "ITEM_END")
    assert (ended.name, ended.document_id) == ("dam.txt", documents["dam.txt"].id)
    assert (ended.source, ended.status) == (documents["dam.txt"].source, "COMPLETED")
    assert (ended.meta, ended.step, ended.counts) == ({"pages": 1, "chunks": 1}, None, {})
    assert ended.id.startswith(f"{ended.run_id}-")
    assert abs(ended.at - time.time()) < 60
    failed = next(e for e in heard if e.kind == "ITEM_FAILED")
    assert (failed.name, failed.step, failed.step_kind, failed.status) == (
        "noise.bin",
        "extract",
        "extract",
        "FAILED",
    )
    assert failed.error
    assert failed.meta["reason"] == "damaged"
    end = next(e for e in heard if e.kind == "GROUP_END")
    assert (end.completion, end.counts, end.document_id, end.run_id) == (1, {"COMPLETED": 1, "FAILED": 1}, None, None)
    assert end.id.startswith(f"{summary.group}-")
    assert {e.step for e in heard if e.kind == "STEP_END"} == set(steps)
    assert {(c.parameters["colour"], c.attempt, c.app, c.workflow.id) for c in contexts} == {("red", 1, app, "told")}
    assert (await app.for_owner("anna").status()).events.waiting == 0
    told = len(heard)
    await app.run()
    assert len(heard) == told


async def test_i8_no_event_is_written_without_a_handler(app: App, tmp_path: Path) -> None:
    await app.ingest(data=b"words", name="a.txt", workflow=workflow(tmp_path, "item_end"))
    await app.ingest(data=b"other words", name="b.txt")
    assert [(event.kind, event.name) for event in heard] == [("ITEM_END", "a.txt")]


async def test_i8_a_retry_of_a_group_ends_it_once_more(start_app: StartApp, tmp_path: Path) -> None:
    app = await start_app(workflow=workflow(tmp_path, "group_end"))
    await app.ingest(data=BAD, name="a.bin")
    await app.replay()
    await app.run()
    assert [(event.completion, event.counts) for event in heard] == [(1, {"FAILED": 1}), (2, {"FAILED": 1})]


async def test_the_counts_of_a_group_are_of_its_documents_however_often_they_ran(
    start_app: StartApp, tmp_path: Path
) -> None:
    path = tmp_path / "picky.yaml"
    own = "{kind: enrich, method: tests.integration.own_steps.picky}"
    handler = "[{name: mine, method: tests.integration.own_handlers.hear}]"
    steps = STEPS.replace("chunk: ,", f"chunk: , picky: {own},")
    path.write_text(f"id: picky\n{steps}\nlifecycle_events: {{group_end: {handler}}}\n")
    app = await start_app(workflow=str(path))
    (tmp_path / "a.txt").write_text("words")
    (tmp_path / "b.txt").write_text("  ")
    await app.ingest([tmp_path / "a.txt", tmp_path / "b.txt"])
    await app.replay(reason="picky", values={"picky": {"likes": "it"}})
    await app.run()
    assert [event.counts for event in heard] == [
        {"FAILED": 1, "NOT_INDEXABLE": 1},
        {"COMPLETED": 1, "NOT_INDEXABLE": 1},
    ]
    [group] = await app.list_groups()
    assert (group.total, group.completed, group.failed, group.completions) == (2, 1, 0, 2)


async def test_i8_what_was_submitted_by_others_is_reported_by_the_worker(start_app: StartApp, tmp_path: Path) -> None:
    first, second = await start_app(), await start_app()
    await first.ingest(data=b"words", name="a.txt", workflow=workflow(tmp_path, "group_start item_end"), wait=False)
    assert (await first.status()).events.waiting == 1
    assert heard == []
    await second.run()
    assert kinds() == {"GROUP_START": 1, "ITEM_END": 1}
    assert {c.app for c in contexts} == {second}


async def test_i8_a_handler_that_fails_is_tried_again_then_a_dead_letter_which_can_be_replayed(
    app: App, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(own_handlers, "broken", True)
    await app.ingest(data=b"words", name="a.txt", workflow=workflow(tmp_path, "item_end group_end", "stumble"))

    async def given_up() -> bool:
        await app.run()
        return bool((await app.list_dead_letters()).total == 2)

    await until(given_up)
    assert kinds() == {"ITEM_END": 3, "GROUP_END": 3}
    assert len({event.id for event in heard}) == 2
    found = await app.list_dead_letters()
    assert found.by_reason == {"handler_error": 2}
    letter = next(one for one in found.letters if one.event and one.event.kind == "ITEM_END")
    event = next(event for event in heard if event.kind == "ITEM_END")
    assert letter.event is not None
    assert (letter.event.id, letter.handler, letter.name, letter.attempts) == (event.id, "mine", "a.txt", 3)
    assert letter.error == "ValueError: the cellar is flooded"
    assert "own_handlers.py" in (letter.traceback or "")
    of_group = next(one for one in found.letters if one.event and one.event.kind == "GROUP_END")
    assert (of_group.document_id, of_group.name) == (None, None)
    [document] = await app.list_documents()
    assert document.status == "COMPLETED"
    assert (await app.check()).ok

    monkeypatch.setattr(own_handlers, "broken", False)
    heard.clear()
    done = await app.replay([letter.id])
    assert (done.count, done.events, done.by_reason) == (0, 1, {"handler_error": 1})
    await app.run()
    assert [one.id for one in heard] == [event.id]
    assert (await app.replay(reason="nothing")).events == 0
    assert (await app.replay(reason="handler_error", dry_run=True)).events == 1
    assert (await app.replay(reason="handler_error")).events == 1
    await app.run()
    assert kinds() == {"ITEM_END": 1, "GROUP_END": 1}
    assert (await app.list_dead_letters()).total == 0


async def test_what_was_told_and_what_was_not_is_counted(
    start_app: StartApp, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    book = Book()
    app = await start_app(metrics=book)
    monkeypatch.setattr(own_handlers, "broken", True)
    path = workflow(tmp_path, "item_end group_end", "stumble", retries=2)
    await app.ingest(data=b"words", name="a.txt", workflow=path)

    async def given_up() -> bool:
        await app.run()
        return bool((await app.list_dead_letters()).total == 2)

    await until(given_up)
    monkeypatch.setattr(own_handlers, "broken", False)
    await app.replay(reason="handler_error")
    await app.run()
    each = {"GROUP_END": 1, "ITEM_END": 1}
    assert (book.of("event_error"), book.of("event_failed"), book.of("event_delivered")) == (each, each, each)
    assert Counter(event for name, event, _ in book.timings if name == "delivery_duration") == dict.fromkeys(each, 3)


async def test_i8_letters_of_events_stay_when_their_document_is_tried_again(app: App, tmp_path: Path) -> None:
    path = workflow(tmp_path, "item_failed", "refuse")
    summary = await app.ingest(data=BAD, name="a.bin", workflow=path)
    assert summary.reasons == {"damaged": 1}
    letters = (await app.list_dead_letters()).letters
    assert {(one.reason, one.attempts, one.traceback) for one in letters if one.event} == {("rate_limited", 1, None)}
    [document] = await app.list_documents()
    await app.retry([document.id])
    assert [one.reason for one in (await app.list_dead_letters()).letters] == ["rate_limited"]
    [letter] = (await app.list_dead_letters()).letters
    assert (await app.discard([letter.id])).discarded == [letter.id]
    assert (await app.list_dead_letters()).total == 0


async def test_a_handler_that_hangs_is_cut_off(app: App, tmp_path: Path) -> None:
    path = workflow(tmp_path, "item_end", "hang", timeout=0.2, retries=1)
    watch = Stopwatch()
    await app.ingest(data=b"words", name="a.txt", workflow=path)
    assert watch.seconds() < 10
    [letter] = (await app.list_dead_letters()).letters
    assert (letter.reason, letter.error) == ("handler_timeout", "it took longer than 0.2 s")


async def test_a_handler_may_answer_what_it_likes_and_one_that_cancels_itself_has_failed(
    app: App, tmp_path: Path
) -> None:
    await app.ingest(data=b"words", name="a.txt", workflow=workflow(tmp_path, "item_end", "nonsense"))
    assert kinds() == {"ITEM_END": 1}
    await app.ingest(data=b"more", name="b.txt", workflow=workflow(tmp_path, "item_end", "give_up", retries=1))
    [letter] = (await app.list_dead_letters()).letters
    assert (letter.name, letter.reason) == ("b.txt", "handler_error")


async def test_a_method_that_vanished_is_a_dead_letter_at_once(app: App, tmp_path: Path) -> None:
    await app.ingest(data=b"words", name="a.txt", workflow=workflow(tmp_path, "item_end", "vanished"))
    [letter] = (await app.list_dead_letters()).letters
    assert (letter.reason, letter.attempts) == ("bad_method", 1)
    assert "own_handlers has no vanished" in letter.error


async def test_a_spent_budget_leaves_due_events_and_every_call_delivers_some(app: App, tmp_path: Path) -> None:
    path = workflow(tmp_path, "step_end item_end")
    for i in range(5):
        await app.ingest(data=f"words {i}".encode(), name=f"{i}.txt", workflow=path, wait=False)
    for _ in range(200):
        summary = await app.run(budget_s=0.001)
        if not summary.budget_spent:
            break
    assert not summary.budget_spent
    assert kinds() == {"STEP_END": 30, "ITEM_END": 5}
    assert (await app.status()).events.waiting == 0


async def test_events_that_are_due_count_as_work_when_the_budget_is_spent(
    app: App, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatcher, "SIDE_BY_SIDE", 1)
    path = workflow(tmp_path, "item_start step_end item_end group_start group_end")
    await app.ingest(data=b"words", name="a.txt", workflow=path, wait=False)
    connection = sqlite3.connect(app.ledger.database.path)
    while (await app.run(budget_s=0.001)).pending:
        pass
    [(open_runs,)] = connection.execute("SELECT count(*) FROM runs WHERE status = 'OPEN'").fetchall()
    connection.close()
    waiting = (await app.status()).events.waiting
    assert (open_runs, waiting > 1) == (0, True), "one event in a call cannot keep up"
    assert (await app.run(budget_s=0.001)).budget_spent
    assert (await app.status()).events.waiting == waiting - 1
    assert not (await app.run()).budget_spent
    assert kinds() == {"GROUP_START": 1, "ITEM_START": 1, "STEP_END": 6, "ITEM_END": 1, "GROUP_END": 1}


async def test_ingest_ends_when_everybody_was_told(app: App, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatcher, "SIDE_BY_SIDE", 1)
    path = workflow(tmp_path, "step_end item_end", "dawdle", parameters={"seconds": 0.1})
    await app.ingest(data=b"words", name="a.txt", workflow=path)
    assert kinds() == {"STEP_END": 6, "ITEM_END": 1}


async def test_a_budget_that_ends_between_the_work_and_its_events_says_that_there_is_more(
    app: App, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatcher, "SIDE_BY_SIDE", 1)
    path = workflow(tmp_path, "step_end", "dawdle", parameters={"seconds": 0.5})
    summary = await app.ingest(data=b"words", name="a.txt", workflow=path, budget_s=1.5)
    assert summary.budget_spent
    assert (await app.status()).events.waiting > 0


async def test_an_app_that_is_stopping_takes_nothing(app: App, tmp_path: Path) -> None:
    await app.ingest(data=b"words", name="a.txt", workflow=workflow(tmp_path, "group_start"), wait=False)
    late = dispatcher.EventDispatcher(app.ledger, app.runtime, WorkerId("late"), app, {})
    late.stop(at_once=True)
    assert (await late._round()).due
    app.stop()
    await app.run()
    assert heard == []
    assert (await app.status()).events.waiting == 1


# The shipped ones


async def test_log_writes_one_line_of_json(app: App, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "logged.yaml"
    path.write_text(
        f"id: logged\n{STEPS}\nlifecycle_events:\n  item_end: [{{name: log, method: penstock.events.handlers.log}}]\n"
    )
    with caplog.at_level(logging.INFO, "penstock.events"):
        await app.ingest(data=b"words", name="a\nb.txt", workflow=str(path))
    [line] = [record.getMessage() for record in caplog.records if record.name == "penstock.events"]
    assert "\n" not in line
    assert (json.loads(line)["kind"], json.loads(line)["name"]) == ("ITEM_END", "a\nb.txt")


FOREIGN = """\
id: batch_split_vacuum
meta: {}
name: Batch workflow with splitting, vacuum and hash checking
lifecycle_events:
  group_end:
    - name: start span
      method: soliplex.ingester.example.run_end
      retries: 1
      parameters: {}
item_steps:
  validate: {name: validate document, retries: 3, method: soliplex.ingester.lib.workflow.validate_document}
  parse: {name: docling parse, retries: 3, method: soliplex.ingester.lib.workflow.split_parse_document}
  chunk: {name: docling chunk, retries: 3, method: soliplex.ingester.lib.workflow.chunk_document}
  embed: {name: embeddings, retries: 3, method: soliplex.ingester.lib.workflow.embed_document}
  store: {name: save to rag, retries: 3, method: soliplex.ingester.lib.workflow.save_to_rag}
"""


async def checksums_of(app: App) -> list[str]:
    return [f"{stored.place.owner}/{stored.place.collection}" for stored in await app.ledger.read(checksums.stored, "")]


async def test_the_index_is_vacuumed_at_the_end_of_a_group(
    start_app: StartApp, tmp_path: Path, database_url: str
) -> None:
    app = await start_app(database=database_url)
    path = tmp_path / "foreign.yaml"
    path.write_text(FOREIGN)
    for i in range(3):
        (tmp_path / f"{i}.txt").write_text(f"the dam is {i} metres high")
    files = [tmp_path / f"{i}.txt" for i in range(3)]
    assert (await app.for_owner("anna").ingest(files, workflow=str(path), collection="papers")).completed == 3
    assert await checksums_of(app) == ["anna/papers"]
    assert (await app.check()).ok
    assert (await app.status()).events.waiting == 0
    hits = await app.for_owner("anna").search("how high is the dam?", collection="papers")
    assert len(hits) == 3


async def test_a_worker_vacuums_at_the_end_of_a_group(start_app: StartApp, tmp_path: Path) -> None:
    app = await start_app()
    path = tmp_path / "foreign.yaml"
    path.write_text(FOREIGN)
    await app.ingest(data=b"the dam is high", name="a.txt", workflow=str(path), wait=False)
    worker = process(tmp_path / "home", "worker", "--pools", "extract=1,*=2")

    async def is_stored() -> bool:
        return await checksums_of(app) == ["default/default"]

    await until(is_stored)
    worker.send_signal(signal.SIGTERM)
    _, said = worker.communicate(timeout=30)
    assert worker.returncode == 0, said
    assert (await app.list_dead_letters()).total == 0
    assert (await app.check()).ok


async def test_an_index_that_somebody_keeps_is_vacuumed_another_time(start_app: StartApp, tmp_path: Path) -> None:
    app, other = await start_app(), await start_app()
    path = tmp_path / "tidy.yaml"
    path.write_text(
        f"id: tidy\n{STEPS}\nlifecycle_events:\n  item_start: [{{name: tidy, method: penstock.events.handlers.vacuum, "
        "retries: 2, parameters: {wait_s: 0.1}}]\n"
    )
    await app.ingest(data=b"words", name="a.txt", wait=True)
    async with other.hold_index():
        await app.ingest(data=b"more words", name="b.txt", workflow=str(path), budget_s=2.0)
        [letter] = (await app.list_dead_letters()).letters
    assert (letter.reason, letter.attempts) == ("index_busy", 2)
    assert "held its lock for 0.1 s" in letter.error
    assert await checksums_of(app) == []
    await app.replay()
    await app.run()
    assert (await app.list_dead_letters()).total == 0
    assert await checksums_of(app) == ["default/default"]
    assert (await app.check()).ok


# Processes that die


def process(home: Path, *arguments: str, **settings: str) -> subprocess.Popen[bytes]:
    environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", "PENSTOCK_EMBEDDER": "fake"}
    environment |= {"PENSTOCK_HOME": str(home), **{f"PENSTOCK_{name}": value for name, value in settings.items()}}
    return subprocess.Popen(
        [*COMMAND, *arguments], env=environment, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


def told(folder: Path) -> list[list[str]]:
    path = folder / "told"
    return [line.split() for line in path.read_text().splitlines()] if path.exists() else []


async def submitted(start_app: StartApp, folder: Path, **more: Any) -> App:
    app = await start_app()
    path = workflow(folder, "item_end", "write_down", parameters={"folder": str(folder)}, **more)
    await app.ingest(data=b"words", name="a.txt", workflow=path, wait=False)
    return app


@pytest.mark.parametrize("failpoint", ["ledger.flip.after", "ledger.dispatch.after", "ledger.take.after"])
async def test_i8_a_kill_between_event_and_delivery_only_delays_it(
    start_app: StartApp, tmp_path: Path, failpoint: str
) -> None:
    await submitted(start_app, tmp_path)
    killed = process(tmp_path / "home", "run", FAILPOINTS=f"{failpoint}=kill@1")
    killed.communicate(timeout=30)
    assert killed.returncode == -signal.SIGKILL
    assert told(tmp_path) == []
    process(tmp_path / "home", "run").communicate(timeout=30)
    assert [kind for _, kind, _ in told(tmp_path)] == ["ITEM_END"]


async def test_i8_a_kill_in_the_middle_of_a_handler_delivers_again_with_the_same_id(
    start_app: StartApp, tmp_path: Path
) -> None:
    app = await submitted(start_app, tmp_path)
    (tmp_path / "deadly").touch()
    process(tmp_path / "home", "run").communicate(timeout=30)
    (tmp_path / "deadly").unlink()
    process(tmp_path / "home", "run").communicate(timeout=30)
    (first, *_), (second, _, attempt) = told(tmp_path)
    assert first == second
    assert attempt == "2"
    assert (await app.list_dead_letters()).total == 0


async def test_i8_a_handler_that_kills_its_worker_again_and_again_ends_as_a_dead_letter(
    start_app: StartApp, tmp_path: Path
) -> None:
    app = await submitted(start_app, tmp_path, retries=2)
    (tmp_path / "deadly").touch()
    for expected in (-signal.SIGKILL, -signal.SIGKILL, 0):
        dying = process(tmp_path / "home", "run")
        dying.communicate(timeout=30)
        assert dying.returncode == expected
    assert [attempt for _, _, attempt in told(tmp_path)] == ["1", "2"]
    [letter] = (await app.list_dead_letters()).letters
    assert letter.reason == "crash_loop"
    (tmp_path / "deadly").unlink()
    await app.replay()
    process(tmp_path / "home", "run").communicate(timeout=30)
    assert told(tmp_path)[-1][2] == "1"


async def test_a_worker_that_is_stopped_gives_back_what_it_was_about_to_deliver(
    start_app: StartApp, tmp_path: Path
) -> None:
    app = await submitted(start_app, tmp_path)
    (tmp_path / "slow").touch()
    worker = process(tmp_path / "home", "worker")

    async def begun() -> bool:
        return bool(told(tmp_path))

    await until(begun)
    watch = Stopwatch()
    worker.send_signal(signal.SIGTERM)
    _, said = worker.communicate(timeout=30)
    assert worker.returncode == 0, said
    assert watch.seconds() < 4
    (tmp_path / "slow").unlink()
    await app.run()
    assert [attempt for _, _, attempt in told(tmp_path)] == ["1", "1"], "the attempt was given back"


@pytest.mark.parametrize("ended_by", ["timeout", "signal"])
async def test_a_handler_that_cannot_be_stopped_keeps_no_process(
    start_app: StartApp, tmp_path: Path, ended_by: str
) -> None:
    app = await start_app()
    limits = {"timeout": 0.2, "retries": 1} if ended_by == "timeout" else {}
    path = workflow(tmp_path, "item_end", "cling", parameters={"folder": str(tmp_path)}, **limits)
    await app.ingest(data=b"words", name="a.txt", workflow=path, wait=False)
    working = process(tmp_path / "home", "run" if ended_by == "timeout" else "worker")

    async def begun() -> bool:
        return (tmp_path / "told").exists()

    await until(begun)
    watch = Stopwatch()
    if ended_by == "signal":
        working.send_signal(signal.SIGTERM)
    _, said = working.communicate(timeout=20)
    assert working.returncode == 0, said
    assert watch.seconds() < 4
    assert b"destroyed" not in said
    assert await app.list_workers() == []


async def test_a_worker_shows_what_log_writes_on_standard_error(tmp_path: Path) -> None:
    path = tmp_path / "logged.yaml"
    path.write_text(
        f"id: logged\n{STEPS}\nlifecycle_events:\n  item_end: [{{name: log, method: penstock.events.handlers.log}}]\n"
    )
    (tmp_path / "a.txt").write_text("words")
    done = process(tmp_path / "home", "ingest", str(tmp_path / "a.txt"), "--workflow", str(path), "--json")
    out, err = done.communicate(timeout=30)
    assert json.loads(out)["completed"] == 1
    assert re.search(rb'^\{"id":.*"kind":"ITEM_END".*\}$', err, re.M)
