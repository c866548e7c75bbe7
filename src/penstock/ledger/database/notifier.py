"""Notifications of new work. On PostgreSQL the transaction that creates work sends NOTIFY; on SQLite waiting workers
poll `data_version`, a number that changes with every commit of another connection."""

import asyncio
from collections.abc import Sequence
from typing import Any, Protocol

from penstock.errors import StorageError
from penstock.ledger.database.connection import Connection, Row
from penstock.ledger.database.database import Database
from penstock.ledger.database.statements import Statement
from penstock.runtime import opened

NOTIFY_EVERY_S = 0.01
LOOK_S = 0.05
_LISTEN = "LISTEN penstock"
_DATA_VERSION = "PRAGMA data_version"
# Scalar subqueries, not EXISTS: PostgreSQL may turn the latter into a hash of all that waits.
_CLAIMABLE = Statement(
    "SELECT r.kind FROM {rows} WHERE coalesce((SELECT 1 FROM steps s WHERE coalesce(s.pool, s.kind) = r.kind "
    "AND s.status = 'PENDING' AND s.resource_key IS NULL LIMIT 1), (SELECT 1 FROM locks l "
    "WHERE l.kind = r.kind AND l.ready = 1 AND l.token IS NULL "
    "AND (l.paused_until IS NULL OR l.paused_until < {now}) LIMIT 1)) = 1",
    rows="kind text",
)


def claimable(connection: Connection, kinds: Sequence[str]) -> set[str]:
    """The kinds that have a waiting step, or a free lock with steps waiting behind it."""
    return {row[0] for row in connection.run(_CLAIMABLE, [(kind,) for kind in kinds])}


class Notifier:
    """Used by the writer: notifies at most once in 10 ms. A notification that comes sooner stays pending, so that none
    is lost."""

    def __init__(self, database: Database) -> None:
        self.is_needed = database.dialect == "postgres"
        """False on SQLite, where every commit is noticed."""
        self.pending = False
        self._clock = database.runtime.clock
        self._last = self._clock() - NOTIFY_EVERY_S

    @property
    def pending_in(self) -> float | None:
        """Seconds until the pending notification may be sent; None: nothing is pending."""
        return max(0.0, self._last + NOTIFY_EVERY_S - self._clock()) if self.pending else None

    @property
    def due(self) -> bool:
        return self.pending and self.may_notify

    @property
    def may_notify(self) -> bool:
        return self._clock() >= self._last + NOTIFY_EVERY_S

    def notified(self) -> None:
        """Call this before sending: another notification may become pending meanwhile."""
        self.pending = False
        self._last = self._clock()


class Listener(Protocol):
    """Used by a worker that waits."""

    async def change(self) -> None:
        """Returns when others may have created work. Raises if the connection is lost: then open it again."""

    hears_only_work: bool
    """A change means new work. False: it may be any commit."""

    async def open(self) -> None: ...

    def close(self) -> None: ...


def listener(database: Database) -> Listener:
    return PostgresListener(database) if database.dialect == "postgres" else SqliteListener(database)


def _close(connection: Any) -> None:
    connection.close()


class SqliteListener:
    """A poll takes some microseconds and no lock, so it runs on the event loop."""

    hears_only_work = False

    def __init__(self, database: Database) -> None:
        self._database = database
        self._connection: Connection | None = None
        self._seen: list[Row] = []

    async def open(self) -> None:
        self.close()
        self._connection = await opened(self._database.runtime, self._database.connect, _close)
        self._seen = []

    async def change(self) -> None:
        assert self._connection is not None
        while (version := self._connection.script(_DATA_VERSION)) == self._seen:
            await self._database.runtime.sleep(LOOK_S)
        self._seen = version

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


class PostgresListener:
    """Has its own connection, whose socket the event loop watches."""

    hears_only_work = True

    def __init__(self, database: Database) -> None:
        self._database = database
        self._connection: Any = None
        self._socket = -1
        self._heard = asyncio.Event()
        self._lost = False

    async def open(self) -> None:
        self.close()
        self._connection = await opened(self._database.runtime, self._connect, _close)
        self._lost = False
        # There may be work from before LISTEN.
        self._heard.set()
        self._socket = self._connection.fileno()
        asyncio.get_running_loop().add_reader(self._socket, self._read)

    async def change(self) -> None:
        await self._heard.wait()
        self._heard.clear()
        if self._lost:
            raise StorageError("PostgreSQL closed the connection that listens")

    def close(self) -> None:
        if self._connection is not None:
            if not self._lost:
                asyncio.get_running_loop().remove_reader(self._socket)
            self._connection.close()
            self._connection = None

    def _connect(self) -> Any:
        import psycopg

        connection = psycopg.connect(**self._database.server.parameters, autocommit=True)
        try:
            connection.execute(_LISTEN)
        except BaseException:
            connection.close()
            raise
        return connection

    def _read(self) -> None:
        wire = self._connection.pgconn
        try:
            wire.consume_input()
            while wire.notifies():
                self._heard.set()
        except Exception:
            self._lost = True
            asyncio.get_running_loop().remove_reader(self._socket)
            self._heard.set()
