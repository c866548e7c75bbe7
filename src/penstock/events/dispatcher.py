"""The event dispatcher delivers events from the outbox to handlers (I8). Every worker has one."""

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec

from penstock import user_code
from penstock.config import WebhookConfig
from penstock.errors import ConfigError, Permanent, Transient
from penstock.events.context import HandlerContext
from penstock.events.retry import retry_in
from penstock.events.sender import WebhookSender
from penstock.events.webhooks import Webhooks
from penstock.ledger.database.connection import Connection
from penstock.ledger.database.store import Ledger
from penstock.ledger.engine import lifecycle, outbox, webhook_sending, work
from penstock.ledger.engine.outbox import Delivery, Undelivered
from penstock.metrics.base import NULL_METRICS, Metrics
from penstock.model.events import LifecycleEvent
from penstock.model.nouns import Token, WorkerId, Workflow
from penstock.runtime import Runtime, shielded
from penstock.workflows import methods
from penstock.workflows.load import decode

SIDE_BY_SIDE = 8
WEBHOOKS = 16
"""Number of webhooks of owners that are sent to at the same time, besides the handlers."""
MARGIN_S = 15.0
"""The lease of a delivery is longer than the timeout of its handler by this time."""
LOOK_S = 2.0
"""Interval at which the outbox is checked without a notification."""
SOON_S = 0.02
STOP_S = 1.5
"""Time that running handlers have to end after a stop."""
LET_GO_S = 0.3
"""Time that a cancelled handler has to end."""
CRASH_LOOP = "crash_loop"


class Waiting(msgspec.Struct, frozen=True):
    """What waits for handlers, and for webhooks of owners."""

    handlers: outbox.Waiting
    webhooks: float | None
    """Seconds until a webhook can be taken; None: there is nothing to send."""
    has_webhooks: bool

    @property
    def due(self) -> bool:
        return self.handlers.due or self.webhooks_due

    @property
    def webhooks_due(self) -> bool:
        return self.webhooks is not None and self.webhooks <= 0


def _waiting(connection: Connection) -> Waiting:
    has_webhooks = webhook_sending.any_active(connection)
    due_in = webhook_sending.due_in(connection) if has_webhooks else None
    return Waiting(outbox.waiting(connection), due_in, has_webhooks)


class EventDispatcher:
    def __init__(
        self,
        ledger: Ledger,
        runtime: Runtime,
        worker: WorkerId,
        app: Any,
        webhooks: Mapping[str, WebhookConfig],
        metrics: Metrics = NULL_METRICS,
        private_webhooks: bool = False,
    ) -> None:
        self.on_idle: Callable[[], None] = lambda: None
        """Called when no more deliveries are due."""
        self.has_webhooks = False
        """Whether owners had webhooks when this was last looked at."""
        self._ledger = ledger
        self._runtime = runtime
        self._worker = worker
        self._app = app
        self._webhooks = Webhooks(webhooks, runtime)
        self._metrics = metrics
        self._workflows: dict[str, Workflow] = {}
        self._sender = WebhookSender(ledger, runtime, worker, private_webhooks, metrics)
        self._running: set[asyncio.Task[None]] = set()
        self._sending: set[asyncio.Task[None]] = set()
        self._taking = False
        """True while deliveries are being taken, which are then neither due nor running."""
        self._bell = asyncio.Event()
        self._stopping = False
        self._hurry = asyncio.Event()
        self._fatal: BaseException | None = None

    def wake(self) -> None:
        """Check the outbox now: there may be new events."""
        self._bell.set()

    async def run(self) -> None:
        """Deliver until `stop`. Raises errors that are not caused by a handler."""
        busy = False
        while self._fatal is None and not self._stopping:
            self._bell.clear()
            waiting = await self._round()
            if busy and not self._tasks and not waiting.due:
                self.on_idle()
            busy = bool(self._tasks) or waiting.due
            await self._runtime.wait(self._bell, self._pause(waiting))
        if self._fatal is not None:
            raise self._fatal

    async def is_idle(self) -> bool:
        """Whether no delivery is running here and none is due."""
        waiting = await self._ledger.read(_waiting)
        # Checked after the read: a delivery that is no longer due may have been taken meanwhile.
        return not waiting.due and not self._taking and not self._tasks

    def stop(self, at_once: bool = False) -> None:
        """Take no more deliveries after the current round, so that each call delivers something even with a short
        budget. `at_once`: take no more in this round either."""
        self._stopping = True
        if at_once:
            self._hurry.set()
        self.wake()

    async def finish(self) -> None:
        """Wait for running handlers to end. After `stop(at_once=True)` they get a short time, then they are cancelled
        and their deliveries are released."""
        hurry = asyncio.ensure_future(self._hurry.wait())
        while self._tasks and not hurry.done():
            await asyncio.wait({hurry, *self._tasks}, return_when=asyncio.FIRST_COMPLETED)
        hurry.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=STOP_S)
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        await self._webhooks.close()
        await self._sender.close()

    @property
    def _tasks(self) -> set[asyncio.Task[None]]:
        return self._running | self._sending

    def _pause(self, waiting: Waiting) -> float:
        # What cannot be taken before a task ends is not waited for: its end calls `wake`.
        pauses = [LOOK_S]
        if len(self._running) < SIDE_BY_SIDE:
            pauses.append(_pause(0.0 if waiting.handlers.due else waiting.handlers.due_in))
        if len(self._sending) < WEBHOOKS:
            pauses.append(_pause(waiting.webhooks))
        return min(pauses)

    async def _round(self) -> Waiting:
        waiting = await self._ledger.read(_waiting)
        if waiting.handlers.new:
            while await self._ledger.write(outbox.DISPATCH, outbox.FAN_OUT) == outbox.FAN_OUT:
                pass
            waiting = await self._ledger.read(_waiting)
        self.has_webhooks = waiting.has_webhooks
        if self._hurry.is_set():
            return waiting
        self._taking = True
        try:
            if waiting.handlers.due and (free := SIDE_BY_SIDE - len(self._running)):
                await self._take(free)
            if waiting.webhooks_due and (free := WEBHOOKS - len(self._sending)):
                for taken, events in await self._sender.take(free):
                    self._start(self._sending, self._sender.send(taken, events))
        finally:
            self._taking = False
        return waiting

    async def _take(self, count: int) -> None:
        token = Token(self._runtime.token())
        taken = await self._ledger.write(outbox.TAKE, outbox.Take(self._worker, token, count, MARGIN_S))
        events = await self._ledger.read(self._describe, taken) if taken else []
        for delivery, event in zip(taken, events, strict=True):
            self._start(self._running, self._deliver(delivery, event))

    def _start(self, tasks: set[asyncio.Task[None]], delivering: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(delivering)
        tasks.add(task)
        task.add_done_callback(partial(self._ended, tasks))

    def _describe(self, connection: Connection, deliveries: Sequence[Delivery]) -> list[LifecycleEvent]:
        for snapshot in {d.snapshot for d in deliveries} - self._workflows.keys():
            self._workflows[snapshot] = decode(work.snapshot(connection, snapshot))
        return lifecycle.describe(connection, deliveries, [self._workflows[d.snapshot].id for d in deliveries])

    def _ended(self, tasks: set[asyncio.Task[None]], task: asyncio.Task[None]) -> None:
        tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fatal = self._fatal or error
        self.wake()

    async def _deliver(self, delivery: Delivery, event: LifecycleEvent) -> None:
        """Deliver, and store the outcome in the ledger even if this task is cancelled."""
        if delivery.attempts > delivery.to.retries:
            await self._undelivered(self._replayable(delivery))
            return
        began = self._runtime.clock()
        try:
            await self._tell(delivery, event)
        except asyncio.CancelledError:
            back = Undelivered(delivery, "", "stopped before it had ended", retry_in=0.0, given_back=True)
            await shielded(self._ledger.write(outbox.UNDELIVERED, back))
        except BaseException as error:
            self._measure(delivery, began)
            await shielded(self._undelivered(self._failed(delivery, error)))
        else:
            self._measure(delivery, began)
            await shielded(self._delivered(delivery))

    async def _delivered(self, delivery: Delivery) -> None:
        if await self._ledger.write(outbox.DELIVERED, delivery):
            self._metrics.incr("event_delivered", event=delivery.kind)

    async def _undelivered(self, failure: Undelivered) -> None:
        if await self._ledger.write(outbox.UNDELIVERED, failure):
            event = failure.delivery.kind
            self._metrics.incr("event_failed" if failure.retry_in is None else "event_error", event=event)

    def _measure(self, delivery: Delivery, began: float) -> None:
        self._metrics.observe("delivery_duration", self._runtime.clock() - began, event=delivery.kind)

    async def _tell(self, delivery: Delivery, event: LifecycleEvent) -> None:
        to = delivery.to
        if to.webhook is not None:
            await self._in_time(delivery, partial(self._webhooks.post, to.webhook, event, delivery.attempts))
            return
        assert to.method is not None
        try:
            function = methods.load(to.method)
        except ConfigError as error:
            raise Permanent(f"{error}: fix it, then replay", reason="bad_method") from error
        ctx = HandlerContext(to.parameters, delivery.attempts, self._workflows[delivery.snapshot], self._app)
        await self._in_time(delivery, partial(function, event, ctx))

    async def _in_time(self, delivery: Delivery, call: Callable[[], Any]) -> None:
        """Call the handler with its timeout. A handler that ignores its cancellation is abandoned."""
        task = asyncio.create_task(user_code.contained(call))
        try:
            done, _ = await asyncio.wait({task}, timeout=delivery.to.timeout)
        except asyncio.CancelledError:
            await self._let_go(task)
            raise
        if not done:
            await self._let_go(task)
            raise Transient(f"it took longer than {delivery.to.timeout:g} s", reason="handler_timeout")
        if task.cancelled():
            raise Transient("it cancelled itself", reason="handler_error")
        task.result()

    @staticmethod
    async def _let_go(task: "asyncio.Task[Any]") -> None:
        task.cancel()
        await asyncio.wait({task}, timeout=LET_GO_S)
        if not task.done():
            # At its end the event loop waits for all registered tasks; this one might never end.
            asyncio._unregister_task(task)
            task._log_destroy_pending = False  # type: ignore[attr-defined]
        elif not task.cancelled():
            # Mark the exception as retrieved.
            task.exception()

    def _failed(self, delivery: Delivery, error: BaseException) -> Undelivered:
        pause = retry_in(error, delivery.to, delivery.attempts, self._runtime.random())
        reason = user_code.reason(error, "handler_error")
        return Undelivered(delivery, reason, user_code.sentence(error), user_code.trace(error), pause)

    def _replayable(self, delivery: Delivery) -> Undelivered:
        times = delivery.to.retries
        said = f"{times} attempts crashed their worker or did not end: the handler was not called again"
        return Undelivered(delivery, CRASH_LOOP, said)


def _pause(due_in: float | None) -> float:
    """How long to wait for what is due in this time."""
    return LOOK_S if due_in is None else max(SOON_S, due_in)
