"""A reader of an embedded ledger waits for a lock that somebody holds for a moment, as while a WAL is recovered."""

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from penstock.ledger.database.sqlite import SqliteConnection
from penstock.runtime import Runtime


class Locked:
    """A connection to a database that somebody else has for himself, for so many looks."""

    def __init__(self, real: sqlite3.Connection, looks: int) -> None:
        self._real = real
        self._looks = looks

    def execute(self, text: str, values: Any = ()) -> sqlite3.Cursor:
        self._looks -= 1
        if self._looks >= 0:
            error = sqlite3.OperationalError("database is locked")
            error.sqlite_errorcode = sqlite3.SQLITE_BUSY_RECOVERY
            raise error
        return self._real.execute(text, values)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


def test_a_read_waits_while_somebody_else_has_the_ledger_for_himself(tmp_path: Path) -> None:
    with closing(SqliteConnection(tmp_path / "ledger.db", Runtime())) as reader:
        vars(reader)["_db"] = Locked(reader._db, 5)
        assert reader.script("SELECT 1") == [(1,)]


def test_a_statement_of_a_writer_is_left_to_the_caller_that_can_repeat_all_of_it(tmp_path: Path) -> None:
    with closing(SqliteConnection(tmp_path / "ledger.db", Runtime())) as writer:
        writer.begin()
        real = writer._db
        vars(writer)["_db"] = Locked(real, 5)
        with pytest.raises(sqlite3.OperationalError, match="locked") as raised:
            writer.script("SELECT 1")
        assert writer.is_busy(raised.value)
        vars(writer)["_db"] = real
        writer.rollback()
