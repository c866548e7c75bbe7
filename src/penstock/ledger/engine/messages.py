"""Dead letters of messages: what a stream has delivered, and what cannot be used."""

from collections.abc import Sequence

import msgspec

from penstock.ledger.database.connection import Connection
from penstock.ledger.database.statements import Statement
from penstock.ledger.database.writer import Verb
from penstock.model.nouns import Owner

KIND = "message"
"""The `kind` of these dead letters."""


class RefusedMessage(msgspec.Struct, frozen=True):
    owner: Owner
    stream: str
    place: str
    """Where the message is: a message that is delivered again makes no second letter."""
    body: str
    reason: str
    error: str


class StoredMessage(msgspec.Struct, frozen=True):
    letter: int
    stream: str
    place: str
    body: str
    reason: str


class RetriedMessage(msgspec.Struct, frozen=True):
    """The result of another attempt."""

    owner: Owner
    letter: int
    reason: str = ""
    """Empty: it succeeded, and the letter is closed."""
    error: str = ""


_REFUSE = Statement(
    "INSERT INTO dead_letters (owner, place, body, step, kind, reason, error, attempts, state, created_at) "
    "SELECT r.owner, r.place, r.body, r.stream, r.kind, r.reason, r.said, 1, 'OPEN', {now} FROM {rows} WHERE true "
    "ON CONFLICT (owner, place) WHERE place IS NOT NULL DO NOTHING",
    rows="owner text, place text, body text, stream text, kind text, reason text, said text",
)
_STORED = Statement(
    "SELECT l.id, l.step, l.place, l.body, l.reason FROM {rows} JOIN dead_letters l ON l.id = r.letter "
    "WHERE l.owner = :owner AND l.state = 'OPEN' AND l.place IS NOT NULL ORDER BY l.id",
    rows="letter bigint",
)
_SUCCEEDED = Statement(
    "UPDATE dead_letters SET state = 'REPLAYED', closed_at = {now} FROM {rows} WHERE dead_letters.id = r.letter "
    "AND dead_letters.owner = r.owner AND dead_letters.state = 'OPEN' AND dead_letters.place IS NOT NULL",
    rows="owner text, letter bigint",
)
_FAILED = Statement(
    "UPDATE dead_letters SET attempts = attempts + 1, reason = r.reason, error = r.said FROM {rows} "
    "WHERE dead_letters.id = r.letter AND dead_letters.owner = r.owner AND dead_letters.state = 'OPEN' "
    "AND dead_letters.place IS NOT NULL",
    rows="owner text, letter bigint, reason text, said text",
)


def stored(owner: Owner, connection: Connection, letters: Sequence[int]) -> list[StoredMessage]:
    """The open letters of messages among these numbers."""
    rows = connection.run(_STORED, [(letter,) for letter in letters], owner=owner)
    return [StoredMessage(*row) for row in rows]


def _refuse(connection: Connection, refused: Sequence[RefusedMessage]) -> list[None]:
    rows = {(m.owner, m.place): (m.owner, m.place, m.body, m.stream, KIND, m.reason, m.error) for m in refused}
    connection.run(_REFUSE, list(rows.values()))
    return [None] * len(refused)


def _retried(connection: Connection, results: Sequence[RetriedMessage]) -> list[None]:
    if done := [(r.owner, r.letter) for r in results if not r.reason]:
        connection.run(_SUCCEEDED, done)
    if failed := [(r.owner, r.letter, r.reason, r.error) for r in results if r.reason]:
        connection.run(_FAILED, failed)
    return [None] * len(results)


REFUSE_MESSAGE = Verb("refuse_message", _refuse)
RETRIED_MESSAGE = Verb("retried_message", _retried)
