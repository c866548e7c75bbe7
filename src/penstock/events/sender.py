"""The sender delivers events to the webhooks that owners created (I8). It is a part of the event dispatcher of every
worker."""

import asyncio
from typing import TYPE_CHECKING

import msgspec

from penstock import user_code
from penstock.errors import Away
from penstock.events import signing
from penstock.events.retry import webhook_delay
from penstock.ledger.database.store import Ledger
from penstock.ledger.engine import webhook_sending
from penstock.ledger.engine.webhook_sending import Pending, Sent, Settlement, TakenWebhook, TakeWebhooks
from penstock.ledger.engine.webhooks import Address
from penstock.metrics.base import NULL_METRICS, Metrics
from penstock.model.events import LifecycleEvent
from penstock.model.nouns import Token, WorkerId
from penstock.runtime import Runtime, shielded

if TYPE_CHECKING:
    from penstock.net.client import Client

AT_ONCE = 4
"""Deliveries of one webhook that are sent at the same time."""
TIMEOUT_S = 10.0
MARGIN_S = 15.0
"""The lease of a webhook is longer than the timeout by this time."""
READ = 4096
"""Maximum number of bytes read from an answer."""
LONGEST = 200
"""Maximum number of characters of an answer that are kept."""
LONGEST_ERROR = 500
GONE = 410


class Posted(msgspec.Struct, frozen=True):
    """The answer to one request."""

    error: str | None
    """None: it was delivered."""
    status: int | None = None
    answer: str | None = None
    retry_after: float | None = None


class Poster:
    """Posts signed messages to the webhooks of owners. Connects to private addresses only if the operator allows
    them, because any user may name a URL."""

    def __init__(self, runtime: Runtime, allow_private: bool) -> None:
        self._runtime = runtime
        self._allow_private = allow_private
        self._client: Client | None = None

    async def post(self, to: Address, message: str, kind: str, attempt: int, body: bytes) -> Posted:
        from penstock.net.client import Client, Limits

        if self._client is None:
            self._client = Client(self._runtime, allow_private=self._allow_private)
        headers = signing.headers(to.secret, message, kind, attempt, int(self._runtime.now()), body)
        limits = Limits(wait_s=TIMEOUT_S, total_s=TIMEOUT_S, max_bytes=READ, cut=True)
        try:
            reply = await self._client.request("POST", to.url, headers=headers, content=body, limits=limits)
        except Away as error:
            return Posted(str(error)[:LONGEST_ERROR], retry_after=error.retry_after)
        except Exception as error:
            # Whatever a URL or an answer of a user leads to must not end the worker.
            return Posted(user_code.sentence(error)[:LONGEST_ERROR])
        answer = reply.excerpt(to.url, LONGEST)
        refused = None if reply.ok else f"it answered {reply.status}"
        return Posted(refused, reply.status, answer, reply.retry_after)

    async def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.close()


class WebhookSender:
    def __init__(
        self, ledger: Ledger, runtime: Runtime, worker: WorkerId, allow_private: bool, metrics: Metrics = NULL_METRICS
    ) -> None:
        self._ledger = ledger
        self._runtime = runtime
        self._worker = worker
        self._poster = Poster(runtime, allow_private)
        self._metrics = metrics

    async def take(self, count: int) -> list[tuple[TakenWebhook, dict[int, LifecycleEvent]]]:
        """Take up to so many webhooks that have something to be sent. `send` must be called for each."""
        token = Token(self._runtime.token())
        request = TakeWebhooks(self._worker, token, count, AT_ONCE, TIMEOUT_S + MARGIN_S)
        taken = await self._ledger.write(webhook_sending.TAKE_WEBHOOKS, request)
        events = await self._ledger.read(webhook_sending.describe, taken) if taken else {}
        return [(one, events) for one in taken]

    async def send(self, taken: TakenWebhook, events: dict[int, LifecycleEvent]) -> None:
        """Send what is due to one webhook, and write what came of it, even if this task is cancelled."""
        try:
            sent = await asyncio.gather(*(self._send(taken, one, events[one.id]) for one in taken.pending))
        except BaseException:
            given_back = Settlement(taken.to.id, taken.to.owner, taken.token, ())
            await shielded(self._ledger.write(webhook_sending.SETTLE_WEBHOOK, given_back))
            raise
        await shielded(self._settle(taken, sent))

    async def close(self) -> None:
        await self._poster.close()

    async def _send(self, taken: TakenWebhook, one: Pending, event: LifecycleEvent) -> tuple[Pending, Posted]:
        began = self._runtime.clock()
        body = msgspec.json.encode(event)
        posted = await self._poster.post(taken.to, one.message, one.kind, one.attempts + 1, body)
        self._metrics.observe("delivery_duration", self._runtime.clock() - began, event=one.kind)
        return one, posted

    async def _settle(self, taken: TakenWebhook, sent: list[tuple[Pending, Posted]]) -> None:
        done = tuple(
            Sent(one.id, posted.error, posted.status, posted.answer, self._delay(one.attempts, posted))
            for one, posted in sent
        )
        gone = any(posted.status == GONE for _, posted in sent)
        hold_s = max((self._delay(taken.failures, posted) for _, posted in sent), default=None)
        settlement = Settlement(
            taken.to.id,
            taken.to.owner,
            taken.token,
            done,
            hold_s,
            f"it answered {GONE}: nothing must be sent to it any more" if gone else None,
        )
        if await self._ledger.write(webhook_sending.SETTLE_WEBHOOK, settlement):
            for one, posted in sent:
                self._metrics.incr("event_delivered" if posted.error is None else "event_error", event=one.kind)

    def _delay(self, before: int, posted: Posted) -> float:
        return webhook_delay(before + 1, posted.retry_after, self._runtime.random())
