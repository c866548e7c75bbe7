"""Eviction of bought answers: by age, and by the size of all. Rows are removed first and their blobs afterwards.

These statements cross owners (I10)."""

from collections.abc import Sequence

import msgspec

from penstock.ledger.database.connection import Connection
from penstock.ledger.database.statements import Statement
from penstock.ledger.database.writer import Verb
from penstock.ledger.engine import answers, backup_guard


class Evict(msgspec.Struct, frozen=True):
    """Remove segments: those not used for `older_s`, or all that may be removed (`older_s` = 0), oldest first."""

    older_s: float
    count: int


class Evicted(msgspec.Struct, frozen=True):
    segments: int
    answers: int
    blobs: tuple[tuple[str, int], ...]


# An answer that an unfinished run of the owner has bought or read was used after the run began. Those that all owners
# share may be used by any run.
_EVICTABLE = Statement(
    "SELECT s.id FROM answer_segments s WHERE s.used_at < {now} - :older_s AND NOT EXISTS (SELECT 1 FROM runs x "
    "WHERE (x.owner = s.owner OR s.owner = :shared) AND x.status = 'OPEN' AND x.created_at < s.used_at + :touch_s) "
    "ORDER BY s.used_at, s.id LIMIT :count"
)
_TAKE_OUT = Statement("DELETE FROM answers WHERE segment_id IN (SELECT r.id FROM {rows}) RETURNING 1", rows="id bigint")
_OLD_OPERATIONS = Statement("DELETE FROM operations WHERE started_at < {now} - :older_s")
_TOTAL = Statement("SELECT coalesce(sum(size), 0), count(*) FROM answer_segments")


def _evict(connection: Connection, requests: Sequence[Evict]) -> list[Evicted]:
    evicted = []
    for request in requests:
        if backup_guard.holds_prune(connection):
            evicted.append(Evicted(0, 0, ()))
            continue
        values = {
            "older_s": request.older_s,
            "touch_s": answers.TOUCH_S,
            "count": request.count,
        }
        picked = connection.run(_EVICTABLE, shared=answers.SHARED, **values)
        taken = connection.run(_TAKE_OUT, picked) if picked else []
        gone = connection.run(answers.EMPTY, picked) if picked else []
        if request.older_s:
            connection.run(_OLD_OPERATIONS, older_s=request.older_s)
        evicted.append(Evicted(len(picked), len(taken), tuple((row[0], row[1]) for row in gone)))
    return evicted


def total(connection: Connection) -> tuple[int, int]:
    """The bytes and the number of all segments."""
    [(size, count)] = connection.run(_TOTAL)
    return int(size), count


EVICT = Verb("evict_answers", _evict)
