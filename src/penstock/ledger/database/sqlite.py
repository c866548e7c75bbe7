"""Connections to an embedded ledger, and the errors of SQLite as sentences that a person can act on."""

import shutil
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from penstock.errors import DiskFull, LedgerDamaged, StorageError
from penstock.ledger.database.commit_counter import CommitCounter
from penstock.ledger.database.connection import Outcome, Row
from penstock.ledger.database.reserve import LENT, Reserve
from penstock.ledger.database.statements import VALUES_LIMIT, DialectName, Rows, Statement, clean_values
from penstock.runtime import Runtime

BUSY_LIMIT_S = 30.0


class SqliteConnection:
    dialect: DialectName = "sqlite"
    single_statement = False
    notifies = False
    receipt: str | None = None
    broken = False
    session = ""

    def __init__(self, path: Path, runtime: Runtime, read_only: str | None = None) -> None:
        """`read_only`: the URI by which a ledger that cannot be written is opened."""
        self._runtime = runtime
        self._path = path
        self._changes = 0
        self._writes = False
        self._position: int | None = None
        self._counter = CommitCounter(path)
        try:
            self._db = self._opened(read_only)
        except sqlite3.Error as error:
            # SQLite makes a small file beside the ledger when it opens it.
            if read_only is not None or not _disk_is_full(path) or not Reserve(path).lend():
                raise sqlite_error(path, error) from error
            try:
                self._db = self._opened(None)
            except sqlite3.Error as again:
                raise sqlite_error(path, again) from again

    def _opened(self, read_only: str | None) -> sqlite3.Connection:
        # With several processes the built-in busy handler can starve one of them, so wait here, for random times.
        db = sqlite3.connect(
            self._path if read_only is None else read_only,
            isolation_level=None,
            timeout=0,
            check_same_thread=False,
            cached_statements=1024,
            uri=read_only is not None,
        )
        try:
            self._retried(db, "PRAGMA journal_mode=WAL" if read_only is None else "PRAGMA query_only=ON")
            db.execute("PRAGMA synchronous=FULL")
            # What is deleted is overwritten.
            db.execute("PRAGMA secure_delete=ON")
            db.execute("PRAGMA foreign_keys=ON")
            db.execute("PRAGMA cache_size=-16000")
        except BaseException:
            db.close()
            raise
        return db

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
            # Nothing was sent yet. Values are only cleaned after an error: checking all of them costs a third more.
            return self._execute(text, clean_values(flat))

    def _execute(self, text: str, values: Sequence[Any] = ()) -> list[Row]:
        limit: float | None = None
        while True:
            try:
                return self._db.execute(text, values).fetchall()
            except sqlite3.DatabaseError as error:
                if not self.is_busy(error):
                    # A full or failing disk, or a damaged file. Other errors are errors of the statement.
                    if type(error) not in (sqlite3.OperationalError, sqlite3.DatabaseError):
                        raise
                    raise sqlite_error(self._path, error) from error
                if self._writes:
                    raise
                # Readers wait too, while the last writer removes the WAL as it closes.
                limit = limit or self._runtime.clock() + BUSY_LIMIT_S
                if self._runtime.clock() > limit:
                    raise sqlite_error(self._path, error) from error
                self._runtime.block(0.0002 + 0.0006 * self._runtime.random())

    def query(self, text: str, values: Sequence[Any]) -> list[Row]:
        raise NotImplementedError("no index is in an SQLite database")

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

    def commit(self, notify: bool = False) -> None:
        self._patiently("COMMIT")
        self._writes = False
        if self._position is not None:
            # After the commit: a kill in between leaves a lower number, which raises no alarm.
            self._counter.write(self._position)
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
        self._counter.close()
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
        try:
            self._retried(self._db, text)
        except sqlite3.OperationalError as error:
            raise sqlite_error(self._path, error) from error

    def _retried(self, db: sqlite3.Connection, text: str) -> None:
        limit = self._runtime.clock() + BUSY_LIMIT_S
        while True:
            try:
                db.execute(text)
                return
            except sqlite3.OperationalError as error:
                if not self.is_busy(error) or self._runtime.clock() > limit:
                    raise
                self._runtime.block(0.0002 + 0.0006 * self._runtime.random())


def _disk_is_full(path: Path) -> bool:
    try:
        return shutil.disk_usage(path.parent).free < LENT
    except OSError:
        return False


def sqlite_error(path: Path, error: sqlite3.Error) -> StorageError:
    """An error of SQLite as a sentence that a person can act on."""
    text = str(error)
    code = getattr(error, "sqlite_errorcode", 0)
    code = sqlite3.SQLITE_FULL if code == sqlite3.SQLITE_IOERR_SHMSIZE else code & 0xFF
    # SQLITE_ERROR: a table or a column is missing.
    if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR):
        return LedgerDamaged(f"{path} is not a Penstock ledger, or is damaged ({text}): restore it from a backup")
    return (DiskFull if code == sqlite3.SQLITE_FULL else StorageError)(_sentence(path, text, code))


def _sentence(path: Path, text: str, code: int) -> str:
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return f"the ledger {path} was locked by another program for {BUSY_LIMIT_S:.0f} s: close it and try again"
    if code == sqlite3.SQLITE_FULL:
        return f"the disk that holds the ledger {path} is full: free some space; nothing accepted is lost"
    if code in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM):
        return f"the ledger {path} cannot be written: check that the folder exists and is yours ({text})"
    return f"the ledger {path} could not be used: {text}"
