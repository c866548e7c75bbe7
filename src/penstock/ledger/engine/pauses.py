"""Pauses: what failed under its lock is left alone for a while, longer each time, by all workers. Today these are index
tables. The first success ends it (`_RELEASE` in locks.py).

These statements are the engine's own: they cross owners (I10)."""

from collections.abc import Sequence

import msgspec

from penstock.ledger.database.connection import Connection
from penstock.ledger.database.statements import Statement
from penstock.ledger.database.writer import Verb
from penstock.ledger.engine.resource_keys import FREED, hand_on
from penstock.model.nouns import Token

FIRST_S, LONGEST_S = 0.5, 60.0
TRIES = 3
"""Failures in a row after which a call that wants to end does not wait for the resource any more."""


class Pause(msgspec.Struct, frozen=True):
    """The holder of a lock gives it back, because what the lock is for cannot be used."""

    key: str
    token: Token
    error: str
    random: float


def pause_s(failures: int, random: float) -> float:
    """Seconds, after so many failures in a row before this one. At least half of what it may be: a full jitter could
    come out as nothing."""
    return (0.5 + random / 2) * min(LONGEST_S, FIRST_S * 2.0 ** min(failures, 20))


_FAILURES = Statement("SELECT failures FROM locks WHERE resource_key = :key AND token = :token {hold}")
_PAUSE = Statement(
    f"UPDATE locks SET {FREED}, failures = failures + 1, error = :error, paused_until = {{now}} + :pause "
    "WHERE resource_key = :key AND token = :token"
)
_END_ALL = Statement("UPDATE locks SET paused_until = 0 WHERE paused_until > {now} RETURNING resource_key")
_HELD_UP = Statement(
    "SELECT error FROM locks WHERE failures >= :tries AND NOT EXISTS (SELECT 1 FROM steps s WHERE s.status IN "
    "('PENDING', 'RUNNING', 'ERROR') AND NOT EXISTS (SELECT 1 FROM locks l WHERE l.resource_key = s.resource_key "
    "AND l.failures >= :tries)) ORDER BY resource_key LIMIT 1"
)


def _pause(connection: Connection, pauses: Sequence[Pause]) -> list[float | None]:
    """How long each is left alone; None: the lock was not ours any more."""
    answers: list[float | None] = []
    for pause in pauses:
        found = connection.run(_FAILURES, key=pause.key, token=pause.token)
        seconds = pause_s(found[0][0], pause.random) if found else None
        if seconds is not None:
            connection.run(_PAUSE, key=pause.key, token=pause.token, error=pause.error, pause=seconds)
            hand_on(connection, pause.key)
        answers.append(seconds)
    return answers


def _end_all(connection: Connection, items: Sequence[None]) -> list[int]:
    ended = len(connection.run(_END_ALL))
    return [ended for _ in items]


def held_up(connection: Connection) -> str | None:
    """If all that is left to do waits for something that failed again and again: what it said."""
    rows = connection.run(_HELD_UP, tries=TRIES)
    return rows[0][0] if rows else None


PAUSE = Verb("pause", _pause)
END_ALL = Verb("end_pauses", _end_all)
"""Try all of it again now. It goes on failing where it left off: the next pause is no shorter."""
