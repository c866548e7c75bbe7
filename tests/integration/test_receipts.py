"""Receipts: what a submit says of each document."""

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
from tests.conftest import StartApp
from tests.kit.damage import sql

from penstock import App, Receipt
from penstock.errors import UsageError
from penstock.sources.base import Found
from penstock.sources.folder import FolderSource


@pytest.fixture
async def app(start_app: StartApp) -> App:
    return await start_app()


async def submitted(app: App, *paths: Path, **options: object) -> list[Receipt]:
    return [receipt async for receipt in app.submit(paths, **options)]  # type: ignore[arg-type]


async def test_each_document_has_a_receipt_that_names_it(app: App, tmp_path: Path) -> None:
    folder = tmp_path / "files"
    folder.mkdir()
    for name in ("a.txt", "b.txt"):
        (folder / name).write_text(f"the words of {name}")
    (folder / "c.txt").mkdir(mode=0o000)
    first = {receipt.name: receipt for receipt in await submitted(app, folder)}
    assert {name: (r.outcome, r.status, r.size) for name, r in first.items() if r.id} == {
        "a.txt": ("submitted", "PENDING", 18),
        "b.txt": ("submitted", "PENDING", 18),
    }
    assert {r.id: r.source for r in first.values() if r.id} == {d.id: d.source for d in await app.list_documents()}
    assert [r.outcome for r in await submitted(app, folder / "a.txt")] == ["resumed"]
    assert (await app.run()).completed == 2

    (folder / "b.txt").write_text("other words")
    second = {receipt.name: receipt for receipt in await submitted(app, folder)}
    assert [(second[n].outcome, second[n].status) for n in ("a.txt", "b.txt")] == [
        ("skipped", "COMPLETED"),
        ("changed", "PENDING"),
    ]
    assert [second[name].id for name in ("a.txt", "b.txt")] == [first[name].id for name in ("a.txt", "b.txt")]


async def test_what_cannot_be_read_is_refused_with_the_reason(app: App, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("words")
    pipe = tmp_path / "pipe"
    import os

    os.mkfifo(pipe)
    good, bad = await submitted(app, tmp_path / "a.txt", pipe)
    assert (good.outcome, good.problem) == ("submitted", None)
    assert (bad.id, bad.status, bad.outcome, bad.source, bad.name) == (None, None, "refused", str(pipe), "pipe")
    assert bad.problem is not None
    assert "not a file or folder" in bad.problem
    told: list[Receipt] = []
    summary = await app.ingest([tmp_path / "a.txt", pipe], on_receipt=told.append, wait=False)
    assert sorted((receipt.name, receipt.outcome) for receipt in told) == [("a.txt", "resumed"), ("pipe", "refused")]
    assert (summary.submitted, summary.refused) == (1, 1)


async def test_bytes_are_known_by_their_source(app: App) -> None:
    [first] = await submitted(app, data=b"first words", name="note.txt", source="crm://notes/17")
    [second] = await submitted(app, data=b"other words", name="renamed.txt", source="crm://notes/17")
    assert (first.source, first.outcome) == ("crm://notes/17", "submitted")
    assert (second.id, second.outcome) == (first.id, "changed")
    with pytest.raises(UsageError, match="source names what comes as `data`"):
        await submitted(app, source="crm://notes/17")


async def test_a_key_that_was_used_gives_the_first_receipt_s_id(app: App) -> None:
    [first] = await submitted(app, data=b"words", name="note.txt", key="k1")
    [again] = await submitted(app, data=b"words", name="note.txt", key="k1")
    assert (again.id, again.outcome) == (first.id, "skipped")


async def test_a_submit_that_is_left_early_keeps_what_it_accepted_and_its_group_ends(app: App, tmp_path: Path) -> None:
    folder = tmp_path / "files"
    folder.mkdir()
    for i in range(300):
        (folder / f"{i:03}.txt").write_text(f"note {i}")
    receipts = app.submit([folder])
    first = await anext(receipts)
    await receipts.aclose()  # type: ignore[attr-defined]
    assert first.outcome == "submitted"
    documents = await app.list_documents(limit=1000)
    assert len(documents) == 256
    assert (await app.run()).completed == 256
    [group] = await app.list_groups()
    assert (group.status, group.completed) == ("COMPLETED", 256)


async def test_a_submit_that_is_left_early_stores_nothing_afterwards(
    app: App, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the first receipts are given, the next files are being read."""
    folder = tmp_path / "files"
    folder.mkdir()
    for i in range(256):
        (folder / f"{i:03}.txt").write_text(f"note {i}")
    (folder / "large.txt").write_bytes(b"word " * (1 << 19))
    read = FolderSource.read

    async def slowly(self: FolderSource, found: Found) -> AsyncGenerator[bytes, None]:
        async for piece in read(self, found):
            await asyncio.sleep(0.2)
            yield piece

    monkeypatch.setattr(FolderSource, "read", slowly)
    before = asyncio.all_tasks()
    receipts = app.submit([folder])
    await anext(receipts)
    await receipts.aclose()  # type: ignore[attr-defined]
    assert asyncio.all_tasks() == before
    named = {key for (key,) in sql(tmp_path / "home", "SELECT raw_key FROM generations")}
    blobs = tmp_path / "home" / "blobs"
    assert {str(file.relative_to(blobs)) for file in blobs.rglob("*") if file.is_file()} == named


@pytest.mark.parametrize("options", [{"include": ["*.txt"]}, {"exclude": ["*.key"]}])
async def test_patterns_are_not_ignored_for_the_url_of_a_source(
    app: App, tmp_path: Path, options: dict[str, list[str]]
) -> None:
    folder = tmp_path / "files"
    folder.mkdir()
    (folder / "a.key").write_text("a secret")
    (folder / "a.txt").write_text("a note")
    await app.ingest(
        [f"file://{folder}"], include=options.get("include", ()), exclude=options.get("exclude", ()), wait=False
    )
    assert [document.name for document in await app.list_documents()] == ["a.txt"]
    with pytest.raises(UsageError, match="include and exclude"):
        await app.ingest(["https://example.com/a.key"], exclude=options.get("exclude", "*.key"))


async def test_many_receipts_do_not_gather_in_memory(app: App, tmp_path: Path) -> None:
    """They come batch by batch: at the first of them most files are not submitted yet."""
    folder = tmp_path / "files"
    folder.mkdir()
    for i in range(1500):
        (folder / f"{i:04}.txt").write_text(f"note {i}")
    seen = 0
    async for _ in app.submit([folder]):
        seen += 1
        if seen == 1:
            assert len(await app.list_documents(limit=5000)) <= 512
    assert seen == len(await app.list_documents(limit=5000)) == 1500
