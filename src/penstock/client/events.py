"""The change feed of a server, which goes on where it was cut off."""

import json
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from penstock.client.connection import Connection
from penstock.client.errors import ServerFailed
from penstock.errors import Away

if TYPE_CHECKING:
    from penstock.net.client import Stream
    from penstock.verbs.following import Change

SILENT_S = 45.0
"""The server sends a comment every 15 seconds: after this time without any, the connection is lost."""
LONGEST_LINE = 1 << 20


class Message:
    """One message of a stream."""

    def __init__(self) -> None:
        self.data: list[str] = []
        self.id: str | None = None


class ChangeStream:
    """Yields changes. Whatever happens to the connection, none is left out, except where a `reset` says so."""

    def __init__(self, connection: Connection, after: str | None, query: dict[str, Any]) -> None:
        self._connection = connection
        self._query = query
        self.last = after
        """The id to continue after. The server names one as soon as the stream is open."""

    async def changes(self) -> "AsyncGenerator[Change | None, None]":
        """Yield the changes; None for a sign of life without one, and the first as soon as the stream is open."""
        patience = self._connection.patience()
        while True:
            headers = {"Accept": "text/event-stream", **({"Last-Event-ID": self.last} if self.last else {})}
            try:
                async with self._connection.stream(
                    "GET", "events", query=self._query, headers=headers, wait_s=SILENT_S
                ) as stream:
                    async with aclosing(_messages(stream)) as messages:
                        async for message in messages:
                            patience.restart()
                            self.last = message.id or self.last
                            yield self._change(message)
                raise Away(f"{self._connection.url} has ended the stream")
            except Away as error:
                await patience.wait(error, error.retry_after)

    def _change(self, message: Message) -> "Change | None":
        from penstock.verbs.following import Change

        if not message.data:
            return None
        try:
            data = json.loads("\n".join(message.data))
        except (ValueError, RecursionError):
            raise ServerFailed("the server has sent an event that cannot be understood") from None
        return self._connection.restored(data, Change)


async def _messages(stream: "Stream") -> AsyncGenerator[Message, None]:
    """The messages of a stream of server-sent events. One without data tells that the stream is alive."""
    message = Message()
    async with aclosing(_lines(stream)) as lines:
        async for line in lines:
            if not line:
                yield message
                message = Message()
                continue
            name, _, value = line.partition(":")
            value = value.removeprefix(" ")
            if name == "data":
                message.data.append(value)
            elif name == "id" and "\0" not in value:
                message.id = value


async def _lines(stream: "Stream") -> AsyncGenerator[str, None]:
    held = b""
    async for piece in stream.pieces():
        held += piece
        *lines, held = held.split(b"\n")
        for line in lines:
            yield line.rstrip(b"\r").decode("utf-8", "replace")
        if len(held) > LONGEST_LINE:
            raise ServerFailed("the server has sent a line without end")
