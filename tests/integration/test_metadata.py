"""Metadata of documents, and filters of search and list by it."""

import json
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import StartApp

from penstock.app import App
from penstock.errors import UsageError
from penstock.search import query
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


VALUES: list[Any] = [
    1,
    1.0,
    2020,
    2020.5,
    -5,
    True,
    False,
    None,
    "1",
    "ann",
    "Ännchen",
    "日本",
    'a"b\\c',
    "\n\x1f",
    "😀",
    "",
]
KEYS = ["k", "ключ", 'q"', "name", "title"]


def random_filter(chance: random.Random, depth: int = 0) -> dict[str, Any]:
    word = chance.choice(["$eq", "$eq", "$eq", "$ne", "$in", "$nin", "$gt", "$lte", "$exists", "$and", "$or", "$not"])
    if word in ("$and", "$or") and depth < 2:
        return {word: [random_filter(chance, depth + 1) for _ in range(chance.randint(1, 3))]}
    if word == "$not" and depth < 2:
        return {"$not": random_filter(chance, depth + 1)}
    key = chance.choice(["meta.name", *KEYS[:3], KEYS[4]])
    value: Any = chance.choice(VALUES)
    if word in ("$in", "$nin"):
        value = chance.sample(VALUES, chance.randint(0, 4))
    elif word in ("$gt", "$lte"):
        value = chance.choice(["a", 1, 2020, "日"])
    elif word == "$exists":
        value = chance.choice([True, False])
    elif word not in ("$eq", "$ne"):
        word = "$eq"
    return {key: value} if word == "$eq" and chance.random() < 0.5 else {key: {word: value}}


@pytest.mark.parametrize("unfiltered", [0, 10, 1000])
async def test_a_search_accepts_what_the_filter_accepts_on_every_database(
    start_app: StartApp, database_url: str, monkeypatch: pytest.MonkeyPatch, unfiltered: int
) -> None:
    monkeypatch.setattr(query, "UNFILTERED", unfiltered)
    chance = random.Random(unfiltered)
    app = await start_app(database=database_url)
    for i in range(24):
        keys = chance.sample(KEYS, chance.randint(0, 4))
        meta = {key: chance.choice([*VALUES, [chance.choice(VALUES), "x"], {"in": 1}]) for key in keys}
        await app.ingest(data=f"# Title {i % 5}\n\nThe water {i}.".encode(), name=f"d{i}.md", metadata=meta, wait=False)
    await app.run()
    everything = await app.list_documents(limit=100)
    assert len(everything) == 24
    for _ in range(40):
        wanted_by = random_filter(chance)
        accepts = compiled(wanted_by)
        wanted = {
            d.id
            for d in everything
            if accepts(
                Fields(
                    *(d.id, d.collection, d.name, d.source, d.media_type, d.size, d.status, d.pages, d.created_at),
                    (json.dumps(d.metadata),),
                )
            )
        }
        hits = await app.search("water title", 100, mode="text", filter=wanted_by)
        assert {hit.document_id for hit in hits} == wanted, wanted_by
        assert {d.id for d in await app.list_documents(filter=wanted_by)} == wanted, wanted_by


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


async def test_metadata_is_changed_without_a_new_run(app: App) -> None:
    document = await add(app, "a.txt", "The water is deep.", author="ann", year=2020)
    before = await app.status(document)
    assert await app.set_metadata(document, {"author": "bob", "new": [1]}, remove=["year"])
    assert not await app.set_metadata(document, {"author": "bob"}, remove=["year"])
    after = await app.status(document)
    assert after.metadata == {"author": "bob", "new": [1]}
    assert after.steps == before.steps
    [hit] = await app.search("water", filter={"author": "bob"})
    assert hit.metadata == after.metadata
    assert await app.search("water", filter={"year": {"$exists": True}}) == []


async def test_the_same_bytes_with_other_metadata_update_it(app: App) -> None:
    receipts: list[Any] = []
    document = await add(app, "a.txt", "The water is deep.", author="ann", year=2020)
    data = b"The water is deep."
    summary = await app.ingest(data=data, name="a.txt", metadata={"year": 2021}, on_receipt=receipts.append)
    assert (summary.skipped, summary.submitted) == (1, 0)
    await app.ingest(data=data, name="a.txt", metadata={"year": 2021}, on_receipt=receipts.append)
    await app.ingest(data=data, name="a.txt", on_receipt=receipts.append)
    assert [one.outcome for one in receipts] == ["updated", "skipped", "skipped"]
    assert (await app.status(document)).metadata == {"author": "ann", "year": 2021}


async def test_i5_metadata_of_a_new_version_is_shown_when_the_version_is(app: App) -> None:
    document = await add(app, "a.txt", "The water is deep.", version=1, author="ann")
    new = b"The water is shallow."
    await app.ingest(data=new, name="a.txt", metadata={"version": 2}, wait=False)
    [hit] = await app.search("water", filter={"version": 1})
    assert (hit.text, hit.metadata["version"]) == ("The water is deep.", 1)
    assert await app.search("water", filter={"version": 2}) == []
    await app.set_metadata(document, {"author": "bob"})
    [hit] = await app.search("water")
    assert hit.metadata == {"version": 1, "author": "bob"}
    await app.run()
    [hit] = await app.search("water", filter={"version": 2})
    assert (hit.text, hit.metadata) == ("The water is shallow.", {"version": 2, "author": "bob"})


async def test_i10_nobody_changes_the_metadata_of_another_owner(app: App) -> None:
    await app.for_owner("ann").ingest(data=b"The water is deep.", name="a.txt", metadata={"a": 1})
    [theirs] = await app.for_owner("ann").list_documents()
    with pytest.raises(UsageError):
        await app.for_owner("bob").set_metadata(theirs.id, {"a": 2})
    assert (await app.for_owner("ann").status(theirs.id)).metadata == {"a": 1}


@pytest.mark.parametrize("wrong", [{"a": float("nan")}, {1: 2}, {"a": {1}}, "a=1"])
async def test_metadata_that_is_no_json_is_refused_before_anything_is_written(app: App, wrong: Any) -> None:
    with pytest.raises(UsageError):
        await app.ingest(data=b"The water is deep.", name="a.txt", metadata=wrong)
    assert await app.list_documents() == []


async def test_what_a_file_says_stands_behind_what_was_submitted(app: App) -> None:
    html = b'<html lang="en"><head><title>Rivers</title><meta name="author" content="Ann"></head><p>The water is deep.'
    document = await add(app, "a.html", html.decode(), author="Ben")
    assert (await app.status(document)).metadata == {"title": "Rivers", "author": "Ben", "language": "en"}
    [hit] = await app.search("water", filter={"title": "Rivers", "author": "Ben"})
    assert hit.metadata["language"] == "en"
    await app.set_metadata(document, {"title": "Lakes"}, remove=["author"])
    assert (await app.status(document)).metadata == {"title": "Lakes", "author": "Ann", "language": "en"}
    assert [d.id for d in await app.list_documents(filter={"author": "Ann", "title": "Lakes"})] == [document]
    assert await app.search("water", filter={"title": "Rivers"}) == []


async def test_a_sidecar_gives_metadata_and_is_no_document(app: App, tmp_path: Path) -> None:
    folder = tmp_path / "files"
    folder.mkdir()
    (folder / "a.txt").write_text("The water is deep.")
    (folder / "a.txt.meta.yaml").write_text("author: ann\ndate: 2020-01-02\nat: 2020-01-02T03:04:05Z\ntags: [x, 1]\n")
    (folder / "b.txt").write_text("The water is cold.")
    (folder / "b.txt.meta.json").write_text('{"author": "ben"}')
    (folder / "alone.txt.meta.yaml").write_text("This is a document: it has no file beside it.")
    receipts: list[Any] = []
    assert (await app.ingest([folder], on_receipt=receipts.append)).completed == 3
    assert sorted(one.name for one in receipts) == ["a.txt", "alone.txt.meta.yaml", "b.txt"]
    [a] = await app.list_documents(filter={"author": "ann"})
    assert a.metadata == {"author": "ann", "date": "2020-01-02", "at": "2020-01-02T03:04:05Z", "tags": ["x", 1]}
    steps = (await app.status(a.id)).steps
    (folder / "a.txt.meta.yaml").write_text("author: eve\n")
    receipts.clear()
    await app.ingest([folder], metadata={"date": "now"}, on_receipt=receipts.append)
    assert {one.name: one.outcome for one in receipts}["a.txt"] == "updated"
    found = await app.status(a.id)
    assert (found.metadata["author"], found.metadata["date"], found.steps) == ("eve", "now", steps)
    receipts.clear()
    await app.ingest([folder / "b.txt", folder / "b.txt.meta.json"], on_receipt=receipts.append)
    assert [(one.name, one.outcome) for one in receipts] == [("b.txt", "skipped")]


@pytest.mark.parametrize(
    "bad",
    [
        "a: [",
        "- 1",
        "a: .nan",
        "a: &x [1]\nb: *x",
        "1: 2",
        "a: !!python/object:os.system x",
        "\ufffe\x00",
        "x" * (2 << 20),
    ],
)
async def test_a_file_whose_sidecar_cannot_be_read_is_refused(app: App, tmp_path: Path, bad: str) -> None:
    (tmp_path / "a.txt").write_text("The water is deep.")
    (tmp_path / "a.txt.meta.yaml").write_text(bad)
    (tmp_path / "b.txt").write_text("The water is cold.")
    summary = await app.ingest([tmp_path / "a.txt", tmp_path / "b.txt"], wait=False)
    assert (summary.submitted, summary.refused) == (1, 1)
    assert "a.txt.meta.yaml: " in summary.problems[0]


async def test_a_link_out_of_the_folder_is_no_sidecar(app: App, tmp_path: Path) -> None:
    folder = tmp_path / "files"
    folder.mkdir()
    (tmp_path / "secret.yaml").write_text("secret: 1")
    (folder / "a.txt").write_text("The water is deep.")
    (folder / "a.txt.meta.yaml").symlink_to(tmp_path / "secret.yaml")
    summary = await app.ingest([folder], wait=False)
    assert (summary.submitted, summary.refused) == (0, 1)


async def test_a_manifest_names_files_and_their_metadata(app: App, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.txt").write_text("The water is deep.")
    (tmp_path / "in" / "b.txt").write_text("The water is cold.")
    (tmp_path / "in" / "a.txt.meta.yaml").write_text("author: sidecar\nkept: 1")
    manifest = tmp_path / "in" / "files.csv"
    manifest.write_text('path,author,year,note\na.txt,ann,2020,"one, two"\nb.txt,,2021,\ngone.txt,eve,1,\n')
    summary = await app.ingest([tmp_path / "in"], manifest=manifest, metadata={"note": "given"})
    assert (summary.completed, summary.refused) == (2, 1)
    assert "gone.txt: no such file" in summary.problems[0]
    found = {d.name: d.metadata for d in await app.list_documents()}
    assert found == {
        "a.txt": {"author": "ann", "year": 2020, "note": "given", "kept": 1},
        "b.txt": {"year": 2021, "note": "given"},
    }
    for bad, why in (
        ("name,author\na.txt,x\n", "column `path`"),
        ("path,a\na.txt,1,2\n", ":2: more cells"),
        ("path,a\n,1\n", ":2: it names no file"),
        ("path,a\na.txt,1\n./a.txt,2\n", ":3: ./a.txt is named twice"),
    ):
        manifest.write_text(bad)
        with pytest.raises(UsageError, match=re.escape(why)):
            await app.ingest(manifest=manifest)
