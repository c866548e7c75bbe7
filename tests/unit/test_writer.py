"""The one writer of a process: groups, order, and what happens when a write is bad or the database is busy."""

import asyncio
import gc
import sqlite3
import threading
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import LedgerAway, Refused, StorageError, UsageError
from penstock.ledger.database import sqlite as sqlite_module
from penstock.ledger.database.connection import Connection
from penstock.ledger.database.database import Database
from penstock.ledger.database.sqlite import SqliteConnection
from penstock.ledger.database.statements import Statement
from penstock.ledger.database.store import Ledger
from penstock.ledger.database.writer import Verb, Writer
from penstock.runtime import Runtime, shielded

INSERT = Statement("INSERT INTO paces (kind, seconds) SELECT r.name, 1 FROM {rows} WHERE true", rows="name text")
groups: list[int] = []


def _add(connection: Connection, names: Sequence[str]) -> list[str]:
    groups.append(len(names))
    if "refused" in names:
        raise UsageError("refused on purpose")
    connection.run(INSERT, [(name,) for name in names])
    return [name.upper() for name in names]


def _die(connection: Connection, items: Sequence[None]) -> list[None]:
    connection.script("SELECT pg_terminate_backend(pg_backend_pid())")
    return [None for _ in items]


ADD = Verb("test_add", _add)
DIE = Verb("test_die", _die)


@pytest.fixture
async def writer(ledger: Ledger) -> AsyncIterator[Writer]:
    groups.clear()
    writer = Writer(ledger.database)
    yield writer
    writer.close()


async def kinds(ledger: Ledger) -> set[str]:
    return {row[0] for row in await ledger.read(lambda c: c.script("SELECT kind FROM paces"))}


async def test_results_come_in_order_and_in_groups(writer: Writer, ledger: Ledger) -> None:
    names = [f"n{i}" for i in range(200)]
    answers = await asyncio.gather(*(writer.write(ADD, name) for name in names))
    assert answers == [name.upper() for name in names]
    assert await kinds(ledger) == set(names)
    assert writer.commits < 10


async def test_one_bad_write_does_not_sink_its_group(writer: Writer, ledger: Ledger) -> None:
    names = ["a", "refused", "b", "a", "c"]
    answers = await asyncio.gather(*(writer.write(ADD, name) for name in names), return_exceptions=True)
    assert [answer if isinstance(answer, str) else type(answer) for answer in answers] == [
        "A",
        UsageError,
        "B",
        Refused,
        "C",
    ]
    assert "the ledger refused test_add" in str(answers[3])
    assert await kinds(ledger) == {"a", "b", "c"}
    assert groups[0] == 5, "they were one group at first"
    assert await writer.write(ADD, "d") == "D"


async def test_a_failed_write_leaves_nothing_behind(writer: Writer, ledger: Ledger) -> None:
    def half(connection: Connection, names: Sequence[str]) -> list[str]:
        connection.run(INSERT, [("half",)])
        raise ValueError("in the middle")

    with pytest.raises(StorageError, match="in the middle"):
        await writer.write(Verb("test_half", half), "x")
    assert await kinds(ledger) == set()


async def test_a_waiter_that_gave_up_does_not_disturb_the_others(writer: Writer, ledger: Ledger) -> None:
    tasks = [asyncio.create_task(writer.write(ADD, f"n{i}")) for i in range(10)]
    await asyncio.sleep(0)
    tasks[3].cancel()
    answers = await asyncio.gather(*tasks, return_exceptions=True)
    assert [i for i, answer in enumerate(answers) if isinstance(answer, BaseException)] == [3]


async def test_a_lost_postgres_connection_is_replaced(runtime: Runtime, postgres: str) -> None:
    ledger = Ledger(Database(postgres, runtime))
    writer = Writer(ledger.database)
    assert await writer.write(ADD, "before") == "BEFORE"
    await ledger.read(
        lambda c: c.script(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
    )
    assert await writer.write(ADD, "after") == "AFTER"
    with pytest.raises(LedgerAway):
        await writer.write(DIE, None)
    assert await writer.write(ADD, "again") == "AGAIN"
    writer.close()
    await ledger.close()


async def test_i6_a_commit_that_sqlite_could_not_make_is_made_again(
    sqlite: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite rolls back a COMMIT that fails with an I/O error, for every reader (seen with EIO injected into
    fdatasync and ENOSPC into pwrite): to run the group again is right, and there is nothing to ask."""
    commit = SqliteConnection.commit
    failures = [True]

    def fail_once(self: SqliteConnection, ring: bool = False) -> None:
        if failures:
            failures.clear()
            self.rollback()
            raise StorageError("disk I/O error")
        commit(self, ring)

    monkeypatch.setattr(SqliteConnection, "commit", fail_once)
    names = [f"n{i}" for i in range(5)]
    assert await asyncio.gather(*(sqlite.write(ADD, name) for name in names)) == [name.upper() for name in names]
    assert await kinds(sqlite) == set(names)


async def test_a_database_that_is_away_is_said_to_all_of_a_group_at_once(
    postgres: str, runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not to each alone, after each has waited for it in turn."""
    database = Database(postgres, runtime)
    tries = []

    def refuse(*, hot: bool = False) -> Connection:
        tries.append(hot)
        raise LedgerAway("away")

    monkeypatch.setattr(database, "connect", refuse)
    database.outage_wait.limit_s = 0.6
    writer = Writer(database)
    answers = await asyncio.gather(*(writer.write(ADD, f"n{i}") for i in range(40)), return_exceptions=True)
    writer.close()
    assert all(isinstance(answer, LedgerAway) for answer in answers)
    assert 2 <= len(tries) <= 6


class Holder:
    """Another program that holds the database's write lock for a while."""

    def __init__(self, path: Path, seconds: float) -> None:
        self._path, self._seconds = path, seconds
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._hold)

    def _hold(self) -> None:
        connection = sqlite3.connect(self._path, isolation_level=None)
        connection.execute("BEGIN IMMEDIATE")
        self._ready.set()
        time.sleep(self._seconds)
        connection.execute("ROLLBACK")
        connection.close()

    def __enter__(self) -> None:
        self._thread.start()
        self._ready.wait()

    def __exit__(self, *_: object) -> None:
        self._thread.join()


@pytest.fixture
async def sqlite(tmp_path: Path, runtime: Runtime) -> AsyncIterator[Ledger]:
    ledger = Ledger(Database(f"sqlite:///{tmp_path / 'ledger.db'}", runtime))
    await ledger.open()
    yield ledger
    await ledger.close()


async def test_a_busy_database_only_delays(sqlite: Ledger, tmp_path: Path) -> None:
    with Holder(tmp_path / "ledger.db", 0.5):
        began = time.monotonic()
        assert await sqlite.write(ADD, "patient") == "PATIENT"
        assert 0.3 < time.monotonic() - began < 5.0


async def test_a_database_that_stays_locked_is_reported_in_a_sentence(
    sqlite: Ledger, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.setattr(sqlite_module, "BUSY_LIMIT_S", 0.2)
    with Holder(tmp_path / "ledger.db", 1.0):
        with pytest.raises(StorageError, match=r"was locked by another program for 0 s: close it and try again"):
            await sqlite.write(ADD, "impatient")
    assert await sqlite.write(ADD, "later") == "LATER"


async def test_two_writers_of_one_database_take_turns(sqlite: Ledger, runtime: Runtime) -> None:
    other = Ledger(Database(sqlite.database.url, runtime))
    names = [f"n{i}" for i in range(100)]
    both = (writer for _ in names for writer in (sqlite, other))
    answers = await asyncio.gather(*(next(both).write(ADD, name) for name in names))
    assert answers == [name.upper() for name in names]
    await other.close()


async def test_a_set_of_any_size_is_written(ledger: Ledger, writer: Writer) -> None:
    for count in (0, 1, 63, 64, 65, 500):
        names = [f"{count}-{i}" for i in range(count)]

        def many(connection: Connection, items: Sequence[list[str]]) -> list[int]:
            connection.run(INSERT, [(name,) for name in items[0]])
            return [len(items[0])]

        assert await writer.write(Verb("test_many", many), names) == count
    assert len(await kinds(ledger)) == 1 + 63 + 64 + 65 + 500


async def test_every_value_comes_back_as_it_went(ledger: Ledger) -> None:
    odd = ["plain", 'a"b', "back\\slash", "{}", "NULL", "null", "", "a,b", "新しい", "new\nline", "%s", ":x", "'", "\t"]
    echo = Statement("SELECT r.name, r.n, r.f FROM {rows} WHERE :all = 1", rows="name text, n bigint, f float8")
    rows = [(name, i, i / 3) for i, name in enumerate(odd)] + [(None, None, None)]
    answer = await ledger.read(lambda c: c.run(echo, rows, all=1))
    assert sorted(answer, key=repr) == sorted(rows, key=repr)


async def test_a_write_that_fails_after_its_caller_was_cancelled_is_no_traceback() -> None:
    """`asyncio.shield` alone prints one."""
    said: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: said.append(context))
    gone = asyncio.Event()

    async def write() -> None:
        await gone.wait()
        raise LedgerAway("away")

    async def call() -> None:
        await shielded(write())

    caller = asyncio.create_task(call())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    caller.cancel()
    await asyncio.wait([caller])
    gone.set()
    for _ in range(5):
        await asyncio.sleep(0)
    gc.collect()
    assert said == []
    with pytest.raises(LedgerAway):
        await shielded(write())
