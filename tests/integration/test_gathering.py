"""Embed steps of several documents share the calls of a remote embedder."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import StartApp
from tests.kit.apps import found, until

from penstock.app import App
from penstock.errors import Permanent
from penstock.model.items import Vectors

Files = Callable[..., Path]
DOCUMENTS = 40


def remote(app: App, max_texts: int = 64) -> list[int]:
    """Make the embedder one that is called over a network; the sizes of its calls. It refuses a call with poison."""
    embedder: Any = app.ports.embedder
    embedder._model = replace(embedder.model, remote=True, max_texts=max_texts)
    calls: list[int] = []
    embed = embedder.embed_documents

    async def counted(texts: Sequence[str]) -> Vectors:
        calls.append(len(texts))
        if any("poison" in text for text in texts):
            raise Permanent("the provider refuses a text", reason="provider_refused")
        vectors: Vectors = await embed(texts)
        return vectors

    vars(embedder)["embed_documents"] = counted
    return calls


def some(files: Files) -> Path:
    return files(**{f"{i}.txt": f"Document {i} tells of subject{i}x." for i in range(DOCUMENTS)})


async def test_small_documents_share_calls(app: App, files: Files) -> None:
    calls = remote(app)
    assert (await app.ingest([some(files)])).completed == DOCUMENTS
    assert sum(calls) == DOCUMENTS
    assert len(calls) < DOCUMENTS / 2
    assert await found(app, "subject7x", 1) == {"7.txt"}


async def test_documents_that_cannot_arrive_are_not_waited_for(start_app: StartApp, files: Files) -> None:
    """Other documents are being read, but all places for embed steps are occupied."""
    app = await start_app(worker={"gather_s": 600})
    calls = remote(app)
    await app.ingest([some(files)], wait=False)
    work = asyncio.create_task(app.work(pools="embed=3,*=4"))

    async def completed() -> bool:
        return sum(one.status == "COMPLETED" for one in await app.list_documents(limit=100)) == DOCUMENTS

    await until(completed, 30)
    app.stop()
    await work
    assert sum(calls) == DOCUMENTS
    assert max(calls) <= 3


async def test_a_step_that_waits_for_the_same_text_is_not_waited_for(start_app: StartApp, files: Files) -> None:
    """The text of all documents is bought for the first of them. It waits for company, and they wait for it."""
    app = await start_app(worker={"gather_s": 600})
    calls = remote(app)
    embedder: Any = app.ports.embedder
    embedder._model = replace(embedder.model, paid=True)
    folder = files(**{f"{i}.md": "The same text.\n" + "\n" * i for i in range(8)})
    async with asyncio.timeout(60):
        assert (await app.ingest([folder])).completed == 8
    assert sum(calls) < 8


async def test_only_the_document_whose_text_is_refused_fails(app: App, files: Files) -> None:
    remote(app)
    folder = some(files)
    (folder / "bad.txt").write_text("this is poison")
    summary = await app.ingest([folder])
    assert (summary.completed, summary.failed) == (DOCUMENTS, 1)
    [letter] = (await app.list_dead_letters()).letters
    assert (letter.name, letter.reason) == ("bad.txt", "provider_refused")


async def test_a_long_document_is_embedded_in_order_with_checkpoints_of_its_own(
    start_app: StartApp, files: Files
) -> None:
    """The same vectors as one that makes its own calls, in a worker with room for one."""
    words = "\n\n".join(
        f"Paragraph {i} tells of matter{i}y at some length, so that it fills a line." for i in range(900)
    )
    made = []
    for name, gathers in (("alone", False), ("shared", True)):
        app = await start_app(home=name, worker={"slots": 1})
        if gathers:
            remote(app, 300)
        folder = some(files)
        (folder / "long.txt").write_text(words)
        assert (await app.ingest([folder])).failed == 0
        hits = await app.search("matter77y matter400y", 20, mode="vector")
        made.append([(hit.name, hit.start, round(hit.score, 5)) for hit in hits])
    assert made[0] == made[1]


@pytest.mark.parametrize("slots", [1, 8])
async def test_a_local_embedder_is_called_by_each_step(start_app: StartApp, files: Files, slots: int) -> None:
    app = await start_app(worker={"slots": slots})
    calls = remote(app)
    embedder: Any = app.ports.embedder
    embedder._model = replace(embedder.model, remote=False)
    assert (await app.ingest([some(files)])).completed == DOCUMENTS
    assert calls == [1] * DOCUMENTS
