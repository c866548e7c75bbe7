"""Connections of the index in PostgreSQL. Each serves one call at a time; idle ones are kept for the next."""

import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property
from queue import Empty, SimpleQueue
from typing import Any

from penstock.errors import Away, ConfigError, StorageError, Transient
from penstock.net import postgres_away as away
from penstock.redaction import masked, masked_for
from penstock.runtime import Runtime

Row = tuple[Any, ...]


class Missing(Exception):
    """The table does not exist any more."""


class Connections:
    def __init__(self, url: str, runtime: Runtime) -> None:
        self._url = url
        self._runtime = runtime
        self._idle: SimpleQueue[Any] = SimpleQueue()
        # An index is not closed by anybody: its connections are closed when nothing refers to it any more.
        weakref.finalize(self, _close, self._idle)

    @cached_property
    def psycopg(self) -> Any:
        try:
            import psycopg
        except ImportError:
            raise ConfigError(
                "an index in PostgreSQL needs another package: pip install 'penstock-rag[postgres]'"
            ) from None
        return psycopg

    @cached_property
    def target(self) -> str:
        """The name of the server, without user and password."""
        parts = self.psycopg.conninfo.conninfo_to_dict(self._url)
        return f"postgresql://{parts.get('host', 'localhost')}/{parts.get('dbname', '')}"

    def take(self) -> tuple[Any, bool]:
        """A connection with autocommit, and whether it is new. Raises Away if the server does not answer."""
        with suppress(Empty):
            return self._idle.get_nowait(), False
        try:
            parameters = away.with_defaults(self.psycopg.conninfo.conninfo_to_dict(self._url))
            connection = self.psycopg.connect(**parameters, autocommit=True, cursor_factory=self.psycopg.RawCursor)
            connection.execute("SET synchronous_commit = on")
        except self.psycopg.Error as error:
            said = f"PostgreSQL at {masked(self._url)} does not answer: {self._said(error)}"
            if away.is_misconfigured(str(error)):
                raise ConfigError(f"index: {said}") from None
            raise Away(said, target=self.target) from None
        return connection, True

    def give_back(self, connection: Any) -> None:
        if not connection.closed:
            self._idle.put(connection)

    def read(self, text: str, values: Sequence[Any] = (), before: Sequence[tuple[str, str]] = ()) -> list[Row]:
        """Run one statement, in a thread. `before`: settings for it. A connection that was closed while it was idle is
        opened again."""
        while True:
            connection, fresh = self.take()
            try:
                for name, value in before:
                    connection.execute("SELECT set_config($1, $2, false)", [name, value])
                rows: list[Row] = connection.execute(text, values).fetchall()
            except self.psycopg.Error as error:
                closed = connection.closed
                connection.close()
                if closed and not fresh:
                    continue
                raise self.meaning(error) from error
            self.give_back(connection)
            return rows

    def meaning(self, error: Exception) -> Exception:
        """What an error of the driver means: Away, Missing, Transient or StorageError."""
        errors = self.psycopg.errors
        said = self._said(error)
        if isinstance(error, errors.UndefinedTable | errors.InvalidSchemaName):
            return Missing(said)
        if isinstance(error, errors.DeadlockDetected | errors.SerializationFailure | errors.UniqueViolation):
            return Transient(f"another worker wrote the same rows: {said}")
        sqlstate = getattr(error, "sqlstate", None)
        lost = sqlstate is None and isinstance(error, self.psycopg.OperationalError)
        if lost or away.is_away(sqlstate):
            return Away(f"PostgreSQL at {masked(self._url)} does not work: {said}", target=self.target)
        return StorageError(f"PostgreSQL at {masked(self._url)} refuses: {said}")

    def _said(self, error: Exception) -> str:
        return masked_for(self._url, (str(error).strip() or type(error).__name__).splitlines()[0])

    @contextmanager
    def transaction(self) -> Iterator[Any]:
        """A connection whose transaction is committed at the end of the block, and rolled back by an error."""
        connection = self._begun()
        try:
            yield connection
            connection.execute("COMMIT")
        except BaseException as error:
            # The server rolls back.
            connection.close()
            if isinstance(error, self.psycopg.Error):
                raise self.meaning(error) from error
            raise
        self.give_back(connection)

    def _begun(self) -> Any:
        while True:
            connection, fresh = self.take()
            try:
                connection.execute("BEGIN")
                return connection
            except self.psycopg.Error as error:
                closed = connection.closed
                connection.close()
                if fresh or not closed:
                    raise self.meaning(error) from error


def _close(idle: "SimpleQueue[Any]") -> None:
    with suppress(Empty):
        while True:
            idle.get_nowait().close()
