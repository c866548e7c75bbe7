"""The whole way from submit to searchable, with everything that can come in between."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.conftest import StartApp
from tests.kit.apps import chunks, found, metas, named, only, slow, text, until, until_status

from penstock.app import App
from penstock.embedders.fake import FakeEmbedder
from penstock.extractors import formats
from penstock.extractors.formats import FORMATS, HTML
from penstock.extractors.text import TextExtractor
from penstock.model.items import Vectors
from penstock.model.states import DocumentStatus
from penstock.stages.embed import most_tokens
from penstock.verbs.views import DocumentProgress
from penstock.workflows.catalog import Catalog

Files = Callable[..., Path]

BIG = 12_000
"""Paragraphs of a document of some 1,500 chunks: six batches."""


@pytest.mark.parametrize("dialect", ["sqlite", "postgres"])
async def test_a_folder_becomes_searchable(
    start_app: StartApp, files: Files, dialect: str, request: pytest.FixtureRequest
) -> None:
    database = None if dialect == "sqlite" else request.getfixturevalue("postgres")
    app = await start_app(database=database)
    contents = {f"{i}.txt": f"The note of number{i} speaks of topic{i}.\n\n{text(5)}" for i in range(30)}
    summary = await app.ingest([files(**contents, **{"blank.txt": " \n", "empty.txt": ""})])
    assert (summary.submitted, summary.completed, summary.not_indexable) == (32, 30, 2)
    assert (summary.failed, summary.pending, summary.problems) == (0, 0, [])
    assert await found(app, "topic17") == {"17.txt"}
    assert (await app.status()).documents == {"COMPLETED": 30, "NOT_INDEXABLE": 2}
    assert (await app.check()).ok
    again = await app.ingest([files()])
    assert (again.submitted, again.skipped) == (0, 32)


async def test_a_document_shows_its_steps_and_how_far_it_is(app: App, files: Files) -> None:
    await app.ingest([files(**{"a.txt": text(100)})])
    document = await only(app)
    status = await app.status(document.id)
    assert [step.name for step in status.steps] == ["validate", "extract", "clean", "chunk", "embed", "index"]
    assert {step.status for step in status.steps} == {"COMPLETED"}
    assert all((step.started_at or 0) <= (step.finished_at or 0) for step in status.steps)
    count = len(await chunks(app, document.id))
    assert document.chunks == count
    progress = status.progress
    assert (progress.last_checkpoint or 0) > 0
    assert msgspec.structs.replace(progress, last_checkpoint=None) == DocumentProgress(
        phase=DocumentStatus.COMPLETED, pages=1, total_pages=1, chunks=count, total_chunks=count, embedded=count,
        indexed=count, last_checkpoint=None,
    )  # fmt: skip
    assert (status.searchable, status.stale, status.error, status.retry_count) == (True, False, None, 0)


async def test_a_document_at_work_shows_what_is_done_and_what_is_to_come(app: App, files: Files) -> None:
    slow(app)
    ingest = asyncio.create_task(app.ingest([files(**{"big.txt": text(BIG)})]))
    document = await until_status(app, "EMBEDDING")

    async def embedded() -> bool:
        return bool((await app.status(document.id)).progress.embedded)

    await until(embedded)
    status = await app.status(document.id)
    progress = status.progress
    assert (progress.phase, progress.indexed) == ("EMBEDDING", 0)
    assert 0 < progress.embedded < (progress.total_chunks or 0) == progress.chunks
    assert [(s.name, s.status) for s in status.steps][-2:] == [("embed", "RUNNING"), ("index", "PENDING")]
    assert not status.searchable
    assert await found(app, "matter5") == set()
    app.stop()
    await ingest


async def test_done_is_kept_the_same_bytes_under_another_name_are_not_worked_on_again(app: App, files: Files) -> None:
    await app.ingest([files(**{"a.txt": text(50)})])
    summary = await app.ingest([files(**{"b.txt": text(50)})])
    assert (summary.submitted, summary.completed, summary.skipped) == (1, 1, 1)
    first, second = [await named(app, name) for name in ("a.txt", "b.txt")]
    reused = {name for name, meta in (await metas(app, second.id)).items() if meta.get("reused")}
    assert reused == {"extract", "clean", "chunk", "embed"}
    assert not any(meta.get("reused") for meta in (await metas(app, first.id)).values())
    assert await chunks(app, first.id) == await chunks(app, second.id)
    assert await found(app, "matter7") == {"a.txt", "b.txt"}


async def test_another_chunk_size_does_not_extract_again(start_app: StartApp, files: Files) -> None:
    app = await start_app(collections={"fine": {"chunk": {"size": 300}}})
    folder = files(**{"a.txt": text(50)})
    await app.ingest([folder])
    await app.ingest([folder], collection="fine")
    first, second = [await only(app, collection=name) for name in ("default", "fine")]
    made = await metas(app, second.id)
    assert {name for name, meta in made.items() if meta.get("reused")} == {"extract", "clean"}
    assert (second.chunks or 0) > 2 * (first.chunks or 0) > 0


@pytest.mark.parametrize("kind", ["extract", "chunk", "embed"])
async def test_a_torn_segment_is_made_again(app: App, files: Files, tmp_path: Path, kind: str) -> None:
    from tests.kit.damage import segment_of

    await app.ingest([files(**{"a.txt": text(80)})])
    before = await chunks(app, (await only(app)).id)
    segment = segment_of(tmp_path / "home", "a.txt", kind)
    segment.write_bytes(segment.read_bytes()[:-3])
    if kind == "extract":
        # Only a step that reads pages meets it: one of another chunk size reads clean pages, so those go, too.
        segment_of(tmp_path / "home", "a.txt", "clean").unlink()
        segment_of(tmp_path / "home", "a.txt", "chunk").unlink()
    summary = await app.ingest([files(**{"b.txt": text(80)})])
    assert (summary.completed, summary.failed) == (1, 0)
    assert await chunks(app, (await named(app, "b.txt")).id) == before
    assert (await app.check()).ok


async def test_i5_a_document_deleted_while_it_is_worked_on_stays_deleted(app: App, files: Files) -> None:
    slow(app)
    ingest = asyncio.create_task(app.ingest([files(**{"big.txt": text(BIG), "small.txt": "a small one"})]))
    document = await until_status(app, "EMBEDDING", name="big.txt")
    await app.delete([document.id])
    summary = await ingest
    assert (summary.completed, summary.cancelled) == (1, 1)
    assert [entry.name for entry in await app.list_documents()] == ["small.txt"]
    assert await found(app, "matter5") == set()
    assert (await app.check()).ok


async def test_i5_a_document_changed_while_it_is_worked_on_is_searchable_only_as_the_new_one(
    start_app: StartApp, files: Files
) -> None:
    app, other = await start_app(), await start_app()
    folder = files(**{"big.txt": text(BIG, "oldword")})
    slow(app)
    ingest = asyncio.create_task(app.ingest([folder]))
    await until_status(app, "EMBEDDING")
    files(**{"big.txt": text(300, "newword")})
    assert (await other.ingest([folder])).completed == 1
    assert (await ingest).completed == 1
    assert await found(app, "newword5") == {"big.txt"}
    assert await found(app, "oldword5") == set()
    assert len(await app.list_documents()) == 1
    assert (await app.check()).ok


async def test_i5_a_document_that_lost_its_text_disappears_from_search(app: App, files: Files) -> None:
    folder = files(**{"a.txt": text(20)})
    await app.ingest([folder])
    files(**{"a.txt": "  \n"})
    assert (await app.ingest([folder])).not_indexable == 1
    document = await only(app)
    assert (document.status, document.searchable, document.stale) == ("NOT_INDEXABLE", False, False)
    assert await found(app, "matter5") == set()


async def test_i5_a_new_version_that_fails_leaves_the_old_one_searchable(app: App, files: Files) -> None:
    folder = files(**{"a.txt": text(20)})
    await app.ingest([folder])
    files(**{"a.txt": b"%PDF-1.7\n" + bytes(range(256)) * 20})
    assert (await app.ingest([folder])).failed == 1
    document = await only(app)
    assert (document.status, document.searchable, document.stale) == ("FAILED", True, True)
    assert "damaged" in (document.error or "")
    assert await found(app, "matter5") == {"a.txt"}
    letters = await app.list_dead_letters()
    assert (letters.total, letters.by_reason) == (1, {"damaged": 1})
    files(**{"a.txt": text(20, "fresh")})
    assert (await app.ingest([folder])).completed == 1
    assert (await only(app)).stale is False
    assert (await app.list_dead_letters()).total == 0
    assert await found(app, "fresh7") == {"a.txt"}


async def test_i7_an_error_that_passes_is_tried_again(app: App, files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    from penstock.errors import Transient

    embed, calls = app.ports.embedder.embed_documents, 0

    async def shaky(texts: list[str]) -> object:
        nonlocal calls
        calls += 1
        if calls <= 2:
            raise Transient("the embedder stumbled")
        return await embed(texts)

    monkeypatch.setattr(app.ports.embedder, "embed_documents", shaky)
    assert (await app.ingest([files(**{"a.txt": text(5)})])).completed == 1
    assert calls == 3


async def test_i9_an_error_that_stays_ends_as_a_dead_letter_that_can_be_replayed(
    app: App, files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(texts: list[str]) -> object:
        raise ValueError("no such luck")

    with monkeypatch.context() as patch:
        patch.setattr(app.ports.embedder, "embed_documents", broken)
        patch.setattr(app.runtime, "random", lambda: 0.0)
        summary = await app.ingest([files(**{"a.txt": text(5), "b.txt": " "})])
    assert (summary.failed, summary.not_indexable) == (1, 1)
    letters = await app.list_dead_letters()
    [letter] = letters.letters
    assert (letter.reason, letter.error, letter.step) == ("error", "ValueError: no such luck", "embed")
    assert "test_worker.py" in (letter.traceback or "")
    [retries] = [
        step.retries for step in Catalog(Path("none"), Path("none")).workflow("default").steps if step.name == "embed"
    ]
    assert letter.attempts == retries
    assert (await app.replay([letter.id])).replayed == [letter.document_id]
    assert (await app.run()).completed == 1
    assert letter.document_id is not None
    assert (await app.status(letter.document_id)).retry_count == 1
    assert (await app.list_dead_letters()).total == 0


@pytest.mark.parametrize("limits", [{"max_texts": 3}, {"max_tokens": 2000}])
async def test_a_call_stays_within_the_limits_of_its_model(
    app: App, monkeypatch: pytest.MonkeyPatch, limits: dict[str, Any]
) -> None:
    monkeypatch.setattr(FakeEmbedder, "model", replace(FakeEmbedder().model, **limits))
    embed, calls = app.ports.embedder.embed_documents, []

    async def counted(texts: Sequence[str]) -> Vectors:
        calls.append((len(texts), sum(map(most_tokens, texts))))
        return await embed(texts)

    monkeypatch.setattr(app.ports.embedder, "embed_documents", counted)
    assert (await app.ingest(data=text(120).encode(), name="a.txt")).completed == 1
    texts, tokens = zip(*calls, strict=True)
    assert len(calls) > 2
    assert max(texts) <= limits.get("max_texts", 100)
    assert max(tokens) <= limits.get("max_tokens", 10**6)


async def test_a_new_version_of_one_reader_leaves_artifacts_of_other_formats_alone(
    app: App, start_app: StartApp, files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = files(**{"a.txt": text(3), "a.html": f"<html><body><p>{text(3)}</body></html>"})
    await app.ingest([folder])
    newer = tuple(msgspec.structs.replace(r, version="html-99") if r.media_type == HTML else r for r in FORMATS)
    monkeypatch.setattr(formats, "FORMATS", newer)
    later = await start_app()
    assert (await later.ingest([folder], collection="other")).completed == 2
    made = {}
    for document in await later.list_documents(collection="other"):
        made[document.name] = (await metas(later, document.id))["extract"].get("reused", False)
    assert made == {"a.txt": True, "a.html": False}


async def test_what_was_paid_for_is_stored_durably_after_every_call(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FakeEmbedder, "model", replace(FakeEmbedder().model, paid=True, price=0.02, max_texts=4))
    monkeypatch.setattr(TextExtractor, "paid", True)
    put, stored = app.blobs.put, []

    async def noted(key: str, data: bytes, *, durable: bool) -> None:
        stored.append(durable)
        await put(key, data, durable=durable)

    monkeypatch.setattr(app.blobs, "put", noted)
    assert (await app.ingest(data=text(200).encode(), name="a.txt")).completed == 1
    assert stored.count(True) > 3, "the pages, and the vectors of each call"
    assert stored.count(False) == 2, "clean pages and chunks can be made again"
