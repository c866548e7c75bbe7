"""What a search shows: snippets, neighbours, one hit per document, pages, several collections."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.kit.apps import named, slow

from penstock import Hit
from penstock.app import App
from penstock.errors import UsageError
from penstock.ledger.engine import generations

Files = Callable[..., Path]


def long_text(word: str, paragraphs: int = 6) -> str:
    """One chunk for each paragraph."""
    return "\n\n".join(f"Part{i} is about the {word} of place{i}. ".ljust(900, "z") for i in range(paragraphs))


@pytest.fixture
async def shelf(app: App, files: Files) -> App:
    texts = {f"{i}.txt": f"The otter number{i} swims. " + "Other words follow here. " * i for i in range(12)}
    await app.ingest([files(**texts, **{"long.txt": long_text("heron")})])
    return app


async def test_the_snippet_and_the_highlights_are_parts_of_the_text(app: App) -> None:
    filler = "Nothing of interest happened on that day in the valley. " * 9
    await app.ingest(data=f"{filler}The dams were built in 1932. {filler}".encode(), name="a.txt")
    [hit] = await app.search("when was the dam built?", 1)
    assert "1932" in hit.snippet
    assert hit.text[hit.snippet_start : hit.snippet_start + len(hit.snippet)] == hit.snippet
    assert len(hit.snippet) < len(hit.text)
    assert [hit.text[start:end] for start, end in hit.highlights] == ["dams", "built"]


@pytest.mark.parametrize("mode", ["hybrid", "vector", "text"])
@pytest.mark.parametrize("group", [None, "document"])
async def test_pages_are_the_parts_of_one_ranking(shelf: App, mode: Any, group: Any) -> None:
    options: dict[str, Any] = {"mode": mode, "group": group}
    everything = await shelf.search("otter swims", 50, **options)
    assert everything.next is None
    for size in (1, 5, len(everything)):
        pages: list[Hit] = []
        after = None
        while True:
            page = await shelf.search("otter swims", size, after=after, **options)
            assert len(page) == size or page.next is None
            pages += page
            after = page.next
            if after is None:
                break
        assert [(hit.name, hit.ordinal) for hit in pages] == [(hit.name, hit.ordinal) for hit in everything]


async def test_a_page_goes_on_behind_its_last_hit_though_a_document_before_it_was_deleted(shelf: App) -> None:
    everything = [hit.name for hit in await shelf.search("otter swims", 50, mode="text")]
    first = await shelf.search("otter swims", 5, mode="text")
    await shelf.delete([first[0].document_id])
    second = await shelf.search("otter swims", 5, mode="text", after=first.next)
    assert [hit.name for hit in second] == everything[5:10]


async def test_a_page_goes_on_though_its_last_hit_was_deleted(shelf: App) -> None:
    first = await shelf.search("otter swims", 5, mode="text")
    await shelf.delete([first[4].document_id])
    second = await shelf.search("otter swims", 5, mode="text", after=first.next)
    assert len(second) == 5
    assert first[4].name not in {hit.name for hit in second}


@pytest.mark.parametrize("after", ["", "5", "x" * 99, "1-2-3-4", "99999999999-aaaaaaaa-0-1", "' OR 1=1"])
async def test_a_text_that_is_no_cursor_is_refused(shelf: App, after: str) -> None:
    with pytest.raises(UsageError, match="expected the `next` of an earlier page"):
        await shelf.search("otter", after=after)


async def test_a_cursor_of_another_search_is_refused(shelf: App) -> None:
    page = await shelf.search("otter", 2)
    others: list[dict[str, Any]] = [{"query": "heron"}, {"mode": "text"}, {"group": "document"}]
    for other in others:
        with pytest.raises(UsageError, match="belongs to another search"):
            await shelf.search(**{"query": "otter", **other}, after=page.next)
    assert await shelf.search("otter", 9, after=page.next), "another size is the same search"


async def test_one_hit_per_document_says_how_many_more_there_are(shelf: App) -> None:
    hits = await shelf.search("heron place3", 50, mode="text", group="document")
    assert [(hit.name, hit.more) for hit in hits] == [("long.txt", 5)]
    assert "place3" in hits[0].text, "the best one"
    assert (await shelf.search("heron", 1, mode="text"))[0].more is None


async def test_enough_documents_are_found_though_one_has_all_the_best_chunks(app: App, files: Files) -> None:
    texts = {f"{i}.txt": f"A heron among many other words of file {i}. " * 3 for i in range(4)}
    await app.ingest([files(**texts, **{"long.txt": long_text("heron heron heron", 70)})])
    hits = await app.search("heron", 5, mode="text", group="document")
    assert {hit.name for hit in hits} == {"long.txt", *texts}


async def test_neighbours_are_the_chunks_around_the_hit(shelf: App) -> None:
    [hit] = await shelf.search("place3", 1, mode="text", context=2)
    assert [passage.ordinal for passage in hit.before] == [hit.ordinal - 2, hit.ordinal - 1]
    assert [passage.ordinal for passage in hit.after] == [hit.ordinal + 1, hit.ordinal + 2]
    chunks = [chunk async for chunk in shelf.show(hit.document_id, "chunks")]
    for passage in (*hit.before, *hit.after):
        chunk = chunks[passage.ordinal]
        assert (passage.text, passage.page, passage.start, passage.end) == (
            chunk.text,
            chunk.page,
            chunk.start,
            chunk.end,
        )
    [first] = await shelf.search("place0", 1, mode="text", context=1)
    assert (first.before, len(first.after)) == ((), 1)


async def test_i5_neighbours_are_of_the_version_of_the_hit(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    """An old version, and one that is being built, have rows with the same numbers."""
    for version in ("old", "new"):
        await app.ingest(data=long_text(f"{version}heron").encode(), name="a.txt")
    slow(app)
    async with app.hold_index():
        await app.ingest(data=long_text("nextheron").encode(), name="a.txt", budget_s=0.3)
    monkeypatch.setattr(generations, "hidden", lambda *args: [])
    for hit in await app.search("place2 place3", 20, mode="text", context=3):
        around = [*hit.before, *hit.after]
        assert around
        assert all("newheron" in text for text in (hit.text, *(passage.text for passage in around)))


async def test_several_collections_are_searched_as_one(shelf: App) -> None:
    await shelf.ingest(data=b"The otter of another collection swims.", name="other.txt", collection="other")
    await shelf.ingest(data=b"A third one, without the animal.", name="third.txt", collection="third")
    for mode in ("text", "vector", "hybrid"):
        both = await shelf.search("otter swims", 50, mode=mode, collection=["default", "other"])
        places = {(hit.collection, hit.name) for hit in both}
        assert ("other", "other.txt") in places
        assert {("default", f"{i}.txt") for i in range(12)} <= places
        assert [hit.score for hit in both] == sorted((hit.score for hit in both), reverse=True)
        again = await shelf.search("otter swims", 50, mode=mode, collection=["other", "default", "other"])
        assert {(hit.collection, hit.name) for hit in again} == places
    [hit] = await shelf.search("place3", 1, mode="text", collection=["third", "default"], context=1)
    assert [hit.collection, len(hit.before), len(hit.after)] == ["default", 1, 1]


async def test_i5_versions_of_several_collections_are_told_apart(app: App) -> None:
    """Each collection has a document with an older version."""
    for collection in ("a", "b"):
        for version in ("old", "new"):
            await app.ingest(data=f"otter {version} {collection}".encode(), name="x.txt", collection=collection)
    hits = await app.search("otter", 9, mode="text", collection=["a", "b"])
    assert {hit.text for hit in hits} == {"otter new a", "otter new b"}


async def test_an_explanation_has_the_parts_of_each_score(shelf: App) -> None:
    result = await shelf.search("otter number3", 3, explain=True)
    assert result.explain is not None
    assert result.explain.mode == "hybrid"
    assert sum(result.explain.weights.values()) > 0
    assert result.explain.collections == ("default",)
    for hit in result:
        assert hit.explain is not None
        assert hit.explain.fused is not None
    assert result[0].explain is not None
    assert result[0].explain.words is not None
    plain = await shelf.search("otter number3", 3)
    assert plain.explain is None
    assert plain[0].explain is None


@pytest.mark.parametrize(
    "options",
    [
        {"k": True}, {"k": "5"}, {"k": 0}, {"mode": "fuzzy"}, {"mode": None}, {"group": "page"}, {"context": -1},
        {"context": 21}, {"context": "1"}, {"min_score": 2}, {"min_score": "high"}, {"after": 5}, {"explain": "yes"},
        {"collection": []}, {"collection": [5]}, {"collection": 5}, {"collection": ""},
        {"query": None}, {"query": b"x"},
    ],
)  # fmt: skip
async def test_a_wrong_argument_is_refused_before_anything_is_read(app: App, options: dict[str, Any]) -> None:
    """The ledger is empty, which would be another error."""
    with pytest.raises(UsageError, match=next(iter(options))):
        await app.search(**{"query": "otter", **options})


async def test_the_hits_are_a_list(shelf: App) -> None:
    result = await shelf.search("otter", 2)
    assert [hit.name for hit in result] == [result[0].name, result[1].name]
    assert (await named(shelf, result[0].name)).id == result[0].document_id
