"""Hosts on the web: how often each is asked, what its `robots.txt` allows, and how long to wait for it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

from penstock.config_http import HttpConfig
from penstock.errors import Away, SourceAway
from penstock.runtime import Runtime
from penstock.sources.robots import Rules

FIRST_WAIT_S = 0.5
LONGEST_WAIT_S = 30.0


class Host:
    """One host and port. All requests to it take turns here."""

    def __init__(self, origin: str, config: HttpConfig, runtime: Runtime) -> None:
        self.origin = origin
        """`https://host:port`."""
        self.rules: Rules | None = None
        """None: `robots.txt` was not read yet."""
        self.reading = asyncio.Lock()
        """Held while `robots.txt` is read."""
        self.away: str | None = None
        """Why the host was given up."""
        self._config = config
        self._runtime = runtime
        self._free = asyncio.Semaphore(config.connections)
        self._next = 0.0
        self._held_until = 0.0

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Wait for a free connection, and until the next request is due."""
        async with self._free:
            while (wait := self._reserve()) > 0:
                await self._runtime.sleep(wait)
            yield

    def _reserve(self) -> float:
        """Take the next place in time: returns 0 if it is now, else the seconds to wait before asking again."""
        now = self._runtime.clock()
        due = max(self._next, self._held_until)
        if due > now:
            return due - now
        self._next = now + max(1 / self._config.requests_per_s, self.rules.delay_s if self.rules else 0.0)
        return 0.0

    def hold(self, seconds: float) -> None:
        """The host asks all to wait."""
        self._held_until = max(self._held_until, self._runtime.clock() + seconds)


class Patience:
    """How long one document waits for its host. Progress starts it anew."""

    def __init__(self, host: Host, config: HttpConfig, runtime: Runtime) -> None:
        self._host = host
        self._limit = config.patience_s
        self._runtime = runtime
        self.renew()

    def renew(self) -> None:
        self._began = self._runtime.clock()
        self._failures = 0
        self._host.away = None

    async def wait(self, error: Away) -> None:
        """Sleep before another attempt. Raises SourceAway if the time is over, or another document has found that the
        host is away."""
        if self._host.away is not None:
            raise SourceAway(self._host.away)
        asked = error.retry_after
        backoff = min(LONGEST_WAIT_S, FIRST_WAIT_S * 2**self._failures) * (0.5 + self._runtime.random() / 2)
        self._failures += 1
        pause = max(backoff, asked or 0.0)
        waited = self._runtime.clock() - self._began
        if waited + pause > self._limit:
            asks = f", and asks to wait {asked:.0f} s" if asked else ""
            self._host.away = f"{error}{asks} (waited {waited:.0f} s)"
            raise SourceAway(self._host.away)
        if asked:
            self._host.hold(asked)
        await self._runtime.sleep(pause)


def origin_of(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2].lower()}"
