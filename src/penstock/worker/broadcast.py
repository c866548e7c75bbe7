"""Telling what happens to whoever listens in this process. Nobody who listens slowly holds up the work."""

import asyncio
from collections import deque
from weakref import WeakSet

from penstock.model.events import Event

HELD = 10_000
"""Events that are kept for a listener who is slower than the work."""


class Broadcast:
    """`listeners` is the one attribute that is looked at when nobody listens."""

    def __init__(self) -> None:
        self.listeners: WeakSet[Listener] = WeakSet()

    def listen(self, until: "asyncio.Future[object] | None" = None) -> "Listener":
        listener = Listener()
        self.listeners.add(listener)
        if until is not None:
            listener.listen_until(until)
        return listener

    def tell(self, event: Event) -> None:
        for listener in self.listeners:
            listener.take(event)

    def close(self) -> None:
        """Nothing more will happen."""
        for listener in self.listeners:
            listener.end()


class Listener:
    """Events from the moment of its making on, in order. What a slow reader has not taken in time is dropped, the
    oldest first, and counted in `missed`."""

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
        """Work that failed is not the same as work that is done."""
        if self._until is not None and self._until.done() and not self._until.cancelled():
            error = self._until.exception()
            if error is not None:
                raise error
