"""What a worker counts is what happened."""

import asyncio
import logging
import signal
import threading
import timeit
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import StartApp
from tests.integration.test_interruptions import BIG
from tests.kit.apps import penstock, slow, text, until_status
from tests.kit.damage import segment_of

from penstock.errors import StorageError, Transient
from penstock.ledger.database.connection import Connection
from penstock.ledger.engine import leasing
from penstock.metrics.base import COUNTERS, HISTOGRAMS, NULL_METRICS
from penstock.model.items import Vectors
from penstock.worker import context, runner

Files = Callable[..., Path]


class Book:
    """Everything that was told, by name and the value of the label."""

    def __init__(self) -> None:
        self.counts: Counter[tuple[str, str]] = Counter()
        self.timings: list[tuple[str, str, float]] = []
        self._lock = threading.Lock()

    def incr(self, name: str, value: int = 1, **labels: str) -> None:
        assert tuple(labels) == COUNTERS[name].labels
        with self._lock:
            self.counts[name, "".join(labels.values())] += value

    def observe(self, name: str, value: float, **labels: str) -> None:
        assert tuple(labels) == HISTOGRAMS[name].labels
        with self._lock:
            self.timings.append((name, "".join(labels.values()), value))

    def of(self, name: str) -> dict[str, int]:
        return {label: count for (found, label), count in sorted(self.counts.items()) if found == name and count}

    def total(self, name: str) -> int:
        return sum(self.of(name).values())


@pytest.fixture
def book() -> Book:
    return Book()


async def test_steps_documents_and_items_are_counted(start_app: StartApp, files: Files, book: Book) -> None:
    app = await start_app(metrics=book)
    await app.ingest([files(**{"a.txt": text(50), "b.md": "# One\n\nand a word", "bad.bin": bytes(range(256)) * 40})])
    done = {"validate": 3, "extract": 2, "clean": 2, "chunk": 2, "embed": 2, "index": 2}
    assert book.of("step_completed") == dict(sorted(done.items()))
    assert (book.of("step_failed"), book.total("step_error")) == ({}, 0)
    assert book.of("document_ended") == {"COMPLETED": 2, "UNSUPPORTED": 1}
    chunks = sum(entry.chunks or 0 for entry in await app.list_documents())
    made = {name: book.total(name) for name in ("pages", "chunks", "embedded", "indexed")}
    assert made == {"pages": 2, "chunks": chunks, "embedded": chunks, "indexed": chunks}
    begun = book.total("claim_success") + book.total("step_chained")
    assert begun == book.total("step_completed") + book.total("step_failed") == 13
    assert book.of("claim_success") == {"*": 3, "index": 2}
    assert book.total("ledger_commits") == app.ledger.commits > 0
    measured = Counter((name, label) for name, label, _ in book.timings)
    assert {kind: measured["step_duration", kind] for kind in done} == done
    for at in ("*", "index"):
        assert measured["claim_duration", at] == book.of("claim_attempts")[at]
    assert all(0 <= seconds < 60 for _, _, seconds in book.timings)
    assert book.total("lease_lost") == book.total("step_released") == book.total("worker_reaped") == 0


async def test_a_typed_pool_has_its_name(start_app: StartApp, files: Files, book: Book) -> None:
    app = await start_app(metrics=book)
    await app.ingest([files(**{"a.txt": text(3)})], wait=False)
    work = asyncio.create_task(app.work(pools="embed=1,index=1,*=2"))
    await until_status(app, "COMPLETED")
    app.stop()
    await work
    assert set(book.of("claim_attempts")) <= {"embed", "index", "*"}
    assert book.of("claim_success")["*"] == 1


async def test_a_failure_that_passes_is_an_error_and_no_end(start_app: StartApp, files: Files, book: Book) -> None:
    app = await start_app(metrics=book)
    embedder = app.ports.embedder

    async def once_not(texts: Sequence[str]) -> Vectors:
        vars(embedder).pop("embed_documents")
        raise Transient("not yet")

    vars(embedder)["embed_documents"] = once_not
    assert (await app.ingest([files(**{"a.txt": text(3)})])).completed == 1
    assert (book.of("step_error"), book.total("step_failed")) == ({"embed": 1}, 0)
    assert book.of("step_completed")["embed"] == 1


async def test_a_stop_releases_and_a_cancel_loses_the_lease(start_app: StartApp, files: Files, book: Book) -> None:
    app = await start_app(metrics=book)
    slow(app)
    ingest = asyncio.create_task(app.ingest([files(**{"big.txt": text(BIG)})]))
    await until_status(app, "EMBEDDING")
    app.stop()
    await ingest
    assert (book.of("step_released"), book.total("lease_lost")) == ({"embed": 1}, 0)

    again = await start_app(metrics=book)
    slow(again)
    run = asyncio.create_task(again.run())
    while not any(worker.is_busy for worker in again.resources.workers):  # noqa: ASYNC110
        await asyncio.sleep(0.02)
    await again.cancel([(await again.list_documents())[0].id])
    await run
    assert book.total("lease_lost") == 1
    assert set(book.of("lease_lost")) <= {"heartbeat", "checkpoint", "complete"}
    assert book.of("step_released") == {"embed": 1}


@pytest.mark.parametrize(("wanted", "phase"), [("complete", "complete"), ("flip", "complete"), ("error", "error")])
async def test_a_write_that_finds_another_lease_says_in_which_phase(
    start_app: StartApp, files: Files, book: Book, wanted: str, phase: str
) -> None:
    """Every lease is taken away just before the write that would end the step."""
    app = await start_app(metrics=book, worker={"lease_s": 60.0})
    write = app.ledger.write
    stolen = False

    async def steal_then_write(verb: Any, item: Any) -> Any:
        nonlocal stolen
        if verb.name == wanted and not stolen:
            stolen = True
            await write(
                leasing.REAP, leasing.Reap(frozenset(), tuple(w.services.worker for w in app.resources.workers), 5)
            )
        return await write(verb, item)

    app.ledger.write = steal_then_write  # type: ignore[method-assign]
    content: Any = b"%PDF-1.7\n" + bytes(range(256)) * 40 if wanted == "error" else text(3)
    await app.ingest([files(**{"a.bin" if wanted == "error" else "a.txt": content})])
    assert stolen
    assert book.of("lease_lost") == {phase: 1}


async def test_what_the_dead_held_is_counted_by_whoever_takes_it_back(
    start_app: StartApp, files: Files, book: Book, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = files(**{"a.txt": text(3)})
    penstock(tmp_path / "home", "ingest", str(folder), "--no-wait")
    monkeypatch.setenv("PENSTOCK_FAILPOINTS", "provider.answer.after=kill@1")
    assert penstock(tmp_path / "home", "run").returncode == -signal.SIGKILL
    monkeypatch.delenv("PENSTOCK_FAILPOINTS")
    app = await start_app(metrics=book)
    assert (await app.run()).completed == 1
    assert (book.of("step_reset_by_reaper"), book.total("worker_reaped")) == ({"embed": 1}, 1)
    assert book.total("step_failed") == 0


async def test_a_torn_artifact_is_counted(start_app: StartApp, files: Files, book: Book, tmp_path: Path) -> None:
    app = await start_app(metrics=book)
    await app.ingest([files(**{"a.txt": text(80)})])
    segment = segment_of(tmp_path / "home", "a.txt", "chunk")
    segment.write_bytes(segment.read_bytes()[:-3])
    assert (await app.ingest([files(**{"b.txt": text(80)})])).completed == 1
    assert book.total("step_rewound") >= 1


async def test_a_claimed_step_whose_document_is_deleted_meanwhile_is_a_lost_race(
    start_app: StartApp, files: Files, book: Book, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = await start_app(metrics=book)
    await app.ingest([files(**{"a.txt": text(3)})], wait=False)
    [document] = await app.list_documents()
    loop, load = asyncio.get_running_loop(), context.load

    def delete_then_load(connection: Connection, *args: Any) -> Any:
        asyncio.run_coroutine_threadsafe(app.delete([document.id]), loop).result(10)
        return load(connection, *args)

    monkeypatch.setattr(runner, "load", delete_then_load)
    await app.run()
    assert (book.of("claim_lost_race"), book.total("step_completed")) == ({"*": 1}, 0)


async def test_a_claim_that_the_ledger_refuses_is_counted(start_app: StartApp, book: Book) -> None:
    app = await start_app(metrics=book)
    work = asyncio.create_task(app.work())
    while not book.total("claim_idle"):  # noqa: ASYNC110
        await asyncio.sleep(0.02)

    def rename(connection: Connection) -> None:
        connection.begin()
        connection.script("ALTER TABLE steps RENAME TO gone")
        connection.commit()

    await app.ledger.read(rename)
    for worker in app.resources.workers:
        worker.wake()
    with pytest.raises(StorageError):
        await work
    assert book.total("claim_error") >= 1


async def test_metrics_that_raise_change_nothing_and_are_told_once(
    start_app: StartApp, files: Files, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken:
        def incr(self, name: str, value: int = 1, **labels: str) -> None:
            raise ValueError("broken")

        def observe(self, name: str, value: float, **labels: str) -> None:
            raise ValueError("broken")

    app = await start_app(metrics=Broken())
    with caplog.at_level(logging.ERROR, logger="penstock"):
        assert (await app.ingest([files(**{"a.txt": text(3)})])).completed == 1
    assert len(caplog.records) == 1
    assert (await app.check()).ok


def test_where_nobody_listens_a_call_costs_next_to_nothing() -> None:
    calls = 10_000
    took = min(timeit.repeat(lambda: NULL_METRICS.incr("step_completed", kind="chunk"), number=calls, repeat=7))
    assert took / calls < 3e-6, "a step costs hundreds of microseconds"
