"""What archives and messages must not do to other documents, and what of them survives a backup."""

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import StartApp
from tests.integration import own_handlers
from tests.integration.test_lifecycle import workflow
from tests.kit import ole
from tests.kit.apps import fast, found, named, slow, until
from tests.kit.archives import make_7z, make_zip

from penstock import restore
from penstock.app import App

Files = Callable[..., Path]


@pytest.fixture
async def both(start_app: StartApp, database_url: str) -> App:
    """An app on each database in turn."""
    return await start_app(database=database_url)


@pytest.fixture
def heard() -> Iterator[list[Any]]:
    own_handlers.heard.clear()
    yield own_handlers.heard
    own_handlers.heard.clear()


async def test_hostile_names_reach_the_ledger_as_plain_sources(both: App, files: Files) -> None:
    names = [
        "/etc/passwd",
        "../up.txt",
        "a\\b.txt",
        "nul\0cut.txt",
        "Case.txt",
        "case.txt",
        "x" * 3000,
        "twice",
        "./twice",
    ]
    folder = files(**{"docs.zip": make_zip([(name, f"The alphaword {n}.") for n, name in enumerate(names)])})
    summary = await both.ingest([folder])
    assert (summary.completed, summary.failed) == (1 + len(names), 0)
    sources = {d.source.partition("docs.zip!/")[2] for d in await both.list_documents(limit=100)} - {""}
    cut = "nul\N{REPLACEMENT CHARACTER}cut.txt"
    assert sources == {
        *("etc/passwd", "up.txt", "a/b.txt", cut, "Case.txt", "case.txt", "x" * 197 + "…", "twice", "twice (2)")
    }
    assert [path.name for path in folder.iterdir()] == ["docs.zip"], "nothing is unpacked"
    assert (await both.check()).ok


async def test_a_file_does_not_replace_a_child_with_the_same_source(both: App, files: Files) -> None:
    folder = files(**{"docs.zip": make_zip({"a.txt": "The alphaword."})})
    await both.ingest([folder / "docs.zip"], batch="first")
    child = await named(both, "a.txt")
    (folder / "docs.zip!").mkdir()
    for content in ("The betaword.", "The alphaword."):
        (folder / "docs.zip!" / "a.txt").write_text(content)
        summary = await both.ingest([folder / "docs.zip!"], batch="second", metadata={"mine": True})
        assert (summary.submitted, summary.refused) == (0, 1)
        [problem] = summary.problems
        assert f"the source of another document, {child.id}: rename" in problem
    assert await named(both, "a.txt") == child
    assert await found(both, "betaword") == set()
    assert (await both.check()).ok


async def test_the_attachments_of_an_outlook_message_are_documents(app: App, files: Files) -> None:
    start = "__attach_version1.0_#0000000{}/__substg1.0_{}"
    inner = make_zip({"deep.txt": "The gammaword."})
    more = {
        start.format(0, "37010102"): b"The alphaword. " * 400,
        start.format(1, "3704001F"): "../in.zip".encode("utf-16-le"),
        start.format(1, "37010102"): inner,
    }
    message = ole.outlook("The betaword", "Two files are attached.", attachment="note.txt", more=more)
    summary = await app.ingest([files(**{"mail.msg": message})])
    assert (summary.completed, summary.children, summary.failed) == (4, 3, 0)
    sources = {d.source.rpartition("/files/")[2] for d in await app.list_documents()}
    assert sources == {"mail.msg", "mail.msg!/note.txt", "mail.msg!/.._in.zip", "mail.msg!/.._in.zip!/deep.txt"}
    assert await found(app, "betaword") == {"mail.msg"}
    assert await found(app, "alphaword") == {"note.txt"}


async def test_a_locked_7z_archive_is_completed_by_its_password(app: App, files: Files) -> None:
    folder = files(**{"docs.7z": make_7z({"a.txt": "The alphaword."}, "sesame", whole=True)})
    assert (await app.ingest([folder])).reasons == {"encrypted": 1}
    assert (await app.ingest([folder], password="wrong")).reasons == {"encrypted": 1}
    summary = await app.ingest([folder], password="sesame")
    assert (summary.completed, summary.failed) == (2, 0)
    assert await found(app, "alphaword") == {"a.txt"}


async def test_i8_a_group_ends_when_the_children_have_ended(
    start_app: StartApp, files: Files, tmp_path: Path, database_url: str, heard: list[Any]
) -> None:
    app = await start_app(database=database_url, workflow=workflow(tmp_path, "group_end"))
    folder = files(
        **{"docs.zip": make_zip({"in.zip": make_zip({f"{i}.txt": f"The alphaword {i}." for i in range(3)})})}
    )
    slow(app, 60.0)
    running = asyncio.create_task(app.ingest([folder]))

    async def waiting() -> bool:
        statuses = {d.name: d.status for d in await app.list_documents()}
        return len(statuses) == 5 and statuses["docs.zip"] == statuses["in.zip"] == "COMPLETED"

    await until(waiting, 60)
    [group] = await app.list_groups()
    assert (group.status, group.completed, group.completions) == ("RUNNING", 2, 0)
    assert heard == []
    fast(app)
    await app.cancel([(await named(app, "docs.zip")).id])
    await asyncio.wait_for(running, 60)
    assert [(event.kind, event.counts) for event in heard] == [("GROUP_END", {"COMPLETED": 2, "CANCELLED": 3})]


async def test_a_restored_home_knows_what_belongs_to_what(
    tmp_path: Path, start_app: StartApp, files: Files, database_url: str
) -> None:
    inner = make_zip({"deep.txt": "The gammaword."})
    folder = files(**{"docs.zip": make_zip({"a.txt": "The alphaword.", "old.txt": "The oldword.", "in.zip": inner})})
    app = await start_app(database=database_url)
    await app.ingest([folder])
    before = {d.source: (d.id, d.parent) for d in await app.list_documents()}
    await app.backup(tmp_path / "backup")
    assert (await restore(tmp_path / "backup", home=str(tmp_path / "again"), embedder="fake")).check.ok
    again = await start_app("again")
    assert {d.source: (d.id, d.parent) for d in await again.list_documents()} == before
    files(**{"docs.zip": make_zip({"a.txt": "The alphaword.", "in.zip": inner})})
    summary = await again.ingest([folder])
    assert (summary.submitted, summary.completed) == (1, 1), "unchanged children are known"
    assert await found(again, "oldword") == set(), "and one that is gone is deleted"
    assert len(await again.delete([(await named(again, "docs.zip")).id])) == 4
    assert (await again.check()).ok
