"""`keep_artifacts: unless_small`: what free steps made of a small file is dropped as soon as it is searchable."""

import signal
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest
from tests.conftest import StartApp
from tests.kit.apps import named
from tests.kit.cli import Cli
from tests.kit.damage import clean, sql

from penstock.app import App
from penstock.blobs.small import is_small
from penstock.embedders.fake import FakeEmbedder
from penstock.errors import NotFound

CHOSEN: dict[str, Any] = {"small_bytes": 4096, "keep_artifacts": "unless_small"}
WHAT: tuple[Literal["pages", "chunks", "blocks"], ...] = ("pages", "chunks", "blocks")
LARGE = "A longer text about reservoirs and dams. " * 200


async def stored(app: App) -> int:
    return sum([is_small(info.key) async for info in app.blobs.list("")])


async def is_dropped(app: App, name: str) -> bool:
    return (await app.status((await named(app, name)).id)).artifacts_dropped_at is not None


async def test_only_the_raw_bytes_of_a_small_file_stay_when_it_is_searchable(
    start_app: StartApp, database_url: str
) -> None:
    app = await start_app(database=database_url, **CHOSEN)
    for i in range(3):
        await app.ingest(data=f"The note number{i} is short.".encode(), name=f"{i}.txt")
    assert await stored(app) == 3
    await app.ingest(data=LARGE.encode(), name="large.txt")
    assert [await is_dropped(app, name) for name in ("0.txt", "2.txt", "large.txt")] == [True, True, False]
    assert [page async for page in app.show("large.txt", "pages")]
    assert [hit.name for hit in await app.search("number1", 1, mode="text")] == ["1.txt"]
    assert clean(await app.check())
    assert (await app.prune(older_than_s=0)).blobs == 0

    note = (await named(app, "1.txt")).id
    assert await app.retry([note], dropped=True) == {note}
    assert (await app.run()).completed == 1
    assert [hit.name for hit in await app.search("number1", 1, mode="text")] == ["1.txt"]
    assert clean(await app.check())


@pytest.mark.parametrize("name", ["a.md", "a.html"])
async def test_show_makes_pages_again_and_reads_chunks_from_the_index(
    start_app: StartApp, tmp_path: Path, name: str
) -> None:
    text = "# Dam\n\nThe dam is old." if name == "a.md" else "<h1>Dam</h1><p>The dam is old.</p>"
    kept = await start_app(**CHOSEN | {"keep_artifacts": "always", "home": str(tmp_path / "kept")})
    app = await start_app(**CHOSEN)
    for one in (kept, app):
        await one.ingest(data=text.encode(), name=name)
    assert await is_dropped(app, name)
    for what in WHAT:
        shown = [item async for item in app.show(name, what)]
        assert shown == [item async for item in kept.show(name, what)]
        assert shown
    assert await is_dropped(app, name), "nothing was stored"
    with pytest.raises(NotFound):
        [page async for page in app.for_owner("bert").show((await named(app, name)).id, "pages")]


async def test_a_lost_index_is_made_again_from_the_raw_bytes(start_app: StartApp) -> None:
    app = await start_app(**CHOSEN)
    await app.ingest(data=b"The sluice is open.", name="a.txt")
    [table] = await app.ports.index.tables()
    await app.ports.index.drop(table)
    await app.check(repair=True)
    assert (await app.run()).completed == 1
    assert [hit.name for hit in await app.search("sluice", 1, mode="text")] == ["a.txt"]
    assert clean(await app.check())


async def test_a_damaged_index_is_made_again_from_the_raw_bytes(start_app: StartApp, home: Path) -> None:
    app = await start_app(**CHOSEN)
    await app.ingest(data=b"The sluice is open.", name="a.txt")
    await app.ingest(data=LARGE.encode(), name="large.txt")
    await app.vacuum()
    damaged = max((home / "index").rglob("data/*.lance"), key=lambda path: path.stat().st_mtime)
    damaged.write_bytes(damaged.read_bytes() + b"x")
    assert [finding.kind for finding in (await app.check()).problems] == ["index_changed"]
    repaired = await app.check(repair=True)
    assert repaired.queued_count == 1
    assert [hit.name for hit in await app.search("reservoirs", 1, mode="text")] == ["large.txt"]
    assert (await app.run()).completed == 1
    assert [hit.name for hit in await app.search("sluice", 1, mode="text")] == ["a.txt"]
    assert clean(await app.check())


async def test_show_does_not_depend_on_the_present_settings(start_app: StartApp) -> None:
    first = await start_app(**CHOSEN)
    await first.ingest(data=b"The sluice is open.", name="a.txt")
    app = await start_app(small_bytes=0, keep_artifacts="always")
    assert [chunk.text async for chunk in app.show("a.txt", "chunks")] == ["The sluice is open."]


async def test_what_was_bought_is_kept(start_app: StartApp) -> None:
    app = await start_app(**CHOSEN)
    embedder = app.ports.embedder
    assert isinstance(embedder, FakeEmbedder)
    embedder._model = replace(embedder.model, paid=True)
    await app.ingest(data=b"The sluice is open.", name="a.txt")
    assert not await is_dropped(app, "a.txt")
    assert [chunk.text async for chunk in app.show("a.txt", "chunks")] == ["The sluice is open."]


async def test_an_artifact_that_another_document_keeps_stays(start_app: StartApp, tmp_path: Path) -> None:
    kept = await start_app(**CHOSEN | {"keep_artifacts": "always"})
    await kept.ingest(data=b"The sluice is open.", name="first.txt")
    app = await start_app(**CHOSEN)
    await app.ingest(data=b"The sluice is open.", name="second.txt")
    assert [await is_dropped(app, name) for name in ("first.txt", "second.txt")] == [False, True]
    assert [chunk.text async for chunk in app.show("first.txt", "chunks")] == ["The sluice is open."]
    assert clean(await app.check())


@pytest.mark.parametrize("place", ["before", "after"])
def test_a_kill_around_the_drop_loses_nothing(tmp_path: Path, place: str) -> None:
    settings = {"PENSTOCK_KEEP_ARTIFACTS": "unless_small"}
    (tmp_path / "a.txt").write_text("The sluice is open.")
    home = tmp_path / "home"
    killed = Cli(home, tmp_path, {**settings, "PENSTOCK_FAILPOINTS": f"ledger.drop_artifacts.{place}=kill@1"})
    assert killed.process("ingest", "a.txt").code == -signal.SIGKILL
    again = Cli(home, tmp_path, settings)
    assert again("run").code == 0
    assert again("check").out.strip() == "ok"
    assert "a.txt" in again("search", "sluice", "--mode", "text").out
    dropped = sql(home, "SELECT count(*) FROM generations WHERE artifacts_dropped_at IS NOT NULL") == [(1,)]
    assert dropped == (place == "after")
    assert (sql(home, "SELECT count(*) FROM small_blobs") == [(1,)]) == dropped
