"""What the embeddings of many documents may cost, in texts, calls and time. With PENSTOCK_LONG=1 at full size."""

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import StartApp
from tests.kit.apps import until
from tests.kit.embedding_server import Answer, EmbeddingServer, serving, settings

from penstock.errors import StorageError
from penstock.ledger.database.statements import Statement

Files = Callable[..., Path]
LONG = os.environ.get("PENSTOCK_LONG") == "1"
PAID: dict[str, Any] = {"embedder": "openai:m?dimensions=64", "prices": {"openai:m": 2.0}}


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[EmbeddingServer]:
    with serving() as server:
        for name, value in settings(server).items():
            monkeypatch.setenv(name, value)
        yield server


def book(chunks: int, name: str) -> str:
    """About as many chunks as asked for."""
    words = "the water of the river runs through the gate and turns the wheel of the mill in the valley below. " * 7
    return "\n\n".join(f"Paragraph {i} of {name}: {words} Topic {name}{i}." for i in range(chunks))


async def test_with_no_kill_exactly_the_distinct_texts_are_bought_and_a_second_run_buys_none(
    server: EmbeddingServer, start_app: StartApp, files: Files
) -> None:
    each, count = (500, 10) if LONG else (30, 6)
    shared = book(each // 3, "shared")
    folder = files(**{f"{n}.txt": f"{shared}\n\n{book(each, f'book{n}')}" for n in range(count)})
    app = await start_app(**PAID)
    assert (await app.ingest(folder)).completed == count
    bought = len(server.texts)
    assert bought == len(set(server.texts)), "bought twice"
    assert bought >= each * count
    chunks = sum(document.chunks or 0 for document in await app.list_documents())
    total = (await app.usage()).total
    assert (total.bought.texts, total.saved_by_cache.texts) == (bought, chunks - bought)
    (folder / "0.txt").touch()
    assert (await app.ingest(folder)).skipped == count
    assert len(server.texts) == bought
    text = (folder / "1.txt").read_text().replace(f"Topic book1{each // 2}.", "Topic changed by hand.")
    (folder / "1.txt").write_text(text)
    assert (await app.ingest(folder)).completed == 1
    assert 1 <= len(server.texts) - bought <= 5


async def test_one_page_documents_share_full_calls(
    server: EmbeddingServer, start_app: StartApp, files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    count, batch = (1000, 256) if LONG else (96, 32)
    monkeypatch.setattr("penstock.embedders.providers.OpenAI.max_texts", batch)
    server.latency_s = 0.1
    folder = files(**{f"{n}.txt": f"The page of gate number {n}. " + "It is open. " * 20 for n in range(count)})
    app = await start_app(**PAID)
    began = time.monotonic()
    assert (await app.ingest(folder)).completed == count
    seconds = time.monotonic() - began
    perfect = -(-count // batch)
    sizes = [len(request["input"]) for request in server.requests]
    print(f"{server.calls} calls {sizes} ({perfect} at best) in {seconds:.1f} s; one by one {count * 0.1:.0f} s")
    assert server.calls <= 1.3 * perfect
    if LONG:
        assert seconds <= count * 0.1 / 5


async def test_embed_steps_that_an_interrupted_worker_left_share_full_calls(
    server: EmbeddingServer, start_app: StartApp, files: Files
) -> None:
    count = 40
    app = await start_app(**PAID, worker={"slots": 1})
    await app.ingest(files(**{f"{n}.txt": f"The page of gate number {n}." for n in range(count)}), wait=False)
    work = asyncio.create_task(app.work(pools="embed=0,*=8"))

    async def waiting() -> bool:
        rows = Statement("SELECT count(*) FROM steps WHERE kind = 'embed' AND status = 'PENDING'")
        return bool((await app.ledger.read(lambda connection: connection.run(rows)))[0][0] == count)

    await until(waiting, 30)
    app.stop()
    await work
    assert server.calls == 0
    assert (await (await start_app(**PAID, worker={"slots": 1})).run()).completed == count
    assert [len(request["input"]) for request in server.requests] == [count]


async def test_a_provider_that_is_away_and_a_revoked_key_cost_no_attempt(
    server: EmbeddingServer, start_app: StartApp, files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    count, away_s = (1000, 60.0) if LONG else (40, 0.5)
    monkeypatch.setattr("penstock.embedders.providers.OpenAI.max_texts", 16)
    monkeypatch.setattr("penstock.ledger.engine.targets.TRIES", 10_000)
    if not LONG:
        monkeypatch.setattr("penstock.ledger.engine.targets.FIRST_S", 0.05)
    trouble: list[tuple[int, Answer]] = [(503, Answer(503, {})), (401, Answer(401, {"error": "revoked"}))]
    until: float | None = None
    answered = 0

    def odd(body: dict[str, Any]) -> Answer | None:
        """Some calls succeed, then none for a time; twice."""
        nonlocal until, answered
        if until is not None and time.monotonic() >= until:
            until, answered = None, 0
            trouble.pop(0)
        if trouble and until is None and answered >= 1:
            until = time.monotonic() + away_s
        answered += 1
        return trouble[0][1] if trouble and until is not None else None

    server.odd = odd
    folder = files(**{f"{n}.txt": f"The page of gate number {n}." for n in range(count)})
    app = await start_app(**PAID)
    async with asyncio.timeout(600):
        summary = await app.ingest(folder)
    assert (summary.completed, summary.failed) == (count, 0)
    assert not trouble
    assert (await app.list_dead_letters()).total == 0
    for document in (await app.list_documents(limit=count))[:: max(1, count // 20)]:
        assert all(step.attempts <= 1 for step in (await app.status(document.id)).steps)
    assert len(server.texts) == len(set(server.texts)) == count


async def test_i4_a_refused_call_is_divided_and_no_text_is_bought_twice(
    server: EmbeddingServer, start_app: StartApp, files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One text is refused, and of the calls that find it, some get no answer."""
    monkeypatch.setattr("penstock.ledger.engine.targets.FIRST_S", 0.05)
    chance = random.Random(4)
    refused = 0

    def odd(body: dict[str, Any]) -> Answer | None:
        nonlocal refused
        if any("poison" in text for text in body["input"]):
            refused += 1
            return Answer(400, {"error": "this text offends us"})
        return Answer(503, {}) if refused and chance.random() < 0.3 else None

    server.odd = odd
    folder = files(**{f"{n}.txt": book(6, f"book{n}") for n in range(10)})
    (folder / "bad.txt").write_text(f"{book(9, 'before')}\n\nthis is poison\n\n{book(9, 'after')}")
    app = await start_app(**PAID)
    for _ in range(20):
        with suppress(StorageError):
            await app.ingest(folder)
        if not sum(one.status not in ("COMPLETED", "FAILED") for one in await app.list_documents()):
            break
    assert refused > 4
    assert {one.name: one.status for one in await app.list_documents() if one.status != "COMPLETED"} == {
        "bad.txt": "FAILED"
    }
    assert (await app.list_dead_letters()).by_reason == {"text_rejected": 1}
    # Other texts than "test", which asks whether the provider is back.
    sold = [text for text in server.texts if text != "test"]
    assert len(sold) == len(set(sold)), "bought twice"
    # All texts of the guilty document but one are bought.
    (folder / "bad.txt").write_text(f"{book(9, 'before')}\n\nthis is better\n\n{book(9, 'after')}")
    bought = len(server.texts)
    server.odd = lambda body: None
    assert (await app.ingest(folder)).completed == 1
    assert len(server.texts) - bought <= 3


def test_i4_hard_kills_buy_again_only_what_was_in_flight(server: EmbeddingServer, tmp_path: Path) -> None:
    chunks, kills = (5000, 20) if LONG else (400, 1)
    home, folder = tmp_path / "home", tmp_path / "books"
    folder.mkdir()
    for n in range(10):
        (folder / f"{n}.txt").write_text(book(chunks // 10, f"book{n}"))
    slots, batch = 2, 64
    (tmp_path / "penstock.yaml").write_text(f"prices: {{'openai:m': 2.0}}\nworker: {{slots: {slots}}}\n")
    server.latency_s = 0.05
    environment = {**os.environ, "PENSTOCK_EMBEDDER": PAID["embedder"], "EMBEDDING_BATCH": str(batch)}
    command = [sys.executable, "-m", "tests.kit.small_batches", "--home", str(home), "ingest", str(folder), "--json"]
    environment.pop("PENSTOCK_LONG", None)
    environment["PYTHONPATH"] = str(Path(__file__).parents[2])
    chance = random.Random(14)
    for _ in range(kills):
        with subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=subprocess.DEVNULL) as process:
            wanted, end = server.calls + chance.randint(1, 4), time.monotonic() + 120
            while server.calls < wanted and process.poll() is None and time.monotonic() < end:
                time.sleep(0.002)
            time.sleep(chance.random() * 0.08)
            process.send_signal(signal.SIGKILL)
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, timeout=600)
    summary = json.loads(done.stdout)
    assert (done.returncode, summary["failed"], summary["pending"]) == (0, 0, 0), done.stderr
    distinct, again = len(set(server.texts)), len(server.texts) - len(set(server.texts))
    largest = max(len(request["input"]) for request in server.requests)
    print(f"{distinct} texts, {again} bought again after {kills} kills; calls of up to {largest}")
    assert largest <= batch
    assert distinct >= chunks
    assert again <= kills * slots * batch
