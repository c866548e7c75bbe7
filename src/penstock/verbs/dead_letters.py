"""The dead letters of an owner: list, show, replay, discard."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import msgspec

from penstock.errors import NotFound
from penstock.ledger.engine import dead_letters
from penstock.ledger.engine.dead_letters import DeadLetter
from penstock.verbs import arguments, replays
from penstock.verbs.replays import Discard, Replay
from penstock.verbs.scope import Scope


class DeadLetters(msgspec.Struct, frozen=True):
    """The open dead letters of an owner."""

    total: int
    by_reason: dict[str, int]
    oldest: float | None
    letters: list[DeadLetter]
    """The newest of them."""


async def list_dead_letters(scope: Scope, *, limit: int = 100) -> DeadLetters:
    """Return the number of open dead letters for each reason, and the newest of them."""
    reasons = await scope.ledger.read(lambda c: dead_letters.by_reason(scope.owner, c))
    letters = await scope.ledger.read(partial(dead_letters.newest, scope.owner), arguments.count("limit", limit))
    return DeadLetters(
        total=sum(count for _, count, _ in reasons),
        by_reason={reason: count for reason, count, _ in reasons},
        oldest=min((since for _, _, since in reasons), default=None),
        letters=letters,
    )


async def dead_letter(scope: Scope, letter: int) -> DeadLetter:
    look = partial(dead_letters.get, scope.owner)
    found = await scope.ledger.read(look, arguments.number("letter", letter))
    if found is None:
        raise NotFound(f"no open dead letter {letter}: `penstock dlq list` shows them")
    return found


async def replay(
    scope: Scope,
    letters: Sequence[int] | None = None,
    *,
    reason: str | None = None,
    workflow: str | None = None,
    params: str | None = None,
    values: Mapping[str, Mapping[str, Any]] | None = None,
    password: str | None = None,
    dry_run: bool = False,
) -> Replay:
    """Replay dead letters by number, by reason, or (with neither) all of them, with the same changes as `retry`. Events
    are delivered to their handlers again. With `dry_run`, nothing is changed; the result says what would be done."""
    attempt = replays.replayer(scope, workflow, params, values, password)
    numbers = arguments.numbers("letters", letters)
    return await attempt.replay(numbers, arguments.maybe("reason", reason), dry_run=dry_run)


async def discard(
    scope: Scope, letters: Sequence[int] | None = None, *, reason: str | None = None, dry_run: bool = False
) -> Discard:
    """Close dead letters by number, by reason, or (with neither) all of them, without another attempt. Their documents
    stay FAILED."""
    numbers = arguments.numbers("letters", letters)
    return await replays.discard(scope.owner, scope.ledger, numbers, arguments.maybe("reason", reason), dry_run=dry_run)
