"""Two dialects, one SQL. A `Statement` is written once; a few macros cover where SQLite and PostgreSQL differ: `{now}`
the database's clock, `{rows}` a set of rows passed in, `{skip}` and `{hold}` row locks, `{bytes}` after a text that is
ordered or compared by its bytes, whatever the language of the database.

The others are about PostgreSQL's plans, which may be made while a table is small and would scan it for ever:
`{steps.id = r.step}` joins by key, and says it twice there; `id IN (SELECT r.step FROM {rows})` becomes `id = ANY (…)`;
`JOIN {documents d: d.source = r.source}` looks rows up one by one; `{owner}` asks for the owner of rows that are found
by another key: an index that begins with the owner is not for them.
"""

import re
import socket
import sqlite3
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, Protocol

from penstock.errors import ConfigError, LedgerAway, LedgerDamaged, StorageError, UsageError
from penstock.foreign import clean
from penstock.ledger.database import away
from penstock.ledger.database.mark import Mark
from penstock.ledger.database.patience import Patience
from penstock.privacy import masked, masked_for
from penstock.runtime import Runtime

Row = tuple[Any, ...]
DialectName = Literal["sqlite", "postgres"]

# The one clock of leases and back-offs (I2). A simulation replaces these two texts.
NOW: dict[DialectName, str] = {
    "sqlite": "((julianday('now') - 2440587.5) * 86400.0)",
    "postgres": "extract(epoch FROM clock_timestamp())::double precision",
}
_KEY = re.compile(r"\{([\w.]+) = r\.(\w+)\}")
_EACH = re.compile(r"\{(\w+) (\w+): ([^}]+)\}")
_OWNER = re.compile(r"\{(\w+\.)?owner\}")
_IN = re.compile(r"([\w.]+) IN \(SELECT r\.(\w+) FROM \{rows\}\)")
_PARAM = re.compile(r"(?<![:\w]):([a-z_]\w*)")
_EACH_AS: dict[DialectName, str] = {
    "sqlite": r"\1 \2 ON \3",
    "postgres": r"LATERAL (SELECT \2.* FROM \1 \2 WHERE \3 OFFSET 0) AS \2 ON true",
}
NOTIFY = "NOTIFY penstock"
RING = "CASE WHEN :rings THEN pg_notify('penstock', '') END"
"""The same within a statement."""
BUSY_LIMIT_S = 30.0
OLDEST_SERVER = 130000
STOPPED_S = 5.0
"""No live writer lets an open transaction wait for so long."""
VALUES_LIMIT = 64
"""A larger set is run in pieces of this size; the text for each size is kept."""


class Statement:
    """One SQL text for both dialects. `rows` names the columns of the set that `{rows}` stands for, as r; a statement
    for PostgreSQL alone may have a second set, `{more}`, as m. `plan_anew`: for large sets that come seldom; no plan is
    kept for them that was made while the tables were empty."""

    def __init__(self, text: str, rows: str = "", more: str = "", *, plan_anew: bool = False) -> None:
        self.prepare = False if plan_anew else None
        self.text = _OWNER.sub(r"\1owner || '' = :owner", text)
        self.columns = _columns(rows)
        self.more = _columns(more)
        self._sqlite: dict[int, str] = {}

    def _fill(self, dialect: DialectName, rows: str) -> str:
        skip = "FOR UPDATE SKIP LOCKED" if dialect == "postgres" else ""
        hold = "FOR UPDATE" if dialect == "postgres" else ""
        in_bytes = 'COLLATE "C"' if dialect == "postgres" else ""
        text = self.text.replace("{now}", NOW[dialect]).replace("{skip}", skip).replace("{hold}", hold)
        text = text.replace("{bytes}", in_bytes)
        text = _EACH.sub(_EACH_AS[dialect], text)
        if dialect == "postgres":
            text = _IN.sub(lambda match: f"{match[1]} = ANY ({self._array(match[2])})", text)
        text = text.replace("{rows}", rows)
        return _KEY.sub(self._key_postgres if dialect == "postgres" else r"\1 = r.\2", text)

    def _key_postgres(self, match: re.Match[str]) -> str:
        return f"{match[1]} = r.{match[2]} AND {match[1]} = ANY ({self._array(match[2])})"

    def _array(self, column: str) -> str:
        return f":r_{column}::{dict(self.columns)[column]}[]"

    @cached_property
    def parameters(self) -> list[str]:
        """The names in the order of their numbers in SQLite's text."""
        return list(dict.fromkeys(_PARAM.findall(self.text)))

    def sqlite(self, count: int) -> str:
        """The text for a set of `count` rows, bound as a list of values: JSON takes twice as long, and makes SQLite
        scan the other table instead."""
        if count not in self._sqlite:
            first = len(self.parameters) + 1
            width = len(self.columns)
            picks = ", ".join(f"column{i + 1} AS {name}" for i, (name, _) in enumerate(self.columns))
            if count:
                places = ", ".join(
                    "(" + ", ".join(f"?{first + row * width + i}" for i in range(width)) + ")" for row in range(count)
                )
                source = f"(SELECT {picks} FROM (VALUES {places})) AS r"
            else:
                source = f"(SELECT {picks} FROM (VALUES ({', '.join(['NULL'] * width)})) WHERE false) AS r"
            numbers = {name: f"?{i + 1}" for i, name in enumerate(self.parameters)}
            filled = _PARAM.sub(lambda match: numbers[match[1]], self._fill("sqlite", "{rows}"))
            self._sqlite[count] = filled.replace("{rows}", source)
        return self._sqlite[count]

    @cached_property
    def postgres(self) -> tuple[str, list[str]]:
        """The text, and the names of its parameters in the order of their numbers. The driver, which can do this too,
        would do it at each call of a long text."""
        filled = self._fill("postgres", "{rows}")
        filled = filled.replace("{rows}", _unnest("r", self.columns)).replace("{more}", _unnest("m", self.more))
        names = list(dict.fromkeys(_PARAM.findall(filled)))
        numbers = {name: f"${i + 1}" for i, name in enumerate(names)}
        return _PARAM.sub(lambda match: numbers[match[1]], filled), names


def _columns(text: str) -> list[tuple[str, str]]:
    return [(part.split()[0], part.split()[1]) for part in text.split(",") if part.strip()]


def _unnest(alias: str, columns: list[tuple[str, str]]) -> str:
    arrays = ", ".join(f":{alias}_{name}::{kind}[]" for name, kind in columns)
    return f"unnest({arrays}) AS {alias}({', '.join(name for name, _ in columns)})"


Rows = Sequence[Sequence[Any]]


Outcome = Literal["committed", "aborted", "in progress"]


class Connection(Protocol):
    dialect: DialectName
    alone: bool
    """The next statement is a whole transaction."""
    rings: bool
    """And it is to wake whoever listens."""
    receipt: str | None
    """By which another connection can ask what became of the transaction that is open, or was; None: one that fails
    to commit is rolled back, without a doubt (SQLite)."""
    session: str
    """By which another connection can ask whether this one still works on something."""

    @property
    def broken(self) -> bool:
        """The connection is gone: what it was about to commit may have been committed, or not."""

    def run(
        self, statement: Statement, rows: Rows | None = None, more: Rows | None = None, /, **params: Any
    ) -> list[Row]:
        """All rows that the statement returns."""

    def script(self, text: str) -> list[Row]:
        """A statement of one dialect, for migrations and pragmas."""

    def begin(self) -> None: ...

    def begin_read(self) -> None:
        """A transaction whose reads all see one moment."""

    def commit(self, ring: bool = False) -> None:
        """`ring`: and wake whoever listens (SQLite's listeners hear every commit)."""

    def count(self) -> None:
        """Count this transaction, if it changed anything: a user is told that it is done. An older copy of an embedded
        ledger is known by that."""

    def rollback(self) -> None: ...

    def close(self) -> None: ...

    def is_busy(self, error: Exception) -> bool:
        """The error says only that somebody else was quicker: the same group may be run again."""

    def outcome(self, receipt: str) -> Outcome:
        """What became of a transaction of another connection, which is gone."""

    def works(self, session: str) -> bool:
        """Whether a connection that is gone for us still works on its last statement."""


class SqliteConnection:
    dialect: DialectName = "sqlite"
    alone = False
    rings = False
    receipt: str | None = None
    broken = False
    session = ""

    def __init__(self, path: Path, runtime: Runtime) -> None:
        self._runtime = runtime
        self._path = path
        self._changes = 0
        self._writes = False
        self._position: int | None = None
        self._mark = Mark(path)
        try:
            # The built-in busy handler starves with several processes: we wait ourselves, a random moment at a time.
            self._db = sqlite3.connect(
                path, isolation_level=None, timeout=0, check_same_thread=False, cached_statements=1024
            )
            self._patiently("PRAGMA journal_mode=WAL")
            self._db.execute("PRAGMA synchronous=FULL")
            self._db.execute("PRAGMA foreign_keys=ON")
            self._db.execute("PRAGMA cache_size=-16000")
        except sqlite3.Error as error:
            raise sqlite_error(path, error) from error

    def run(
        self, statement: Statement, rows: Rows | None = None, more: Rows | None = None, /, **params: Any
    ) -> list[Row]:
        values = [params[name] for name in statement.parameters]
        if rows is None or len(rows) <= VALUES_LIMIT:
            return self._run(statement, rows or (), values)
        pieces = (rows[i : i + VALUES_LIMIT] for i in range(0, len(rows), VALUES_LIMIT))
        return [row for piece in pieces for row in self._run(statement, piece, values)]

    def _run(self, statement: Statement, rows: Rows, values: list[Any]) -> list[Row]:
        text, flat = statement.sqlite(len(rows)), [*values, *(value for row in rows for value in row)]
        try:
            return self._execute(text, flat)
        except UnicodeEncodeError:
            # Nothing was sent yet. Only what was refused is looked through: to look at every value costs a third more.
            return self._execute(text, _clean(flat))

    def _execute(self, text: str, values: Sequence[Any] = ()) -> list[Row]:
        limit: float | None = None
        while True:
            try:
                return self._db.execute(text, values).fetchall()
            except sqlite3.DatabaseError as error:
                if not self.is_busy(error):
                    # A disk that is full or fails; what is damaged has no class of its own. Others are the
                    # statement's fault.
                    if type(error) not in (sqlite3.OperationalError, sqlite3.DatabaseError):
                        raise
                    raise sqlite_error(self._path, error) from error
                if self._writes:
                    raise
                # A reader, too, has to wait while the last writer that closes takes the WAL away.
                limit = limit or self._runtime.clock() + BUSY_LIMIT_S
                if self._runtime.clock() > limit:
                    raise sqlite_error(self._path, error) from error
                self._runtime.block(0.0002 + 0.0006 * self._runtime.random())

    def script(self, text: str) -> list[Row]:
        return self._execute(text)

    def begin(self) -> None:
        self._patiently("BEGIN IMMEDIATE")
        self._writes = True
        self._changes, self._position = self._db.total_changes, None

    def begin_read(self) -> None:
        # A deferred transaction takes its snapshot at its first read.
        self._execute("BEGIN")
        self._execute("SELECT 1 FROM sqlite_schema LIMIT 1")

    def commit(self, ring: bool = False) -> None:
        self._patiently("COMMIT")
        self._writes = False
        if self._position is not None:
            # After the commit: a kill in between leaves an older mark, which says nothing.
            self._mark.write(self._position)
            self._position = None

    def count(self) -> None:
        if self._db.total_changes > self._changes:
            for row in self._execute("UPDATE positions SET position = position + 1 RETURNING position"):
                self._position = row[0]

    def rollback(self) -> None:
        self._writes = False
        if self._db.in_transaction:
            self._execute("ROLLBACK")

    def close(self) -> None:
        self._mark.close()
        self._db.close()

    def is_busy(self, error: Exception) -> bool:
        return isinstance(error, sqlite3.OperationalError) and error.sqlite_errorcode & 0xFF in (
            sqlite3.SQLITE_BUSY,
            sqlite3.SQLITE_LOCKED,
        )

    def outcome(self, receipt: str) -> Outcome:
        return "aborted"

    def works(self, session: str) -> bool:
        return False

    def _patiently(self, text: str) -> None:
        limit = self._runtime.clock() + BUSY_LIMIT_S
        while True:
            try:
                self._db.execute(text)
                return
            except sqlite3.OperationalError as error:
                if not self.is_busy(error) or self._runtime.clock() > limit:
                    raise sqlite_error(self._path, error) from error
                self._runtime.block(0.0002 + 0.0006 * self._runtime.random())


_SESSION = (
    "SELECT current_setting('fsync'), (SELECT pid || ' ' || backend_start FROM pg_stat_activity "
    "WHERE pid = pg_backend_pid())"
)
_OUTCOME = Statement("SELECT pg_xact_status(CAST(:receipt AS xid8))")
_WORKS = Statement(
    "SELECT count(*) FROM pg_stat_activity WHERE pid || ' ' || backend_start = :session AND state <> 'idle'"
)


class PostgresConnection:
    dialect: DialectName = "postgres"
    alone = False
    rings = False
    receipt: str | None = None

    def __init__(self, database: "Database", hot: bool = False) -> None:
        self._psycopg = _psycopg()
        self._url = database.url
        self._clock = database.runtime.clock
        self._watch = database.watch
        self.busy_since: float | None = None
        try:
            self._db = self._psycopg.connect(
                **database.parameters,
                autocommit=True,
                prepare_threshold=1,
                cursor_factory=self._psycopg.RawCursor,
            )
        except self._psycopg.Error as error:
            raise _refused(database.url, error) from error
        self._watch.add(self)
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
                "this PostgreSQL server runs with fsync=off: a power cut would lose accepted documents. "
                "Turn fsync on, or use another server."
            )
        self._execute("SET synchronous_commit = on")
        if hot:
            # A process that was stopped within a transaction holds rows that the reaper wants: the server ends it.
            self._execute(f"SET idle_in_transaction_session_timeout = {round(1000 * STOPPED_S)}")
            # Every hot verb finds its rows by key: a plan made once, by index, whatever the statistics say. Without
            # this a table that was never analysed is scanned whole for each group.
            self._execute("SET plan_cache_mode = force_generic_plan")
            for method in ("seqscan", "hashjoin", "mergejoin"):
                self._execute(f"SET enable_{method} = off")

    def run(
        self, statement: Statement, rows: Rows | None = None, more: Rows | None = None, /, **params: Any
    ) -> list[Row]:
        try:
            return self._run(statement, rows, more, params)
        except (UnicodeEncodeError, self._psycopg.DataError):
            # The driver itself refuses NUL and lone surrogates, before it sends anything.
            if (cleaned := _clean(params.values())) == list(params.values()):
                raise
            params = dict(zip(params, cleaned, strict=True))
            return self._run(statement, _clean_rows(rows), _clean_rows(more), params)

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
        """`LedgerAway`, if it is that."""
        if self._db.closed:
            return LedgerAway(f"PostgreSQL has closed the connection: {refusal(self._url, error)}.")
        if away.is_away(getattr(error, "sqlstate", None)):
            return LedgerAway(f"PostgreSQL at {masked(self._url)} refuses to work: {refusal(self._url, error)}.")
        return error

    def script(self, text: str) -> list[Row]:
        return self._execute(text)

    def begin(self) -> None:
        # One message, which takes as long as BEGIN alone. Where the answer to COMMIT is lost, the number tells.
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

    def commit(self, ring: bool = False) -> None:
        # Two statements in one message cannot be prepared.
        self._execute(f"{NOTIFY}; COMMIT" if ring else "COMMIT", prepare=False if ring else None)

    def count(self) -> None:
        """A row that every submit counts in would make them wait for each other: the index alone tells here."""

    def rollback(self) -> None:
        # Raises where the connection is gone: nobody is to keep it.
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
        """From another thread: what runs here ends with an error."""
        self._db.cancel()

    def cut(self, how: int = socket.SHUT_RDWR) -> None:
        """From another thread: the server stands still, and nobody is to wait for its answer."""
        away.cut(self._db.pgconn.socket, how)

    @property
    def broken(self) -> bool:
        return bool(self._db.closed)

    def close(self) -> None:
        self._watch.remove(self)
        self._db.close()

    def outcome(self, receipt: str) -> Outcome:
        try:
            [(status,)] = self.run(_OUTCOME, receipt=receipt)
        except self._psycopg.errors.InvalidParameterValue:
            # A number that this server has not given yet: it took over from another, which had not told it.
            return "aborted"
        if status is None:
            raise StorageError("PostgreSQL has forgotten what became of a transaction: it was away for too long.")
        outcome: Outcome = status
        return outcome

    def works(self, session: str) -> bool:
        return bool(self.run(_WORKS, session=session)[0][0])

    def is_busy(self, error: Exception) -> bool:
        errors = self._psycopg.errors
        # Somebody else was quicker: another submit of the same file, or prune with an artifact that a step wanted. Run
        # again, the group sees what is there now.
        quicker = errors.ForeignKeyViolation | errors.UniqueViolation
        waited = errors.DeadlockDetected | errors.SerializationFailure | errors.LockNotAvailable
        return isinstance(error, quicker | waited)


def _psycopg() -> Any:
    try:
        import psycopg
    except ImportError as error:
        raise ConfigError(
            "a postgresql:// database needs the postgres extra: pip install 'penstock[postgres]'"
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
    """What the driver or the server said of a URL, without its passwords."""
    return masked_for(url, _first_line(error))


def _clean(values: Iterable[Any]) -> list[Any]:
    return [clean(value) if isinstance(value, str) else value for value in values]


def _clean_rows(rows: Rows | None) -> Rows | None:
    return None if rows is None else [_clean(row) for row in rows]


def _array(values: Sequence[Any]) -> str:
    """An array literal: the driver's own dumping of lists takes longer than the statement."""
    return "{" + ",".join(map(_element, values)) + "}"


def _element(value: Any) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return repr(value)


class Database:
    """Where the ledger lives; opens connections to it."""

    def __init__(self, url: str, runtime: Runtime) -> None:
        self.url = url
        self.runtime = runtime
        self.patience = Patience(runtime)
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
        return PostgresConnection(self, hot)

    @cached_property
    def parameters(self) -> dict[str, Any]:
        """Of a connection to PostgreSQL: those of the URL, and ours where it says nothing."""
        psycopg = _psycopg()
        try:
            return away.with_defaults(psycopg.conninfo.conninfo_to_dict(self.url))
        except psycopg.Error as error:
            raise ConfigError(f"database {masked(self.url)!r}: {refusal(self.url, error)}") from error

    @cached_property
    def watch(self) -> away.Watch:
        return away.Watch(self.parameters, self.runtime)


def sqlite_error(path: Path, error: sqlite3.Error) -> StorageError:
    """What SQLite met, as a sentence that a person can act on."""
    text = str(error)
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    # SQLITE_ERROR: a table or a column is missing.
    if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR):
        return LedgerDamaged(f"{path} is not a Penstock ledger, or is damaged ({text}): restore it from a backup")
    return StorageError(_sentence(path, text, code))


def _sentence(path: Path, text: str, code: int) -> str:
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return f"the ledger {path} was locked by another program for {BUSY_LIMIT_S:.0f} s: close it and try again"
    if code == sqlite3.SQLITE_FULL:
        return f"the disk that holds the ledger {path} is full: free some space; nothing accepted is lost"
    if code in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM):
        return f"the ledger {path} cannot be written: check that the folder exists and is yours ({text})"
    return f"the ledger {path} could not be used: {text}"
