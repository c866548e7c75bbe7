"""Webhooks of the settings: deliver an event as a signed POST. URL and secret come from the settings of the delivering
process. Those that owners create are in `sender.py`."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec

from penstock.config import WebhookConfig
from penstock.errors import Away, Permanent, RateLimited, Transient
from penstock.events import signing
from penstock.model.events import LifecycleEvent
from penstock.runtime import Runtime

if TYPE_CHECKING:
    from penstock.net.client import Client, Reply

READ = 4096
"""Maximum number of bytes read from a response."""
LONGEST = 200
"""Maximum number of characters of a response in an error message."""
GONE = 410


class Webhooks:
    def __init__(self, settings: Mapping[str, WebhookConfig], runtime: Runtime) -> None:
        self._settings = settings
        self._runtime = runtime
        self._client: Client | None = None

    async def post(self, name: str, event: LifecycleEvent, attempt: int) -> None:
        from penstock.net.client import Limits

        chosen = self._settings.get(name)
        if chosen is None:
            raise Transient(f"the settings of this process have no webhook {name!r}", reason="webhook_unknown")
        body = msgspec.json.encode(event)
        headers = signing.headers(chosen.secret, event.id, event.kind, attempt, int(self._runtime.now()), body)
        limits = Limits(wait_s=chosen.timeout, max_bytes=READ, cut=True)
        try:
            reply = await self._open().request("POST", chosen.url, headers=headers, content=body, limits=limits)
        except Away as error:
            raise Transient(str(error), reason="webhook_unreachable") from None
        _judge(name, reply, chosen.url)

    async def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    def _open(self) -> "Client":
        from penstock.net.client import Client

        if self._client is None:
            # The URLs come from the settings, so private addresses are allowed.
            self._client = Client(self._runtime, allow_private=True)
        return self._client


def _judge(name: str, reply: "Reply", url: str) -> None:
    if reply.ok:
        return
    said = f"webhook {name!r} answered {reply.status}"
    if text := reply.excerpt(url, LONGEST):
        said += f": {text}"
    if reply.status == GONE:
        raise Permanent(said, reason="webhook_gone")
    if reply.retry_after is not None:
        raise RateLimited(said, retry_after=reply.retry_after)
    raise Transient(said, reason="webhook_failed")
