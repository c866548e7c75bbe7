"""A re-index moves a collection to another index: nothing is embedded again, searches go on, and it can be undone."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import StartApp
from tests.integration.test_reindex import LARGE, SMALL, sql
from tests.integration.test_usage import server as server
from tests.kit.apps import found, named, text, until
from tests.kit.embedding_server import EmbeddingServer

from penstock import restore
from penstock.app import App
from penstock.config import Config
from penstock.errors import ConfigError, UsageError
from penstock.indexes.base import TableId
from penstock.indexes.several import stored_name, url_of, without_password

Files = Callable[..., Path]
REMOTE = "openai:m?dimensions=64"
ONE, TWO = TableId("default", "default", 1), TableId("default", "default", 2)


@pytest.fixture(params=["lance", "shared", "separate"])
def places(request: pytest.FixtureRequest, tmp_path: Path, make_postgres: Callable[[], str]) -> dict[str, Any]:
    """The ledger, and the other index: another folder, the database of the ledger, or another database."""
    if request.param == "lance":
        return {"settings": {}, "index": f"lancedb://{tmp_path / 'other'}"}
    settings = {"database": make_postgres()}
    return {"settings": settings, "index": "pgvector" if request.param == "shared" else make_postgres()}


async def test_a_move_embeds_nothing_again_and_can_be_undone(
    server: EmbeddingServer, start_app: StartApp, places: dict[str, Any], files: Files
) -> None:
    app, other = await start_app(embedder=REMOTE, **places["settings"]), places["index"]
    folder = files(**{"a.txt": text(9, "apple"), "b.txt": text(9, "berry"), "c.txt": text(9, "cedar")})
    await app.ingest(folder)
    bought = list(server.texts)
    estimate = await app.estimate_reindex(index=other)
    assert (estimate.steps, estimate.changed, estimate.tokens) == (("index",), 3, 0)
    assert estimate.index == stored_name(app.config, other)
    view = await app.reindex(index=other)
    assert (view.state, view.version, view.documents, view.index) == ("done", 2, 3, stored_name(app.config, other))
    assert server.texts == bought
    assert await found(app, "apple1") == {"a.txt"}
    assert (await app.reindex(index=other)).state == "unchanged"
    # What is ingested from now on is in the other index, even if the settings still name the first one.
    (folder / "d.txt").write_text(text(9, "daisy"))
    await app.delete([(await named(app, "c.txt")).id])
    await app.ingest(folder / "d.txt")
    assert await found(app, "daisy1 cedar1") == {"d.txt"}
    assert {hit.name for hit in await app.search("daisy1", filter={"name": "d.txt"})} == {"d.txt"}
    assert (await app.check()).problems == []
    undone = await app.undo_reindex()
    assert (undone.version, undone.index) == (1, "home")
    assert await found(app, "daisy1 apple1 cedar1") == {"a.txt", "d.txt"}
    assert (await app.check()).problems == []
    await app.undo_reindex()
    await app.prune(older_than_s=0)
    await sql(app, "UPDATE purges SET not_before = 0")
    assert ONE in await app.ports.index.tables()
    await app.prune(older_than_s=0)
    assert await app.ports.index.usual.tables() == []
    assert await app.ports.index.tables() == [TWO]
    assert await found(app, "daisy1 apple1") == {"a.txt", "d.txt"}
    assert (await app.check()).problems == []


async def test_a_moved_collection_stays_where_it_is_whatever_the_settings_say(
    start_app: StartApp, tmp_path: Path, files: Files
) -> None:
    app, other = await start_app(**SMALL), f"lancedb://{tmp_path / 'other'}"
    folder = files(**{"a.txt": text(9, "apple"), "b.txt": text(9, "berry")})
    await app.ingest(folder / "a.txt", collection="one")
    await app.ingest(folder / "b.txt", collection="two")
    await app.reindex("one", index=other, values=LARGE)
    app = await start_app(**SMALL, index=other)
    await app.ingest(data=b"a cherry", name="c.txt", collection="three")
    assert {hit.name for hit in await app.search("apple1 berry1 cherry", 20, collection=["one", "two", "three"])} == {
        *("a.txt", "b.txt", "c.txt")
    }
    assert {table.collection for table in await app.ports.index.usual.tables()} == {"one", "three"}
    again = await start_app(**SMALL)
    assert {hit.name for hit in await again.search("cherry", collection="three")} == {"c.txt"}
    assert (await again.check()).problems == []
    assert (await again.vacuum()).busy == []
    await again.backup(tmp_path / "backup")
    restored = await restore(tmp_path / "backup", home=str(tmp_path / "again"), embedder="fake")
    assert restored.check.ok
    app = await start_app("again")
    assert {hit.name for hit in await app.search("apple1", collection="one")} == {"a.txt"}
    assert await sql(app, "SELECT DISTINCT store FROM index_versions") == [(None,)]


async def test_searches_go_on_while_a_collection_is_moved(
    start_app: StartApp, make_postgres: Callable[[], str], files: Files
) -> None:
    database = make_postgres()
    app, reader = await start_app(database=database, **SMALL), await start_app(database=database, **SMALL)
    names = {f"{number}.txt": text(4, "apple") for number in range(20)}
    await app.ingest(files(**names))
    seen = 0

    async def search_on() -> None:
        nonlocal seen
        while True:
            answer = await reader.search("apple1", 400, mode=("text", "hybrid")[seen % 2])
            assert {hit.name for hit in answer} == set(names)
            places = [(hit.name, hit.start) for hit in answer]
            assert len(places) == len(set(places))
            seen += 1

    reading = asyncio.create_task(search_on())
    for index in ("pgvector", "home", "pgvector"):
        begun = seen
        assert (await app.reindex(index=index)).state == "done"

        async def more(least: int = begun + 2) -> bool:
            assert not reading.done(), reading.result()
            return seen >= least

        await until(more, 60)
    reading.cancel()


async def test_a_re_index_with_another_index_than_the_one_under_way_is_refused(
    start_app: StartApp, tmp_path: Path, files: Files
) -> None:
    app = await start_app()
    await app.ingest(files(**{"a.txt": "an apple"}))
    view = await app.reindex(index=f"lancedb://{tmp_path / 'other'}", wait=False)
    assert view.state == "building"
    with pytest.raises(UsageError, match="other settings is under way"):
        await app.reindex(index=f"lancedb://{tmp_path / 'third'}")
    assert (await app.cancel_reindex()).state == "none"
    assert await found(app, "apple") == {"a.txt"}


async def test_an_index_that_cannot_be_used_is_refused_before_anything_begins(
    start_app: StartApp, files: Files
) -> None:
    app = await start_app()
    await app.ingest(files(**{"a.txt": "an apple"}))
    with pytest.raises(ConfigError, match="unknown name 'nonsense'"):
        await app.reindex(index="nonsense://x")
    with pytest.raises(ConfigError, match="which is not PostgreSQL"):
        await app.reindex(index="pgvector")
    with pytest.raises(UsageError, match="has a password, which the ledger does not store") as refused:
        await app.reindex(index="postgresql://u:geheim@localhost/x")
    assert "geheim" not in str(refused.value)
    assert (await app.reindex_status()).state == "none"


async def stores(app: App) -> set[object]:
    return {row[0] for row in await sql(app, "SELECT store FROM index_versions")}


async def test_i10_a_password_of_an_index_is_in_the_settings_only(
    start_app: StartApp, make_postgres: Callable[[], str], tmp_path: Path, files: Files
) -> None:
    url = make_postgres().replace("postgresql://postgres:", "postgresql://postgres:")
    with_password = url + ("&" if "?" in url else "?") + "password=geheim"
    app = await start_app(indexes={"vectors": with_password})
    await app.ingest(files(**{"a.txt": "an apple"}))
    assert (await app.reindex(index="vectors")).index == "vectors"
    assert await stores(app) == {"home", "vectors"}
    assert await found(app, "apple") == {"a.txt"}
    assert b"geheim" not in b"".join(path.read_bytes() for path in (tmp_path / "home").glob("ledger.db*"))


def test_indexes_are_named_without_passwords_and_found_by_their_names(tmp_path: Path) -> None:
    config = Config(home=str(tmp_path), indexes={"big": "postgresql://u:p@h/d", "old": "lancedb:///srv/old"})
    assert stored_name(config, f"lancedb://{tmp_path}/index") == stored_name(config, config.index_url) == "home"
    assert stored_name(config, "lancedb:///srv/a") == "lancedb:///srv/a"
    assert stored_name(config, "big") == "big"
    assert stored_name(config, "postgresql://u:p@h/d") == "postgresql://u@h/d"
    assert url_of(config, "postgresql://u@h/d") == url_of(config, "big") == "postgresql://u:p@h/d"
    assert url_of(config, None) == url_of(config, "home") == f"lancedb://{tmp_path}/index"
    assert url_of(config, "lancedb:///srv/old") == "lancedb:///srv/old"
    moved = Config(home=str(tmp_path), index="lancedb:///srv/a", database="postgresql://u:p@h/d")
    assert url_of(moved, "home") == f"lancedb://{tmp_path}/index"
    assert stored_name(moved, "postgresql://u:p@h/d") == "pgvector"
    assert without_password("postgresql:///d?host=/tmp/a&password=p") == "postgresql:///d?host=%2Ftmp%2Fa"
    assert without_password("postgresql:///d?host=/tmp/a") == "postgresql:///d?host=/tmp/a"
