"""Metadata of documents, and filters of search and list by it."""

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.app import App
from penstock.errors import UsageError
from penstock.search.filters import Fields, compiled
from penstock.search.ranking import Mode

Files = Callable[..., Path]


async def add(app: App, name: str, text: str, **metadata: Any) -> str:
    await app.ingest(data=text.encode(), name=name, metadata=metadata)
    [found] = await app.list_documents(name=name)
    return found.id


@pytest.mark.parametrize("mode", ["hybrid", "vector", "text"])
async def test_a_filtered_search_is_the_whole_search_without_what_the_filter_rejects(app: App, mode: Mode) -> None:
    chance = random.Random(7)
    for i in range(30):
        meta = {"n": i, "tag": chance.choice("abc"), "tags": chance.sample("xyz", 2)}
        if i % 4 == 0:
            del meta["tag"]
        await add(app, f"d{i}.txt", f"The water of river {i} flows past mill {i % 5}.", **meta)
    everything = await app.list_documents(limit=100)
    filters: list[dict[str, Any]] = [
        {"n": {"$lt": 3}},
        {"tag": "a"},
        {"tag": {"$ne": "a"}},
        {"tags": "x", "n": {"$gte": 10}},
        {"$or": [{"tag": "b"}, {"n": 0}]},
        {"name": "d1?.txt"},
        {"n": "3"},
        {"tag": "'; DROP TABLE documents; --"},
        {"tag' OR 1=1 --": {"$exists": False}},
    ]
    for one in filters:
        wanted = {
            d.id
            for d in everything
            if compiled(one)(
                Fields(
                    *(d.id, d.collection, d.name, d.source, d.media_type, d.size, d.status, d.pages, d.created_at),
                    (json.dumps(d.metadata),),
                )
            )
        }
        hits = await app.search("water river mill", 100, mode=mode, filter=one)
        assert {hit.document_id for hit in hits} == wanted, one
        assert {d.id for d in await app.list_documents(filter=one)} == wanted, one
        few = await app.search("water river mill", 2, mode=mode, filter=one)
        assert len(few) == min(2, len(wanted)), one


async def test_a_wrong_filter_is_refused(app: App) -> None:
    with pytest.raises(UsageError, match=r"filter\.a\.\$like"):
        await app.search("water", filter={"a": {"$like": 1}})
    with pytest.raises(UsageError, match="expected a mapping"):
        await app.list_documents(filter="a=1")  # type: ignore[arg-type]


async def test_i10_a_filter_finds_nothing_of_another_owner(app: App) -> None:
    await app.for_owner("ann").ingest(data=b"The water is deep.", name="a.txt", metadata={"secret": 1})
    await app.for_owner("bob").ingest(data=b"The water is blue.", name="b.txt", metadata={"secret": 1})
    [hit] = await app.for_owner("bob").search("water", filter={"secret": 1})
    assert hit.name == "b.txt"
    assert [d.name for d in await app.for_owner("bob").list_documents(filter={"secret": 1})] == ["b.txt"]
