"""What was bought is kept and never bought again."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import StartApp
from tests.kit.apps import found, until

from penstock.app import App
from penstock.errors import Away, RateLimited, StorageError
from penstock.model.items import Vectors

Files = Callable[..., Path]


class Seller:
    """Makes the embedder of an app a paid one, and counts what is bought from it."""

    def __init__(self, app: App, max_texts: int = 16) -> None:
        embedder: Any = app.ports.embedder
        embedder._model = replace(embedder.model, remote=True, paid=True, max_texts=max_texts)
        self._embed = embedder.embed_documents
        self.texts: list[str] = []
        self.calls = 0
        self.asked = asyncio.Event()
        self.answering = asyncio.Event()
        self.answering.set()
        self.refusals = 0
        vars(embedder)["embed_documents"] = self.sell

    async def sell(self, texts: Sequence[str]) -> Vectors:
        self.calls += 1
        if self.refusals:
            self.refusals -= 1
            raise RateLimited("the provider answered 429", retry_after=0.1)
        self.asked.set()
        await self.answering.wait()
        self.texts += texts
        vectors: Vectors = await self._embed(texts)
        return vectors


def paragraphs(count: int, prefix: str = "") -> str:
    words = "tells at some length of a river, a dam, a gate and the men who open it when the water is high. "
    return "\n\n".join(f"Paragraph {prefix}{i} {words * 8} It ends with topic{prefix}{i}x." for i in range(count))


async def test_a_text_is_bought_once_whoever_shares_it(start_app: StartApp, files: Files) -> None:
    app = await start_app()
    seller = Seller(app)
    folder = files(**{"a.txt": paragraphs(20), "b.txt": paragraphs(20), "c.txt": paragraphs(5, "c")})
    assert (await app.ingest([folder])).completed == 3
    assert len(seller.texts) == len(set(seller.texts)), "bought twice"
    before = len(seller.texts)
    # The copy has its own artifacts, made from what was bought for the first.
    (folder / "d.txt").write_text(paragraphs(20) + "\n\nOne line more, about topicDx.")
    assert (await app.ingest([folder])).completed == 1
    assert len(seller.texts) - before <= 5
    assert await found(app, "topicDx", 1) == {"d.txt"}
    assert (await app.check()).ok


async def test_i4_an_answer_that_comes_after_the_cancel_is_kept(start_app: StartApp, files: Files) -> None:
    app = await start_app()
    seller = Seller(app, 4096)
    seller.answering.clear()
    folder = files(**{"a.txt": paragraphs(10)})
    working = asyncio.create_task(app.ingest([folder]))
    await asyncio.wait_for(seller.asked.wait(), 60)
    [document] = await app.list_documents()
    await app.cancel([document.id])
    # The worker notices the cancel, and gives the step up; the answer arrives later.
    async with asyncio.timeout(60):
        while (await app.status(document.id)).status != "CANCELLED":  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    seller.answering.set()
    await working
    bought = len(seller.texts)
    assert bought > 0
    (folder / "b.txt").write_text(paragraphs(10))
    assert (await app.ingest([folder / "b.txt"])).completed == 1
    assert len(seller.texts) == bought, "bought again"


async def test_i10_what_one_owner_bought_is_nobody_else_s(start_app: StartApp, files: Files) -> None:
    app = await start_app()
    seller = Seller(app)
    folder = files(**{"a.txt": paragraphs(6)})
    await app.for_owner("anna").ingest([folder])
    bought = len(seller.texts)
    await app.for_owner("bert").ingest([folder])
    assert len(seller.texts) == 2 * bought


async def test_i7_a_refused_call_is_repeated_and_is_no_attempt(start_app: StartApp, files: Files) -> None:
    app = await start_app()
    seller = Seller(app)
    seller.refusals = 3
    assert (await app.ingest([files(**{"a.txt": "One short text about topic1x."})])).completed == 1
    [document] = await app.list_documents()
    status = await app.status(document.id)
    assert all(step.attempts <= 1 for step in status.steps)
    assert (seller.calls, len(seller.texts)) == (4, 1)


async def test_a_damaged_segment_of_bought_answers_is_bought_again(start_app: StartApp, files: Files) -> None:
    app = await start_app()
    seller = Seller(app)
    folder = files(**{"a.txt": paragraphs(6)})
    await app.ingest([folder])
    bought = len(seller.texts)
    for path in (app.config.blobs_path or Path()).rglob("bought/*/*"):
        path.write_bytes(b"damaged")
    report = await app.check()
    assert report.ok
    assert {one.kind for one in report.garbage} == {"bought_broken"}
    (folder / "b.txt").write_text(paragraphs(6) + "\n\nMore of topicBx.")
    assert (await app.ingest([folder])).completed == 1
    assert len(seller.texts) > bought
    assert await found(app, "topicBx", 1) == {"b.txt"}


async def test_old_answers_are_evicted_but_not_those_of_unfinished_runs(
    start_app: StartApp, files: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = await start_app(retention={"bought_megabytes": 0})
    Seller(app)
    folder = files(**{"a.txt": paragraphs(6)})
    await app.ingest([folder])
    # A run that began before the answers were bought, and is not finished.
    await app.ingest([files(**{"z.txt": "waits"}) / "z.txt"], wait=False)
    kept = await app.prune()
    assert kept.answers == 0
    assert (await app.run()).completed == 1
    monkeypatch.setattr("penstock.ledger.engine.answers.TOUCH_S", 0.0)
    gone = await app.prune()
    assert gone.answers >= 6
    assert not list((app.config.blobs_path or Path()).rglob("bought/*/*"))
    assert (await app.check()).ok


@pytest.mark.parametrize("shared", [True, False])
async def test_shared_answers_stay_while_any_owner_has_an_unfinished_run(
    start_app: StartApp, files: Files, monkeypatch: pytest.MonkeyPatch, shared: bool
) -> None:
    app = await start_app(retention={"bought_megabytes": 0, "share_bought": shared})
    Seller(app)
    await app.for_owner("anna").ingest([files(**{"a.txt": paragraphs(6)})])
    await app.for_owner("bert").ingest([files(**{"z.txt": "waits"}) / "z.txt"], wait=False)
    before = (await app.prune()).answers
    assert before == 0 if shared else before >= 6
    assert (await app.run()).completed == 1
    monkeypatch.setattr("penstock.ledger.engine.answers.TOUCH_S", 0.0)
    assert before + (await app.prune()).answers >= 7
    assert not list((app.config.blobs_path or Path()).rglob("bought/*/*"))
    assert (await app.check()).ok


async def test_i4_a_worker_that_stops_waits_for_an_answer_that_is_paid_for_and_keeps_it(
    start_app: StartApp, files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.worker.running.STOP_S", 0.05)
    monkeypatch.setattr("penstock.worker.paid.GRACE_S", 60.0)
    app = await start_app()
    seller = Seller(app, 4096)
    seller.answering.clear()
    working = asyncio.create_task(app.ingest([files(**{"a.txt": paragraphs(10)})]))
    await asyncio.wait_for(seller.asked.wait(), 60)
    [document] = await app.list_documents()
    app.stop()

    async def released() -> bool:
        return any(step.name == "embed" and step.status == "PENDING" for step in (await app.status(document.id)).steps)

    await until(released)
    assert not working.done(), "it does not wait for the answer"
    seller.answering.set()
    assert (await working).interrupted
    bought = len(seller.texts)
    again = await start_app()
    other = Seller(again, 4096)
    assert (await again.run()).completed == 1
    assert (bought > 0, other.texts) == (True, []), "bought again"
    assert await found(again, "topic7x", 1) == {"a.txt"}


async def test_i4_what_cannot_be_stored_is_stored_before_anything_else_is_bought(
    start_app: StartApp, files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.ledger.engine.targets.FIRST_S", 0.05)
    app = await start_app(worker={"slots": 1})
    seller = Seller(app, 4)
    blobs: Any = app.blobs
    put, refusals = blobs.put, [Away("no answer", target="blobs")] * 3

    async def failing(key: str, data: bytes, *, durable: bool) -> Any:
        if "/bought/" in key and refusals and seller.calls >= 2:
            raise refusals.pop()
        return await put(key, data, durable=durable)

    vars(blobs)["put"] = failing
    folder = files(**{"a.txt": paragraphs(20), "b.txt": paragraphs(20, "b")})
    for _ in range(10):
        with suppress(StorageError):
            await app.ingest([folder])
        if {one.status for one in await app.list_documents()} == {"COMPLETED"}:
            break
    assert {one.status for one in await app.list_documents()} == {"COMPLETED"}
    assert not refusals
    assert len(seller.texts) == len(set(seller.texts)), "bought again"
