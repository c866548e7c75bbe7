"""A ledger that was put back to an earlier moment, beside an index, blobs and handlers that know what came after it."""

import shutil
from pathlib import Path

import pytest
from tests.kit.apps import found
from tests.kit.damage import document_id, kinds, sql
from tests.kit.ledger import Desk

from penstock.app import open_app
from penstock.ledger.database import histories
from penstock.ledger.database.histories import Seen
from penstock.ledger.database.store import Ledger

EXACT = 2**53
"""Up to here a number in JSON is what it was."""


def copy_ledger(home: Path, to: Path) -> Path:
    shutil.copyfile(home / "ledger.db", to)
    return to


def put_back(home: Path, copy: Path) -> None:
    for name in ("ledger.db-wal", "ledger.db-shm"):
        (home / name).unlink(missing_ok=True)
    shutil.copyfile(copy, home / "ledger.db")


async def write(home: Path, **texts: str) -> None:
    async with open_app(home=str(home), embedder="fake") as app:
        for name, text in texts.items():
            await app.ingest(data=text.encode(), name=name)


@pytest.fixture
async def home(tmp_path: Path) -> Path:
    """Its ledger is from before b; b is in the index."""
    home = tmp_path / "home"
    await write(home, a="The apple is red.")
    copy = copy_ledger(home, tmp_path / "older.db")
    await write(home, b="The banana is yellow.")
    put_back(home, copy)
    return home


async def test_i5_no_document_is_shown_with_the_text_of_one_that_the_ledger_has_forgotten(
    home: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (home / "ledger.mark").unlink()
    async with open_app(home=str(home), embedder="fake") as app:
        assert "the ledger is an older copy" in caplog.text
        await app.ingest(data=b"The cherry is black.", name="c")
        assert await found(app, "banana") == set()
        assert {hit.name: hit.text for hit in await app.search("cherry", 5)} == {
            "a": "The apple is red.",
            "c": "The cherry is black.",
        }
        report = await app.check()
        assert kinds(report.problems) == {"ledger_set_back"}
        assert "dead_rows" in kinds(report.garbage)
        assert (await app.check(repair=True)).ok
        report = await app.check()
        assert report.ok
        assert "dead_rows" not in kinds(report.garbage)
        await app.ingest(data=b"The banana is yellow.", name="b")
        assert await found(app, "banana") == {"b"}


async def test_it_is_noticed_once(home: Path, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(3):
        async with open_app(home=str(home), embedder="fake"):
            pass
    assert caplog.text.count("older copy") == 1
    assert len(sql(home, "SELECT * FROM histories")) == 1


async def test_a_ledger_copied_without_its_wal_is_noticed_though_only_a_delete_is_missing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    home = tmp_path / "home"
    await write(home, a="The apple is red.")
    async with open_app(home=str(home), embedder="fake") as app:
        await app.delete([await document_id(app, "a")])
        copy = copy_ledger(home, tmp_path / "without-wal.db")
        assert await found(app, "apple") == set()
    put_back(home, copy)
    async with open_app(home=str(home), embedder="fake") as app:
        assert "Changes that are missing: 1." in caplog.text
        assert kinds((await app.check()).problems) == {"ledger_set_back"}


async def test_a_ledger_that_was_made_anew_beside_an_old_index_is_noticed(home: Path) -> None:
    for path in (*home.glob("ledger.db*"), home / "ledger.mark"):
        path.unlink()
    async with open_app(home=str(home), embedder="fake") as app:
        await app.ingest(data=b"The cherry is black.", name="c")
        assert {hit.text for hit in await app.search("apple banana cherry", 9)} == {"The cherry is black."}


async def test_a_crash_is_no_such_thing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Ledger, WAL and mark as a kill leaves them; the mark may also be older."""
    home, older = tmp_path / "home", b""
    async with open_app(home=str(home), embedder="fake") as app:
        for i in range(4):
            await app.ingest(data=f"The apple {i} is red.".encode(), name=str(i))
            await app.delete([await document_id(app, str(i))])
            for j, mark in enumerate((None, older, b"", b"torn")):
                crashed = tmp_path / f"crashed-{i}-{j}"
                shutil.copytree(home, crashed)
                if mark is not None:
                    (crashed / "ledger.mark").write_bytes(mark)
                async with open_app(home=str(crashed), embedder="fake") as again:
                    assert not await again.ledger.read(histories.unsettled)
            older = (home / "ledger.mark").read_bytes()
    assert "older copy" not in caplog.text


async def test_i1_prune_leaves_bytes_alone_that_the_right_ledger_may_name(home: Path) -> None:
    async with open_app(home=str(home), embedder="fake") as app:
        assert (await app.prune(older_than_s=0)).blobs == 0
        await app.check(repair=True)
        assert (await app.prune(older_than_s=0)).blobs > 0


async def test_ids_of_a_new_history_are_above_all_others_and_keep_growing(
    ledger: Ledger, desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def generation(source: str) -> int:
        await desk.submit(source)
        rows = await desk.rows("SELECT max(id) FROM generations")
        found: int = rows[0][0]
        return found

    assert await generation("/a") == 1
    assert await ledger.notice(1) is None
    noticed = await ledger.notice(7)
    assert noticed is not None
    assert await ledger.notice(7) is None
    second = await generation("/b")
    assert second == noticed.first_generation > 7
    assert second < EXACT
    # A clock that was set back does not set ids back.
    monkeypatch.setattr(histories, "ORIGIN_S", histories.ORIGIN_S * 2)
    again = await ledger.notice(second + 5)
    assert again is not None
    assert await generation("/c") == again.first_generation == second + 6
    assert [one.first_generation for one in await ledger.read(histories.unsettled)] == [second, second + 6]


async def test_two_histories_share_no_event_ids(ledger: Ledger, desk: Desk) -> None:
    await ledger.notice(7)
    [(before,)] = await desk.rows(
        "SELECT seq FROM sqlite_sequence WHERE name = 'events'"
        if ledger.database.dialect == "sqlite"
        else "SELECT last_value FROM events_id_seq"
    )
    assert before > histories.SECOND


async def test_several_processes_that_notice_it_begin_one_history(ledger: Ledger, second: Desk) -> None:
    first, other = await ledger.write(histories.NOTICE, Seen(7)), await second.ledger.write(histories.NOTICE, Seen(7))
    assert first is not None
    assert other is None
