"""The rules of "Again": what a second ingest of the same thing means."""

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from tests.conftest import StartApp
from tests.kit.apps import found, named, only, text

from penstock.app import App
from penstock.errors import UsageError
from penstock.extractors import formats

Files = Callable[..., Path]
GARBAGE = b"\x7fELF" + bytes(range(256)) * 20


async def test_unchanged_completed_files_are_skipped_and_nothing_is_stored(
    app: App, files: Files, tmp_path: Path
) -> None:
    folder = files(**{f"{i}.txt": text(3, f"w{i}x") for i in range(5)})
    await app.ingest([folder])
    before = sorted((tmp_path / "home" / "blobs").rglob("*"))
    summary = await app.ingest([folder])
    assert (summary.submitted, summary.skipped, summary.completed) == (0, 5, 0)
    assert sorted((tmp_path / "home" / "blobs").rglob("*")) == before


async def test_a_changed_file_replaces_its_old_version(app: App, files: Files) -> None:
    folder = files(**{"a.txt": text(5, "oldword"), "b.txt": text(5, "other")})
    await app.ingest([folder])
    first = await named(app, "a.txt")
    files(**{"a.txt": text(5, "newword")})
    summary = await app.ingest([folder])
    assert (summary.submitted, summary.skipped, summary.completed) == (1, 1, 1)
    assert (await named(app, "a.txt")).id == first.id
    assert await found(app, "newword3") == {"a.txt"}
    assert await found(app, "oldword3") == set()


async def test_a_touched_but_unchanged_file_is_skipped(app: App, files: Files) -> None:
    folder = files(**{"a.txt": text(5)})
    await app.ingest([folder])
    (folder / "a.txt").touch()
    assert (await app.ingest([folder])).skipped == 1


async def test_a_large_unchanged_file_is_skipped_without_a_copy(app: App, files: Files, tmp_path: Path) -> None:
    folder = files(**{"a.txt": "word " * 300_000})
    await app.ingest([folder], wait=False)
    raw = list((tmp_path / "home" / "blobs" / "default" / "raw").rglob("*"))
    summary = await app.ingest([folder], wait=False)
    assert (summary.submitted, summary.pending) == (1, 1), "unfinished: it is worked on"
    assert list((tmp_path / "home" / "blobs" / "default" / "raw").rglob("*")) == raw


async def test_an_unfinished_file_is_worked_on(app: App, files: Files) -> None:
    folder = files(**{"a.txt": text(5)})
    assert (await app.ingest([folder], wait=False)).pending == 1
    summary = await app.ingest([folder])
    assert (summary.submitted, summary.completed) == (1, 1)
    assert len(await app.list_documents()) == 1


async def test_unsupported_and_blank_files_are_skipped_unless_asked_for(app: App, files: Files) -> None:
    folder = files(**{"bad.bin": GARBAGE, "blank.txt": " "})
    first = await app.ingest([folder])
    assert (first.unsupported, first.not_indexable) == (1, 1)
    second = await app.ingest([folder])
    assert (second.submitted, second.skipped) == (0, 2)
    third = await app.ingest([folder], retry=True)
    assert (third.submitted, third.unsupported, third.not_indexable) == (2, 1, 1)
    assert (await app.list_dead_letters()).total == 0


async def test_other_settings_try_failed_files_again_but_leave_completed_ones(
    start_app: StartApp, files: Files
) -> None:
    folder = files(**{"bad.bin": GARBAGE, "a.txt": text(5)})
    await (await start_app()).ingest([folder])
    app = await start_app(chunk={"size": 400})
    summary = await app.ingest([folder])
    assert (summary.submitted, summary.unsupported, summary.skipped, summary.stale_settings) == (1, 1, 1, 1)


def new_html_version(monkeypatch: pytest.MonkeyPatch) -> None:
    """For apps that are opened from now on."""
    rows = [
        msgspec.structs.replace(row, version="html-new") if row.media_type == formats.HTML else row
        for row in formats.FORMATS
    ]
    monkeypatch.setattr(formats, "FORMATS", tuple(rows))


def of_all_formats(files: Files) -> Path:
    """With a limit of one megabyte, two fail in `extract`, two have no text and two are completed."""
    padding = "x" * 1_000_001
    return files(
        **{"bad.pdf": b"%PDF-1.4 damaged", "large.html": f"<!doctype html><p>word</p><!-- {padding} -->"},
        **{"blank.txt": " ", "blank.html": "<!doctype html><p> </p>"},
        **{"a.txt": text(5), "a.html": f"<!doctype html><p>{text(5)}</p>"},
    )


async def test_a_new_version_of_one_extractor_concerns_documents_of_its_format_only(
    start_app: StartApp, files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = of_all_formats(files)
    first = await (await start_app(limits={"megabytes": 1})).ingest([folder])
    assert (first.failed, first.not_indexable, first.completed) == (2, 2, 2)
    new_html_version(monkeypatch)
    app = await start_app()
    again = await app.ingest([folder])
    assert (again.submitted, again.completed, again.not_indexable) == (2, 1, 1), "large.html and blank.html"
    assert (again.skipped, again.stale_settings) == (4, 1), "a.html is stale"
    assert (await named(app, "large.html")).status == "COMPLETED"
    assert (await named(app, "bad.pdf")).status == "FAILED"
    assert (await app.ingest([folder])).skipped == 6


async def test_a_replay_starts_new_runs_for_the_format_with_a_new_version_only(
    start_app: StartApp, files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    await (await start_app(limits={"megabytes": 1})).ingest([of_all_formats(files)])
    new_html_version(monkeypatch)
    app = await start_app()
    planned = await app.replay(dry_run=True)
    assert (planned.count, planned.resumed, planned.started) == (2, 1, 1)
    done = await app.replay()
    assert (done.count, done.resumed, done.started) == (2, 1, 1)
    rows = await app.ledger.read(
        lambda c: c.script(
            "SELECT d.name, count(*) FROM documents d JOIN runs x ON x.document_id = d.id "
            "WHERE d.name IN ('bad.pdf', 'large.html') GROUP BY d.name ORDER BY d.name"
        )
    )
    assert [tuple(row) for row in rows] == [("bad.pdf", 1), ("large.html", 2)]


async def test_a_file_of_unknown_format_is_tried_again_with_any_new_version(
    start_app: StartApp, files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = files(**{"bad.bin": GARBAGE})
    await (await start_app()).ingest([folder])
    new_html_version(monkeypatch)
    assert (await (await start_app()).ingest([folder])).submitted == 1


async def test_settings_of_an_earlier_release_are_compared_as_a_whole(
    start_app: StartApp, files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = of_all_formats(files)
    app = await start_app(limits={"megabytes": 1})
    await app.ingest([folder])
    whole = "SELECT substr(b.body, 1, 40) FROM run_settings b WHERE b.fingerprint = runs.settings"
    await app.ledger.read(lambda c: c.script(f"UPDATE runs SET settings = ({whole})"))
    await app.ledger.read(lambda c: c.script("DELETE FROM run_settings"))
    same = await app.ingest([folder])
    assert (same.submitted, same.skipped, same.stale_settings) == (0, 6, 0)
    new_html_version(monkeypatch)
    other = await (await start_app()).ingest([folder])
    assert (other.submitted, other.skipped, other.stale_settings) == (4, 2, 2)


async def test_a_cancelled_file_is_skipped_unless_asked_for(app: App, files: Files) -> None:
    folder = files(**{"a.txt": text(5)})
    await app.ingest([folder], wait=False)
    await app.cancel([(await only(app)).id])
    assert (await app.ingest([folder])).skipped == 1
    assert (await app.ingest([folder], retry=True)).completed == 1


async def test_a_deleted_file_that_is_still_there_comes_back_as_a_new_document(app: App, files: Files) -> None:
    folder = files(**{"a.txt": text(5)})
    await app.ingest([folder])
    old = await only(app)
    await app.delete([old.id])
    assert await found(app, "matter3") == set()
    assert (await app.ingest([folder])).completed == 1
    assert (await only(app)).id != old.id
    assert await found(app, "matter3") == {"a.txt"}


async def test_an_idempotency_key_is_answered_once(app: App) -> None:
    first = await app.ingest(data=b"some words", name="a.txt", key="k1")
    assert first.completed == 1
    again = await app.ingest(data=b"some words", name="elsewhere.txt", key="k1")
    assert (again.submitted, again.skipped) == (0, 1)
    with pytest.raises(UsageError, match="used before with other bytes"):
        await app.ingest(data=b"other words", name="a.txt", key="k1")
    assert len(await app.list_documents()) == 1


async def test_standard_input_is_known_by_its_name(app: App) -> None:
    assert (await app.ingest(data=b"some words of old", name="notes.txt")).completed == 1
    assert (await app.ingest(data=b"some words of old", name="notes.txt")).skipped == 1
    assert (await app.ingest(data=b"some words of new", name="notes.txt")).completed == 1
    assert len(await app.list_documents()) == 1
    assert await found(app, "old") == set()


async def test_data_without_a_name_is_refused(app: App) -> None:
    with pytest.raises(UsageError, match="needs a name"):
        await app.ingest(data=b"x")


async def test_prune_deletes_what_left_the_folder_and_nothing_else(app: App, files: Files, tmp_path: Path) -> None:
    folder = files(**{"a.txt": text(3, "aaa"), "b.txt": text(3, "bbb")})
    (tmp_path / "files2").mkdir()
    (tmp_path / "files2" / "c.txt").write_text(text(3, "ccc"))
    await app.ingest([folder, tmp_path / "files2"])
    (folder / "a.txt").unlink()
    (tmp_path / "files2" / "c.txt").unlink()
    summary = await app.ingest([folder], prune=True)
    assert (summary.deleted, summary.skipped) == (1, 1)
    assert {entry.name for entry in await app.list_documents()} == {"b.txt", "c.txt"}


async def test_one_file_named_twice_is_one_document(app: App, files: Files) -> None:
    folder = files(**{"a.txt": text(3)})
    summary = await app.ingest([folder, folder / "a.txt", folder])
    assert (summary.submitted, summary.completed) == (1, 1)
