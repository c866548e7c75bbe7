"""An old worker beside a new ledger: nobody migrates under somebody who works, and whoever finds himself too old hands
his work over and ends with a sentence."""

import asyncio
import os
import signal
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
from tests.conftest import StartApp
from tests.kit.apps import slow, text, until
from tests.kit.cli import Cli, finish
from tests.kit.ledger import Desk

from penstock.app import App
from penstock.errors import LedgerTooNew, UsageError
from penstock.ledger.database import liveness, versions, workers
from penstock.ledger.database.database import Database
from penstock.ledger.database.migrations import LATEST, MIGRATIONS
from penstock.ledger.database.store import Ledger
from penstock.model.nouns import WorkerId
from penstock.runtime import Runtime


@pytest.fixture
def newer(monkeypatch: pytest.MonkeyPatch) -> None:
    """From here on this process is a Penstock whose ledger has one table more."""
    monkeypatch.setattr(versions, "LATEST", LATEST + 1)
    monkeypatch.setattr(versions, "MIGRATIONS", (*MIGRATIONS, lambda dialect: ["CREATE TABLE later (id INTEGER)"]))


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A database that a migration may change."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'home' / 'ledger.db'}"
    else:
        yield request.getfixturevalue("fresh_postgres")


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[Ledger]:
    runtime = Runtime()
    ledger = Ledger(Database(url, runtime))
    try:
        await ledger.open()
        yield ledger
    finally:
        await ledger.close()
        runtime.close()


async def version(url: str) -> int:
    async with opened_as_it_is(url) as ledger:
        return await ledger.read(versions.version)


@asynccontextmanager
async def opened_as_it_is(url: str) -> AsyncIterator[Ledger]:
    runtime = Runtime()
    ledger = Ledger(Database(url, runtime))
    try:
        yield ledger
    finally:
        await ledger.close()
        runtime.close()


async def at_work(app: App) -> "asyncio.Task[object]":
    working = asyncio.create_task(app.work())

    async def known() -> bool:
        return await app.count_workers() == 1

    await until(known, 10)
    return working


async def test_nobody_migrates_while_somebody_works(
    start_app: StartApp, url: str, request: pytest.FixtureRequest
) -> None:
    app = await start_app(database=url)
    working = await at_work(app)
    request.getfixturevalue("newer")
    expected = (
        rf"has version {LATEST}, and .* to {LATEST + 1}; but it is in use by process {os.getpid()} on .*Stop that"
    )
    with pytest.raises(UsageError, match=expected):
        async with opened(url):
            pass
    assert await version(url) == LATEST
    app.stop()
    await working
    async with opened(url):
        pass
    assert await version(url) == LATEST + 1


async def test_a_worker_of_the_same_version_is_in_nobody_s_way(start_app: StartApp, url: str) -> None:
    app = await start_app(database=url)
    working = await at_work(app)
    async with opened(url) as ledger:
        assert await ledger.read(versions.version) == LATEST
    app.stop()
    await working


async def test_the_dead_are_in_nobody_s_way(url: str, request: pytest.FixtureRequest) -> None:
    async with opened(url) as ledger:
        await ledger.write(workers.REGISTER, workers.Worker(WorkerId("gone"), "there", 1))
    request.getfixturevalue("newer")
    async with opened(url):
        pass
    assert await version(url) == LATEST + 1


async def test_a_worker_that_has_just_come_is_seen_before_it_has_a_row(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    url = f"sqlite:///{tmp_path / 'home' / 'ledger.db'}"
    async with opened(url) as ledger:
        held = liveness.of(ledger.database)
        await ledger.read(lambda connection: held.hold(WorkerId("new"), connection))
        request.getfixturevalue("newer")
        with pytest.raises(UsageError, match="in use by a process that has just started"):
            async with opened(url):
                pass
        held.leave(WorkerId("new"))


async def migrate_by_force(url: str) -> None:
    async with opened_as_it_is(url) as ledger:
        await Desk(ledger).rows(f"INSERT INTO schema_versions VALUES ({LATEST + 1}, 0) RETURNING 1")


async def test_i7_a_worker_that_is_too_old_hands_its_work_over(start_app: StartApp, url: str, tmp_path: Path) -> None:
    """Whoever ended it, nobody is charged a crash, and the work is there for a newer worker at once."""
    file = tmp_path / "long.txt"
    file.write_text(text(4000))
    app = await start_app(database=url)
    slow(app)
    await app.ingest([file], wait=False)
    working = await at_work(app)

    async def embedding() -> bool:
        return bool((await app.status()).documents.get("EMBEDDING"))

    await until(embedding, 20)
    await migrate_by_force(url)
    with pytest.raises(LedgerTooNew, match=f"version {LATEST + 1}; this Penstock knows {LATEST}.*handed over"):
        async with asyncio.timeout(10):
            await working
    async with opened_as_it_is(url) as ledger:
        desk = Desk(ledger)
        assert await desk.rows("SELECT status FROM steps WHERE status NOT IN ('COMPLETED', 'PENDING')") == []
        assert await desk.one("SELECT max(crashes) FROM steps") == 0
        assert await desk.rows("SELECT id FROM workers") == []


async def test_a_worker_that_comes_while_somebody_migrates_finds_out_before_it_works(
    start_app: StartApp, url: str, tmp_path: Path
) -> None:
    (tmp_path / "a.txt").write_text("words")
    app = await start_app(database=url)
    await app.ingest([tmp_path / "a.txt"], wait=False)
    await migrate_by_force(url)
    with pytest.raises(LedgerTooNew):
        async with asyncio.timeout(10):
            await app.work()
    async with opened_as_it_is(url) as ledger:
        assert await Desk(ledger).rows("SELECT id FROM workers") == []
        assert await Desk(ledger).one("SELECT max(epoch) FROM steps") == 0, "nothing was claimed"


async def test_a_worker_waits_for_a_migration_that_is_under_way(fresh_postgres: str) -> None:
    """On SQLite it has to: there is one writer."""
    async with opened(fresh_postgres) as ledger, opened_as_it_is(fresh_postgres) as migrator:
        connection = migrator.database.connect()
        connection.begin()
        connection.run(workers.MIGRATING)
        coming = asyncio.ensure_future(ledger.write(workers.REGISTER, workers.Worker(WorkerId("new"), "here", 1)))
        done, _ = await asyncio.wait([coming], timeout=0.5)
        assert not done
        connection.commit()
        connection.close()
        await coming


async def test_many_who_migrate_at_once_migrate_once(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with opened(url):
        pass
    made: list[str] = []

    def count(dialect: str) -> list[str]:
        made.append(dialect)
        return ["CREATE TABLE later (id INTEGER)"]

    monkeypatch.setattr(versions, "LATEST", LATEST + 1)
    monkeypatch.setattr(versions, "MIGRATIONS", (*MIGRATIONS, count))

    async def open_once() -> None:
        async with opened(url):
            pass

    await asyncio.gather(*(open_once() for _ in range(8)))
    assert len(made) == 1
    assert await version(url) == LATEST + 1


@pytest.mark.parametrize("processes", ["1", "2"])
def test_the_command_ends_with_a_sentence(tmp_path: Path, processes: str) -> None:
    cli = Cli(tmp_path / "home", tmp_path, {})
    worker = cli.start("worker", "--processes", processes, stdin=subprocess.DEVNULL, start_new_session=True)
    try:
        asyncio.run(_until_known(cli, int(processes)))
        asyncio.run(migrate_by_force(f"sqlite:///{cli.home / 'ledger.db'}"))
        result = finish(worker)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(worker.pid, signal.SIGKILL)
    assert result.code == 2
    assert f"has version {LATEST + 1}; this Penstock knows {LATEST}" in result.err
    assert "upgrade it, and start it again" in result.err
    assert "Traceback" not in result.err


async def _until_known(cli: Cli, count: int) -> None:
    async def known() -> bool:
        listed = await asyncio.to_thread(cli, "workers", "--json")
        return listed.code == 0 and len(listed.json["workers"]) == count

    await until(known, 20)
