"""The ledger as the rest of the code uses it: writes go through the single writer, reads use their own connections."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from queue import Empty, SimpleQueue
from threading import Lock
from typing import Any, Concatenate, ParamSpec, TypeVar

from penstock.errors import DiskFull, LedgerAway
from penstock.ledger.database import versions
from penstock.ledger.database.commit_counter import CommitCounter
from penstock.ledger.database.compaction import CompactedLedger, compact
from penstock.ledger.database.connection import Connection
from penstock.ledger.database.database import Database
from penstock.ledger.database.histories import NOTICE, Seen, SetBack, is_behind
from penstock.ledger.database.reserve import Reserve
from penstock.ledger.database.writer import Item, Result, Verb, Writer
from penstock.metrics.base import NULL_METRICS, Metrics
from penstock.redaction import make_private_file, tighten
from penstock.runtime import Runtime, opened, shielded

P = ParamSpec("P")
T = TypeVar("T")


class Ledger:
    def __init__(self, database: Database, metrics: Metrics = NULL_METRICS) -> None:
        self.database = database
        self._runtime: Runtime = database.runtime
        self._writer = Writer(database, metrics)
        self._idle: SimpleQueue[Connection] = SimpleQueue()
        self._closed = False
        self._closing = Lock()

    @property
    def commits(self) -> int:
        return self._writer.commits

    async def open(self, *, migrate: bool = True) -> None:
        """Create a new ledger, or migrate an older one (SQLite at once, PostgreSQL only on request)."""
        await self._runtime.run_blocking("read", self._open, migrate or self.database.dialect == "sqlite")

    def open_here(self) -> None:
        """The same in a thread, for a ledger that is only made or migrated here."""
        self._open(migrate=True)
        self._drain()

    async def notice(self, generation: int) -> SetBack | None:
        """Compare the ledger with the highest generation in its index, and with its commit counter. A ledger that is
        behind was restored to an earlier state: from here on it is another history."""
        position = CommitCounter(self.database.path).read() if self.database.dialect == "sqlite" else 0
        seen = Seen(generation, position)
        if not await self.read(is_behind, seen):
            return None
        if self.database.read_only:
            return SetBack(generation, 0, 0, 0.0)
        return await self.write(NOTICE, seen)

    async def write(self, verb: Verb[Item, Result], item: Item) -> Result:
        self.database.refuse_read_only()
        return await self._writer.write(verb, item)

    async def rehearse(self, verb: Verb[Item, Result], item: Item) -> Result:
        """What a write would answer, without its effect."""
        self.database.refuse_read_only()

        def roll_back(connection: Connection) -> Result:
            connection.begin()
            try:
                [answer] = verb.function(connection, [item])
                return answer
            finally:
                connection.rollback()

        return await self._runtime.run_blocking("read", lambda: self._with(roll_back))

    async def despite_full_disk(self, action: Callable[[], Awaitable[T]]) -> T:
        """Return the result of a call that frees space. If the disk is full, the call is repeated once, with the space
        of the reserve."""
        try:
            return await action()
        except DiskFull:
            if self.database.dialect == "postgres":
                raise
            reserve = Reserve(self.database.path)
            if not await self._runtime.run_blocking("io", reserve.release):
                raise
            try:
                return await action()
            finally:
                await self._runtime.run_blocking("io", reserve.fill)

    async def truncate(self) -> None:
        """Remove the write-ahead log of an embedded ledger, which contains what was deleted. If another process is
        reading or writing, nothing happens: the log is removed when the last process closes the ledger."""
        if self.database.dialect == "sqlite":
            await self._runtime.run_blocking("read", lambda: self._with(_truncate))

    async def compact(self) -> CompactedLedger | None:
        """Write the file of an embedded ledger again without its free space, if that is worth it."""
        if self.database.dialect == "postgres" or self.database.read_only:
            return None
        path = self.database.path
        return await self._runtime.run_blocking(
            "read", lambda: self._with(lambda connection: compact(path, connection))
        )

    def notify_others(self) -> None:
        """Notify the workers of other processes, where no write does it."""
        self._writer.notify_others()

    async def read(self, function: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._runtime.run_blocking("read", lambda: self._with(lambda c: function(c, *args, **kwargs)))

    @asynccontextmanager
    async def snapshot(self) -> AsyncIterator["Snapshot"]:
        """Reads that all see the same snapshot of the ledger, until the block ends."""
        connection = await opened(self._runtime, self._begin, self._end)
        try:
            yield Snapshot(connection, self._runtime)
        finally:
            await shielded(self._runtime.run_blocking("read", self._end, connection))

    async def still_ours(self) -> None:
        """Raises `LedgerTooNew` if the ledger was migrated to an unknown version meanwhile."""
        await self.read(versions.still_ours, self.database)

    async def is_there(self) -> bool:
        """Whether the database answers, now."""
        try:
            await self._runtime.run_blocking("read", self._once, versions.version)
        except LedgerAway:
            return False
        return True

    async def close(self) -> None:
        self.database.outage_wait.give_up()
        self._writer.close()
        with self._closing:
            self._closed = True
        self._drain()
        self.database.close()

    def _give_back(self, connection: Connection) -> None:
        """Keep a connection for the next read, unless the ledger is read-only (see read_only.py). A read whose caller
        was cancelled may end after `close`."""
        with self._closing:
            if not self._closed and not self.database.read_only:
                self._idle.put(connection)
                return
        connection.close()

    def _drain(self) -> None:
        while True:
            try:
                self._idle.get_nowait().close()
            except Empty:
                return

    def _with(self, function: Callable[[Connection], T]) -> T:
        """Read on its own connection. While the database is not available, wait up to the limit of `outage_wait`."""
        return self.database.outage_wait.call(lambda: self._once(function))

    def _once(self, function: Callable[[Connection], T]) -> T:
        """A connection that was closed while it was idle is opened again."""
        while True:
            connection, fresh = self._take()
            try:
                answer = function(connection)
            except LedgerAway:
                connection.close()
                if fresh:
                    raise
                self.database.outage_wait.lost()
                continue
            except BaseException:
                connection.close()
                raise
            self._give_back(connection)
            return answer

    def _take(self) -> tuple[Connection, bool]:
        """And whether it is new."""
        try:
            return self._idle.get_nowait(), False
        except Empty:
            return self.database.connect(), True

    def _begin(self) -> Connection:
        return self.database.outage_wait.call(self._begin_once)

    def _begin_once(self) -> Connection:
        while True:
            connection, fresh = self._take()
            try:
                connection.begin_read()
                return connection
            except LedgerAway:
                connection.close()
                if fresh:
                    raise

    def _end(self, connection: Connection) -> None:
        try:
            connection.rollback()
        except Exception:
            connection.close()
            return
        self._give_back(connection)

    def _open(self, migrate: bool) -> None:
        if self.database.dialect == "sqlite":
            path = self.database.path
            self.database.look()
            path.parent.mkdir(parents=True, exist_ok=True)
            if not self.database.read_only:
                make_private_file(path)
                tighten((path, *(path.with_name(path.name + end) for end in ("-wal", "-shm"))))
        self._with(lambda connection: versions.bring_up(self.database, connection, migrate=migrate))
        if self.database.dialect == "sqlite" and not self.database.read_only:
            Reserve(self.database.path).fill()


class Snapshot:
    """A snapshot of the ledger."""

    def __init__(self, connection: Connection, runtime: Runtime) -> None:
        self._connection = connection
        self._runtime = runtime
        self._querying = asyncio.Lock()

    async def execute(self, text: str, values: Sequence[Any]) -> list[tuple[Any, ...]]:
        """Run a read of an index that is in the same database, in this snapshot."""
        async with self._querying:
            return await self._runtime.run_blocking("read", lambda: self._connection.query(text, values))

    async def read(self, function: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._runtime.run_blocking("read", lambda: function(self._connection, *args, **kwargs))


def _truncate(connection: Connection) -> None:
    connection.script("PRAGMA wal_checkpoint(TRUNCATE)")
