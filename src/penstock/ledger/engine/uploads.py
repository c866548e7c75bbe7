"""Resumable uploads: how many bytes of each are durable, in which parts they are stored, and who adds to it now.

The lock of an upload is a lease with a token. Every write is gated on the token, so that a process that was thought
dead can add nothing."""

from collections.abc import Sequence

import msgspec

from penstock.ledger.database.connection import Connection
from penstock.ledger.database.statements import Statement
from penstock.ledger.database.writer import Verb
from penstock.model.nouns import DocumentId, Owner

OPEN, ACCEPTED, REFUSED = "OPEN", "ACCEPTED", "REFUSED"


class Upload(msgspec.Struct, frozen=True):
    id: str
    owner: Owner
    kind: str
    state: str
    size: int
    received: int
    """So many bytes are durable."""
    request: str
    """What the document is to be, as JSON."""
    document_id: DocumentId | None
    answer: str | None
    """The receipt of the document, as JSON."""
    created_at: float
    expires_at: float

    @property
    def is_whole(self) -> bool:
        return self.received == self.size


class Part(msgspec.Struct, frozen=True):
    first: int
    """The place of its first byte in the upload."""
    size: int
    key: str


_COLUMNS = "id, owner, kind, state, size, received, request, document_id, answer, created_at, expires_at"


class Creation(msgspec.Struct, frozen=True):
    id: str
    owner: Owner
    kind: str
    size: int
    request: str
    life_s: float
    most_bytes: int
    """The largest sum of the sizes of the owner's unfinished uploads."""


_SUM = Statement("SELECT coalesce(sum(size), 0) FROM uploads WHERE owner = :owner AND state = 'OPEN'")
_CREATE = Statement(
    "INSERT INTO uploads (id, owner, kind, state, size, received, request, lease_until, created_at, expires_at) "
    f"VALUES (:id, :owner, :kind, 'OPEN', :size, 0, :request, 0, {{now}}, {{now}} + :life) RETURNING {_COLUMNS}"
)


def _create(connection: Connection, requests: Sequence[Creation]) -> list[Upload | None]:
    """None: the owner has too many bytes in unfinished uploads."""
    answers: list[Upload | None] = []
    for r in requests:
        if connection.run(_SUM, owner=r.owner)[0][0] + r.size > r.most_bytes:
            answers.append(None)
            continue
        made = {"id": r.id, "owner": r.owner, "kind": r.kind, "size": r.size, "request": r.request, "life": r.life_s}
        answers.append(Upload(*connection.run(_CREATE, **made)[0]))
    return answers


_GET = Statement(f"SELECT {_COLUMNS} FROM uploads WHERE owner = :owner AND id = :id AND expires_at > {{now}}")
_PARTS = Statement(
    "SELECT p.first, p.size, p.key FROM upload_parts p JOIN uploads u ON u.id = p.upload_id "
    "WHERE u.owner = :owner AND u.id = :id ORDER BY p.first"
)


def get(owner: Owner, connection: Connection, upload: str) -> Upload | None:
    rows = connection.run(_GET, owner=owner, id=upload)
    return Upload(*rows[0]) if rows else None


def parts(owner: Owner, connection: Connection, upload: str) -> list[Part]:
    """The stored parts, in order."""
    return [Part(*row) for row in connection.run(_PARTS, owner=owner, id=upload)]


class Hold(msgspec.Struct, frozen=True):
    """Take the lock of an upload, or extend it."""

    owner: Owner
    upload: str
    token: str
    lease_s: float


_HOLD = Statement(
    "UPDATE uploads SET token = :token, lease_until = {now} + :lease WHERE owner = :owner AND id = :id "
    f"AND expires_at > {{now}} AND (token IS NULL OR token = :token OR lease_until < {{now}}) RETURNING {_COLUMNS}"
)


def _hold(connection: Connection, requests: Sequence[Hold]) -> list[Upload | None]:
    """None: there is no such upload, or another process holds it."""
    found = [connection.run(_HOLD, owner=r.owner, id=r.upload, token=r.token, lease=r.lease_s) for r in requests]
    return [Upload(*rows[0]) if rows else None for rows in found]


class Added(msgspec.Struct, frozen=True):
    """Durable parts that follow what was received."""

    owner: Owner
    upload: str
    token: str
    parts: tuple[Part, ...]
    lease_s: float
    life_s: float


_ADD = Statement(
    "UPDATE uploads SET received = received + :size, lease_until = {now} + :lease, expires_at = {now} + :life "
    "WHERE owner = :owner AND id = :id AND token = :token AND received = :first AND state = 'OPEN' "
    f"AND received + :size <= size RETURNING {_COLUMNS}"
)
_PART = Statement("INSERT INTO upload_parts (upload_id, first, size, key) VALUES (:upload, :first, :size, :key)")


def _add(connection: Connection, requests: Sequence[Added]) -> list[Upload | None]:
    """None: the lock was lost."""
    answers: list[Upload | None] = []
    for r in requests:
        given = {"owner": r.owner, "id": r.upload, "token": r.token, "lease": r.lease_s, "life": r.life_s}
        size = sum(part.size for part in r.parts)
        rows = connection.run(_ADD, size=size, first=r.parts[0].first, **given)
        for part in r.parts if rows else ():
            connection.run(_PART, upload=r.upload, first=part.first, size=part.size, key=part.key)
        answers.append(Upload(*rows[0]) if rows else None)
    return answers


class Ended(msgspec.Struct, frozen=True):
    """The upload became a document, or was refused."""

    owner: Owner
    upload: str
    token: str
    document: DocumentId | None
    answer: str


_END = Statement(
    "UPDATE uploads SET state = CASE WHEN :refused = 1 THEN 'REFUSED' ELSE 'ACCEPTED' END, document_id = :document, "
    "answer = :answer WHERE owner = :owner AND id = :id AND token = :token AND state = 'OPEN' "
    f"RETURNING {_COLUMNS}"
)


def _end(connection: Connection, requests: Sequence[Ended]) -> list[Upload | None]:
    answers: list[Upload | None] = []
    for r in requests:
        given = {"owner": r.owner, "id": r.upload, "token": r.token, "document": r.document, "answer": r.answer}
        rows = connection.run(_END, refused=int(r.document is None), **given)
        answers.append(Upload(*rows[0]) if rows else None)
    return answers


_LET_GO = Statement("UPDATE uploads SET token = NULL WHERE owner = :owner AND id = :id AND token = :token")


def _let_go(connection: Connection, requests: Sequence[Hold]) -> list[None]:
    for r in requests:
        connection.run(_LET_GO, owner=r.owner, id=r.upload, token=r.token)
    return [None for _ in requests]


_FORGET_PARTS = Statement(
    "DELETE FROM upload_parts WHERE upload_id IN (SELECT r.upload FROM {rows}) RETURNING key, size", rows="upload text"
)
_FORGET = Statement("DELETE FROM uploads WHERE id IN (SELECT r.upload FROM {rows})", rows="upload text")


class Removed(msgspec.Struct, frozen=True):
    owner: Owner
    upload: str
    token: str
    whole: bool
    """The upload itself, not only its parts."""


_HELD = Statement("SELECT id FROM uploads WHERE owner = :owner AND id = :id AND token = :token")


def _remove(connection: Connection, requests: Sequence[Removed]) -> list[list[str]]:
    """The keys of the parts, which nothing names any more."""
    answers = []
    for r in requests:
        rows = connection.run(_HELD, owner=r.owner, id=r.upload, token=r.token)
        answers.append([row[0] for row in connection.run(_FORGET_PARTS, rows)] if rows else [])
        if rows and r.whole:
            connection.run(_FORGET, rows)
    return answers


_EXPIRED = Statement(
    "SELECT id FROM uploads WHERE expires_at < {now} AND (token IS NULL OR lease_until < {now}) "
    "ORDER BY expires_at LIMIT :count {skip}"
)


def _expire(connection: Connection, requests: Sequence[int]) -> list[tuple[int, list[tuple[str, int]]]]:
    """Remove uploads that nobody continued: how many, and the keys and sizes of their parts."""
    answers = []
    for count in requests:
        rows = connection.run(_EXPIRED, count=count)
        keys = [(row[0], row[1]) for row in connection.run(_FORGET_PARTS, rows)] if rows else []
        if rows:
            connection.run(_FORGET, rows)
        answers.append((len(rows), keys))
    return answers


_WHOLE = Statement(
    "SELECT owner, id FROM uploads WHERE state = 'OPEN' AND received = size "
    "AND (token IS NULL OR lease_until < {now}) AND expires_at > {now} ORDER BY id LIMIT :count"
)


_PLANNED = Statement("SELECT request FROM uploads WHERE kind = 'presigned' AND state = 'OPEN' AND expires_at > {now}")


def planned(connection: Connection) -> list[str]:
    """What the unfinished uploads of all owners straight into the bucket are to be, as JSON."""
    return [row[0] for row in connection.run(_PLANNED)]


def whole(connection: Connection, count: int) -> list[tuple[Owner, str]]:
    """Uploads of all owners whose bytes are there, and whose document is not: a process died in between."""
    return [(Owner(row[0]), row[1]) for row in connection.run(_WHOLE, count=count)]


CREATE_UPLOAD = Verb("create_upload", _create)
HOLD_UPLOAD = Verb("hold_upload", _hold)
ADD_PARTS = Verb("add_parts", _add)
END_UPLOAD = Verb("end_upload", _end, counts=True)
LET_UPLOAD_GO = Verb("let_upload_go", _let_go)
REMOVE_UPLOAD = Verb("remove_upload", _remove)
EXPIRE_UPLOADS = Verb("expire_uploads", _expire)
