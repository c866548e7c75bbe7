"""Collections with their own embedder: stored with the index version, used by searches, and not changed."""

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.conftest import StartApp
from tests.integration.test_usage import server as server
from tests.kit.embedding_server import EmbeddingServer

from penstock.errors import UsageError

Files = Callable[..., Path]
REMOTE = "openai:m?dimensions=64"


async def test_a_collection_has_its_own_embedder(server: EmbeddingServer, start_app: StartApp, files: Files) -> None:
    app = await start_app(collections={"far": {"embedder": REMOTE}})
    folder = files(**{"a.txt": "The river turns the turbine.", "b.txt": "The gate is closed at night."})
    assert (await app.ingest(folder)).completed == 2
    assert server.calls == 0
    assert (await app.ingest(folder, collection="far")).completed == 2
    assert sorted(server.texts) == ["The gate is closed at night.", "The river turns the turbine."]
    near, far = await app.collection("default"), await app.collection("far")
    assert (near.embedder or "").startswith("fake")
    assert ":m:64:" in (far.embedder or "")
    (hit,) = await app.search("turbine river", k=1, collection="far")
    assert (hit.name, server.texts[-1]) == ("a.txt", "turbine river")
    (hit,) = await app.search("turbine river", k=1)
    assert (hit.name, len(server.texts)) == ("a.txt", 3)
    with pytest.raises(UsageError, match="different embedders: search one at a time"):
        await app.search("river", collection=["default", "far"])
    assert len(await app.search("river", collection=["default", "far"], mode="text")) == 2
    assert (await app.check()).ok


async def test_a_search_uses_the_model_of_the_version_whatever_the_settings_say(
    server: EmbeddingServer, start_app: StartApp, files: Files
) -> None:
    folder = files(**{"a.txt": "The river turns the turbine."})
    app = await start_app(embedder=REMOTE)
    await app.ingest(folder)
    app = await start_app(embedder="fake")
    (hit,) = await app.search("turbine")
    assert (hit.name, server.texts[-1]) == ("a.txt", "turbine")


async def test_another_embedder_for_a_filled_collection_is_refused_before_anything_is_accepted(
    server: EmbeddingServer, start_app: StartApp, files: Files
) -> None:
    folder = files(**{"a.txt": "The river turns the turbine."})
    app = await start_app()
    await app.ingest(folder)
    (folder / "b.txt").write_text("More of it.")
    app = await start_app(collections={"default": {"embedder": REMOTE}})
    with pytest.raises(UsageError, match="embedder of collection 'default' is fake, and the settings name openai:m"):
        await app.ingest(folder)
    with pytest.raises(UsageError, match="penstock reindex --collection default"):
        [receipt async for receipt in app.submit(folder)]
    assert [document.name for document in await app.list_documents()] == ["a.txt"]
    assert server.texts == []
    # The embedder that it has is accepted, however it is set.
    app = await start_app(embedder=REMOTE, collections={"default": {"embedder": "fake"}})
    assert (await app.ingest(folder)).completed == 1


async def test_an_unknown_embedder_of_a_collection_is_refused(start_app: StartApp, files: Files) -> None:
    app = await start_app(collections={"far": {"embedder": "nobody:m"}})
    with pytest.raises(UsageError, match="unknown name 'nobody'"):
        await app.ingest(files(**{"a.txt": "words"}), collection="far")
    assert (await app.ingest(files(**{"a.txt": "words"}))).completed == 1
