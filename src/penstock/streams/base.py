"""PORT: streams of messages, such as a topic or a queue. A stream keeps its messages until they are confirmed. It does
not use the ledger."""

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol


class Message(NamedTuple):
    body: bytes
    place: str
    """Identifies the message within its stream, however often it is delivered."""
    handle: Any = None
    """What the stream needs to confirm the message. Other code does not use it."""


class Stream(Protocol):
    """Messages are taken, and then confirmed. Only one call is in progress at a time."""

    @property
    def name(self) -> str:
        """For messages and dead letters. It contains no secret."""

    async def take(self, most: int, wait_s: float) -> list[Message]:
        """Wait for messages. Those that were taken before are confirmed or were given back. Raises Away."""

    async def keep(self, messages: Sequence[Message]) -> None:
        """Called every few seconds while messages are processed, or while none are wanted: they stay ours. Raises
        Away."""

    async def confirm(self, messages: Sequence[Message]) -> None:
        """The messages need not be delivered again. Raises Away."""

    async def reject(self, message: Message, letter: bytes) -> bool:
        """Put a dead letter where the users of this stream expect it, such as the topic `NAME.dlq`. Return when it is
        durable; False if the stream has no such place. Raises Away."""

    async def lag(self) -> int | None:
        """The number of messages that were not taken yet; None: not known."""

    async def close(self) -> None:
        """Messages that were not confirmed are delivered again."""
