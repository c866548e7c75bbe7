"""The one writer of a process. It takes a waiting write, drains what else is queued, runs the verbs of the whole group
as sets in one transaction, commits, and then tells each waiter what became of its own write."""

import asyncio
import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from penstock.errors import LedgerAway, PenstockError, Refused, StorageError
from penstock.ledger.database import NOTIFY, Connection, Database
from penstock.ledger.waking import Bell
from penstock.metrics.base import NOTHING, Metrics

Item = TypeVar("Item")
Result = TypeVar("Result")

GROUP_LIMIT = 64
BUSY_RETRIES = 20

_names: list[str] = []


@dataclass(frozen=True, eq=False)
class Verb(Generic[Item, Result]):
    """A set-based write: one result for each item, in order. Its name is the failpoint's name, too."""

    name: str
    function: Callable[[Connection, Sequence[Item]], Sequence[Result]]
    at_once: Callable[[Sequence[Item]], bool] = lambda items: False
    """Whether it is one statement for these items on PostgreSQL: alone, that needs no transaction around it. One that
    finds nothing to do, and wants to do something else instead, raises `NotAtOnce`."""
    of: Callable[[Item], object] | None = None
    """The step that an item is about. A set tells by step what took, so two leases of one step never share a set."""
    wakes: Callable[[Sequence[Result]], bool] | None = None
    """Whether these answers mean work for somebody who waits; None: never."""
    counts: bool = False
    """A user is told that it is done: see `Connection.count`."""

    def __post_init__(self) -> None:
        _names.append(self.name)


class NotAtOnce(Exception):
    """Nothing was done; it takes a transaction."""


def failpoints() -> list[str]:
    """The names of all failpoints at this door: before and after the commit of each verb."""
    return [f"ledger.{name}.{side}" for name in _names for side in ("before", "after")]


@dataclass(eq=False)
class _Write:
    verb: Verb[Any, Any]
    item: Any
    future: asyncio.Future[Any]
    loop: asyncio.AbstractEventLoop


class Writer:
    def __init__(self, database: Database, metrics: Metrics = NOTHING) -> None:
        self._database = database
        self._queue: queue.SimpleQueue[list[_Write] | None] = queue.SimpleQueue()
        self._handing: list[_Write] = []
        self._thread: threading.Thread | None = None
        self._connection: Connection | None = None
        self._bell = Bell(database)
        self._failpoints = database.runtime.failpoints
        self.commits = 0
        self._metrics = metrics

    async def write(self, verb: Verb[Item, Result], item: Item) -> Result:
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="penstock-ledger", daemon=True)
            self._thread.start()
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        if not self._handing:
            # Steps that were woken together ask together: what one turn of the loop writes is handed over as one.
            loop.call_soon(self._hand_over)
        self._handing.append(_Write(verb, item, future, loop))
        result: Result = await future
        return result

    def _hand_over(self) -> None:
        writes, self._handing = self._handing, []
        self._queue.put(writes)

    def wake_others(self) -> None:
        """Something waits for workers of other processes."""
        if self._bell.is_heard and self._thread is not None:
            self._bell.owed = True
            # The thread looks up, and sees for how long it may wait now.
            self._queue.put([])

    def close(self) -> None:
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join()
            self._thread = None

    def _work(self) -> None:
        stopping = False
        while not stopping:
            try:
                first = self._queue.get(timeout=self._bell.owed_in)
            except queue.Empty:
                self._ring()
                continue
            group: list[_Write] = []
            while first is not None:
                group += first
                if len(group) >= GROUP_LIMIT:
                    break
                try:
                    first = self._queue.get_nowait()
                except queue.Empty:
                    break
            else:
                stopping = True
            if group:
                self._settle(group)
        if self._bell.owed:
            self._ring()
        if self._connection is not None:
            self._connection.close()

    def _settle(self, group: list[_Write]) -> None:
        """One bad write must not sink the group: if the group fails, each of its writes is tried alone."""
        if len(group) > 1 and _meet(group):
            for write in group:
                self._settle([write])
            return
        try:
            outcomes: list[tuple[_Write, Any, Exception | None]] = [
                (write, result, None) for write, result in zip(group, self._transact(group), strict=True)
            ]
        except Exception as error:
            if len(group) > 1:
                for write in group:
                    self._settle([write])
                return
            outcomes = [(group[0], None, error)]
        loop = group[0].loop
        loop.call_soon_threadsafe(_resolve, outcomes)

    def _transact(self, group: list[_Write]) -> list[Any]:
        by_verb: dict[Verb[Any, Any], list[int]] = {}
        for i, write in enumerate(group):
            by_verb.setdefault(write.verb, []).append(i)
        may_be_alone = self._database.dialect == "postgres" and _is_one_statement(by_verb, group)
        for attempt in range(BUSY_RETRIES + 2):
            connection = self._connect()
            try:
                results: list[Any] = [None] * len(group)
                begun = False
                alone = may_be_alone and not self._bell.due
                connection.alone, connection.rings = alone, alone and self._bell.may_ring
                if alone and self._failpoints.armed:
                    self._pass(by_verb, "before")
                if not alone:
                    connection.begin()
                    begun = True
                for verb, places in by_verb.items():
                    answers = verb.function(connection, [group[i].item for i in places])
                    for place, answer in zip(places, answers, strict=True):
                        results[place] = answer
                    if verb.wakes is not None and self._bell.is_heard and verb.wakes(answers):
                        if connection.rings:
                            self._bell.is_rung()
                        else:
                            self._bell.owed = True
                if any(verb.counts for verb in by_verb):
                    connection.count()
                if not alone:
                    if ring := self._bell.due:
                        self._bell.is_rung()
                    if self._failpoints.armed:
                        self._pass(by_verb, "before")
                    connection.commit(ring)
                self.commits += 1
                self._metrics.incr("ledger_commits")
                if self._failpoints.armed:
                    self._pass(by_verb, "after")
                return results
            except NotAtOnce:
                may_be_alone = False
            except Exception as error:
                self._abandon(connection)
                # What was rung in it, nobody has heard.
                self._bell.owed = self._bell.is_heard
                # One that was closed while nobody used it. What is done at once may be done twice: it is gated, or it
                # finds what is there.
                unused = isinstance(error, LedgerAway) and not begun and attempt == 0
                if attempt >= BUSY_RETRIES or not (unused or connection.is_busy(error)):
                    raise
                self._database.runtime.block(0.001 + 0.01 * self._database.runtime.random())
        raise StorageError("unreachable")

    def _ring(self) -> None:
        """Outside of any group: what is owed from one that came too soon after another."""
        self._bell.is_rung()
        try:
            self._connect().script(NOTIFY)
        except Exception:
            # They look by themselves now and then.
            self._connection = None

    def _pass(self, verbs: dict[Verb[Any, Any], list[int]], side: str) -> None:
        for verb in verbs:
            self._failpoints.hit(f"ledger.{verb.name}.{side}")

    def _connect(self) -> Connection:
        if self._connection is None:
            self._connection = self._database.connect(hot=True)
        return self._connection

    def _abandon(self, connection: Connection) -> None:
        """After an error the transaction is rolled back; a connection that cannot even do that is dropped."""
        try:
            connection.rollback()
        except Exception:
            self._connection = None


def _meet(group: list[_Write]) -> bool:
    """Two writes of one verb are about the same step: a lease that is lost, and the one that came after it."""
    seen = [(write.verb, write.verb.of(write.item)) for write in group if write.verb.of is not None]
    return len(set(seen)) < len(seen)


def _is_one_statement(by_verb: dict[Verb[Any, Any], list[int]], group: list[_Write]) -> bool:
    return len(by_verb) == 1 and next(iter(by_verb)).at_once([write.item for write in group])


def _resolve(outcomes: list[tuple[_Write, Any, Exception | None]]) -> None:
    for write, result, error in outcomes:
        if write.future.done():
            continue
        if error is None:
            write.future.set_result(result)
        elif isinstance(error, PenstockError):
            write.future.set_exception(error)
        else:
            write.future.set_exception(Refused(f"the ledger refused {write.verb.name}: {error}"))
