"""Answers that were bought from providers. They are kept by owner and content (`digest`), not by step: an answer that
arrives after its step was cancelled or lost its lease is kept too, so none of these writes is gated."""

from collections.abc import Sequence

import msgspec

from penstock.ledger.database.connection import Connection
from penstock.ledger.database.statements import Statement
from penstock.ledger.database.writer import Verb
from penstock.ledger.engine import backup_guard, usage
from penstock.model.nouns import Owner
from penstock.model.usage import Booking

SHARED = Owner("_shared")
"""Stands for all owners, where they share what was bought. It cannot be the name of an owner."""
TOUCH_S = 3600.0
"""`used_at` is at most this much older than the last use."""


class Place(msgspec.Struct, frozen=True, array_like=True):
    """Where an answer is stored."""

    digest: str
    segment: int
    key: str
    sha256: str
    segment_size: int
    position: int
    size: int
    tokens: int
    stale: int
    """`used_at` should be updated."""


class Answer(msgspec.Struct, frozen=True, array_like=True):
    digest: str
    size: int
    tokens: int = 0
    """How many the provider has counted; 0: not counted."""


class Bought(msgspec.Struct, frozen=True):
    """A segment with answers, in order, and what was paid for them."""

    owner: Owner
    key: str
    sha256: str
    size: int
    answers: tuple[Answer, ...]
    usage: tuple[Booking, ...] = ()


class Started(msgspec.Struct, frozen=True):
    owner: Owner
    digest: str
    operation: str


class Forget(msgspec.Struct, frozen=True):
    """Remove answers and operations."""

    owner: Owner
    digests: tuple[str, ...]


_FIND = Statement(
    "SELECT a.digest, s.id, s.key, s.sha256, s.size, a.position, a.size, a.tokens, "
    "CASE WHEN s.used_at < {now} - :touch_s / 2 THEN 1 ELSE 0 END FROM {rows} "
    "JOIN {answers a: a.owner = :owner AND a.digest = r.digest} JOIN {answer_segments s: s.id = a.segment_id}",
    rows="digest text",
)
_TOUCH = Statement("UPDATE answer_segments SET used_at = {now} WHERE id IN (SELECT r.id FROM {rows})", rows="id bigint")
_SEGMENT = Statement(
    "INSERT INTO answer_segments (owner, key, sha256, size, used_at) VALUES (:owner, :key, :sha256, :size, {now}) "
    "RETURNING id"
)
# An answer that is there already is replaced: its segment may be damaged.
_ANSWERS = Statement(
    "INSERT INTO answers (owner, digest, segment_id, position, size, tokens) "
    "SELECT :owner, r.digest, :segment, r.position, r.size, r.tokens FROM {rows} WHERE true "
    "ON CONFLICT (owner, digest) DO UPDATE SET segment_id = excluded.segment_id, position = excluded.position, "
    "size = excluded.size, tokens = excluded.tokens",
    rows="digest text, position bigint, size bigint, tokens bigint",
)
_START = Statement(
    "INSERT INTO operations (owner, digest, operation, started_at) VALUES (:owner, :digest, :operation, {now}) "
    "ON CONFLICT (owner, digest) DO UPDATE SET operation = excluded.operation, started_at = excluded.started_at"
)
_OPERATION = Statement("SELECT operation FROM operations WHERE owner = :owner AND digest = :digest")
_END = Statement(
    "DELETE FROM operations WHERE owner = :owner AND digest IN (SELECT r.digest FROM {rows})", rows="digest text"
)
_FORGET = Statement(
    "DELETE FROM answers WHERE owner = :owner AND digest IN (SELECT r.digest FROM {rows}) RETURNING segment_id",
    rows="digest text",
)
EMPTY = Statement(
    "DELETE FROM answer_segments WHERE id IN (SELECT r.id FROM {rows}) "
    "AND NOT EXISTS (SELECT 1 FROM answers a WHERE a.segment_id = answer_segments.id) RETURNING key, size",
    rows="id bigint",
)


def find(owner: Owner, connection: Connection, digests: Sequence[str]) -> list[Place]:
    rows = connection.run(_FIND, [(digest,) for digest in digests], owner=owner, touch_s=TOUCH_S) if digests else []
    return [msgspec.convert(row, Place) for row in rows]


def operation(owner: Owner, connection: Connection, digest: str) -> str | None:
    """The operation that was started for an answer, if it was not stored yet."""
    rows = connection.run(_OPERATION, owner=owner, digest=digest)
    return rows[0][0] if rows else None


def _touch(connection: Connection, segments: Sequence[tuple[int, ...]]) -> list[None]:
    connection.run(_TOUCH, sorted({(segment,) for some in segments for segment in some}))
    return [None for _ in segments]


def _keep(connection: Connection, bought: Sequence[Bought]) -> list[None]:
    for one in bought:
        [(segment,)] = connection.run(_SEGMENT, owner=one.owner, key=one.key, sha256=one.sha256, size=one.size)
        rows, position = [], 0
        for answer in one.answers:
            rows.append((answer.digest, position, answer.size, answer.tokens))
            position += answer.size
        connection.run(_ANSWERS, sorted(rows), owner=one.owner, segment=segment)
        connection.run(_END, sorted((answer.digest,) for answer in one.answers), owner=one.owner)
    usage.book(connection, [booking for one in bought for booking in one.usage])
    return [None for _ in bought]


def _start(connection: Connection, operations: Sequence[Started]) -> list[None]:
    for one in operations:
        connection.run(_START, owner=one.owner, digest=one.digest, operation=one.operation)
    return [None for _ in operations]


def _forget(connection: Connection, requests: Sequence[Forget]) -> list[tuple[str, ...]]:
    """Returns the keys of the segments that contain nothing else. Not while a backup needs them: prune finds them."""
    answers = []
    for request in requests:
        rows = sorted((digest,) for digest in request.digests)
        connection.run(_END, rows, owner=request.owner)
        segments = sorted(set(connection.run(_FORGET, rows, owner=request.owner)))
        held = backup_guard.holds_prune(connection)
        gone = connection.run(EMPTY, segments) if segments and not held else []
        answers.append(tuple(row[0] for row in gone))
    return answers


KEEP = Verb("keep_answers", _keep)
TOUCH = Verb("touch_answers", _touch)
START = Verb("start_operation", _start)
FORGET = Verb("forget_answers", _forget)
