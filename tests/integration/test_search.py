"""I5, all or nothing in search: one version of each document, the active one, in one moment of the ledger."""

import asyncio
import sqlite3
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import StartApp
from tests.kit.apps import found, named, text
from tests.kit.damage import sql, table_of, verify

from penstock.app import App, open_app
from penstock.embedders.fake import FakeEmbedder
from penstock.errors import NotFound, UsageError
from penstock.indexes.base import IndexRows
from penstock.ledger.engine import generations
from penstock.model.items import Chunk
from penstock.search.ranking import DEPTH, Mode
from penstock.worker.indexing import REFRESH_ROWS

Files = Callable[..., Path]

MODEL = FakeEmbedder().model


@pytest.fixture
async def shelf(app: App, files: Files) -> App:
    await app.ingest(
        [
            files(
                **{
                    "whales.txt": "The blue whale is the largest animal. It lives in the ocean and eats krill.",
                    "bread.txt": "Bread is baked from flour, water and yeast. The oven must be hot.",
                    "stars.md": "# Sky\n\n## Stars\n\nA star shines by nuclear fusion. The sun is a star.",
                }
            )
        ]
    )
    return app


@pytest.mark.parametrize("mode", ["hybrid", "vector", "text"])
async def test_every_mode_finds_the_right_document_first(shelf: App, mode: Mode) -> None:
    hits = await shelf.search("blue whale ocean krill", 3, mode=mode)
    assert hits[0].name == "whales.txt"
    assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)


async def test_a_hit_says_where_it_is(shelf: App) -> None:
    [hit] = await shelf.search("nuclear fusion", 1)
    document = await named(shelf, "stars.md")
    [page] = [page async for page in shelf.show(document.id, "pages")]
    assert page.text[hit.start : hit.end] == hit.text
    assert (hit.document_id, hit.name, hit.page, hit.page_end) == (document.id, "stars.md", 1, 1)
    assert hit.headings == ("Sky", "Stars"), "the innermost heading at its beginning"
    assert hit.source == document.source


@pytest.mark.parametrize("mode", ["hybrid", "vector", "text"])
@pytest.mark.parametrize(
    "query",
    ["", " ", "?!", '"', "(a AND", "*", "NOT", "a:b", "'; DROP TABLE steps; --", "日本語", "\x00", "x" * 5000,
     "{}[]^~\\", "whale\nocean", "\ud800"],
)  # fmt: skip
async def test_a_weird_query_is_answered(shelf: App, query: str, mode: Mode) -> None:
    hits = await shelf.search(query, 5, mode=mode)
    assert len(hits) <= 3


@pytest.mark.parametrize("mode", ["hybrid", "vector", "text"])
async def test_an_unknown_collection_is_refused_and_the_known_ones_are_named(shelf: App, mode: Mode) -> None:
    await shelf.ingest(data=b"A note.", name="note.txt", collection="notes")
    with pytest.raises(NotFound, match=r"no collection 'notse': did you mean 'notes'\? Collections: default, notes"):
        await shelf.search("whale", collection="notse", mode=mode)
    with pytest.raises(NotFound, match=r"no collection 'x'\. Collections: default, notes"):
        await shelf.search("whale", collection=["default", "x"], mode=mode)


async def test_a_search_before_the_first_ingest_says_so(app: App) -> None:
    with pytest.raises(NotFound, match="nothing was ingested yet for owner 'default'"):
        await app.search("whale")


async def test_i10_a_collection_of_another_owner_is_unknown_and_not_named(shelf: App) -> None:
    await shelf.for_owner("bert").ingest(data=b"secret", name="s.txt", collection="vault")
    with pytest.raises(NotFound) as error:
        await shelf.search("secret", collection="vault")
    assert "Collections: default" in str(error.value)
    with pytest.raises(NotFound, match="nothing was ingested yet for owner 'carl'"):
        await shelf.for_owner("carl").search("secret", collection="vault")


async def test_a_collection_without_any_text_has_no_hits(app: App) -> None:
    await app.ingest(data=b" ", name="blank.txt")
    for mode in ("hybrid", "vector", "text"):
        assert await app.search("whale", mode=mode) == []


@pytest.mark.parametrize("k", [0, -1])
async def test_fewer_than_one_hit_is_refused(shelf: App, k: int) -> None:
    with pytest.raises(UsageError, match=r"k .*: use 1 to"):
        await shelf.search("whale", k)


@pytest.mark.parametrize("k", [100_000, 2**62])
async def test_more_hits_than_there_are_is_no_error(shelf: App, k: int) -> None:
    for mode in ("hybrid", "vector", "text"):
        assert len(await shelf.search("the", k, mode=mode)) == 3


async def test_collections_are_searched_apart(shelf: App) -> None:
    await shelf.ingest(data=b"The whale of another collection.", name="other.txt", collection="other")
    assert await found(shelf, "whale") == {"whales.txt"}
    assert await found(shelf, "whale", collection="other") == {"other.txt"}


async def test_a_search_uses_the_embedder_of_the_index_whatever_the_settings_say(
    shelf: App, start_app: StartApp
) -> None:
    other = await start_app(embedder="wordllama")
    assert (await other.search("blue whale ocean krill", mode="vector"))[0].name == "whales.txt"
    # A ledger of an older Penstock does not name the setting: then it must be that of the settings.
    sql(shelf.config.home_path, "UPDATE index_versions SET setting = NULL")
    with pytest.raises(UsageError, match="was embedded with fake"):
        await other.search("whale")
    assert await found(other, "whale") == {"whales.txt"}


async def test_a_collection_bound_to_a_former_name_of_the_same_embedder_is_bound_to_its_new_one(
    shelf: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = shelf.config.home_path
    sql(home, "UPDATE index_versions SET embedder = 'fake, as it was called'")
    monkeypatch.setattr(FakeEmbedder, "model", replace(MODEL, former_names=("fake, as it was called",)))
    assert (await shelf.search("blue whale ocean krill"))[0].name == "whales.txt"
    async with open_app(home=str(home), embedder="fake") as app:
        assert (await app.ingest(data=b"one more", name="more.txt")).completed == 1
    assert sql(home, "SELECT embedder FROM index_versions") == [(MODEL.fingerprint,)]


async def test_vectors_of_two_models_never_mix(shelf: App, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same embedder by its name, with other weights."""
    home = shelf.config.home_path
    monkeypatch.setattr(FakeEmbedder, "model", replace(MODEL, fingerprint="fake:16:1:other weights"))
    with pytest.raises(UsageError, match=r"was embedded with fake:16:1, not fake:16:1:other weights"):
        await shelf.search("whale")
    async with open_app(home=str(home), embedder="fake") as app:
        with pytest.raises(UsageError, match="the embedder 'fake' has changed"):
            await app.ingest(data=b"one more", name="more.txt")
    assert sql(home, "SELECT embedder FROM index_versions") == [("fake:16:1",)]


async def test_vectors_are_not_indexed_under_the_name_of_another_model(
    app: App, start_app: StartApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The settings change between embed and index, before anything was indexed."""
    other = await start_app()
    async with other.hold_index():
        await app.ingest(data=b"the otter lives here", name="otter.txt", budget_s=1.0)
    [waiting] = [step for step in await app.list_steps() if step.status != "COMPLETED"]
    assert waiting.kind == "index"
    monkeypatch.setattr(FakeEmbedder, "model", replace(MODEL, fingerprint="fake:16:1:other weights"))
    async with open_app(app.config) as changed:
        assert (await changed.run()).reasons == {"embedder_changed": 1}
        assert await changed.search("otter", mode="vector") == []
        await changed.retry([(await named(changed, "otter.txt")).id])
        assert (await changed.run()).completed == 1
        assert await found(changed, "otter") == {"otter.txt"}


async def test_i5_hits_are_found_although_hidden_rows_match_best(app: App, files: Files, tmp_path: Path) -> None:
    """A hundred replaced versions of one document match better than the k that are to be found."""
    await app.ingest([files(**{f"{i}.txt": f"The otter number{i} swims among other words." for i in range(8)})])
    for version in range(DEPTH + 30):
        await app.ingest(data=b"otter " * 20 + str(version).encode(), name="loud.txt")
    await app.ingest(data=b"now it speaks of nothing at all", name="loud.txt")
    assert len(sql(tmp_path / "home", "SELECT 1 FROM generations WHERE state = 'SUPERSEDED'")) == DEPTH + 30
    for mode in ("text", "hybrid", "vector"):
        hits = await app.search("otter", 8, mode=mode)
        assert len(hits) == 8
        names = {hit.name for hit in hits}
        assert names == {f"{i}.txt" for i in range(8)} or mode != "text"
        assert all("otter" not in hit.text for hit in hits if hit.name == "loud.txt")


async def test_i5_rows_that_are_not_known_as_hidden_are_still_left_out(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The filter is only for speed: what counts is what is active in the snapshot."""
    for version in range(3):
        await app.ingest(data=f"otter of version{version}".encode(), name="a.txt")
    monkeypatch.setattr(generations, "hidden", lambda *args: [])
    hits = await app.search("otter", 5, mode="text")
    assert [hit.text for hit in hits] == ["otter of version2"]


async def test_i5_a_flip_during_a_search_never_shows_two_versions_or_none(app: App) -> None:
    await app.ingest(data=_version(0), name="a.txt")
    flipping = True
    searches = 0

    async def flip() -> None:
        nonlocal flipping
        for version in range(1, 25):
            await app.ingest(data=_version(version), name="a.txt")
        flipping = False

    async def look() -> None:
        nonlocal searches
        while flipping:
            hits = await app.search("lighthouse keeper", 50, mode="text" if searches % 2 else "hybrid")
            versions = {hit.text.split("edition")[1].split()[0] for hit in hits}
            assert len(versions) == 1, f"search {searches}: {versions}"
            assert len(hits) == 3, f"search {searches}: half of a version"
            searches += 1

    await asyncio.gather(flip(), look(), look())
    assert searches > 20


def _version(number: int) -> bytes:
    paragraphs = [f"The lighthouse keeper of edition{number} writes page {i}. ".ljust(900, "x") for i in range(3)]
    return "\n\n".join(paragraphs).encode()


async def test_i5_no_search_after_a_delete_finds_the_document(app: App, files: Files) -> None:
    await app.ingest([files(**{f"{i}.txt": text(2, "gone") for i in range(10)})])
    for entry in await app.list_documents():
        await app.delete([entry.id])
        assert entry.name not in {hit.name for hit in await app.search("gone1 matter1", 50)}


async def test_a_search_during_a_delete_sees_its_snapshot(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    """The document was there when the search began: it may still be shown, whole."""
    await app.ingest(data=b"the otter swims", name="a.txt")
    document = (await app.list_documents())[0].id
    table = app.ports.index.usual.open

    async def slow(*place: Any) -> object:
        await app.delete([document])
        return await table(*place)

    monkeypatch.setattr(app.ports.index.usual, "open", slow)
    assert [hit.name for hit in await app.search("otter")] == ["a.txt"]
    monkeypatch.undo()
    assert await app.search("otter") == []


async def test_no_snapshot_is_held_while_a_query_is_embedded(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    """A provider may take its time, and a snapshot keeps what others delete. So a delete meanwhile counts."""
    await app.ingest(data=b"the otter swims", name="a.txt")
    embed = app.ports.embedder.embed_query
    document = (await app.list_documents())[0].id

    async def slow(text: str) -> object:
        await app.delete([document])
        return await embed(text)

    monkeypatch.setattr(app.ports.embedder, "embed_query", slow)
    assert await app.search("otter") == []


@pytest.mark.parametrize("filtered", [True, False])
async def test_i5_what_is_left_after_a_large_delete_is_found(
    app: App, monkeypatch: pytest.MonkeyPatch, filtered: bool
) -> None:
    """25,000 deleted documents match better than the one that is left, and they are still in the index. With the
    filter, in one fetch; without it, by fetching until there is no more."""
    await app.ingest(data=b"the otter swims in the long and winding river", name="left.txt")
    [left] = sql(app.config.home_path, "SELECT id, owner, index_version, document_id FROM generations")
    deleted = [left[0] + 1 + 2 * i for i in range(25_000)]
    vector = await app.ports.embedder.embed_query("otter")
    table = await table_of(app)
    chunk = Chunk(0, "otter", 1, 1, 0, 5)
    await table.put([IndexRows(one, 1, "gone", [chunk], vector[None]) for one in deleted], verify, fresh=True)
    with sqlite3.connect(app.config.home_path / "ledger.db") as connection:
        columns = [row[1] for row in connection.execute("PRAGMA table_info(generations)")]
        taken = ", ".join({"id": "?", "state": "'SUPERSEDED'"}.get(name, name) for name in columns)
        connection.executemany(
            f"INSERT INTO generations ({', '.join(columns)}) SELECT {taken} FROM generations WHERE id = {left[0]}",
            [(one,) for one in deleted],
        )
        connection.executemany("INSERT INTO placements VALUES (?, 1, 'READY')", [(one,) for one in deleted])
    if not filtered:
        monkeypatch.setattr(generations, "hidden", lambda *args: [])
    for mode in ("text", "vector", "hybrid"):
        assert [hit.name for hit in await app.search("otter", 3, mode=mode)] == ["left.txt"], mode


async def test_the_first_hits_do_not_depend_on_how_many_are_wanted(app: App, files: Files) -> None:
    await app.ingest(
        [files(**{f"{i}.txt": f"Otter {i} swims near stone {i % 7} at noon {i % 3}." for i in range(300)})]
    )
    for mode in ("hybrid", "text", "vector"):
        longest = [hit.name for hit in await app.search("otter near stone 3", 290, mode=mode)]
        assert len(longest) == len(set(longest)) == 290
        for k in (1, 5, 49, 60, 151):
            assert [hit.name for hit in await app.search("otter near stone 3", k, mode=mode)] == longest[:k]


async def test_scores_fall_and_relevance_tells_an_answer_from_another_text(shelf: App) -> None:
    hits = await shelf.search("What does the blue whale eat?", 3)
    assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)
    assert hits[0].name == "whales.txt"
    relevance = [hit.relevance or 0.0 for hit in hits]
    assert relevance[0] == max(relevance) > 0.58
    assert all(0 <= one <= 1 for one in relevance)
    foreign = await shelf.search("quantum chromodynamics lattice gauge", 1)
    assert (foreign[0].relevance or 0.0) < 0.5


async def test_a_part_of_a_word_and_a_word_of_a_heading_are_found(tmp_path: Path, files: Files) -> None:
    text = "## Turbines\n\n" + "The wheel turns slowly. " * 100 + "\n\nGovernors are tested in May."
    others = {"b.md": "Other words about a garden.", "c.txt": "Hydroelectricity is made here."}
    async with open_app(home=str(tmp_path / "default")) as app:
        await app.ingest([files(**{"a.md": text, **others})])
        assert not await app.search("electric", 1, mode="text"), "the index of words has no such word"
        assert (await app.search("electric", 1))[0].name == "c.txt"
        found = await app.search("turbine", 9, mode="text")
    assert {hit.name for hit in found} == {"a.md"}
    assert len(found) > 1, "chunks that do not repeat their heading"


@pytest.mark.parametrize("query", ["", "?", "   ", "\ud800", "的", "x" * 5000, "हिन्दी"])
async def test_every_query_is_answered(shelf: App, query: str) -> None:
    assert len(await shelf.search(query, 3)) <= 3


async def _outside(home: Path) -> int:
    """Rows that are not in the text index of words."""
    import lance

    (table,) = (home / "index").glob("*/*/v*.lance")
    dataset: Any = lance.dataset(str(table))
    indexed = {index.name: index.num_rows_indexed for index in dataset.describe_indices()}
    return int(dataset.count_rows() - min(indexed["words"], indexed["grams"]))


async def test_the_text_indexes_are_up_to_date_after_an_ingest(tmp_path: Path, files: Files) -> None:
    home = tmp_path / "fresh"
    texts = {f"{i}.txt": f"otter {i} swims" for i in range(REFRESH_ROWS + 20)}
    async with open_app(home=str(home), embedder="fake") as app:
        await app.ingest([files(**texts)])
        assert await _outside(home) == 0
        await app.ingest(data=b"one more", name="one.txt")
        assert await _outside(home) == 1, "too few to be worth it"


async def test_an_idle_worker_updates_the_text_indexes(tmp_path: Path, files: Files) -> None:
    home = tmp_path / "fresh"
    texts = {f"{i}.txt": f"otter {i} swims" for i in range(REFRESH_ROWS + 20)}
    async with open_app(home=str(home), embedder="fake") as app:
        working = asyncio.create_task(app.work())
        await app.ingest([files(**texts)], wait=False)
        for _ in range(600):
            completed = (await app.status()).documents.get("COMPLETED")
            if completed == len(texts) and await _outside(home) == 0:
                break
            await asyncio.sleep(0.1)
        assert await _outside(home) == 0
        app.stop()
        await working
