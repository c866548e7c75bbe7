"""What a search asks of the index and the ledger. Times depend on the machine; these numbers do not."""

import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from penstock.app import App
from penstock.indexes.lance_reader import LanceReader
from penstock.ledger.engine import documents, generations
from penstock.search import query
from penstock.search.ranking import Mode
from penstock.verbs import selection

COUNT = 240
WORDS = ("water", "river", "mill", "heron", "otter", "reed", "bank", "stone")


def write(folder: Path, texts: Sequence[str]) -> Path:
    """Files with these texts and a number, and a manifest with their metadata."""
    lines = ["path,n,half,tenth"]
    for i, text in enumerate(texts):
        (folder / f"{i:03}.txt").write_text(text)
        lines.append(f"{i:03}.txt,{i},{'even' if i % 2 == 0 else 'odd'},t{i % 10}")
    manifest = folder / "manifest.csv"
    manifest.write_text("\n".join(lines))
    return manifest


@pytest.fixture
async def notes(app: App, tmp_path: Path) -> App:
    """Documents of one chunk. All have some of the same words."""
    chance = random.Random(7)
    texts = [f"The {' '.join(chance.choices(WORDS, k=chance.randint(4, 90)))}." for _ in range(COUNT)]
    assert (await app.ingest(manifest=write(tmp_path, texts))).completed == COUNT
    return app


class Calls(Counter[str]):
    def count(self, monkeypatch: pytest.MonkeyPatch, place: object, name: str) -> None:
        original: Callable[..., Any] = getattr(place, name)

        def counting(*args: Any, **options: Any) -> Any:
            self[name] += 1
            return original(*args, **options)

        monkeypatch.setattr(place, name, counting)


@pytest.fixture
def calls(notes: App, monkeypatch: pytest.MonkeyPatch) -> Calls:
    found = Calls()
    for name in ("search_text", "search_vector", "fill", "spans"):
        found.count(monkeypatch, LanceReader, name)
    found.count(monkeypatch, generations, "matching")
    return found


CASES: list[tuple[dict[str, Any] | None, int, int, int]] = [
    (None, 1_000, 2, 0),
    ({"half": "even"}, 1_000, 2, 0),
    ({"tenth": "t3"}, 1_000, 3, 0),
    ({"tenth": "t3"}, 200, 3, 1),
    ({"n": 7}, 1_000, 3, 1),
]
"""A filter, how many hits are fetched without it, and the numbers of text queries and of lists of documents."""


async def test_a_hybrid_search_asks_the_index_only_a_few_times(
    notes: App, calls: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    for where, unfiltered, texts, listed in CASES:
        calls.clear()
        monkeypatch.setattr(query, "UNFILTERED", unfiltered)
        hits = await notes.search("the heron mill", 5, filter=where)
        assert len(hits) == (1 if where == {"n": 7} else 5)
        asked = (calls["search_text"], calls["search_vector"], calls["matching"])
        assert asked == (texts, 1, listed), (where, unfiltered)
        assert (calls["fill"], calls["spans"]) == (1, 0)
    await notes.search("heron mill", 5, context=1)
    assert calls["spans"] == 1


async def test_a_search_with_a_filter_takes_a_few_times_as_long_at_most(notes: App) -> None:
    async def processor_time(where: dict[str, Any] | None) -> float:
        began = time.process_time()
        for _ in range(10):
            await notes.search("heron mill", 5, filter=where)
        return time.process_time() - began

    filters: list[dict[str, Any]] = [{"half": "even"}, {"tenth": "t3"}, {"n": {"$gte": 220}}, {"n": 7}]
    await processor_time(None)
    # Ten times as long would be a scan of something: each is measured again if the machine was busy.
    for where in filters:
        assert any([await processor_time(where) < 6 * await processor_time(None) for _ in range(3)]), where


async def test_documents_with_equal_scores_are_ordered_by_their_generations(app: App, tmp_path: Path) -> None:
    await app.ingest(manifest=write(tmp_path, ["The heron waits."] * 120))
    modes: tuple[Mode, ...] = ("text", "vector", "hybrid")
    rankings = []
    for mode in modes:
        everything = [hit.name for hit in await app.search("heron", 200, mode=mode)]
        assert len(everything) == 120
        assert [hit.name for hit in await app.search("heron", 10, mode=mode)] == everything[:10]
        odd = [hit.name for hit in await app.search("heron", 20, mode=mode, filter={"half": "odd"})]
        assert odd == [name for name in everything if int(name[:3]) % 2][:20]
        rankings.append(everything)
    assert rankings[0] == rankings[1] == rankings[2]


async def test_a_list_reads_only_documents_that_may_match(notes: App, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selection, "PAGE", 5)
    calls = Calls()
    calls.count(monkeypatch, documents, "listed_row")
    found = await notes.list_documents(filter={"tenth": "t3"}, limit=100)
    assert sorted((one.metadata["n"] for one in found), reverse=True) == list(range(233, 0, -10))
    assert calls["listed_row"] == 24
    later = await notes.list_documents(filter={"tenth": "t3"}, after=found[9].id, limit=100)
    assert later == found[10:]
    assert await notes.list_documents(filter={"tenth": "t3", "n": 13}, status="COMPLETED") == [
        one for one in found if one.metadata["n"] == 13
    ]
