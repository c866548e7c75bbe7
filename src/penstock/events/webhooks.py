"""Webhooks: an event as a signed POST. URL and secret come from the settings of the process that delivers."""

import asyncio
import hashlib
import hmac
from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec

from penstock.config import WebhookConfig
from penstock.errors import Permanent, RateLimited, Transient
from penstock.model.events import LifecycleEvent
from penstock.runtime import Runtime

if TYPE_CHECKING:
    from penstock.net.post import Reply

LONGEST = 200
GONE = 410


class Webhooks:
    def __init__(self, settings: Mapping[str, WebhookConfig], runtime: Runtime) -> None:
        self._settings = settings
        self._runtime = runtime

    async def post(self, name: str, event: LifecycleEvent, attempt: int) -> None:
        from penstock.net.post import Post

        chosen = self._settings.get(name)
        if chosen is None:
            raise Transient(f"the settings of this process have no webhook {name!r}", reason="webhook_unknown")
        body = msgspec.json.encode(event)
        now = int(self._runtime.now())
        headers = {
            "Content-Type": "application/json",
            "User-Agent": "penstock",
            "Penstock-Event-Id": event.id,
            "Penstock-Event": event.kind,
            "Penstock-Delivery-Attempt": str(attempt),
            "Penstock-Signature": f"t={now},v1={signature(chosen.secret, now, body)}",
        }
        request = Post(chosen.url, body, headers, chosen.timeout, self._runtime.now)
        try:
            answer = await self._runtime.run_blocking("net", request.run)
        except asyncio.CancelledError:
            # The thread is still at it: nobody will wait for it.
            request.cut()
            raise
        _judge(name, answer)


def signature(secret: str, at: int, body: bytes) -> str:
    return hmac.new(secret.encode(), f"{at}.".encode() + body, hashlib.sha256).hexdigest()


def _judge(name: str, answer: "Reply") -> None:
    if 200 <= answer.status < 300:
        return
    said = f"webhook {name!r} answered {answer.status}"
    if answer.text:
        said += f": {answer.text[:LONGEST]}"
    if answer.status == GONE:
        raise Permanent(said, reason="webhook_gone")
    if answer.retry_after is not None:
        raise RateLimited(said, retry_after=answer.retry_after)
    raise Transient(said, reason="webhook_failed")
