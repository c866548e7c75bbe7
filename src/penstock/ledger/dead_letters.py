"""Dead letters: runs that ran out of attempts or met a permanent error, with what a person needs to act."""

from collections.abc import Sequence

import msgspec

from penstock.ledger.database import Connection, Row, Statement
from penstock.ledger.documents import Origin
from penstock.ledger.writer import Verb
from penstock.model.nouns import DocumentId, Json, Owner, Workflow

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
    collection: str
    workflow: str
    """Of the run that failed: its workflow's id, its parameter set, and what each step was given."""
    params: str | None
    parameters: Json


class Buried(msgspec.Struct, frozen=True):
    """A dead letter as a replay needs it."""

    id: int
    document_id: DocumentId
    reason: str
    origin: Origin


_LETTER = (
    "SELECT l.id, l.document_id, d.name, d.source, l.step, l.kind, l.reason, l.error, l.traceback, l.page, "
    "l.attempts, l.created_at, d.collection, s.body FROM dead_letters l JOIN documents d ON d.id = l.document_id "
    "JOIN runs x ON x.id = l.run_id JOIN snapshots s ON s.hash = x.snapshot "
    "WHERE l.owner = :owner AND l.state = 'OPEN' "
)
_ORIGIN = "d.collection, x.snapshot, x.settings, x.priority, d.status"
_OPEN = (
    "JOIN documents d ON d.id = l.document_id JOIN runs x ON x.id = l.run_id "
    "WHERE l.owner = :owner AND l.state = 'OPEN' "
)
_OF_REASON = _OPEN + "AND (:reason = '' OR l.reason = :reason) "
_BURIED = f"SELECT l.id, l.document_id, l.reason, {_ORIGIN} FROM "
_PAGE = Statement(
    f"{_BURIED} dead_letters l {_OF_REASON} AND l.id > :after AND l.id <= :until ORDER BY l.id LIMIT :count"
)
_NAMED = Statement(
    f"{_BURIED} {{rows}} JOIN dead_letters l ON l.id = r.letter {_OPEN} ORDER BY l.id", rows="letter bigint"
)
_WAITING = Statement(
    f"SELECT l.reason, count(*), {_ORIGIN} FROM dead_letters l {_OF_REASON} GROUP BY l.reason, {_ORIGIN}"
)
_LAST = Statement("SELECT coalesce(max(id), 0) FROM dead_letters WHERE owner = :owner AND state = 'OPEN'")
_LIST = Statement(_LETTER + "ORDER BY l.id DESC LIMIT :count")
_GET = Statement(_LETTER + "AND l.id = :id")
_REASONS = Statement(
    "SELECT reason, count(*), min(created_at) FROM dead_letters WHERE owner = :owner AND state = 'OPEN' "
    "GROUP BY reason ORDER BY 2 DESC, 1"
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
    workflow = msgspec.json.decode(row[13], type=Workflow)
    given = {step.name: step.parameters for step in workflow.steps if step.parameters}
    fields = [*row[:13], workflow.id, workflow.asked.params if workflow.asked else None, given]
    return DeadLetter(*fields)


def newest(owner: Owner, connection: Connection, count: int) -> list[DeadLetter]:
    return [_letter(row) for row in connection.run(_LIST, owner=owner, count=count)]


def get(owner: Owner, connection: Connection, letter: int) -> DeadLetter | None:
    rows = connection.run(_GET, owner=owner, id=letter)
    return _letter(rows[0]) if rows else None


def by_reason(owner: Owner, connection: Connection) -> list[tuple[str, int, float]]:
    """How many are open for each reason, and since when."""
    return [(row[0], row[1], row[2]) for row in connection.run(_REASONS, owner=owner)]


def _buried(row: Row) -> Buried:
    return Buried(row[0], row[1], row[2], Origin(*row[3:]))


def page(owner: Owner, connection: Connection, reason: str, *, after: int, until: int, count: int) -> list[Buried]:
    """Open ones with a number above `after`, oldest first; those of one reason, if one is given."""
    rows = connection.run(_PAGE, owner=owner, reason=reason, after=after, until=until, count=count)
    return [_buried(row) for row in rows]


def named(owner: Owner, connection: Connection, letters: Sequence[int]) -> list[Buried]:
    rows = connection.run(_NAMED, [(letter,) for letter in dict.fromkeys(letters)], owner=owner)
    return [_buried(row) for row in rows]


def waiting(owner: Owner, connection: Connection, reason: str) -> list[tuple[str, Origin, int]]:
    """How many are open, by reason and by what their runs were started with."""
    return [(row[0], Origin(*row[2:]), row[1]) for row in connection.run(_WAITING, owner=owner, reason=reason)]


def last(owner: Owner, connection: Connection) -> int:
    """The newest of them."""
    number: int = connection.run(_LAST, owner=owner)[0][0]
    return number


def close(owner: Owner, connection: Connection, documents: Sequence[str], state: str) -> None:
    connection.run(_CLOSE, [(document,) for document in documents], owner=owner, state=state)


def _discard(connection: Connection, requests: Sequence[tuple[Owner, tuple[int, ...]]]) -> list[set[int]]:
    answers = []
    for owner, letters in requests:
        rows = connection.run(_DISCARD, [(letter,) for letter in letters], owner=owner)
        answers.append({row[0] for row in rows})
    return answers


DISCARD = Verb("discard", _discard)
