"""Messages: what they say, and dead letters of those that cannot be used."""

import base64
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import msgspec

from penstock.errors import Permanent
from penstock.ledger.engine import messages
from penstock.model.callers import LOCAL
from penstock.streams.base import Message
from penstock.streams.notifications import BAD_EVENT, ObjectEvent, parse
from penstock.verbs.accepting import Order
from penstock.verbs.object_events import FORBIDDEN, ObjectEvents, Outcome, Rules
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
    except RecursionError:
        return Outcome("refused", BAD_EVENT, "the message is nested too deeply")


def worst(outcomes: Sequence[Outcome]) -> Outcome | None:
    """What decides about a message: an event that has to wait, or else one that was refused. None: all is done."""
    waiting = next((one for one in outcomes if one.kind == "away"), None)
    refused = [one for one in outcomes if one.kind == "refused"]
    forbidden = next((one for one in refused if one.reason == FORBIDDEN), None)
    return waiting or forbidden or next(iter(refused), None)


def stored_body(body: bytes) -> str:
    """A message as the text that its dead letter keeps."""
    try:
        text = body.decode()
    except UnicodeDecodeError:
        text = None
    if text is None or "\0" in text or text.startswith(_RAW):
        # Cut before it is encoded: a part of base64 cannot be decoded.
        text = _RAW + base64.b64encode(body[: (LONGEST - len(_RAW)) // 4 * 3]).decode()
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
    # What can be decoded may be nested too deeply to be encoded within a letter.
    with suppress(msgspec.MsgspecError, UnicodeError, RecursionError):
        if isinstance(event := msgspec.json.decode(message.body), dict):
            return msgspec.json.encode({**letter, "event": event})
    return msgspec.json.encode({**letter, "raw": base64.b64encode(message.body).decode()})


def _body(stored: str) -> bytes:
    if not stored.startswith(_RAW):
        return stored.encode()
    encoded = stored.removeprefix(_RAW)
    return base64.b64decode(encoded[: len(encoded) // 4 * 4])


async def follow_letters(scope: Scope, letters: Sequence[int]) -> set[int]:
    """Follow the messages of these dead letters again, and close the letters of those that can be used now. Return the
    closed ones. Documents belong to the owner of the letters."""
    following = ObjectEvents(
        lambda owner: scope, Order(chosen_collection(scope, None)), Rules(owner=scope.owner, places=())
    )
    closed: set[int] = set()
    for letter in letters:
        # One at a time: they may be large.
        stored = await scope.ledger.read(partial(messages.stored, scope.owner), [letter])
        if not stored:
            continue
        [one] = stored
        if one.reason == FORBIDDEN and scope.actor != LOCAL:
            # The operator has forbidden it, so a caller of the service cannot allow it.
            continue
        events = events_of(_body(one.body))
        outcome = events if isinstance(events, Outcome) else worst(await following.follow(events))
        if outcome is None:
            closed.add(one.letter)
            await scope.ledger.write(messages.RETRIED_MESSAGE, messages.RetriedMessage(scope.owner, one.letter))
        elif outcome.kind == "refused":
            result = messages.RetriedMessage(scope.owner, one.letter, outcome.reason, outcome.error)
            await scope.ledger.write(messages.RETRIED_MESSAGE, result)
    return closed
