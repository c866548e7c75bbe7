"""Cancelled, stopped, out of time, killed: what is done is kept, and the result is the same (I4, I12)."""

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import StartApp
from tests.kit.apps import chunks, fast, found, only, slow, text, until, until_status
from tests.kit.busy import Stopwatch
from tests.kit.tables import there

from penstock.app import App
from penstock.indexes.base import TableId
from penstock.stages import chunking

Files = Callable[..., Path]
ROOT = Path(__file__).parents[2]

BIG = 12_000
"""Paragraphs of a document of some 1,500 chunks: six batches, and one commit to the index."""


async def test_cancel_takes_effect_within_two_seconds_and_stops_the_work(app: App, files: Files) -> None:
    slow(app)
    ingest = asyncio.create_task(app.ingest([files(**{"big.txt": text(BIG)})]))
    document = await until_status(app, "EMBEDDING")
    watch = Stopwatch()
    assert await app.cancel([document.id]) == {document.id}
    summary = await ingest
    assert watch.seconds() < 2.0
    assert (summary.cancelled, summary.completed) == (1, 0)
    status = await app.status(document.id)
    assert status.status == "CANCELLED"
    assert {step.status for step in status.steps[-2:]} == {"CANCELLED"}
    assert (await app.run()).completed == 0
    fast(app)
    assert await app.retry([document.id]) == {document.id}
    assert (await app.run()).completed == 1
    assert await found(app, "matter5") == {"big.txt"}


async def test_i12_stop_hands_over_within_two_seconds_and_the_result_is_the_same(
    start_app: StartApp, files: Files
) -> None:
    folder = files(**{"big.txt": text(BIG)})
    app = await start_app()
    slow(app)
    ingest = asyncio.create_task(app.ingest([folder]))
    await until_status(app, "EMBEDDING")
    await asyncio.sleep(0.3)
    watch = Stopwatch()
    app.stop()
    summary = await ingest
    assert watch.seconds() < 2.0
    assert (summary.interrupted, summary.pending) == (True, 1)
    assert (await only(app)).status == "EMBEDDING", "a released document keeps its status"
    next_app = await start_app()
    assert (await next_app.run()).completed == 1
    document = await only(next_app)
    assert document.status == "COMPLETED"
    undisturbed = await start_app("undisturbed")
    await undisturbed.ingest([folder])
    assert await chunks(next_app, document.id) == await chunks(undisturbed, (await only(undisturbed)).id)
    assert await _rows(next_app) == await _rows(undisturbed)


async def _rows(app: App) -> list[tuple[int, str]]:
    """(ordinal, digest) of everything in the index."""
    table = await there(app.ports.index, TableId("default", "default", 1))
    return sorted([(row.ordinal, row.digest) async for batch in table.scan() for row in batch])


async def test_i12_a_run_with_a_small_budget_called_again_and_again_finishes(start_app: StartApp, files: Files) -> None:
    folder = files(**{"big.txt": text(BIG)})
    app = await start_app()
    slow(app, 0.2)
    await app.ingest([folder], wait=False)
    rounds = 0
    while True:
        watch = Stopwatch()
        summary = await app.run(budget_s=0.5)
        assert watch.seconds() < 5
        rounds += 1
        assert rounds < 60
        if not summary.budget_spent:
            break
    assert rounds > 2
    document = await only(app)
    assert (document.status, (await app.status(document.id)).attempts) == ("COMPLETED", 1)
    undisturbed = await start_app("undisturbed")
    await undisturbed.ingest([folder])
    assert await chunks(app, document.id) == await chunks(undisturbed, (await only(undisturbed)).id)
    assert await _rows(app) == await _rows(undisturbed)


@pytest.mark.parametrize("dialect", ["sqlite", "postgres"])
async def test_two_processes_ingest_one_folder_at_once(
    start_app: StartApp, files: Files, dialect: str, request: pytest.FixtureRequest
) -> None:
    database = None if dialect == "sqlite" else request.getfixturevalue("postgres")
    one, two = [await start_app(database=database) for _ in range(2)]
    contents = {f"{i}.txt": f"note{i}\n\n{text(30, f'w{i % 7}')}" for i in range(60)}
    folder = files(**contents)
    both = await asyncio.gather(one.ingest([folder]), two.ingest([folder]))
    assert [(s.failed, s.pending, s.cancelled, s.problems) for s in both] == [(0, 0, 0, [])] * 2
    assert sum(s.completed + s.skipped for s in both) == 120
    entries = await one.list_documents()
    assert sorted(entry.name for entry in entries) == sorted(contents)
    assert {entry.status for entry in entries} == {"COMPLETED"}
    assert await found(one, "note42") == {"42.txt"}
    report = await one.check()
    assert (report.ok, report.problems) == (True, [])


INGEST = """
import asyncio, sys
from penstock.app import open_app
from tests.kit.apps import slow
async def main():
    async with open_app(home=sys.argv[1], database=sys.argv[3] or None, embedder="fake") as app:
        slow(app)
        await app.ingest([sys.argv[2]])
asyncio.run(main())
"""


@pytest.mark.parametrize("dialect", ["sqlite", "postgres"])
async def test_i4_a_killed_process_s_steps_are_taken_over_at_once(
    start_app: StartApp, files: Files, tmp_path: Path, dialect: str, request: pytest.FixtureRequest
) -> None:
    database = None if dialect == "sqlite" else request.getfixturevalue("postgres")
    app = await start_app(database=database)
    folder = files(**{"big.txt": text(BIG)})
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", INGEST, str(tmp_path / "home"), str(folder), database or "", cwd=ROOT
    )
    document = await until_status(app, "EMBEDDING")

    async def checkpointed() -> bool:
        return bool((await app.status(document.id)).progress.embedded)

    await until(checkpointed)
    os.kill(process.pid, signal.SIGKILL)
    await process.wait()
    kept = (await app.status(document.id)).progress.embedded
    watch = Stopwatch()
    running = asyncio.create_task(app.run())

    async def goes_on() -> bool:
        step = (await app.status(document.id)).steps[-2]
        assert step.name == "embed"
        return bool((await app.status(document.id)).progress.embedded > kept)

    await until(goes_on)
    assert watch.seconds() < 5.0, "long before the lease of 15 s is over"
    assert (await running).completed == 1
    assert (await only(app)).status == "COMPLETED"
    assert (await app.check()).ok


@pytest.mark.parametrize("how", ["cancel", "stop"])
async def test_chunking_hears_a_stop_and_a_cancel_between_two_sections(
    start_app: StartApp, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dots in tokens: the splitter takes its time for them, and four megabytes are one window."""
    sections: list[int] = []
    section = chunking._section

    def noted(*arguments: Any) -> Any:
        sections.append(arguments[2])
        return section(*arguments)

    monkeypatch.setattr(chunking, "_section", noted)
    app = await start_app(chunk={"unit": "tokens"})
    await app.ingest(data=b"." * (4 << 20), name="dots.txt", wait=False)
    working = asyncio.create_task(app.work())
    await until(lambda: asyncio.sleep(0, len(sections) >= 3), 60)
    if how == "cancel":
        assert len(await app.cancel([(await only(app)).id])) == 1
        await until(lambda: asyncio.sleep(0, not any(worker.is_busy for worker in app.resources.workers)), 60)
    else:
        app.stop()
        await working
    # What was under way ends; nothing new begins.
    await app.runtime.run_blocking("cpu", len, "")
    before = len(sections)
    await asyncio.sleep(0.5)
    assert len(sections) == before
    assert before < (4 << 20) // (32 << 10) // 2
    app.stop()
    await working


async def test_stop_stops_every_call_of_the_app(app: App, files: Files) -> None:
    """Each call works on whatever is queued: the one that began last is not the only one to be told."""
    slow(app, 600.0)
    folder = files(**{"a.txt": text(30), "b.txt": text(40, "other")})
    calls = [asyncio.create_task(app.ingest([folder / name])) for name in ("a.txt", "b.txt")]

    async def embedding() -> bool:
        return len(await app.list_documents(status="EMBEDDING")) == 2

    await until(embedding)
    app.stop()
    async with asyncio.timeout(20):
        summaries = await asyncio.gather(*calls)
    assert [(summary.interrupted, summary.pending) for summary in summaries] == [(True, 1)] * 2
