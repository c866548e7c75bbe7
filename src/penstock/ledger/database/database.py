"""Where the ledger lives: the URL decides between SQLite and PostgreSQL."""

from functools import cached_property
from pathlib import Path

from penstock.errors import ConfigError
from penstock.ledger.database.connection import Connection
from penstock.ledger.database.outage_wait import OutageWait
from penstock.ledger.database.postgres import PostgresConnection, PostgresServer
from penstock.ledger.database.sqlite import SqliteConnection
from penstock.ledger.database.statements import DialectName
from penstock.redaction import masked
from penstock.runtime import Runtime


class Database:
    """The database that holds the ledger. Opens connections to it."""

    def __init__(self, url: str, runtime: Runtime) -> None:
        self.url = url
        self.runtime = runtime
        self.outage_wait = OutageWait(runtime)
        if url.startswith("sqlite:///"):
            self.dialect: DialectName = "sqlite"
            self.path = Path(url.removeprefix("sqlite:///"))
        elif url.startswith(("postgresql://", "postgres://")):
            self.dialect = "postgres"
        else:
            raise ConfigError(f"database {masked(url)!r}: use sqlite:///FILE or postgresql://…")

    def connect(self, *, hot: bool = False) -> Connection:
        """`hot`: for the verbs of the queue."""
        if self.dialect == "sqlite":
            return SqliteConnection(self.path, self.runtime)
        return PostgresConnection(self.server, hot)

    @cached_property
    def server(self) -> PostgresServer:
        """PostgreSQL only."""
        return PostgresServer(self.url, self.runtime)
