"""Dead letters: runs that ran out of attempts or met a permanent error, with what a person needs to act."""

from collections.abc import Sequence

import msgspec

from penstock.ledger.database import Connection, Row, Statement
from penstock.ledger.writer import Verb
from penstock.model.nouns import Owner

_BURY = Statement(
    "INSERT INTO dead_letters (owner, document_id, run_id, step, kind, reason, error, traceback, page, attempts, "
    "state, created_at) SELECT r.owner, r.document, r.run, r.step, r.kind, r.reason, r.error, r.traceback, r.page, "
    "r.attempts, 'OPEN', {now} FROM {rows} WHERE true",
    rows="owner text, document text, run text, step text, kind text, reason text, error text, traceback text, "
    "page int, attempts int",
)


def bury(connection: Connection, letters: Sequence[tuple[object, ...]]) -> None:
    connection.run(_BURY, letters)


class DeadLetter(msgspec.Struct, frozen=True):
    id: int
    document_id: str
    name: str
    source: str
    step: str
    kind: str
    reason: str
    error: str
    traceback: str | None
    page: int | None
    attempts: int
    created_at: float


_LETTER = (
    "SELECT l.id, l.document_id, d.name, d.source, l.step, l.kind, l.reason, l.error, l.traceback, l.page, "
    "l.attempts, l.created_at FROM dead_letters l JOIN documents d ON d.id = l.document_id "
    "WHERE l.owner = :owner AND l.state = 'OPEN' "
)
_LIST = Statement(_LETTER + "ORDER BY l.id DESC LIMIT :count")
_GET = Statement(_LETTER + "AND l.id = :id")
_REASONS = Statement(
    "SELECT reason, count(*), min(created_at) FROM dead_letters WHERE owner = :owner AND state = 'OPEN' "
    "GROUP BY reason ORDER BY 2 DESC, 1"
)
_BY_REASON = Statement(
    "SELECT document_id FROM dead_letters WHERE owner = :owner AND state = 'OPEN' "
    "AND (:reason = '' OR reason = :reason) ORDER BY id LIMIT :count"
)
_CLOSE = Statement(
    "UPDATE dead_letters SET state = :state, closed_at = {now} WHERE {owner} AND state = 'OPEN' "
    "AND document_id IN (SELECT r.document FROM {rows})",
    rows="document text",
)
_DISCARD = Statement(
    "UPDATE dead_letters SET state = 'DISCARDED', closed_at = {now} WHERE {owner} AND state = 'OPEN' "
    "AND id IN (SELECT r.letter FROM {rows}) RETURNING id",
    rows="letter bigint",
)


def _letter(row: Row) -> DeadLetter:
    return DeadLetter(*row)


def newest(owner: Owner, connection: Connection, count: int) -> list[DeadLetter]:
    return [_letter(row) for row in connection.run(_LIST, owner=owner, count=count)]


def get(owner: Owner, connection: Connection, letter: int) -> DeadLetter | None:
    rows = connection.run(_GET, owner=owner, id=letter)
    return _letter(rows[0]) if rows else None


def by_reason(owner: Owner, connection: Connection) -> list[tuple[str, int, float]]:
    """How many are open for each reason, and since when."""
    return [(row[0], row[1], row[2]) for row in connection.run(_REASONS, owner=owner)]


def documents(owner: Owner, connection: Connection, reason: str | None, count: int) -> list[str]:
    return [row[0] for row in connection.run(_BY_REASON, owner=owner, reason=reason or "", count=count)]


def close(owner: Owner, connection: Connection, documents: Sequence[str], state: str) -> None:
    connection.run(_CLOSE, [(document,) for document in documents], owner=owner, state=state)


def _discard(connection: Connection, requests: Sequence[tuple[Owner, tuple[int, ...]]]) -> list[set[int]]:
    answers = []
    for owner, letters in requests:
        rows = connection.run(_DISCARD, [(letter,) for letter in letters], owner=owner)
        answers.append({row[0] for row in rows})
    return answers


DISCARD = Verb("discard", _discard)
