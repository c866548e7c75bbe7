"""The single writer of a process. It takes the writes that are queued, runs the verbs of the whole group as sets in one
transaction, commits, and then gives each caller the result of its own write."""

import asyncio
import queue
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from penstock.errors import LedgerAway, PenstockError, Refused
from penstock.ledger.database.connection import Connection
from penstock.ledger.database.database import Database
from penstock.ledger.database.notifier import Notifier
from penstock.ledger.database.statements import NOTIFY
from penstock.metrics.base import NULL_METRICS, Metrics

Item = TypeVar("Item")
Result = TypeVar("Result")

GROUP_LIMIT = 64
BUSY_RETRIES = 20

verbs: "list[Verb[Any, Any]]" = []
"""All verbs."""


@dataclass(frozen=True, eq=False)
class Verb(Generic[Item, Result]):
    """A set-based write: one result for each item, in order. Its name is also the name of its failpoints."""

    name: str
    function: Callable[[Connection, Sequence[Item]], Sequence[Result]]
    single_statement: Callable[[Sequence[Item]], bool] = lambda items: False
    """Whether PostgreSQL runs these items as a single statement: without other verbs that needs no transaction around
    it. A statement that did nothing, and needs others after it, raises `NeedsTransaction`."""
    of: Callable[[Item], object] | None = None
    """The step of an item. A set reports by step which writes took effect, so two leases of one step never share a
    set."""
    notifies: Callable[[Sequence[Result]], bool] | None = None
    """Whether these results mean new work for waiting workers; None: never."""
    counts: bool = False
    """It is counted: see `Connection.count`."""
    recall: Callable[[Connection, Sequence[Item]], Sequence[Result | None]] | None = None
    """After a lost connection: the results of the items that took effect, None for the others. Required for every verb
    with a `single_statement`, because then no transaction number is known."""

    def __post_init__(self) -> None:
        verbs.append(self)


class NeedsTransaction(Exception):
    """The single statement did nothing: run the verb in a transaction."""


def failpoints() -> list[str]:
    """The names of the writer's failpoints: before and after the commit of each verb."""
    return [f"ledger.{name}.{side}" for name in (verb.name for verb in verbs) for side in ("before", "after")]


@dataclass
class _Attempt:
    """One attempt to commit a group."""

    single_statement: bool
    results: list[Any]
    connection: Connection
    unsure: bool = False
    """The commit was sent."""


@dataclass(eq=False)
class _Write:
    verb: Verb[Any, Any]
    item: Any
    future: asyncio.Future[Any]
    loop: asyncio.AbstractEventLoop


class Writer:
    def __init__(self, database: Database, metrics: Metrics = NULL_METRICS) -> None:
        self._database = database
        self._queue: queue.SimpleQueue[list[_Write] | None] = queue.SimpleQueue()
        self._new: list[_Write] = []
        self._thread: threading.Thread | None = None
        self._connection: Connection | None = None
        self._notifier = Notifier(database)
        self._failpoints = database.runtime.failpoints
        self.commits = 0
        self._metrics = metrics

    async def write(self, verb: Verb[Item, Result], item: Item) -> Result:
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="penstock-ledger", daemon=True)
            self._thread.start()
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        if not self._new:
            # The writes of one iteration of the event loop are handed over together.
            loop.call_soon(self._hand_over)
        self._new.append(_Write(verb, item, future, loop))
        result: Result = await future
        return result

    def _hand_over(self) -> None:
        writes, self._new = self._new, []
        self._queue.put(writes)

    def notify_others(self) -> None:
        """There is work for workers of other processes."""
        if self._notifier.is_needed and self._thread is not None:
            self._notifier.pending = True
            # Wakes the thread, so that it computes its timeout again.
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
                first = self._queue.get(timeout=self._notifier.pending_in)
            except queue.Empty:
                self._notify()
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
        if self._notifier.pending:
            self._notify()
        if self._connection is not None:
            self._connection.close()

    def _settle(self, group: list[_Write]) -> None:
        """If the group fails, each of its writes is tried on its own, so that one bad write does not fail the
        others."""
        if len(group) > 1 and _share_a_step(group):
            for write in group:
                self._settle([write])
            return
        try:
            outcomes: list[tuple[_Write, Any, Exception | None]] = [
                (write, result, None) for write, result in zip(group, self._transact(group), strict=True)
            ]
        except LedgerAway as error:
            # This concerns all of them: trying each on its own would only take longer.
            outcomes = [(write, None, error) for write in group]
        except Exception as error:
            if len(group) > 1:
                for write in group:
                    self._settle([write])
                return
            outcomes = [(group[0], None, error)]
        loop = group[0].loop
        loop.call_soon_threadsafe(_resolve, outcomes)

    def _transact(self, group: list[_Write]) -> list[Any]:
        """The result of each write. If the answer to a commit was lost, ask whether it took effect before running the
        group again. While the database is not available, wait up to the limit of `outage_wait`."""
        by_verb: dict[Verb[Any, Any], list[int]] = {}
        for i, write in enumerate(group):
            by_verb.setdefault(write.verb, []).append(i)
        may_be_single = self._database.dialect == "postgres" and _is_one_statement(by_verb, group)
        busy = 0
        uncertain: _Attempt | None = None
        while True:
            fresh = self._connection is None
            attempt: _Attempt | None = None
            try:
                connection = self._connect()
                if uncertain is not None and (answers := self._ask(connection, uncertain, group)) is not None:
                    return answers
                uncertain = None
                attempt = _Attempt(may_be_single and not self._notifier.due, [None] * len(group), connection)
                self._run(attempt, by_verb, group)
                self._database.outage_wait.answered("write")
                return attempt.results
            except NeedsTransaction:
                may_be_single = False
                continue
            except LedgerAway as error:
                if attempt is not None and attempt.unsure and attempt.connection.broken:
                    uncertain = attempt
                self._drop()
                if fresh:
                    self._database.outage_wait.wait(error, "write")
                else:
                    self._database.outage_wait.lost()
            except Exception as error:
                if attempt is None:
                    raise
                self._abandon(attempt.connection)
                if busy >= BUSY_RETRIES or not attempt.connection.is_busy(error):
                    raise
                busy += 1
                self._database.runtime.block(0.001 + 0.01 * self._database.runtime.random())
            # A notification that was sent in it is lost.
            self._notifier.pending = self._notifier.is_needed

    def _run(self, attempt: _Attempt, by_verb: dict[Verb[Any, Any], list[int]], group: list[_Write]) -> None:
        connection, single = attempt.connection, attempt.single_statement
        connection.single_statement, connection.notifies = single, single and self._notifier.may_notify
        if single and self._failpoints.armed:
            self._pass(by_verb, "before")
        if not single:
            connection.begin()
        attempt.unsure = single
        for verb, places in by_verb.items():
            answers = verb.function(connection, [group[i].item for i in places])
            for place, answer in zip(places, answers, strict=True):
                attempt.results[place] = answer
            if verb.notifies is not None and self._notifier.is_needed and verb.notifies(answers):
                if connection.notifies:
                    self._notifier.notified()
                else:
                    self._notifier.pending = True
        if any(verb.counts for verb in by_verb):
            connection.count()
        if not single:
            if notify := self._notifier.due:
                self._notifier.notified()
            if self._failpoints.armed:
                self._pass(by_verb, "before")
            attempt.unsure = True
            connection.commit(notify)
        self._count(by_verb)

    def _count(self, by_verb: dict[Verb[Any, Any], list[int]]) -> None:
        self.commits += 1
        self._metrics.incr("ledger_commits")
        if self._failpoints.armed:
            self._pass(by_verb, "after")

    def _ask(self, connection: Connection, uncertain: _Attempt, group: list[_Write]) -> list[Any] | None:
        """The results of a group whose connection was lost, if it took effect; None: it did not."""
        gone = uncertain.connection
        if not uncertain.single_statement:
            assert gone.receipt is not None
            outcome = connection.outcome(gone.receipt)
            if outcome == "in progress":
                raise LedgerAway("PostgreSQL still executes a statement that was sent before the connection was lost.")
            return uncertain.results if outcome == "committed" else None
        if connection.works(gone.session):
            raise LedgerAway("PostgreSQL still executes a statement that was sent before the connection was lost.")
        verb = group[0].verb
        assert verb.recall is not None
        answers = list(verb.recall(connection, [write.item for write in group]))
        lost = [i for i, answer in enumerate(answers) if answer is None]
        if len(lost) == len(group):
            return None
        # The statement took effect, but not for these: run again, they get the same result as then.
        for i, answer in zip(lost, self._transact([group[i] for i in lost]) if lost else [], strict=True):
            answers[i] = answer
        return answers

    def _notify(self) -> None:
        """Send a pending notification outside of any group."""
        self._notifier.notified()
        try:
            self._connect().script(NOTIFY)
        except Exception:
            # Workers also poll from time to time.
            self._drop()

    def _pass(self, verbs: dict[Verb[Any, Any], list[int]], side: str) -> None:
        for verb in verbs:
            self._failpoints.hit(f"ledger.{verb.name}.{side}")

    def _connect(self) -> Connection:
        if self._connection is None:
            self._connection = self._database.connect(hot=True)
        return self._connection

    def _abandon(self, connection: Connection) -> None:
        """Roll back after an error. A connection that cannot roll back is dropped."""
        try:
            connection.rollback()
        except Exception:
            self._drop()

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(Exception):
                connection.close()


def _share_a_step(group: list[_Write]) -> bool:
    """Whether two writes of one verb are about the same step: one of a lost lease, and one of the lease after it."""
    seen = [(write.verb, write.verb.of(write.item)) for write in group if write.verb.of is not None]
    return len(set(seen)) < len(seen)


def _is_one_statement(by_verb: dict[Verb[Any, Any], list[int]], group: list[_Write]) -> bool:
    return len(by_verb) == 1 and next(iter(by_verb)).single_statement([write.item for write in group])


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
