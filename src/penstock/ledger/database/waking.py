"""Cheap waking: whoever makes work rings, whoever waits hears it. On PostgreSQL that is NOTIFY in the transaction that
made the work; on SQLite the number that changes with every commit of another connection is looked at."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

from penstock.errors import StorageError
from penstock.ledger.database.connection import Connection, Row
from penstock.ledger.database.database import Database
from penstock.ledger.database.statements import Statement

T = TypeVar("T", bound="Closable")

RING_EVERY_S = 0.01
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
    """Those of which a step waits, or a free lock with steps behind it."""
    return {row[0] for row in connection.run(_CLAIMABLE, [(kind,) for kind in kinds])}


class Bell:
    """In the writer: rings at most once in 10 ms. What comes sooner is owed, so that no work is left unheard."""

    def __init__(self, database: Database) -> None:
        self.is_heard = database.dialect == "postgres"
        """On SQLite a commit is all that it takes."""
        self.owed = False
        self._clock = database.runtime.clock
        self._last = self._clock() - RING_EVERY_S

    @property
    def owed_in(self) -> float | None:
        """Seconds until it may ring; None: nothing is owed."""
        return max(0.0, self._last + RING_EVERY_S - self._clock()) if self.owed else None

    @property
    def due(self) -> bool:
        return self.owed and self.may_ring

    @property
    def may_ring(self) -> bool:
        return self._clock() >= self._last + RING_EVERY_S

    def is_rung(self) -> None:
        """Said first: another may be owed while this one is on its way."""
        self.owed = False
        self._last = self._clock()


class Ears(Protocol):
    """Of a worker that waits."""

    async def change(self) -> None:
        """Returns when others may have made work. Raises if nothing can be heard any more: then open it again."""

    rings_for_work: bool
    """What is heard is work. Otherwise it may be any change."""

    async def open(self) -> None: ...

    def close(self) -> None: ...


def ears(database: Database) -> Ears:
    return PostgresEars(database) if database.dialect == "postgres" else SqliteEars(database)


class Closable(Protocol):
    def close(self) -> None: ...


async def _opened(database: Database, connect: Callable[[], T]) -> T:
    """A connection. A worker that ends at once may not wait for it any more: then it is closed again."""
    opening = asyncio.ensure_future(database.runtime.run_blocking("read", connect))
    try:
        return await asyncio.shield(opening)
    except asyncio.CancelledError:
        opening.add_done_callback(_close)
        raise


def _close(opening: "asyncio.Future[Any]") -> None:
    if not opening.cancelled() and opening.exception() is None:
        opening.result().close()


class SqliteEars:
    """Looking takes some microseconds and no lock, so the loop does it itself."""

    rings_for_work = False

    def __init__(self, database: Database) -> None:
        self._database = database
        self._connection: Connection | None = None
        self._seen: list[Row] = []

    async def open(self) -> None:
        self.close()
        self._connection = await _opened(self._database, self._database.connect)
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


class PostgresEars:
    """A connection of its own, which the loop watches."""

    rings_for_work = True

    def __init__(self, database: Database) -> None:
        self._database = database
        self._connection: Any = None
        self._socket = -1
        self._heard = asyncio.Event()
        self._deaf = False

    async def open(self) -> None:
        self.close()
        self._connection = await _opened(self._database, self._connect)
        self._deaf = False
        # What came before we listened.
        self._heard.set()
        self._socket = self._connection.fileno()
        asyncio.get_running_loop().add_reader(self._socket, self._hear)

    async def change(self) -> None:
        await self._heard.wait()
        self._heard.clear()
        if self._deaf:
            raise StorageError("PostgreSQL closed the connection that listens")

    def close(self) -> None:
        if self._connection is not None:
            if not self._deaf:
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

    def _hear(self) -> None:
        wire = self._connection.pgconn
        try:
            wire.consume_input()
            while wire.notifies():
                self._heard.set()
        except Exception:
            self._deaf = True
            asyncio.get_running_loop().remove_reader(self._socket)
            self._heard.set()
