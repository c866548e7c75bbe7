"""Messages: what they say, and dead letters of those that cannot be used."""

import base64
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import msgspec

from penstock.errors import Permanent
from penstock.ledger.engine import messages
from penstock.streams.base import Message
from penstock.streams.notifications import ObjectEvent, parse
from penstock.verbs.accepting import Order
from penstock.verbs.object_events import ObjectEvents, Outcome, Rules
from penstock.verbs.scope import Scope, chosen_collection

LONGEST = 1_000_000
"""Maximum number of characters of a message that its dead letter keeps."""
_RAW = "base64:"


def events_of(body: bytes) -> list[ObjectEvent] | Outcome:
    """The events of a message, or why it has none."""
    try:
        return parse(body)
    except Permanent as error:
        return Outcome("refused", error.reason, str(error))


def worst(outcomes: Sequence[Outcome]) -> Outcome | None:
    """What decides about a message: an event that has to wait, or else one that was refused. None: all is done."""
    waiting = next((one for one in outcomes if one.kind == "away"), None)
    return waiting or next((one for one in outcomes if one.kind == "refused"), None)


def stored_body(body: bytes) -> str:
    """A message as the text that its dead letter keeps."""
    try:
        text = body.decode()
    except UnicodeDecodeError:
        text = None
    if text is None or "\0" in text or text.startswith(_RAW):
        text = _RAW + base64.b64encode(body).decode()
    return text[:LONGEST]


def letter_body(message: Message, stream: str, outcome: Outcome, failed_at: str) -> bytes:
    """The dead letter of a message, as the stream keeps it: `streams/notifications.py` reads it again."""
    letter: dict[str, Any] = {
        "timestamp": failed_at,
        "metadata": {
            "failure_reason": outcome.reason,
            "error": outcome.error,
            "stream": stream,
            "place": message.place,
        },
    }
    with suppress(msgspec.DecodeError, UnicodeError, RecursionError):
        letter["event"] = msgspec.json.decode(message.body)
    if not isinstance(letter.get("event"), dict):
        letter.pop("event", None)
        letter["raw"] = base64.b64encode(message.body).decode()
    return msgspec.json.encode(letter)


async def follow_letters(scope: Scope, letters: Sequence[int]) -> set[int]:
    """Follow the messages of these dead letters again, and close the letters of those that can be used now. Return the
    closed ones. Documents belong to the owner of the letters."""
    stored = await scope.ledger.read(partial(messages.stored, scope.owner), letters)
    following = ObjectEvents(
        lambda owner: scope, Order(chosen_collection(scope, None)), Rules(owner=scope.owner, places=())
    )
    closed: set[int] = set()
    for one in stored:
        text = one.body
        body = base64.b64decode(text.removeprefix(_RAW)) if text.startswith(_RAW) else text.encode()
        events = events_of(body)
        outcome = events if isinstance(events, Outcome) else worst(await following.follow(events))
        if outcome is None:
            closed.add(one.letter)
            await scope.ledger.write(messages.RETRIED_MESSAGE, messages.RetriedMessage(scope.owner, one.letter))
        elif outcome.kind == "refused":
            result = messages.RetriedMessage(scope.owner, one.letter, outcome.reason, outcome.error)
            await scope.ledger.write(messages.RETRIED_MESSAGE, result)
    return closed
