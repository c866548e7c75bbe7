"""Connections to a PostgreSQL server."""

import socket
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any

from penstock.errors import ConfigError, LedgerAway, StorageError, UsageError
from penstock.ledger.database.connection import Outcome, Row
from penstock.ledger.database.statements import NOTIFY, DialectName, Rows, Statement, clean_rows, clean_values
from penstock.net import postgres_away as away
from penstock.redaction import masked, masked_for
from penstock.runtime import Runtime

OLDEST_SERVER = 130000

STOPPED_S = 5.0
"""No live writer leaves a transaction idle for so long."""

_SESSION = (
    "SELECT current_setting('fsync'), (SELECT pid || ' ' || backend_start FROM pg_stat_activity "
    "WHERE pid = pg_backend_pid())"
)

_OUTCOME = Statement("SELECT pg_xact_status(CAST(:receipt AS xid8))")

_WORKS = Statement(
    "SELECT count(*) FROM pg_stat_activity WHERE pid || ' ' || backend_start = :session AND state <> 'idle'"
)


class PostgresServer:
    """What all connections to one server share."""

    def __init__(self, url: str, runtime: Runtime) -> None:
        self.url = url
        self.runtime = runtime

    @cached_property
    def parameters(self) -> dict[str, Any]:
        """The connection parameters of the URL, with defaults for what it leaves out."""
        psycopg = _psycopg()
        try:
            return away.with_defaults(psycopg.conninfo.conninfo_to_dict(self.url))
        except psycopg.Error as error:
            raise ConfigError(f"database {masked(self.url)!r}: {refusal(self.url, error)}") from error

    @cached_property
    def watchdog(self) -> away.Watchdog:
        return away.Watchdog(self.parameters, self.runtime)


class PostgresConnection:
    dialect: DialectName = "postgres"
    single_statement = False
    notifies = False
    receipt: str | None = None

    def __init__(self, server: PostgresServer, hot: bool = False) -> None:
        self._psycopg = _psycopg()
        self._url = server.url
        self._clock = server.runtime.clock
        self._watchdog = server.watchdog
        self.busy_since: float | None = None
        try:
            self._db = self._psycopg.connect(
                **server.parameters,
                autocommit=True,
                prepare_threshold=1,
                cursor_factory=self._psycopg.RawCursor,
            )
        except self._psycopg.Error as error:
            raise _refused(server.url, error) from error
        self._watchdog.add(self)
        try:
            self._set_up(hot)
        except BaseException:
            self.close()
            raise

    def _set_up(self, hot: bool) -> None:
        if self._db.info.server_version < OLDEST_SERVER:
            raise UsageError(f"PostgreSQL at {masked(self._url)} is older than 13: use a newer server.")
        [(fsync, self.session)] = self._execute(_SESSION)
        if fsync != "on":
            raise UsageError(
                "this PostgreSQL server runs with fsync=off: a power failure would lose accepted documents. "
                "Turn fsync on, or use another server."
            )
        self._execute("SET synchronous_commit = on")
        if hot:
            # A process that is stopped within a transaction keeps its row locks: the server ends the transaction.
            self._execute(f"SET idle_in_transaction_session_timeout = {round(1000 * STOPPED_S)}")
            # Every hot verb finds its rows by key, so plan once and use indexes, whatever the statistics say. Otherwise
            # a table that was never analysed is scanned for each group.
            self._execute("SET plan_cache_mode = force_generic_plan")
            for method in ("seqscan", "hashjoin", "mergejoin"):
                self._execute(f"SET enable_{method} = off")

    def run(
        self, statement: Statement, rows: Rows | None = None, more: Rows | None = None, /, **params: Any
    ) -> list[Row]:
        try:
            return self._run(statement, rows, more, params)
        except (UnicodeEncodeError, self._psycopg.DataError):
            # The driver refuses NUL and lone surrogates before it sends anything.
            if (cleaned := clean_values(params.values())) == list(params.values()):
                raise
            params = dict(zip(params, cleaned, strict=True))
            return self._run(statement, clean_rows(rows), clean_rows(more), params)

    def _run(self, statement: Statement, rows: Rows | None, more: Rows | None, params: dict[str, Any]) -> list[Row]:
        for alias, columns, table in (("r", statement.columns, rows), ("m", statement.more, more)):
            if table is not None:
                by_column = zip(*table, strict=True) if table else ([] for _ in columns)
                for (name, _), values in zip(columns, by_column, strict=True):
                    params[f"{alias}_{name}"] = _array(values)
        text, names = statement.postgres
        return self._execute(text, [params[name] for name in names], prepare=statement.prepare)

    def _execute(self, text: str, params: list[Any] | None = None, prepare: bool | None = None) -> list[Row]:
        self.busy_since = self._clock()
        try:
            cursor = self._db.execute(text, params, prepare=prepare)
            return cursor.fetchall() if cursor.description else []
        except self._psycopg.Error as error:
            raise self._understood(error) from error
        finally:
            self.busy_since = None

    def _understood(self, error: Exception) -> Exception:
        """The error as `LedgerAway`, if the server is not available."""
        if self._db.closed:
            return LedgerAway(f"PostgreSQL has closed the connection: {refusal(self._url, error)}.")
        if away.is_away(getattr(error, "sqlstate", None)):
            return LedgerAway(f"PostgreSQL at {masked(self._url)} refuses to work: {refusal(self._url, error)}.")
        return error

    def query(self, text: str, values: Sequence[Any]) -> list[Row]:
        # If the statement fails, for example because its table was dropped, the transaction goes on.
        self._execute("SAVEPOINT query")
        try:
            rows = self._execute(text, list(values))
        except self._psycopg.Error:
            self._execute("ROLLBACK TO SAVEPOINT query")
            raise
        self._execute("RELEASE SAVEPOINT query")
        return rows

    def script(self, text: str) -> list[Row]:
        return self._execute(text)

    def begin(self) -> None:
        # One message, as fast as BEGIN alone. If the answer to COMMIT is lost, the number gives the outcome.
        self.receipt = None
        self.busy_since = self._clock()
        try:
            begun = self._db.pgconn.exec_(b"BEGIN; SELECT pg_current_xact_id()")
            if begun.status != self._psycopg.pq.ExecStatus.TUPLES_OK:
                raise self._psycopg.errors.error_from_result(begun)
            number = begun.get_value(0, 0)
        except self._psycopg.Error as error:
            raise self._understood(error) from error
        finally:
            self.busy_since = None
        assert number is not None
        self.receipt = number.decode()

    def begin_read(self) -> None:
        self._execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")

    def commit(self, notify: bool = False) -> None:
        # Two statements in one message cannot be prepared.
        self._execute(f"{NOTIFY}; COMMIT" if notify else "COMMIT", prepare=False if notify else None)

    def count(self) -> None:
        """Nothing: on PostgreSQL, submits would wait for each other's row."""

    def rollback(self) -> None:
        # Raises if the connection is lost, so that it is dropped.
        self._execute("ROLLBACK")

    def load(self, table: str, columns: str, rows: Iterable[Row]) -> None:
        """Many rows at once."""
        self.busy_since = self._clock()
        try:
            with self._db.cursor() as cursor, cursor.copy(f"COPY {table} ({columns}) FROM STDIN".encode()) as copy:
                for row in rows:
                    copy.write_row(row)
        except self._psycopg.Error as error:
            raise self._understood(error) from error
        finally:
            self.busy_since = None

    def interrupt(self) -> None:
        """Called from another thread: the running statement ends with an error."""
        self._db.cancel()

    def cut(self, how: int = socket.SHUT_RDWR) -> None:
        """Called from another thread: the server hangs, so stop waiting for its answer."""
        away.cut(self._db.pgconn.socket, how)

    @property
    def broken(self) -> bool:
        return bool(self._db.closed)

    def close(self) -> None:
        self._watchdog.remove(self)
        self._db.close()

    def outcome(self, receipt: str) -> Outcome:
        try:
            [(status,)] = self.run(_OUTCOME, receipt=receipt)
        except self._psycopg.errors.InvalidParameterValue:
            # This server has not used the number yet: it replaced another one and lacks its last transactions.
            return "aborted"
        if status is None:
            raise StorageError("PostgreSQL no longer knows the outcome of a transaction: the outage was too long.")
        outcome: Outcome = status
        return outcome

    def works(self, session: str) -> bool:
        return bool(self.run(_WORKS, session=session)[0][0])

    def is_busy(self, error: Exception) -> bool:
        errors = self._psycopg.errors
        # A conflict with another transaction: a submit of the same file, or prune of an artifact that a step wanted.
        # Run again, the group sees the new rows.
        quicker = errors.ForeignKeyViolation | errors.UniqueViolation
        waited = errors.DeadlockDetected | errors.SerializationFailure | errors.LockNotAvailable
        return isinstance(error, quicker | waited)


def _psycopg() -> Any:
    try:
        import psycopg
    except ImportError as error:
        raise ConfigError(
            "a postgresql:// database needs the postgres extra: pip install 'penstock-rag[postgres]' (in a checkout: "
            "pip install '.[postgres]')"
        ) from error
    return psycopg


def _refused(url: str, error: Exception) -> UsageError | LedgerAway:
    sentence = f"PostgreSQL at {masked(url)} does not answer: {refusal(url, error)}. "
    if away.is_misconfigured(str(error)):
        return UsageError(sentence + "Is the URL right?")
    return LedgerAway(sentence + "Is it running, and is the URL right?")


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def refusal(url: str, error: Exception) -> str:
    """The message of the driver or the server, without the passwords of the URL."""
    return masked_for(url, _first_line(error))


def _array(values: Sequence[Any]) -> str:
    """An array literal: the driver's own dumping of lists takes longer than the statement."""
    return "{" + ",".join(map(_element, values)) + "}"


def _element(value: Any) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    if isinstance(value, bytes):
        return f'"\\\\x{value.hex()}"'
    return repr(value)
