"""Real parts for every test: servers that all processes of the tests share, a fresh database for each test, ledgers and
apps."""

import os
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path
from typing import Any, Protocol

import pytest
from tests.kit import cli, shared
from tests.kit import vector_databases as vector_database
from tests.kit.ledger import TABLES, Desk
from tests.kit.postgres import create_database, execute
from tests.kit.s3 import S3Address

from penstock.app import App, open_app
from penstock.ledger.database.database import Database
from penstock.ledger.database.store import Ledger
from penstock.runtime import Runtime

DIALECTS = ("sqlite", "postgres")

_NAMES = ", ".join(f"'{table}'" for table in (*TABLES, "snapshots"))
TRUNCATE = f"""DO $$ DECLARE used text; BEGIN
SELECT string_agg(relname, ', ') INTO used FROM pg_class WHERE relkind = 'r' AND relname IN ({_NAMES})
AND relnamespace = 'public'::regnamespace AND pg_relation_size(oid) > 0;
IF used IS NOT NULL THEN EXECUTE 'TRUNCATE ' || used || ' CASCADE'; END IF;
PERFORM setval(format('%I.%I', schemaname, sequencename), start_value, false) FROM pg_sequences
WHERE schemaname = 'public';
END $$"""
"""Of the tables that have a file only: to truncate all of them takes six times as long. A new history sets sequences of
tables that are empty."""

# Documents of tests are tiny. Most of these stand for documents of any size, whose bytes are in files: so small blobs
# are off, except in tests that ask for them (`small_blobs`) and in tests/acceptance.
os.environ.setdefault("PENSTOCK_SMALL_BYTES", "0")

# For the processes that tests start: see there.
_SITE = str(Path(__file__).parent / "kit" / "site")
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (_SITE, os.environ.get("PYTHONPATH"))))

# A shell that starts the tests in the background has them ignore interrupts, and so would whatever they start.
signal.signal(signal.SIGINT, signal.default_int_handler)


_shared = pytest.StashKey[shared.SharedServers]()


def pytest_configure(config: pytest.Config) -> None:
    """The process that starts others for the tests starts the servers for all of them."""
    if not hasattr(config, "workerinput") and config.getoption("numprocesses", None):
        config.stash[_shared] = shared.SharedServers()


def pytest_unconfigure(config: pytest.Config) -> None:
    if _shared in config.stash:
        config.stash[_shared].close()


@pytest.fixture(scope="session")
def servers() -> Iterator[shared.Servers]:
    """Those of this process, if it has no others to share them with."""
    own = shared.Servers()
    yield own
    own.close()


@pytest.fixture(scope="session")
def postgres_server(servers: shared.Servers) -> str:
    """The URL of a server that lives as long as the tests."""
    return shared.get(servers, "postgres")


@pytest.fixture(scope="session")
def s3_server(servers: shared.Servers) -> S3Address:
    """An S3 server that lives as long as the tests."""
    return S3Address(shared.get(servers, "s3"))


@pytest.fixture(scope="session")
def vector_databases(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., str]]:
    """Starts a vector database that lives as long as the tests, and tells the setting that names it. A Pinecone index
    has one number of dimensions: tests with another one have another `user`."""
    servers: dict[str, Any] = {}
    with ExitStack() as stack:

        def start(kind: str, user: str = "") -> str:
            name = f"{kind}/{user if kind == 'pinecone' else ''}"
            if name not in servers:
                servers[name] = stack.enter_context(vector_database.serving(kind, tmp_path_factory.mktemp(kind)))
            if kind == "pinecone":
                # There may be two.
                os.environ["PINECONE_HOST"] = servers[name].endpoint
            return vector_database.setting_of(kind, servers[name])

        yield start


@pytest.fixture(scope="session")
def ledger_database(postgres_server: str) -> str:
    """A migrated database, which most tests of this process use in turn."""
    return create_database(postgres_server, template=shared.TEMPLATE)


@pytest.fixture
def postgres(ledger_database: str) -> str:
    """The URL of a database that holds an empty ledger."""
    execute(
        ledger_database,
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
        "WHERE datname = current_database() AND pid <> pg_backend_pid()",
        TRUNCATE,
    )
    return ledger_database


@pytest.fixture
def fresh_postgres(postgres_server: str) -> str:
    """The URL of a database of its own that holds an empty ledger: nobody has ever analysed it."""
    return create_database(postgres_server, template=shared.TEMPLATE)


@pytest.fixture(scope="session")
def index_database(postgres_server: str) -> str:
    """A database for indexes, each in a schema of its own."""
    return create_database(postgres_server)


@pytest.fixture
def make_postgres(postgres_server: str) -> Callable[[], str]:
    """Each call makes such a database and tells its URL."""
    return lambda: create_database(postgres_server, template=shared.TEMPLATE)


@pytest.fixture
def empty_postgres(postgres_server: str) -> str:
    """The URL of a database without any tables."""
    return create_database(postgres_server)


@pytest.fixture(params=DIALECTS)
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A fresh ledger's URL, on each database in turn."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'ledger.db'}"
    url: str = request.getfixturevalue("postgres")
    return url


@pytest.fixture(autouse=True)
def processes() -> Iterator[None]:
    """No process of a test outlives it."""
    yield
    cli.close_all()


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
async def start_app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[StartApp]:
    """Opens apps with the fake embedder, by default on one home; closes them after the test."""
    # It begins like a setting, and is none.
    monkeypatch.delenv("PENSTOCK_LONG", raising=False)
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
