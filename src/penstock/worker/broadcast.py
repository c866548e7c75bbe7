"""Live events for listeners in this process. A slow listener does not delay the work."""

import asyncio
from collections import deque
from weakref import WeakSet

from penstock.model.events import Event

HELD = 10_000
"""How many events are kept for a listener that reads them slower than they are made."""


class Broadcast:
    """Sends events to all listeners. If there are none, callers only look at `listeners`."""

    def __init__(self) -> None:
        self.listeners: WeakSet[Listener] = WeakSet()

    def listen(self, until: "asyncio.Future[object] | None" = None) -> "Listener":
        listener = Listener()
        self.listeners.add(listener)
        if until is not None:
            listener.listen_until(until)
        return listener

    def publish(self, event: Event) -> None:
        for listener in self.listeners:
            listener.take(event)

    def close(self) -> None:
        """End all listeners: there will be no more events."""
        for listener in self.listeners:
            listener.end()


class Listener:
    """An async iterator over the events since it was created, in order. If more than HELD events wait, the oldest is
    dropped and counted in `missed`."""

    def __init__(self) -> None:
        self.missed = 0
        self._held: deque[Event] = deque()
        self._news = asyncio.Event()
        self._ended = False
        self._until: asyncio.Future[object] | None = None

    def listen_until(self, done: "asyncio.Future[object]") -> None:
        self._until = done
        done.add_done_callback(lambda _: self.end())

    def take(self, event: Event) -> None:
        if self._ended:
            return
        if len(self._held) == HELD:
            self._held.popleft()
            self.missed += 1
        self._held.append(event)
        self._news.set()

    def end(self) -> None:
        self._ended = True
        self._news.set()

    def __aiter__(self) -> "Listener":
        return self

    async def __anext__(self) -> Event:
        while not self._held:
            if self._ended:
                self._raise_what_failed()
                raise StopAsyncIteration
            self._news.clear()
            await self._news.wait()
        return self._held.popleft()

    def _raise_what_failed(self) -> None:
        """Raise the error of the work, if it failed: the iteration must not end as if it had succeeded."""
        if self._until is not None and self._until.done() and not self._until.cancelled():
            error = self._until.exception()
            if error is not None:
                raise error
