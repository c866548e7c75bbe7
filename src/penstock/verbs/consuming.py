"""`consume`: follow the messages of a stream. A message is confirmed when what it leads to is durable."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Protocol

import msgspec

from penstock import user_code
from penstock.config import check_name
from penstock.errors import Away, ConfigError, DiskFull, PenstockError, is_panic
from penstock.ledger.engine import messages
from penstock.ledger.reads import queue
from penstock.model.callers import LOCAL
from penstock.model.nouns import Owner
from penstock.streams.base import Message, Stream
from penstock.streams.registry import STREAMS
from penstock.verbs import arguments
from penstock.verbs.accepting import Order, checked
from penstock.verbs.message_letters import events_of, letter_body, stored_body, worst
from penstock.verbs.object_events import ObjectEvents, Outcome, Rules
from penstock.verbs.scope import Scope, chosen_collection

BATCH = 256
AT_ONCE = 1_000
"""Events that are followed together. A message may have thousands."""
WAIT_S = 1.0
KEEP_S = 3.0
"""A stream is told so often that we are alive."""
QUEUE = 10_000
"""The default length of the queue above which no messages are taken."""
LOOK_S = 1.0
LAG_S = 10.0
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 60.0
Say = Callable[[str], None]
logger = logging.getLogger("penstock.streams")


class Consumed(msgspec.Struct):
    """What `consume` did. Events that were delivered again are `unchanged`."""

    messages: int = 0
    accepted: int = 0
    unchanged: int = 0
    deleted: int = 0
    gone: int = 0
    """Objects that were removed before their event came."""
    refused: int = 0
    """Messages that became dead letters."""
    lag: int | None = None
    """Messages that the stream still has, where it tells."""
    elapsed_s: float = 0.0
    interrupted: bool = False


class Wanted(msgspec.Struct, frozen=True):
    """The arguments of `App.consume`."""

    owner: str | None
    places: tuple[str, ...]
    collection: str | None
    workflow: str | None
    params: str | None
    priority: int
    queue_limit: int
    until_empty: bool


class Owners(Protocol):
    def __call__(self, owner: str, actor: str) -> Scope: ...


async def consume(
    scope: Scope, for_owner: Owners, url: str, wanted: Wanted, report: Say, on_lag: Callable[[int], None]
) -> Consumed:
    scope.ledger.database.refuse_read_only()
    limit = arguments.number("queue_limit", wanted.queue_limit, 1, arguments.LARGEST)
    places, default = arguments.texts("places", wanted.places), wanted.owner or scope.config.owner
    order = Order(chosen_collection(scope, wanted.collection), wanted.workflow, wanted.params, wanted.priority)
    checked(for_owner(default, LOCAL), order)
    stream = STREAMS.make(arguments.text("url", url), scope.config, scope.runtime)

    def scope_of(named: str | None) -> Scope:
        return for_owner(named or default, stream.name)

    events = ObjectEvents(scope_of, order, Rules(wanted.owner, tuple(places)))
    consumer = Consumer(scope, stream, events, Owner(default), limit, report, on_lag)
    try:
        return await consumer.run(until_empty=wanted.until_empty)
    finally:
        with suppress(PenstockError):
            await stream.close()


class Consumer:
    def __init__(
        self,
        scope: Scope,
        stream: Stream,
        events: ObjectEvents,
        owner: Owner,
        queue_limit: int,
        report: Say,
        on_lag: Callable[[int], None],
    ) -> None:
        """`owner`: of dead letters of messages that name none."""
        self._scope = scope
        self._stream = stream
        self._events = events
        self._owner = owner
        self._queue_limit = queue_limit
        self._report = report
        self._on_lag = on_lag
        self._runtime = scope.runtime
        self._resources = scope.resources
        self._done = Consumed()
        self._said: str | None = None
        self._looked: float | None = None
        self._lagged: float | None = None
        self._failures = 0
        self._one_call = asyncio.Lock()
        self._rejected: set[str] = set()
        """Messages in hand whose letters the stream has. Another attempt must not send them again."""
        self._refused: set[str] = set()
        """Those whose letters the ledger has, too."""

    async def run(self, *, until_empty: bool) -> Consumed:
        began = self._runtime.clock()
        while not self._resources.stopping:
            try:
                if await self._is_full():
                    await self._stream.keep(())
                    await self._rest(LOOK_S)
                    continue
                taken = await self._stream.take(BATCH, WAIT_S)
            except Away as error:
                await self._pause(str(error))
                continue
            self._works()
            if taken:
                # At once: some streams do not deliver again what was taken and not handled.
                await self._handle(taken)
            try:
                await self._measure(force=until_empty and not taken)
            except Away as error:
                await self._pause(str(error))
                continue
            if until_empty and not taken and self._done.lag == 0:
                break
        self._done.elapsed_s = round(self._runtime.clock() - began, 3)
        self._done.interrupted = self._resources.stopping
        return self._done

    async def _is_full(self) -> bool:
        """Whether the queue is too long. The stream keeps what is not taken."""
        now = self._runtime.clock()
        if self._looked is not None and now - self._looked < LOOK_S:
            return False
        waiting = await self._scope.ledger.read(queue.pending, self._queue_limit + 1)
        if waiting <= self._queue_limit:
            self._looked = now
            return False
        self._looked = None
        self._say(f"{waiting:,} steps wait: no messages are taken until they are fewer than {self._queue_limit:,}")
        return True

    async def _measure(self, *, force: bool) -> None:
        now = self._runtime.clock()
        if force or self._lagged is None or now - self._lagged >= LAG_S:
            self._lagged = now
            self._done.lag = await self._stream.lag()
            if self._done.lag is not None:
                self._on_lag(self._done.lag)

    async def _handle(self, taken: Sequence[Message]) -> None:
        """Follow messages until all of them are done, and confirm them. If the app is stopped before, none is
        confirmed: they are delivered again."""
        self._rejected.clear()
        self._refused.clear()
        keeping = asyncio.create_task(self._keep(taken))
        try:
            left = list(taken)
            while True:
                left = await self._attempt(left)
                if not left or self._resources.stopping:
                    break
        finally:
            keeping.cancel()
            await asyncio.gather(keeping, return_exceptions=True)
        while not left and not self._resources.stopping:
            try:
                await self._stream.confirm(taken)
                self._done.messages += len(taken)
                self._resources.metrics.incr("stream_messages", len(taken))
                return
            except Away as error:
                await self._pause(str(error))

    async def _attempt(self, taken: Sequence[Message]) -> list[Message]:
        """Follow messages, and return those that have to wait."""
        try:
            outcomes = await self._isolated(taken)
            refused = [(m, o) for m, o in zip(taken, outcomes, strict=True) if o is not None and o.kind == "refused"]
            await self._refuse(refused)
        except (Away, DiskFull) as error:
            await self._pause(str(error))
            return list(taken)
        left = [(m, o) for m, o in zip(taken, outcomes, strict=True) if o is not None and o.kind == "away"]
        if left:
            await self._pause(left[0][1].error)
        else:
            self._works()
        return [message for message, _ in left]

    async def _isolated(self, taken: Sequence[Message]) -> list[Outcome | None]:
        """Follow messages. One that fails in a way that nobody has foreseen becomes a dead letter, because it would
        stop the stream for ever."""
        try:
            return await self._follow(taken)
        except PenstockError:
            raise
        except BaseException as error:
            if not isinstance(error, Exception) and not is_panic(error):
                raise
            if len(taken) == 1:
                logger.exception("%s: %s", self._stream.name, taken[0].place)
                return [Outcome("refused", "unexpected", user_code.sentence(error))]
            return [outcome for message in taken for outcome in await self._isolated([message])]

    async def _follow(self, taken: Sequence[Message]) -> list[Outcome | None]:
        """What decides about each message. All events of all messages are followed together."""
        parsed = [events_of(message.body) for message in taken]
        wanted = [one for events in parsed if isinstance(events, list) for one in events]
        followed = iter(
            [o for i in range(0, len(wanted), AT_ONCE) for o in await self._events.follow(wanted[i : i + AT_ONCE])]
        )
        decided: list[Outcome | None] = []
        for events in parsed:
            if isinstance(events, Outcome):
                decided.append(events)
                continue
            outcomes = [next(followed) for _ in events]
            decided.append(worst(outcomes))
            for one in outcomes:
                if one.kind in ("accepted", "unchanged", "deleted", "gone"):
                    setattr(self._done, one.kind, getattr(self._done, one.kind) + 1)
        return decided

    async def _refuse(self, refused: Sequence[tuple[Message, Outcome]]) -> None:
        """First where the users of the stream look, then in the ledger, where a letter is unique: a process that dies
        in between puts a second letter into the stream, and none is lost."""
        for message, outcome in refused:
            if message.place in self._refused:
                continue
            failed_at = datetime.fromtimestamp(self._runtime.now(), UTC).isoformat(timespec="seconds")
            if message.place not in self._rejected:
                body = letter_body(message, self._stream.name, outcome, failed_at)
                async with self._one_call:
                    await self._stream.reject(message, body)
                self._rejected.add(message.place)
            letter = messages.RefusedMessage(
                self._owner_of(message),
                self._stream.name,
                f"{self._stream.name}: {message.place}",
                stored_body(message.body),
                outcome.reason,
                outcome.error,
            )
            await self._scope.ledger.write(messages.REFUSE_MESSAGE, letter)
            self._refused.add(message.place)
            self._done.refused += 1
            self._resources.metrics.incr("stream_refused")
            self._report(f"refused ({outcome.reason}): {outcome.error}")

    def _owner_of(self, message: Message) -> Owner:
        events: object = None
        with suppress(Exception):
            # The message may be the one that failed in a way that nobody has foreseen.
            events = events_of(message.body)
        named = {event.owner for event in events} if isinstance(events, list) else set()
        name = next(iter(named)) if len(named) == 1 else None
        if name is not None and (self._events.fixed_owner in (None, name)):
            with suppress(ConfigError):
                return Owner(check_name("owner", name))
        return self._owner

    async def _keep(self, taken: Sequence[Message]) -> None:
        while True:
            await self._runtime.sleep(KEEP_S)
            try:
                async with self._one_call:
                    await self._stream.keep(taken)
            except Away as error:
                logger.debug("%s", error)

    async def _pause(self, why: str) -> None:
        """Wait with full jitter, longer from time to time."""
        self._say(f"waiting: {why}")
        most = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2**self._failures)
        self._failures = min(self._failures + 1, 16)
        await self._rest(FIRST_PAUSE_S / 2 + most * self._runtime.random())

    def _works(self) -> None:
        self._failures = 0
        self._said = None

    def _say(self, text: str) -> None:
        if text != self._said:
            self._said = text
            self._report(text)

    async def _rest(self, seconds: float) -> None:
        await self._runtime.wait(self._resources.stopped, seconds)
