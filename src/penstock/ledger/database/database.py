"""Where the ledger lives: the URL decides between SQLite and PostgreSQL."""

from functools import cached_property
from pathlib import Path

from penstock.errors import ConfigError, ReadOnly
from penstock.ledger.database.connection import Connection
from penstock.ledger.database.outage_wait import OutageWait
from penstock.ledger.database.postgres import PostgresConnection, PostgresServer
from penstock.ledger.database.read_only import ReadOnlyFile, cannot_be_written
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
            self._read_only: ReadOnlyFile | None = None
        elif url.startswith(("postgresql://", "postgres://")):
            self.dialect = "postgres"
        else:
            raise ConfigError(f"database {masked(url)!r}: use sqlite:///FILE or postgresql://…")

    @property
    def file(self) -> Path | None:
        """The file of an embedded ledger."""
        return self.path if self.dialect == "sqlite" else None

    def connect(self, *, hot: bool = False) -> Connection:
        """`hot`: for the verbs of the queue."""
        if self.dialect == "sqlite":
            return SqliteConnection(self.path, self.runtime, self._read_only.uri() if self._read_only else None)
        return PostgresConnection(self.server, hot)

    @property
    def read_only(self) -> bool:
        """Whether the ledger can only be read. `look` finds that out."""
        return self.dialect == "sqlite" and self._read_only is not None

    def look(self) -> None:
        """Find out whether the ledger can be written. It cannot on a read-only file system, or without permission."""
        if self.dialect == "sqlite" and cannot_be_written(self.path):
            self._read_only = ReadOnlyFile(self.path)

    def refuse_read_only(self) -> None:
        """Raise ReadOnly if the ledger can only be read."""
        if self.read_only:
            raise ReadOnly(
                f"the home {self.path.parent} is read-only, and this call must write to it: use a home that can be "
                "written, or make it writable"
            )

    def close(self) -> None:
        if self.dialect == "sqlite" and self._read_only is not None:
            self._read_only.close()

    @cached_property
    def server(self) -> PostgresServer:
        """PostgreSQL only."""
        return PostgresServer(self.url, self.runtime)
