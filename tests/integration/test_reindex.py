"""Re-index: the next version of an index is built while the current one answers."""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import StartApp
from tests.integration.test_usage import server as server
from tests.kit.apps import chunks, found, named, text, until
from tests.kit.archives import make_zip
from tests.kit.embedding_server import EmbeddingServer

from penstock.app import App
from penstock.embedders.fake import FakeEmbedder
from penstock.errors import NotFound, Permanent, UsageError
from penstock.indexes.base import TableId
from penstock.ledger.engine import reindexes
from penstock.model.items import Vectors
from penstock.verbs.reindex import ReindexView

Files = Callable[..., Path]
REMOTE = "openai:m?dimensions=64"
SMALL: dict[str, Any] = {"chunk": {"unit": "characters", "size": 200, "overlap": 0}}
LARGE: dict[str, Any] = {"chunk": {"unit": "characters", "size": 900, "overlap": 0}}


async def sql(app: App, statement: str) -> list[tuple[object, ...]]:
    def run() -> list[tuple[object, ...]]:
        connection = app.ledger.database.connect()
        try:
            return list(connection.script(statement))
        finally:
            connection.close()

    return await app.runtime.run_blocking("read", run)


async def test_only_the_steps_whose_settings_changed_are_executed(
    start_app: StartApp, database_url: str, files: Files
) -> None:
    app = await start_app(database=database_url, **SMALL)
    folder = files(**{"a.txt": text(20, "apple"), "b.txt": text(12, "berry"), "empty.txt": " "})
    await app.ingest(folder)
    before = await app.collection("default")
    view = await app.reindex(values=LARGE)
    assert (view.state, view.version, view.former, view.documents, view.failed) == ("done", 2, 1, 2, 0)
    assert view.given == {"chunk.unit": "characters", "chunk.size": 900, "chunk.overlap": 0}
    after = await app.collection("default")
    assert after.index_version == 2
    assert after.statuses == before.statuses == {"COMPLETED": 2, "NOT_INDEXABLE": 1}
    assert 0 < after.chunks < before.chunks
    assert len(await chunks(app, (await named(app, "a.txt")).id)) < 12
    assert await found(app, "apple3") == {"a.txt"}
    made = await sql(app, "SELECT kind, count(*) FROM artifacts GROUP BY kind ORDER BY kind")
    # The chunks of the two documents with text were made twice, and everything before them once.
    assert {kind: number for kind, number in made if kind != "index"} == {
        "extract": 3,
        "clean": 3,
        "chunk": 5,
        "embed": 4,
    }
    assert (await app.check()).ok


async def test_nothing_is_embedded_again_if_the_texts_are_the_same(
    server: EmbeddingServer, start_app: StartApp, files: Files
) -> None:
    app = await start_app(embedder=REMOTE)
    folder = files(**{"a.txt": "The river turns the turbine.", "b.txt": "The gate is closed at night."})
    await app.ingest(folder)
    bought = len(server.texts)
    assert (await app.reindex()).state == "unchanged"
    assert (await app.reindex(again=True)).version == 2
    assert len(server.texts) == bought
    (hit,) = await app.search("turbine river", k=1)
    assert hit.name == "a.txt"
    assert (await app.reindex(embedder="openai:other?dimensions=64")).version == 3
    assert sorted(server.texts[-2:]) == ["The gate is closed at night.", "The river turns the turbine."]


async def test_a_search_uses_the_model_of_the_version_before_and_after_the_switch(
    server: EmbeddingServer, start_app: StartApp, files: Files
) -> None:
    folder = files(**{"a.txt": "The river turns the turbine.", "b.txt": "The gate is closed at night."})
    app = await start_app()
    await app.ingest(folder)
    app = await start_app(embedder=REMOTE)
    with pytest.raises(UsageError, match="penstock reindex --collection default"):
        await app.ingest(folder)
    view = await app.reindex(wait=False)
    assert (view.state, view.documents, view.working) == ("building", 2, 2)
    (hit,) = await app.search("turbine river", k=1)
    assert (hit.name, server.calls) == ("a.txt", 0)
    # What is submitted meanwhile is searchable in the current version, and is in the next one at the switch.
    (folder / "c.txt").write_text("The heron waits at the weir.")
    [receipt] = [one async for one in app.submit(folder / "c.txt")]
    view = await app.reindex()
    assert (view.state, view.documents) == ("done", 3)
    (hit,) = await app.search("heron weir", k=1)
    assert (hit.name, server.texts[-1]) == ("c.txt", "heron weir")
    assert ":m:64:" in ((await app.collection("default")).embedder or "")
    (folder / "d.txt").write_text("A stork stands on the roof.")
    assert (await app.ingest(folder)).completed == 1
    assert receipt.id is not None
    assert (await app.check()).ok


async def test_i5_what_changed_during_the_build_is_run_again_before_the_switch(
    start_app: StartApp, database_url: str, files: Files
) -> None:
    app = await start_app(database=database_url, **SMALL)
    folder = files(**{"a.txt": text(9, "apple"), "b.txt": text(9, "berry"), "c.txt": text(9, "cedar")})
    await app.ingest(folder)
    await staged(app)
    (folder / "a.txt").write_text(text(9, "aspen"))
    await app.ingest(folder)
    await app.delete([(await named(app, "b.txt")).id])
    await app.set_metadata((await named(app, "c.txt")).id, {"year": 2024})
    assert await found(app, "aspen1") == {"a.txt"}
    assert await found(app, "berry1") == set()
    view = await app.reindex_status()
    assert (view.state, view.documents, view.staged) == ("building", 2, 1)
    view = await app.reindex()
    assert (view.state, view.documents) == ("done", 2)
    assert (await found(app, "aspen1"), await found(app, "apple1"), await found(app, "berry1")) == (
        {"a.txt"},
        set(),
        set(),
    )
    (hit, *_) = await app.search("cedar1", mode="text")
    assert hit.metadata["year"] == 2024
    assert (await app.check()).ok


async def staged(app: App) -> ReindexView:
    """A re-index all of whose documents are in the next version, and that is paused before the switch."""
    await app.reindex(values=LARGE, wait=False)
    await app.pause_reindex()
    await app.run()
    view = await app.reindex_status()
    assert (view.state, view.staged, view.version) == ("paused", view.documents, 2)
    assert (await app.check()).ok
    await app.ledger.write(reindexes.CHANGE_REINDEX, reindexes.Change(app.owner, "default", "BUILDING"))
    return view


async def test_an_undo_goes_back_at_once_and_repeats_only_what_has_changed(
    start_app: StartApp, database_url: str, files: Files
) -> None:
    app = await start_app(database=database_url, **SMALL)
    folder = files(**{"a.txt": text(9, "apple"), "b.txt": text(9, "berry"), "c.txt": text(9, "cedar")})
    await app.ingest(folder)
    small = (await app.collection("default")).chunks
    with pytest.raises(UsageError, match="nothing to undo"):
        await app.undo_reindex()
    view = await app.reindex(values=LARGE)
    assert view.undo_until is not None
    assert (await app.collection("default")).chunks < small
    view = await app.undo_reindex()
    assert (view.state, view.version, view.former) == ("done", 1, 2)
    assert (await app.ingest(folder)).stale_settings == 0
    assert (await app.collection("default")).chunks == small
    view = await app.undo_reindex()
    assert (view.version, view.former) == (2, 1)
    (folder / "a.txt").write_text(text(9, "aspen"))
    await app.ingest(folder)
    await app.delete([(await named(app, "b.txt")).id])
    await app.undo_reindex()
    collection = await app.collection("default")
    assert (collection.index_version, collection.statuses) == (1, {"COMPLETED": 2})
    assert await found(app, "aspen1 apple1 berry1 cedar1") == {"a.txt", "c.txt"}
    assert await found(app, "apple1 berry1") == set()
    assert len(await chunks(app, (await named(app, "a.txt")).id)) == small // 3
    assert (await app.check()).ok


async def test_a_prune_ends_the_undo_and_removes_the_former_table(
    start_app: StartApp, database_url: str, files: Files
) -> None:
    app = await start_app(database=database_url, **SMALL)
    await app.ingest(files(**{"a.txt": text(9, "apple"), "b.txt": text(9, "berry")}))
    await app.reindex(values=LARGE)
    await app.prune()
    assert (await app.reindex_status()).undo_until is not None
    assert await app.ports.index.open(TableId("default", "default", 1)) is not None
    await app.prune(older_than_s=0)
    await sql(app, "UPDATE purges SET not_before = 0")
    await app.prune(older_than_s=0)
    assert await app.ports.index.open(TableId("default", "default", 1)) is None
    assert (await app.reindex_status()).state == "none"
    with pytest.raises(UsageError, match="nothing to undo"):
        await app.undo_reindex()
    assert await found(app, "apple1") == {"a.txt"}
    assert await sql(app, "SELECT version, state FROM index_versions") == [(2, "CURRENT")]
    assert await sql(app, "SELECT count(*) FROM generations WHERE staging = 1") == [(0,)]
    assert (await app.check()).ok


async def test_a_cancel_leaves_everything_as_it_was(start_app: StartApp, database_url: str, files: Files) -> None:
    app = await start_app(database=database_url, **SMALL)
    await app.ingest(files(**{"a.txt": text(9, "apple"), "b.txt": text(9, "berry")}))
    before = await app.collection("default")
    with pytest.raises(UsageError, match="no re-index"):
        await app.cancel_reindex()
    await staged(app)
    await app.cancel([(await named(app, "b.txt")).id])
    assert (await app.cancel_reindex()).state == "none"
    assert await app.collection("default") == before
    await app.reindex(values=LARGE, wait=False)
    assert (await app.cancel_reindex()).state == "none"
    assert await app.collection("default") == before
    await sql(app, "UPDATE purges SET not_before = 0")
    await app.prune(older_than_s=0)
    assert await sql(app, "SELECT version, state FROM index_versions") == [(1, "CURRENT")]
    assert await found(app, "apple1") == {"a.txt"}
    assert (await app.check()).ok


async def test_a_document_that_fails_holds_the_switch_until_it_is_retried(
    start_app: StartApp, files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = await start_app(**SMALL)
    await app.ingest(files(**{"a.txt": text(9, "apple"), "b.txt": text(9, "berry")}))
    embed = type(app.ports.embedder).embed_documents

    async def fail(self: FakeEmbedder, texts: Sequence[str]) -> Vectors:
        if any("berry" in one for one in texts):
            raise Permanent("the berries are refused", reason="refused")
        return await embed(self, texts)

    monkeypatch.setattr(type(app.ports.embedder), "embed_documents", fail)
    view = await app.reindex(values=LARGE)
    assert (view.state, view.staged, view.failed) == ("building", 1, 1)
    assert (await app.collection("default")).index_version == 1
    assert await found(app, "apple1 berry1") == {"a.txt", "b.txt"}
    # It is not tried again and again.
    assert (await app.reindex()).failed == 1
    assert len((await app.list_dead_letters()).letters) == 1
    monkeypatch.undo()
    await app.retry([(await named(app, "b.txt")).id])
    assert (await app.reindex()).state == "done"
    assert (await app.list_dead_letters()).letters == []
    assert (await app.check()).ok


async def test_artifacts_that_were_dropped_are_made_from_the_raw_bytes(start_app: StartApp, files: Files) -> None:
    app = await start_app(keep_artifacts="until_completed", **SMALL)
    await app.ingest(files(**{"a.txt": text(9, "apple"), "b.txt": text(9, "berry")}))
    await app.prune()
    estimate = await app.estimate_reindex(values=LARGE)
    assert (estimate.documents, estimate.changed, estimate.from_raw) == (2, 2, 2)
    assert (await app.reindex(values=LARGE)).state == "done"
    await app.prune()
    assert await found(app, "apple1 berry1") == {"a.txt", "b.txt"}
    await app.undo_reindex()
    assert (await app.check()).ok


async def test_what_is_inside_an_archive_is_re_indexed_once(start_app: StartApp, files: Files) -> None:
    app = await start_app(**SMALL)
    inner = {"one.txt": text(5, "apple").encode(), "two.txt": text(5, "berry").encode()}
    await app.ingest(files(**{"a.zip": make_zip(inner), "b.txt": text(5, "cedar")}))
    before = {one.name: one.id for one in await app.list_documents()}
    await app.delete([before["two.txt"]])
    assert (await app.reindex(values=LARGE)).state == "done"
    assert {one.name: one.id for one in await app.list_documents()} == {
        name: document for name, document in before.items() if name != "two.txt"
    }
    assert await found(app, "apple1 berry1 cedar1") == {"one.txt", "b.txt"}
    await app.delete([before["a.zip"]])
    await app.undo_reindex()
    assert await found(app, "apple1 berry1 cedar1") == {"b.txt"}
    assert (await app.check()).ok


async def test_a_collection_can_be_dropped_during_a_re_index(start_app: StartApp, files: Files) -> None:
    app = await start_app(**SMALL)
    folder = files(**{"a.txt": text(9, "apple")})
    await app.ingest(folder)
    await staged(app)
    await app.drop_collection("default")
    await app.run()
    assert await sql(app, "SELECT count(*) FROM reindexes") == [(0,)]
    assert await sql(app, "SELECT DISTINCT state FROM index_versions") == [("RETIRED",)]
    await app.ingest(folder)
    assert await found(app, "apple1") == {"a.txt"}
    assert (await app.reindex(values=LARGE)).state == "done"
    assert (await app.check()).ok


async def test_a_worker_continues_what_another_process_began(start_app: StartApp, files: Files) -> None:
    first, second = await start_app(**SMALL), await start_app(**SMALL)
    await first.ingest(files(**{"a.txt": text(9, "apple"), "b.txt": text(9, "berry")}))
    await first.reindex(values=LARGE, wait=False)
    working = asyncio.create_task(second.work())

    async def done() -> bool:
        return (await first.reindex_status()).state == "done"

    await until(done)
    second.stop()
    await working
    with pytest.raises(NotFound):
        await first.for_owner("anna").reindex_status()
    assert (await first.check()).ok


async def test_normal_work_comes_first(start_app: StartApp, files: Files) -> None:
    app = await start_app(**SMALL)
    folder = files(**{f"{i}.txt": text(3, f"apple{i}x") for i in range(5)})
    await app.ingest(folder)
    await app.reindex(values=LARGE, wait=False)
    assert await sql(app, "SELECT DISTINCT priority FROM steps WHERE status = 'PENDING'") == [(reindexes.PRIORITY,)]
    with pytest.raises(UsageError, match="with other settings is under way"):
        await app.reindex(values=SMALL | {"chunk": {"size": 300}})
    assert (await app.reindex(values=LARGE)).state == "done"


async def test_an_estimate_says_which_steps_are_executed_again(
    server: EmbeddingServer, start_app: StartApp, files: Files
) -> None:
    app = await start_app(embedder=REMOTE)
    await app.ingest(files(**{"a.txt": "The river turns the turbine."}))
    calls = server.calls
    same, chunked = await app.estimate_reindex(), await app.estimate_reindex(values=LARGE)
    other = await app.estimate_reindex(embedder="openai:other?dimensions=64")
    assert (same.changed, same.steps, same.tokens) == (0, ("index",), 0)
    assert (chunked.changed, chunked.steps) == (1, ("chunk", "embed", "index"))
    assert (other.changed, other.steps, other.tokens > 0) == (1, ("embed", "index"), True)
    assert server.calls == calls
    assert (await app.reindex_status()).state == "none"
