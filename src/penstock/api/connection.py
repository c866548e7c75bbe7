"""One connection of a client. Whoever sends the head of a request too slowly, or does not read an answer, is cut off:
uvicorn waits for ever. Slow bodies are cut off where they are read (`bodies.py`)."""

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol


class Connection(H11Protocol):
    idle_s = 30.0
    """Seconds for the head of a request, and for the client to read what waits to be sent."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._head: asyncio.TimerHandle | None = None
        self._unread: asyncio.TimerHandle | None = None

    @property
    def _is_answering(self) -> bool:
        # There is none before the first request, whatever the annotation says.
        cycle: Any = self.cycle
        return cycle is not None and not cycle.response_complete

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._watch_head()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._forget()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._unread is None:
            self._unread = self.loop.call_later(self.idle_s, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None

    def _watch_head(self) -> None:
        """Each head has its time from its first byte, the first one from the beginning of the connection."""
        if self._is_answering or self.transport.is_closing():
            if self._head is not None:
                self._head.cancel()
                self._head = None
        elif self._head is None:
            self._head = self.loop.call_later(self.idle_s, self._cut)

    def _cut(self) -> None:
        self._head = None
        if not self._is_answering:
            self.transport.close()

    def _forget(self) -> None:
        for timer in (self._head, self._unread):
            if timer is not None:
                timer.cancel()
        self._head = self._unread = None


def connection_class(idle_s: float) -> type[Connection]:
    """The class of the connections of a server."""
    return type("Connection", (Connection,), {"idle_s": idle_s})
