"""Documents inside documents: accepted once, counted, deleted and replaced with their parent."""

import asyncio
import gzip
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.conftest import StartApp
from tests.kit.apps import found, named, slow, until
from tests.kit.archives import make_mail, make_partly_encrypted_zip, make_tar_gz, make_zip

from penstock.app import App
from penstock.ledger.engine import children, submits
from penstock.model.states import DocumentStatus
from penstock.verbs.views import DocumentView

Files = Callable[..., Path]

COMPLETED = DocumentStatus.COMPLETED


@pytest.fixture
async def both(start_app: StartApp, database_url: str) -> App:
    """An app on each database in turn."""
    return await start_app(database=database_url)


async def sources(app: App) -> dict[str, DocumentView]:
    """The documents by the part of their source after the folder."""
    return {d.source.rpartition("/files/")[2]: d for d in await app.list_documents(limit=1000)}


async def test_what_is_inside_an_archive_is_found_counted_and_cited(both: App, files: Files) -> None:
    inner = make_zip({"deep.txt": "The gammaword is deep inside."})
    mail = make_mail("Hello betaword", "See the file.", {"note.txt": "The attached deltaword.", "in.zip": inner})
    contents = {"a.txt": "The alphaword.", "sub/": "", "mail.eml": mail, "inner.zip": inner, "__MACOSX/._a.txt": "x"}
    folder = files(**{"docs.zip": make_zip(contents)})
    summary = await both.ingest([folder])
    assert (summary.submitted, summary.completed, summary.children, summary.failed) == (1, 8, 7, 0)
    there = await sources(both)
    assert set(there) == {
        "docs.zip", "docs.zip!/a.txt", "docs.zip!/mail.eml", "docs.zip!/mail.eml!/note.txt",
        "docs.zip!/mail.eml!/in.zip", "docs.zip!/mail.eml!/in.zip!/deep.txt", "docs.zip!/inner.zip",
        "docs.zip!/inner.zip!/deep.txt",
    }  # fmt: skip
    assert {d.status for d in there.values()} == {COMPLETED}
    [hit] = await both.search("deltaword", 5, mode="text")
    assert hit.source.endswith("docs.zip!/mail.eml!/note.txt")
    assert await found(both, "betaword") == {"mail.eml"}, "a message with attachments is searchable itself"
    parent = there["docs.zip"]
    status = await both.status(parent.id)
    assert status.children == {"COMPLETED": 3}
    assert [step.meta.get("children") for step in status.steps] == [None, 3]
    assert {d.name for d in await both.list_documents(parent=parent.id)} == {"a.txt", "mail.eml", "inner.zip"}
    assert there["docs.zip!/a.txt"].parent == parent.id
    [group] = await both.list_groups()
    assert (group.status, group.total, group.completed, group.completions) == ("COMPLETED", 8, 8, 1)
    again = await both.ingest([folder])
    assert (again.skipped, again.completed, again.children) == (1, 0, 0)
    assert (await both.check()).ok


async def test_a_new_version_changes_only_what_differs(both: App, files: Files) -> None:
    old = {"same.txt": "The sameword.", "new.txt": "The firstword.", "gone.zip": make_zip({"x.txt": "The goneword."})}
    folder = files(**{"docs.zip": make_zip(old)})
    await both.ingest([folder])
    before = await sources(both)
    files(
        **{"docs.zip": make_zip({"same.txt": "The sameword.", "new.txt": "A secondword.", "more.txt": "The moreword."})}
    )
    summary = await both.ingest([folder])
    assert (summary.submitted, summary.completed, summary.children) == (1, 3, 2), "the parent, and what is new in it"
    after = await sources(both)
    assert set(after) == {"docs.zip", "docs.zip!/same.txt", "docs.zip!/new.txt", "docs.zip!/more.txt"}
    for name in ("docs.zip", "docs.zip!/same.txt", "docs.zip!/new.txt"):
        assert after[name].id == before[name].id
    assert await found(both, "goneword") == await found(both, "firstword") == set()
    assert await found(both, "sameword") == {"same.txt"}
    assert await found(both, "secondword") == {"new.txt"}
    # And back: what is gone comes back, although the archive was read before.
    files(**{"docs.zip": make_zip(old)})
    await both.ingest([folder])
    assert await found(both, "goneword") == {"x.txt"}
    assert await found(both, "moreword") == set()
    assert (await both.check()).ok


async def test_copies_of_one_archive_have_children_of_their_own(app: App, files: Files) -> None:
    data = make_zip({"a.txt": "The alphaword."})
    folder = files(**{"one.zip": data, "two.zip": data})
    assert (await app.ingest([folder])).children == 2
    assert set(await sources(app)) == {"one.zip", "one.zip!/a.txt", "two.zip", "two.zip!/a.txt"}
    (folder / "two.zip").unlink()
    summary = await app.ingest([folder], prune=True)
    assert summary.deleted == 2
    assert set(await sources(app)) == {"one.zip", "one.zip!/a.txt"}


async def test_i5_children_are_deleted_with_their_parent(both: App, files: Files) -> None:
    inner = make_zip({"deep.txt": "The gammaword."})
    folder = files(**{"docs.zip": make_zip({"a.txt": "The alphaword.", "inner.zip": inner})})
    await both.ingest([folder])
    gone = await both.delete([(await named(both, "docs.zip")).id])
    assert len(gone) == 4
    assert await found(both, "alphaword") == await found(both, "gammaword") == set()
    assert await both.list_documents() == []
    assert (await both.check()).ok


async def test_i3_a_stale_worker_adds_no_children(both: App, files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody deletes the parent after its members were read, and before they are accepted."""
    folder = files(**{"docs.zip": make_zip({"a.txt": "The alphaword."})})
    await both.ingest([folder], wait=False)
    parent = await named(both, "docs.zip")
    write = type(both.ledger).write
    deleted = False

    async def delete_first(self: object, verb: object, item: object) -> object:
        nonlocal deleted
        if verb is submits.SUBMIT and not deleted:
            deleted = True
            await both.delete([parent.id])
        return await write(both.ledger, verb, item)  # type: ignore[arg-type]

    monkeypatch.setattr(type(both.ledger), "write", delete_first)
    await both.run()
    assert deleted
    assert await both.list_documents() == []
    assert (await both.check()).ok


async def test_cancelling_a_parent_cancels_what_is_unfinished_inside(both: App, files: Files) -> None:
    contents = {f"{i}.txt": f"The alphaword {i}." for i in range(3)}
    folder = files(**{"docs.zip": make_zip(contents)})
    slow(both, 60.0)
    running = asyncio.create_task(both.ingest([folder]))

    async def there() -> bool:
        return len(await both.list_documents()) == 4

    await until(there, 60)
    await both.cancel([(await named(both, "docs.zip")).id])
    summary = await asyncio.wait_for(running, 60)
    assert summary.cancelled + summary.completed == 4
    assert summary.cancelled >= 3
    [group] = await both.list_groups()
    assert (group.status, group.running, group.pending) == ("CANCELLED", 0, 0)
    assert (await both.check()).ok


async def test_an_interrupted_ingest_goes_on_with_the_children(app: App, files: Files) -> None:
    folder = files(**{"docs.zip": make_zip({f"{i}.txt": f"The alphaword {i}." for i in range(5)})})
    parent = (await app.ingest([folder], wait=False)).submitted
    assert parent == 1
    for _ in range(100):
        if (await named(app, "docs.zip")).status == COMPLETED:
            break
        await app.run(budget_s=0.001)
    summary = await app.ingest([folder])
    assert (summary.skipped, summary.failed, summary.pending) == (1, 0, 0)
    assert len(await found(app, "alphaword")) == 5


async def test_a_damaged_archive_keeps_what_could_be_read(both: App, files: Files) -> None:
    packed = make_tar_gz({f"{i}.txt": f"The alphaword {i}. " + "x" * 5000 for i in range(40)})
    whole = gzip.decompress(packed)
    folder = files(**{"torn.tar": whole[: len(whole) // 2]})
    summary = await both.ingest([folder])
    assert summary.failed == 1
    assert 15 <= summary.completed < 40
    [letter] = (await both.list_dead_letters()).letters
    assert letter.reason == "damaged"
    assert f"{summary.completed} documents in it could be read" in letter.error
    assert len(await found(both, "alphaword", 50)) == summary.completed
    files(**{"torn.tar": whole})
    await both.ingest([folder])
    assert len(await found(both, "alphaword", 50)) == 40


async def test_a_password_completes_an_archive_of_which_the_rest_was_read(
    app: App, files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cursor says which member could not be read. It is stored if reading takes longer than this."""
    monkeypatch.setattr("penstock.artifacts.checkpoint.FLUSH_S", 0.0)
    data = make_partly_encrypted_zip({"a.txt": "The alphaword."}, "secret.txt", b"The secretword.", b"sesame")
    folder = files(**{"docs.zip": data})
    summary = await app.ingest([folder])
    assert (summary.completed, summary.failed) == (1, 1)
    [letter] = (await app.list_dead_letters()).letters
    assert (letter.reason, letter.page) == ("encrypted", None)
    await app.retry([letter.document_id or ""], password="sesame")
    await app.run()
    assert (await app.list_dead_letters()).letters == []
    assert {d.status for d in await app.list_documents()} == {COMPLETED}
    assert await found(app, "secretword") == {"secret.txt"}


async def test_nesting_and_sizes_have_limits(start_app: StartApp, files: Files) -> None:
    nested = b"The alphaword."
    for depth in range(6):
        nested = make_zip({f"{depth}.zip" if depth else "a.txt": nested})
    bomb = make_zip({"big.txt": b"\0" * (40 << 20)})
    many = make_zip({f"{i}.txt": "" for i in range(60)})
    folder = files(**{"nested.zip": nested, "bomb.zip": bomb, "many.zip": many})
    app = await start_app(limits={"nesting": 3, "members": 50, "unpacked_ratio": 100})
    summary = await app.ingest([folder])
    assert summary.reasons.get("children_too_deep") == summary.reasons.get("unpacked_too_large") == 1, summary.reasons
    assert summary.reasons["too_many_members"] == 1
    assert len([name for name in await sources(app) if name.startswith("nested")]) == 4
    assert not [name for name in await sources(app) if name.startswith("bomb.zip!")]


async def test_the_limits_count_everything_inside_the_outermost_document(start_app: StartApp, files: Files) -> None:
    inner = make_zip({f"{i}.txt": f"text {i}" for i in range(10)})
    folder = files(**{"docs.zip": make_zip({f"{i}.zip": inner for i in range(10)})})
    app = await start_app(limits={"members": 60})
    summary = await app.ingest([folder])
    assert summary.reasons["too_many_members"] == 5
    assert len(await app.list_documents(limit=1000)) == 61


async def test_an_orphan_is_found_and_deleted(both: App, files: Files) -> None:
    inner = make_zip({"deep.txt": "The gammaword."})
    await both.ingest([files(**{"docs.zip": make_zip({"a.txt": "The alphaword.", "inner.zip": inner})})])

    def lose(parent: str) -> None:
        connection = both.ledger.database.connect()
        connection.script(f"UPDATE documents SET parent_id = 'gone' WHERE parent_id = '{parent}'")
        connection.close()

    await both.runtime.run_blocking("read", lose, (await named(both, "docs.zip")).id)
    report = await both.check()
    assert [problem.kind for problem in report.problems] == ["orphan_child"] * 2
    await both.check(repair=True)
    assert [d.name for d in await both.list_documents()] == ["docs.zip"]
    assert (await both.check()).ok


async def test_what_a_child_gets_from_its_parent(both: App, files: Files) -> None:
    folder = files(**{"docs.zip": make_zip({"a.txt": "The alphaword."})})
    await both.ingest([folder], collection="box", batch="spring", priority=5, metadata={"year": 2024})
    parent, child = await named(both, "docs.zip"), await named(both, "a.txt")
    assert child.collection == "box"
    assert child.metadata == {"year": 2024}

    def runs(document: str) -> object:
        connection = both.ledger.database.connect()
        try:
            return connection.script(
                "SELECT x.snapshot, x.settings, x.priority, x.group_id, d.batch FROM runs x "
                f"JOIN documents d ON d.id = x.document_id WHERE d.id = '{document}'"
            )
        finally:
            connection.close()

    of_parent = await both.runtime.run_blocking("read", runs, parent.id)
    assert of_parent == await both.runtime.run_blocking("read", runs, child.id)


async def test_a_file_under_the_source_of_a_child_is_not_replaced(app: App, files: Files) -> None:
    folder = files(**{"docs.zip": make_zip({"a.txt": "The alphaword."})})
    (folder / "docs.zip!").mkdir()
    (folder / "docs.zip!" / "a.txt").write_text("The betaword.")
    await app.ingest([folder / "docs.zip!"])
    summary = await app.ingest([folder / "docs.zip"])
    assert summary.reasons == {"member_refused": 1}
    assert await found(app, "betaword") == {"a.txt"}


async def test_metadata_of_the_module_is_in_step_with_the_engine() -> None:
    """The statuses that count as unfinished are those that are no end, but for documents that nobody has started."""
    from penstock.model.states import ENDS

    text = children._UNFINISHED.text
    assert {s for s in DocumentStatus if f"'{s}'" in text} == set(DocumentStatus) - {*ENDS, DocumentStatus.HELD}
