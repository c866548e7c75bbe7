"""Backup and restore: every moment of a history can be had again, and gone on from."""

import asyncio
import hashlib
import json
import os
import shutil
import sqlite3
import stat
from collections.abc import Awaitable, Callable, Iterable
from contextlib import closing
from pathlib import Path
from typing import Any, cast

import pytest
from tests.kit.apps import found, penstock, slow, text, until
from tests.kit.damage import document_id, kinds, sql

from penstock import StorageError, UsageError, restore
from penstock.app import App, open_app
from penstock.errors import LeaseLost, LedgerAway
from penstock.ledger.database import histories
from penstock.ledger.database.connection import Connection, Row
from penstock.ledger.database.liveness import FileLiveness
from penstock.ledger.database.postgres import PostgresConnection
from penstock.ledger.upkeep import backup_tables
from penstock.model.nouns import WorkerId
from penstock.model.states import StepStatus
from penstock.upkeep import backup as backups
from penstock.upkeep.backup import read_manifest
from penstock.upkeep.purge import purge

LONG = os.environ.get("PENSTOCK_LONG") == "1"
WORDS = "apple banana cherry damson elder"
Picture = dict[str, Any]


async def picture(app: App) -> Picture:
    """What a reader sees, and what was promised."""
    hits = await app.search(WORDS, 50)
    listed = await app.list_documents()
    return {
        "hits": sorted((hit.name, hit.text, hit.page, hit.start) for hit in hits),
        "documents": sorted((entry.name, entry.status, entry.size) for entry in listed),
        "chunks": {
            entry.name: [chunk.text async for chunk in app.show(entry.id, "chunks")]
            for entry in listed
            if entry.searchable
        },
    }


async def put(app: App, name: str, content: str, **options: Any) -> None:
    await app.ingest(data=content.encode(), name=name, **options)


async def forget(app: App, name: str) -> None:
    await app.delete([await document_id(app, name)])


Step = Callable[[App], Awaitable[object]]
HISTORY: tuple[Step, ...] = (
    lambda app: put(app, "a", "The apple is red."),
    lambda app: put(app, "b", "The banana is yellow."),
    lambda app: put(app, "a", "The apple is green now, and the elder blooms."),
    lambda app: forget(app, "b"),
    lambda app: put(app, "blank", "   \n "),
    lambda app: put(app, "bad", "\0\x01binary" * 50),
    lambda app: put(app, "c", "The cherry is black.", wait=False),
    lambda app: app.run(),
    lambda app: put(app, "b", "The banana came again."),
    lambda app: app.vacuum(),
)


@pytest.fixture(params=["sqlite", "postgres"])
def make_database(request: pytest.FixtureRequest) -> Callable[[], str | None]:
    """A fresh database each time; None: the embedded one of the home."""
    if request.param == "sqlite":
        return lambda: None
    make: Callable[[], str] = request.getfixturevalue("make_postgres")
    return make


def settings(home: Path, database: str | None = None) -> dict[str, Any]:
    return {"home": str(home), "embedder": "fake", **({"database": database} if database else {})}


async def test_every_moment_of_a_history_can_be_had_again(
    tmp_path: Path, make_database: Callable[[], str | None]
) -> None:
    pictures: list[Picture] = []
    async with open_app(**settings(tmp_path / "home", make_database())) as app:
        for i, step in enumerate(HISTORY):
            await step(app)
            report = await app.backup(tmp_path / f"backup-{i}")
            assert report.damaged == []
            pictures.append(await picture(app))
    for i, then in enumerate(pictures):
        chosen = settings(tmp_path / f"again-{i}", make_database())
        if "database" in chosen and i % 3 and not LONG:
            continue
        done = await restore(tmp_path / f"backup-{i}", **chosen)
        assert done.check.ok, done.check.problems
        assert done.restored.documents == len(then["documents"])
        async with open_app(**chosen) as app:
            assert await picture(app) == then
            await go_on(app)


async def go_on(app: App) -> None:
    """Whatever the moment: it is a home like any other."""
    await put(app, "d", "The damson is blue.")
    await app.run()
    await put(app, "a", "Only the apple is left.")
    found = {hit.name: hit.text for hit in await app.search("apple damson", 50)}
    assert found["a"] == "Only the apple is left."
    assert found["d"] == "The damson is blue."
    report = await app.check()
    assert report.ok, report.problems
    assert not await app.ledger.read(histories.unsettled)


async def test_a_home_goes_back_and_forth_between_its_own_moments(tmp_path: Path) -> None:
    home, pictures = tmp_path / "home", []
    for i, step in enumerate(HISTORY[:4]):
        async with open_app(**settings(home)) as app:
            await step(app)
            await app.backup(tmp_path / f"backup-{i}")
            pictures.append(await picture(app))
    for i in (0, 3, 1, 2, 0):
        done = await restore(tmp_path / f"backup-{i}", force=True, **settings(home))
        assert done.check.ok, done.check.problems
        async with open_app(**settings(home)) as app:
            assert await picture(app) == pictures[i]
            assert not await app.ledger.read(histories.unsettled)
            await put(app, "x", f"The damson of turn {i}.")
            assert "x" in await found(app, "damson")
    assert sql(home, "SELECT DISTINCT reason FROM histories") == [("restored",)]


async def test_a_backup_may_change_its_database(tmp_path: Path, fresh_postgres: str, make_postgres: Any) -> None:
    """What was made of one kind of ledger can be put into the other."""
    async with open_app(**settings(tmp_path / "one")) as app:
        for step in HISTORY[:4]:
            await step(app)
        await app.backup(tmp_path / "embedded")
        then = await picture(app)
    chosen = settings(tmp_path / "two", fresh_postgres)
    assert (await restore(tmp_path / "embedded", **chosen)).check.ok
    async with open_app(**chosen) as app:
        assert await picture(app) == then
        await app.backup(tmp_path / "served")
    assert (await restore(tmp_path / "served", **settings(tmp_path / "three"))).check.ok
    async with open_app(**settings(tmp_path / "three")) as app:
        assert await picture(app) == then
        await go_on(app)


async def test_a_backup_beside_workers_is_one_moment(tmp_path: Path, make_database: Callable[[], str | None]) -> None:
    """While documents come, change and go, and purges and prunes want to work: whatever it caught is whole."""
    files = tmp_path / "files"
    files.mkdir()
    async with open_app(**settings(tmp_path / "home", make_database())) as app:
        stop = asyncio.Event()

        async def change() -> None:
            n = 0
            while not stop.is_set():
                n += 1
                for name in "abc":
                    (files / f"{name}.txt").write_text(text(20, f"{name}{n}word"))
                await app.ingest([files])
                await app.delete([await document_id(app, "b.txt")])
                await app.ledger.read(lambda c: c.script("UPDATE purges SET not_before = 0"))
                await app.prune(older_than_s=0)
                await app.vacuum()

        changing = asyncio.create_task(change())
        try:
            for i in range(3):
                await asyncio.sleep(0.3)
                assert (await app.backup(tmp_path / f"backup-{i}")).damaged == []
        finally:
            stop.set()
            await changing
    for i in range(3):
        chosen = settings(tmp_path / f"again-{i}", make_database())
        done = await restore(tmp_path / f"backup-{i}", **chosen)
        assert done.check.ok, done.check.problems
        assert kinds(done.check.garbage) <= {"orphan_artifact"}
        async with open_app(**chosen) as again:
            await again.run()
            await go_on(again)


async def test_i1_nothing_is_pruned_or_purged_while_a_backup_lives(tmp_path: Path) -> None:
    """One document was purged and left its blobs, one is to be purged, one is to let go of its artifacts."""
    home = tmp_path / "home"

    def files() -> int:
        return sum(path.is_file() for path in (home / "blobs").rglob("*"))

    async with open_app(keep_artifacts="until_completed", **settings(home)) as app:
        for name in ("purged", "deleted", "kept"):
            await put(app, name, f"The apple is {name}.")
        await forget(app, "purged")
        await app.ledger.read(lambda c: c.script("UPDATE purges SET not_before = 0"))
        assert await purge(app.ledger, app.ports.index, WorkerId("purger")) == 1
        await forget(app, "deleted")
        sql(home, "UPDATE purges SET not_before = 0")
        async with (
            app.resources.maintenance.alive() as heart,
            app.resources.maintenance._hold(heart, "backup", 0, "backup"),
        ):
            gone = await app.prune(older_than_s=0)
            assert [gone.purged, gone.dropped, gone.artifacts, gone.blobs] == [0, 0, 0, 0]
            assert files() == 15
        gone = await app.prune(older_than_s=0)
        assert [gone.purged, gone.dropped, gone.artifacts, gone.blobs] == [1, 1, 12, 14]
        assert files() == 1


async def test_a_backup_that_lost_its_lock_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was stopped for so long that prune went on without it."""
    async with open_app(**settings(tmp_path / "home")) as app:
        await put(app, "a", "The apple is red.")
        await app.backup(tmp_path / "backup")
        first = (tmp_path / "backup" / "manifest.json").read_bytes()
        copy_out = backup_tables.copy_out

        def late(*arguments: Any) -> None:
            copy_out(*arguments)
            sql(tmp_path / "home", "UPDATE locks SET lease_until = 0, token = 'another' WHERE resource_key = 'backup'")

        monkeypatch.setattr(backups, "copy_out", late)
        with pytest.raises(LeaseLost):
            await app.backup(tmp_path / "backup")
        assert (tmp_path / "backup" / "manifest.json").read_bytes() == first
    assert (await restore(tmp_path / "backup", **settings(tmp_path / "again"))).check.ok


@pytest.mark.parametrize("after", ["_index", "_copy_blobs", "_finish"])
async def test_a_backup_that_is_interrupted_leaves_the_one_before_it(
    tmp_path: Path, after: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_app(**settings(tmp_path / "home")) as app:
        await put(app, "a", "The apple is red.")
        await app.backup(tmp_path / "backup")
        then = await picture(app)
        await put(app, "a", "The apple is green.")
        await put(app, "b", "The banana is yellow.")

        def die(*arguments: object, **options: object) -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(backups.Backup, after, die)
            with pytest.raises(KeyboardInterrupt):
                await app.backup(tmp_path / "backup")
        await restore(tmp_path / "backup", **settings(tmp_path / "again"))
        async with open_app(**settings(tmp_path / "again")) as again:
            assert await picture(again) == then
        for path in (tmp_path / "backup" / "blobs").rglob("*"):
            if path.is_file():
                # Not flushed yet when the power was cut.
                path.write_bytes(bytes(path.stat().st_size))
        await app.backup(tmp_path / "backup")
        now = await picture(app)
    assert (await restore(tmp_path / "backup", **settings(tmp_path / "later"))).restored.damaged == []
    async with open_app(**settings(tmp_path / "later")) as again:
        assert await picture(again) == now


async def test_what_the_folder_has_already_is_not_copied_again_and_what_is_gone_goes(tmp_path: Path) -> None:
    backup = tmp_path / "backup"
    async with open_app(**settings(tmp_path / "home")) as app:
        await put(app, "a", "The apple is red.")
        first = await app.backup(backup)
        await put(app, "b", "The banana is yellow.")
        second = await app.backup(backup)
        assert (first.copied, second.copied, second.blobs) == (5, 5, 10)
        third = await app.backup(backup)
        assert (third.copied, third.blobs) == (0, 10)
        await forget(app, "b")
        sql(tmp_path / "home", "UPDATE purges SET not_before = 0")
        await app.prune(older_than_s=0)
        fourth = await app.backup(backup)
    assert fourth.blobs == 5
    assert sum(path.is_file() for path in (backup / "blobs").rglob("*")) == 5
    assert sorted(path.name.split("-")[0] for path in backup.iterdir()) == ["blobs", "index", "ledger", "manifest.json"]


async def test_a_backup_is_for_nobody_else(tmp_path: Path) -> None:
    async with open_app(**settings(tmp_path / "home")) as app:
        await put(app, "a", "The apple is red.")
        await app.backup(tmp_path / "backup")
    await restore(tmp_path / "backup", **settings(tmp_path / "again"))
    for root in (tmp_path / "backup", tmp_path / "again" / "blobs", tmp_path / "again" / "ledger.db"):
        for path in (root, *root.rglob("*")):
            assert not stat.S_IMODE(path.stat().st_mode) & 0o077, path


async def test_a_damaged_backup_is_noticed(tmp_path: Path) -> None:
    backup = tmp_path / "backup"
    async with open_app(**settings(tmp_path / "home")) as app:
        await put(app, "a", "The apple is red. " * 50)
        await put(app, "b", "The banana is yellow. " * 50)
        await app.backup(backup)
    manifest = read_manifest(backup)
    assert manifest is not None
    for path in (backup / manifest.index).rglob("*.lance"):
        if path.is_file():
            path.write_bytes(b"nonsense")
    [raw] = sql(tmp_path / "home", "SELECT raw_key FROM generations ORDER BY id LIMIT 1")
    (backup / "blobs" / raw[0]).write_bytes(b"other bytes")
    done = await restore(backup, **settings(tmp_path / "again"))
    assert done.restored.damaged == [raw[0]]
    assert kinds(done.check.problems) == {"raw_broken"}
    async with open_app(**settings(tmp_path / "again")) as app:
        assert await found(app, "banana") == {"b"}
    with (backup / manifest.ledger).open("r+b") as file:
        file.seek(5000)
        file.write(b"nonsense")
    with pytest.raises(StorageError, match=r"the ledger of the backup in .* is damaged"):
        await restore(backup, **settings(tmp_path / "third"))
    assert not (tmp_path / "third").exists()


async def test_a_home_that_is_not_empty_is_refused_and_so_is_one_where_somebody_works(
    tmp_path: Path, make_database: Callable[[], str | None]
) -> None:
    chosen, backup = settings(tmp_path / "home", make_database()), tmp_path / "backup"
    async with open_app(**chosen) as app:
        await put(app, "a", "The apple is red.")
        await app.backup(backup)
        await put(app, "b", "The banana is yellow.")
    with pytest.raises(UsageError, match="is not empty"):
        await restore(backup, **chosen)
    async with open_app(**chosen) as app:
        working = asyncio.create_task(app.work())
        await until(lambda: _someone(app))
        for force in (False, True):
            with pytest.raises(UsageError, match="a worker is running in"):
                await restore(backup, force=force, **chosen)
        app.stop()
        await working
        assert await found(app, "banana") == {"b"}
        if "database" not in chosen:
            with pytest.raises(UsageError, match="is in use"):
                await restore(backup, force=True, **chosen)
    await restore(backup, force=True, **chosen)
    async with open_app(**chosen) as app:
        assert await found(app, WORDS) == {"a"}


async def test_a_restore_replaces_nothing_where_somebody_began_to_work_meanwhile(tmp_path: Path) -> None:
    home, chosen = tmp_path / "home", settings(tmp_path / "home")
    async with open_app(**chosen) as app:
        await put(app, "a", "The apple is red.")
        await app.backup(tmp_path / "backup")
        await put(app, "b", "The banana is yellow.")

    def index() -> list[Path]:
        return sorted(path.relative_to(home) for path in (home / "index").rglob("*"))

    liveness, worker, before = FileLiveness(home / "workers"), WorkerId("w"), index()

    def begin(progress: object) -> None:
        liveness.hold(worker, cast(Connection, None))

    with pytest.raises(UsageError, match="a worker is running in"):
        await restore(tmp_path / "backup", force=True, report=begin, **chosen)
    assert index() == before
    liveness.leave(worker)
    await restore(tmp_path / "backup", force=True, **chosen)
    async with open_app(**chosen) as app:
        assert await found(app, WORDS) == {"a"}


async def test_a_damaged_ledger_and_a_wal_without_its_ledger_make_way(tmp_path: Path) -> None:
    home, chosen = tmp_path / "home", settings(tmp_path / "home")
    async with open_app(**chosen) as app:
        await put(app, "a", "The apple is red.")
        await app.backup(tmp_path / "backup")
        await put(app, "b", "The banana is yellow.")
        shutil.copyfile(home / "ledger.db-wal", tmp_path / "wal")
        then = await picture(app)
    assert then["hits"]
    (home / "ledger.db").write_bytes(b"nonsense" * 1000)
    assert (await restore(tmp_path / "backup", force=True, **chosen)).check.ok
    assert (home / "ledger.db.replaced").read_bytes() == b"nonsense" * 1000
    (home / "ledger.db").unlink()
    shutil.copyfile(tmp_path / "wal", home / "ledger.db-wal")
    assert (await restore(tmp_path / "backup", force=True, **chosen)).check.ok
    async with open_app(**chosen) as app:
        assert await found(app, WORDS) == {"a"}


async def _someone(app: App) -> bool:
    return await app.count_workers() > 0


async def test_a_restore_that_is_interrupted_is_reported_and_can_be_done_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from penstock.upkeep.restore import Restore

    chosen = settings(tmp_path / "home")
    async with open_app(**chosen) as app:
        await put(app, "a", "The apple is red.")
        await app.backup(tmp_path / "backup")
    with monkeypatch.context() as patch:
        patch.setattr(Restore, "_replace_ledger", _die)
        with pytest.raises(KeyboardInterrupt):
            await restore(tmp_path / "backup", force=True, **chosen)
    with pytest.raises(UsageError, match=r"a restore into .* was interrupted"):
        async with open_app(**chosen):
            pass
    await restore(tmp_path / "backup", **chosen)
    async with open_app(**chosen) as app:
        assert await found(app, "apple") == {"a"}


def _die(*arguments: object) -> None:
    raise KeyboardInterrupt


async def test_a_server_that_goes_away_in_the_middle_of_a_restore_is_said_to_be(
    tmp_path: Path, fresh_postgres: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_app(**settings(tmp_path / "home")) as app:
        await put(app, "a", "The apple is red.")
        await app.backup(tmp_path / "backup")
    load = PostgresConnection.load

    def cut_short(self: PostgresConnection, table: str, columns: str, rows: Iterable[Row]) -> None:
        if table == "steps":
            self.cut()
        load(self, table, columns, rows)

    chosen = settings(tmp_path / "again", fresh_postgres)
    with monkeypatch.context() as patch:
        patch.setattr(PostgresConnection, "load", cut_short)
        with pytest.raises(LedgerAway, match="has closed the connection"):
            await restore(tmp_path / "backup", **chosen)
    await restore(tmp_path / "backup", **chosen)
    async with open_app(**chosen) as app:
        assert await found(app, "apple") == {"a"}


async def test_what_was_being_worked_on_goes_on_after_a_restore_without_blame(tmp_path: Path) -> None:
    async with open_app(**settings(tmp_path / "home")) as app:
        slow(app, 1.0)
        working = asyncio.create_task(put(app, "long", text(600, "apple")))
        await until(lambda: _running(app))
        await app.backup(tmp_path / "backup")
        app.stop()
        await working
    await restore(tmp_path / "backup", **settings(tmp_path / "again"))
    assert sql(tmp_path / "again", "SELECT count(*) FROM steps WHERE status = 'RUNNING' OR crashes > 0") == [(0,)]
    assert sql(tmp_path / "again", "SELECT count(*) FROM workers") == [(0,)]
    async with open_app(**settings(tmp_path / "again")) as app:
        assert (await app.run()).completed == 1
        assert (await app.check()).ok


async def _running(app: App) -> bool:
    return bool(await app.list_steps(status=StepStatus.RUNNING, kind="embed"))


async def test_names_in_a_backup_never_reach_a_statement(tmp_path: Path, fresh_postgres: str) -> None:
    """A backup may come from anywhere, and the names of its tables go into statements."""
    async with open_app(home=str(tmp_path / "home"), embedder="fake") as app:
        await app.ingest(data=b"words", name="a.txt")
        await app.backup(tmp_path / "saved")
    [ledger] = (tmp_path / "saved").glob("ledger-*.db")
    with closing(sqlite3.connect(ledger)) as copy:
        copy.execute('CREATE TABLE "documents; DROP TABLE victims" (id TEXT)')
        copy.commit()
    manifest = tmp_path / "saved" / "manifest.json"
    body = json.loads(manifest.read_text())
    body["ledger_sha256"] = hashlib.sha256(ledger.read_bytes()).hexdigest()
    manifest.write_text(json.dumps(body))
    with pytest.raises(UsageError, match="not a table or column"):
        await restore(tmp_path / "saved", home=str(tmp_path / "other"), database=fresh_postgres)


async def test_the_backup_of_another_ledger_is_not_replaced(tmp_path: Path) -> None:
    for name in ("one", "other"):
        async with open_app(home=str(tmp_path / name), embedder="fake") as app:
            await app.ingest(data=name.encode(), name=f"{name}.txt")
            if name == "one":
                await app.backup(tmp_path / "saved")
            else:
                with pytest.raises(UsageError, match="another ledger"):
                    await app.backup(tmp_path / "saved")
    await restore(tmp_path / "saved", home=str(tmp_path / "again"))
    async with open_app(home=str(tmp_path / "again"), embedder="fake") as app:
        assert [entry.name for entry in await app.list_documents()] == ["one.txt"]
        await app.backup(tmp_path / "saved")


async def test_strange_folders_are_refused(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "precious").write_text("mine")
    (tmp_path / "file").write_text("mine")
    async with open_app(**settings(tmp_path / "home")) as app:
        with pytest.raises(UsageError, match="is not empty and not a backup"):
            await app.backup(tmp_path / "other")
        with pytest.raises(UsageError, match="is not a folder"):
            await app.backup(tmp_path / "file")
    with pytest.raises(UsageError, match="contains no complete backup"):
        await restore(tmp_path / "nothing", **settings(tmp_path / "again"))
    assert not (tmp_path / "again").exists()


def test_the_command_line_says_what_it_did(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("The apple is red.")
    assert penstock(tmp_path / "home", "ingest", str(tmp_path / "a.txt")).returncode == 0
    made = penstock(tmp_path / "home", "backup", str(tmp_path / "backup"), "--json")
    assert json.loads(made.stdout)["blobs"] == 5
    done = penstock(tmp_path / "again", "restore", str(tmp_path / "backup"), "--json")
    answer = json.loads(done.stdout)
    assert (answer["restored"]["documents"], answer["check"]["ok"]) == (1, True)
    refused = penstock(tmp_path / "again", "restore", str(tmp_path / "backup"))
    assert refused.returncode == 2
    assert b"is not empty" in refused.stderr
    shutil.rmtree(tmp_path / "again")
    done = penstock(tmp_path / "again", "restore", str(tmp_path / "backup"))
    assert done.stdout.startswith(b"1 document restored: 5 blobs of ")
