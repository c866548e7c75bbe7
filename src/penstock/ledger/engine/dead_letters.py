"""Dead letters: runs, and events on their way to a handler, that ran out of attempts or met a permanent error, with
what a person needs to act."""

from collections.abc import Sequence

import msgspec

from penstock.ledger.database.connection import Connection, Row
from penstock.ledger.database.statements import Statement
from penstock.ledger.database.writer import Verb
from penstock.ledger.engine.documents import Origin
from penstock.ledger.engine.lifecycle import event_id
from penstock.ledger.engine.steps import SETTINGS
from penstock.model.nouns import DocumentId, Json, Owner, Workflow

_INSERT = Statement(
    "INSERT INTO dead_letters (owner, document_id, run_id, step, kind, reason, error, traceback, page, attempts, "
    "state, created_at) SELECT r.owner, r.document, r.run, r.step, r.kind, r.reason, r.error, r.traceback, r.page, "
    "r.attempts, 'OPEN', {now} FROM {rows} WHERE true",
    rows="owner text, document text, run text, step text, kind text, reason text, error text, traceback text, "
    "page int, attempts int",
)


def insert(connection: Connection, letters: Sequence[tuple[object, ...]]) -> None:
    connection.run(_INSERT, letters)


class LetterEvent(msgspec.Struct, frozen=True):
    """The event that could not be delivered."""

    kind: str
    id: str


class LetterMessage(msgspec.Struct, frozen=True):
    """The message that could not be used."""

    stream: str
    place: str
    """Where it is in the stream."""
    body: str


class DeadLetter(msgspec.Struct, frozen=True):
    id: int
    document_id: str | None
    """None: an event of a group, or a message of a stream."""
    name: str | None
    source: str | None
    step: str
    """Of an event: its handler. Of a message: its stream."""
    kind: str
    reason: str
    error: str
    traceback: str | None
    page: int | None
    attempts: int
    created_at: float
    collection: str | None = None
    workflow: str = ""
    """Of the run that failed: its workflow's id, its parameter set, and what each step was given."""
    params: str | None = None
    parameters: Json = {}
    event: LetterEvent | None = None
    handler: str | None = None
    """The handler of the event."""
    message: LetterMessage | None = None
    """The message, if neither a run nor an event failed."""


class ReplayableLetter(msgspec.Struct, frozen=True):
    """A dead letter as a replay needs it."""

    id: int
    document_id: DocumentId
    reason: str
    origin: Origin | None
    """None: the letter is of an event or a message."""
    is_message: bool = False


_LETTER = (
    "SELECT l.id, l.document_id, d.name, d.source, l.step, l.kind, l.reason, l.error, l.traceback, l.page, "
    "l.attempts, l.created_at, d.collection, s.body, e.kind, e.run_id, e.group_id, e.id, l.place, l.body "
    "FROM dead_letters l "
    "LEFT JOIN documents d ON d.id = l.document_id LEFT JOIN runs x ON x.id = l.run_id "
    "LEFT JOIN events e ON e.id = l.event_id LEFT JOIN snapshots s ON s.hash = coalesce(x.snapshot, e.snapshot) "
    "WHERE l.owner = :owner AND l.state = 'OPEN' "
)
_ORIGIN = f"d.collection, x.snapshot, {SETTINGS}, x.priority, d.status, d.media_type"
_OPEN = (
    "LEFT JOIN documents d ON d.id = l.document_id LEFT JOIN runs x ON x.id = l.run_id "
    "WHERE l.owner = :owner AND l.state = 'OPEN' "
)
_OF_REASON = _OPEN + "AND (:reason = '' OR l.reason = :reason) "
_BURIED = f"SELECT l.id, l.document_id, l.reason, l.place IS NOT NULL, {_ORIGIN} FROM "
_PAGE = Statement(
    f"{_BURIED} dead_letters l {_OF_REASON} AND l.id > :after AND l.id <= :until ORDER BY l.id LIMIT :count"
)
_NAMED = Statement(
    f"{_BURIED} {{rows}} JOIN dead_letters l ON l.id = r.letter {_OPEN} ORDER BY l.id", rows="letter bigint"
)
_WAITING = Statement(
    f"SELECT l.reason, count(*), l.place IS NOT NULL, {_ORIGIN} FROM dead_letters l {_OF_REASON} "
    f"GROUP BY l.reason, l.place IS NOT NULL, {_ORIGIN}"
)
_LAST = Statement("SELECT coalesce(max(id), 0) FROM dead_letters WHERE owner = :owner AND state = 'OPEN'")
_LIST = Statement(_LETTER + "ORDER BY l.id DESC LIMIT :count")
_GET = Statement(_LETTER + "AND l.id = :id")
_OF = Statement(
    "SELECT l.id, l.reason FROM {rows} JOIN dead_letters l ON l.document_id = r.document "
    "WHERE {l.owner} AND l.state = 'OPEN' AND l.event_id IS NULL",
    rows="document text",
)
_REASONS = Statement(
    "SELECT reason, count(*), min(created_at) FROM dead_letters WHERE owner = :owner AND state = 'OPEN' "
    "GROUP BY reason ORDER BY 2 DESC, 1"
)
_CLOSE = Statement(
    "UPDATE dead_letters SET state = :state, closed_at = {now} WHERE {owner} AND state = 'OPEN' "
    "AND event_id IS NULL AND document_id IN (SELECT r.document FROM {rows}) RETURNING document_id",
    rows="document text",
)
_DISCARD = Statement(
    "UPDATE dead_letters SET state = 'DISCARDED', closed_at = {now} WHERE {owner} AND state = 'OPEN' "
    "AND id IN (SELECT r.letter FROM {rows}) RETURNING id, document_id",
    rows="letter bigint",
)
_FORGET_PASSWORD = Statement(
    "UPDATE documents SET password = NULL WHERE {owner} AND password IS NOT NULL "
    "AND id IN (SELECT r.document FROM {rows})",
    rows="document text",
)
_OF_EVENTS = Statement(
    "SELECT l.id, l.event_id, l.handler, e.run_id, e.group_id FROM {rows} JOIN dead_letters l ON l.id = r.letter "
    "JOIN events e ON e.id = l.event_id WHERE l.owner = :owner AND l.state = 'OPEN' ORDER BY l.id",
    rows="letter bigint",
)
_REPLAYED = Statement(
    "UPDATE dead_letters SET state = 'REPLAYED', closed_at = {now} FROM {rows} "
    "WHERE dead_letters.id = r.letter AND dead_letters.state = 'OPEN'",
    rows="letter bigint",
)
_DELIVER_AGAIN = Statement(
    "UPDATE deliveries SET status = 'PENDING', attempts = 0, not_before = {now}, finished_at = NULL FROM {rows} "
    "WHERE deliveries.event_id = r.event AND deliveries.handler = r.place AND deliveries.status = 'FAILED'",
    rows="event bigint, place int",
)


def _letter(row: Row) -> DeadLetter:
    if row[18] is not None:
        message = LetterMessage(row[4], row[18].removeprefix(f"{row[4]}: "), row[19])
        return msgspec.structs.replace(DeadLetter(*row[:12]), message=message)
    workflow = msgspec.json.decode(row[13], type=Workflow)
    fields = [*row[:13], workflow.id, workflow.asked.params if workflow.asked else None]
    letter = DeadLetter(*fields)
    kind, run, group, number = row[14:18]
    if number is None:
        given = {step.name: step.parameters for step in workflow.steps if step.parameters}
        return msgspec.structs.replace(letter, parameters=given)
    event = LetterEvent(kind, event_id(run, group, number))
    return msgspec.structs.replace(letter, event=event, handler=letter.step)


def newest(owner: Owner, connection: Connection, count: int) -> list[DeadLetter]:
    rows = connection.run(_LIST, owner=owner, count=count)
    return [_letter(row) for row in rows]


def get(owner: Owner, connection: Connection, letter: int) -> DeadLetter | None:
    rows = connection.run(_GET, owner=owner, id=letter)
    return _letter(rows[0]) if rows else None


def of(owner: Owner, connection: Connection, documents: Sequence[str | None]) -> list[tuple[int, str]]:
    """Numbers and reasons of the open letters of these documents, oldest first; letters of events are left out."""
    rows = connection.run(_OF, [(document,) for document in documents], owner=owner)
    return sorted((row[0], row[1]) for row in rows)


def by_reason(owner: Owner, connection: Connection) -> list[tuple[str, int, float]]:
    """How many are open for each reason, and since when."""
    return [(row[0], row[1], row[2]) for row in connection.run(_REASONS, owner=owner)]


def _replayable(row: Row) -> ReplayableLetter:
    return ReplayableLetter(row[0], row[1], row[2], _origin(row[4:]), bool(row[3]))


def _origin(row: Row) -> Origin | None:
    return Origin(*row) if row[1] is not None else None


def page(
    owner: Owner, connection: Connection, reason: str, *, after: int, until: int, count: int
) -> list[ReplayableLetter]:
    """Open ones with a number above `after`, oldest first; those of one reason, if one is given."""
    rows = connection.run(_PAGE, owner=owner, reason=reason, after=after, until=until, count=count)
    return [_replayable(row) for row in rows]


def named(owner: Owner, connection: Connection, letters: Sequence[int]) -> list[ReplayableLetter]:
    rows = connection.run(_NAMED, [(letter,) for letter in dict.fromkeys(letters)], owner=owner)
    return [_replayable(row) for row in rows]


class Alike(msgspec.Struct, frozen=True):
    """Open letters that a replay treats alike."""

    reason: str
    origin: Origin | None
    is_message: bool
    count: int


def waiting(owner: Owner, connection: Connection, reason: str) -> list[Alike]:
    """How many are open, by reason and by what their runs were started with."""
    rows = connection.run(_WAITING, owner=owner, reason=reason)
    return [Alike(row[0], _origin(row[3:]), bool(row[2]), row[1]) for row in rows]


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
        if documents := [(row[1],) for row in rows if row[1] is not None]:
            connection.run(_FORGET_PASSWORD, documents, owner=owner)
        answers.append({row[0] for row in rows})
    return answers


class OfDocuments(msgspec.Struct, frozen=True):
    """The open letters of these documents."""

    owner: Owner
    documents: tuple[DocumentId, ...]


def _discard_of(connection: Connection, requests: Sequence[OfDocuments]) -> list[set[DocumentId]]:
    """The documents that had one."""
    answers = []
    for r in requests:
        rows = connection.run(_CLOSE, [(document,) for document in r.documents], owner=r.owner, state="DISCARDED")
        done = [(row[0],) for row in rows]
        if done:
            connection.run(_FORGET_PASSWORD, done, owner=r.owner)
        answers.append({DocumentId(row[0]) for row in done})
    return answers


class EventReplay(msgspec.Struct, frozen=True):
    """Letters of events, by number."""

    owner: Owner
    letters: tuple[int, ...]


def _replay_events(connection: Connection, requests: Sequence[EventReplay]) -> list[set[str]]:
    """Make deliveries due again, with attempts at zero. Returns the ids of the events."""
    answers = []
    for request in requests:
        chosen = connection.run(_OF_EVENTS, [(letter,) for letter in request.letters], owner=request.owner)
        if chosen:
            connection.run(_REPLAYED, [(row[0],) for row in chosen])
            connection.run(_DELIVER_AGAIN, [(row[1], row[2]) for row in chosen])
        answers.append({event_id(row[3], row[4], row[1]) for row in chosen})
    return answers


DISCARD = Verb("discard", _discard)
DISCARD_OF = Verb("discard_of", _discard_of)
REPLAY_EVENTS = Verb("replay_events", _replay_events, notifies=any)
