"""The ledger's part of a backup: a consistent copy of its tables in one file. The file is a SQLite ledger whatever the
database, so that a backup of one database can be restored into the other.

These statements cross owners (I10)."""

import re
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path
from urllib.parse import quote

import msgspec

from penstock.errors import StorageError, UsageError
from penstock.ledger.database import histories
from penstock.ledger.database.connection import Connection
from penstock.ledger.database.database import Database
from penstock.ledger.database.histories import Seen
from penstock.ledger.database.postgres import PostgresConnection
from penstock.ledger.database.sqlite import SqliteConnection, sqlite_error
from penstock.ledger.database.statements import Statement
from penstock.ledger.database.store import Ledger
from penstock.ledger.engine import leasing, outbox, webhook_sending
from penstock.ledger.engine.backup_guard import outlast_prune
from penstock.model.nouns import WorkerId
from penstock.redaction import make_private_file
from penstock.runtime import Runtime

PAGE = 5000
_NAME = re.compile(r"[a-z_][a-z0-9_]*")
_OWN = ("schema_versions", "positions", "holdings")
"""Tables that are not copied, because every ledger fills them itself."""


def copy_out(database: Database, target: Path) -> None:
    """Copy a consistent snapshot of the ledger while other processes write. The caller holds the backup lock, which
    stops prune."""
    target.unlink(missing_ok=True)
    make_private_file(target)
    if database.dialect == "sqlite":
        _copy_file(database.path, target)
    else:
        _copy_tables(database, target)


def _copy_file(source: Path, target: Path) -> None:
    try:
        there, copy = sqlite3.connect(source), sqlite3.connect(target)
        try:
            there.backup(copy)
            # A single file, without a WAL.
            copy.execute("PRAGMA journal_mode=DELETE").fetchall()
        finally:
            there.close()
            copy.close()
    except sqlite3.Error as error:
        raise sqlite_error(source, error) from error


def _copy_tables(database: Database, target: Path) -> None:
    source = database.connect()
    try:
        outlast_prune(source)
        source.begin_read()
        make_ledger(target, database.runtime)
        with sqlite3.connect(target) as copy:
            for name, columns in tables(copy).items():
                source.script(f"DECLARE copied NO SCROLL CURSOR FOR SELECT {columns} FROM {name}")
                places = ", ".join("?" * (columns.count(",") + 1))
                while rows := source.script(f"FETCH {PAGE} FROM copied"):
                    copy.executemany(f"INSERT INTO {name} ({columns}) VALUES ({places})", rows)
                source.script("CLOSE copied")
            copy.execute("DELETE FROM sqlite_sequence")
            for (name,) in copy.execute("SELECT name FROM sqlite_schema WHERE sql LIKE '%AUTOINCREMENT%'").fetchall():
                copy.execute("INSERT INTO sqlite_sequence (name, seq) VALUES (?, ?)", (name, _last(source, name)))
        copy.execute("PRAGMA journal_mode=DELETE").fetchall()
        copy.close()
        source.rollback()
    finally:
        source.close()


def _last(connection: Connection, table: str) -> int:
    found: int = connection.script(f"SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM {table}_id_seq")[0][0]
    return found


def make_ledger(path: Path, runtime: Runtime) -> None:
    """Create an embedded ledger with the present schema, or migrate an older one."""
    Ledger(Database(f"sqlite:///{path}", runtime)).open_here()


def tables(copy: sqlite3.Connection) -> dict[str, str]:
    """The tables to copy, each with its columns. Tables that others refer to come first. The names are checked, because
    they become part of statements and the file may come from anywhere."""
    names = copy.execute(
        "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite_%' ORDER BY rowid"
    ).fetchall()
    return {
        _plain(name): ", ".join(
            _plain(row[0]) for row in copy.execute("SELECT name FROM pragma_table_info(?)", (name,))
        )
        for (name,) in names
        if name not in _OWN
    }


def _plain(name: object) -> str:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise UsageError(f"{name!r} is not a table or column of a ledger: the backup was not made by Penstock")
    return name


class Named(msgspec.Struct, frozen=True):
    """A blob that the ledger needs."""

    key: str
    sha256: str
    size: int
    raw: bool


# Small blobs are in the ledger itself.
_NAMED = """
SELECT raw_key, min(sha256), min(size), 1 FROM generations
WHERE state <> 'PURGED' AND raw_key NOT LIKE '%/small/%' GROUP BY raw_key
UNION ALL SELECT key, sha256, size, 0 FROM segments WHERE key NOT LIKE '%/small/%'
UNION ALL SELECT key, sha256, size, 0 FROM answer_segments
"""


class Copy:
    """A copy of a ledger, for reading."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._db = sqlite3.connect(f"file:{quote(bytes(path))}?mode=ro&immutable=1", uri=True, check_same_thread=False)

    def blobs(self, count: int) -> Iterator[list[Named]]:
        cursor = self._db.execute(_NAMED)
        while rows := cursor.fetchmany(count):
            yield [Named(key, sha256, size, bool(raw)) for key, sha256, size, raw in rows]

    def named(self, keys: Sequence[str]) -> set[str]:
        places = ", ".join("?" * len(keys))
        found = self._db.execute(
            f"SELECT raw_key FROM generations WHERE state <> 'PURGED' AND raw_key IN ({places}) "
            f"UNION SELECT key FROM segments WHERE key IN ({places}) "
            f"UNION SELECT key FROM answer_segments WHERE key IN ({places})",
            [*keys, *keys, *keys],
        )
        return {row[0] for row in found}

    def count(self) -> tuple[int, int]:
        """The numbers of documents and blobs."""
        [(documents,)] = self._db.execute("SELECT count(*) FROM documents WHERE deleted_at IS NULL")
        [(blobs,)] = self._db.execute(f"SELECT count(*) FROM ({_NAMED})")
        return documents, blobs

    def close(self) -> None:
        self._db.close()


_HOLDERS = Statement(
    "SELECT id FROM workers UNION SELECT worker_id FROM steps WHERE status = 'RUNNING' "
    "UNION SELECT worker_id FROM locks WHERE token IS NOT NULL "
    "UNION SELECT worker_id FROM deliveries WHERE token IS NOT NULL "
    "UNION SELECT worker_id FROM webhooks WHERE token IS NOT NULL"
)


# A backup contains the tables of all folders, and a restore lays them into the folder of the settings.
_IN_THE_SETTINGS = Statement("UPDATE index_versions SET store = NULL WHERE store IS NOT NULL")


def begin_again(path: Path, seen: Seen, runtime: Runtime) -> None:
    """Prepare a copy for use as a ledger. Steps, locks and deliveries of its workers are released, without counting a
    crash, and a new history begins."""
    make_ledger(path, runtime)
    connection = SqliteConnection(path, runtime)
    try:
        connection.begin()
        gone = [WorkerId(row[0]) for row in connection.run(_HOLDERS) if row[0] is not None]
        leasing.LEAVE.function(connection, gone)
        outbox.free(connection, gone)
        webhook_sending.free(connection, gone)
        connection.run(_IN_THE_SETTINGS)
        histories.begin(connection, "restored", seen)
        connection.commit()
    finally:
        connection.close()
    single_file(path)


def single_file(path: Path) -> None:
    """Move the content of the WAL into the ledger file. Raises UsageError if another process has the ledger open."""
    try:
        ledger = sqlite3.connect(path, timeout=0)
        try:
            ledger.execute("PRAGMA journal_mode=DELETE").fetchall()
        finally:
            ledger.close()
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            raise UsageError(f"the ledger {path} is in use: stop the processes that use it") from error
        raise sqlite_error(path, error) from error
    except sqlite3.Error as error:
        raise sqlite_error(path, error) from error


def is_empty(connection: Connection) -> bool:
    return not connection.script("SELECT 1 FROM documents LIMIT 1")


def copy_in(source: Path, database: Database) -> None:
    """Replace the whole content of a PostgreSQL ledger by a copy, in one transaction."""
    connection = database.connect()
    if not isinstance(connection, PostgresConnection):
        raise StorageError("an embedded ledger is put back as a file")
    copy = sqlite3.connect(source)
    try:
        wanted = tables(copy)
        last = {_plain(name): int(seq) for name, seq in copy.execute("SELECT name, seq FROM sqlite_sequence")}
        [(last["steps"],)] = copy.execute("SELECT coalesce(max(id), 0) FROM steps").fetchall()
        connection.begin()
        connection.script(f"TRUNCATE {', '.join(wanted)} RESTART IDENTITY CASCADE")
        # Its triggers fill it with the documents.
        connection.script("TRUNCATE holdings RESTART IDENTITY")
        for name, columns in wanted.items():
            rows = copy.execute(f"SELECT {columns} FROM {name}")
            connection.load(name, columns, rows)
        for name, seq in last.items():
            if name not in wanted:
                continue
            connection.script(f"SELECT setval('{name}_id_seq', {max(1, seq)}, {'true' if seq else 'false'})")
        connection.commit()
    finally:
        copy.close()
        connection.close()
