"""Histories: what keeps the ids of a ledger apart from those of its own past or future.

A ledger may be put back to an earlier moment, while its index and its handlers know what came after it. From then on
its generations and events get ids that no other history of it ever gave out: they begin at the present moment, in
seconds times 2^21. Below two million ids a second no history catches up with the clock, so one that begins later begins
above all others. Ids stay exact as JSON numbers (below 2^53) until 2156, and keep growing.

These statements cross owners (I10)."""

from collections.abc import Sequence

import msgspec

from penstock.ledger.database.connection import Connection
from penstock.ledger.database.statements import DialectName, Statement
from penstock.ledger.database.writer import Verb

ORIGIN_S = 1_577_836_800
"""2020-01-01."""
SECOND = 1 << 21
"""Ids that belong to a second."""


class Seen(msgspec.Struct, frozen=True):
    """What stands beside the ledger and should not be ahead of it."""

    generation: int
    """The highest that was ever written to the index."""
    position: int = 0
    """Of the last counted commit, by its mark."""


class SetBack(msgspec.Struct, frozen=True):
    """The ledger was behind: a new history began."""

    first_generation: int
    last_before: int
    missing: int
    """Writes of users that it does not hold; 0: unknown."""
    begun_at: float


def sentence(noticed: SetBack) -> str:
    missing = f" Changes that are missing: {noticed.missing}." if noticed.missing else ""
    return (
        f"the ledger is an older copy: its index or its mark is newer.{missing} Put the newer ledger back, with its "
        "-wal file, or submit the files again. `penstock check --repair` accepts this one, and removes from the index "
        "what it does not know"
    )


_HIGHEST: dict[DialectName, Statement] = {
    "sqlite": Statement("SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = 'generations'"),
    "postgres": Statement("SELECT CASE WHEN is_called THEN last_value ELSE last_value - 1 END FROM generations_id_seq"),
}
_POSITION = Statement("SELECT position FROM positions")
_CLOCK = Statement("SELECT {now}")
_ONE_AT_A_TIME = Statement("SELECT pg_advisory_xact_lock(7236748365902)")


def highest(connection: Connection) -> int:
    """The highest generation that this ledger ever gave out."""
    found: int = connection.run(_HIGHEST[connection.dialect])[0][0]
    return found


def _missing(connection: Connection, seen: Seen) -> int:
    if connection.dialect == "postgres":
        return 0
    rows = connection.run(_POSITION)
    return max(0, seen.position - rows[0][0]) if rows else 0


def is_behind(connection: Connection, seen: Seen) -> bool:
    """Never after a crash: the ledger is the first to know a generation, and to count a commit."""
    return seen.generation > highest(connection) or _missing(connection, seen) > 0


_FORWARD = (
    Statement("UPDATE sqlite_sequence SET seq = :last WHERE name = :name AND seq < :last"),
    Statement(
        "INSERT INTO sqlite_sequence (name, seq) SELECT :name, :last "
        "WHERE NOT EXISTS (SELECT 1 FROM sqlite_sequence WHERE name = :name)"
    ),
)
_COUNTED = ("generations", "events")


def _hold(connection: Connection) -> None:
    """No other transaction gets an id until this one ends. ALTER SEQUENCE belongs to the transaction and waits for
    others; `setval` would stay done where the transaction is rolled back, and it would never be noticed."""
    for name in _COUNTED if connection.dialect == "postgres" else ():
        connection.script(f"ALTER SEQUENCE {name}_id_seq CACHE 1")


def _forward(connection: Connection, last: int) -> None:
    for name in _COUNTED:
        if connection.dialect == "sqlite":
            for statement in _FORWARD:
                connection.run(statement, name=name, last=last)
        elif connection.script(f"SELECT last_value FROM {name}_id_seq")[0][0] <= last:
            connection.script(f"ALTER SEQUENCE {name}_id_seq RESTART WITH {last + 1:d}")


_BEGIN = Statement(
    "INSERT INTO histories (first_generation, last_before, reason, missing, begun_at, settled_at) "
    "VALUES (:first, :last_before, :reason, :missing, {now}, CASE WHEN :reason = 'restored' THEN {now} END)"
)
_CATCH_UP = Statement("UPDATE positions SET position = :position WHERE position < :position")


def begin(connection: Connection, reason: str, seen: Seen) -> SetBack:
    """From here on ids are above all that any other history gave out."""
    _hold(connection)
    now: float = connection.run(_CLOCK)[0][0]
    before, missing = highest(connection), _missing(connection, seen)
    last = max(before + 1, seen.generation, int((now - ORIGIN_S) * SECOND))
    _forward(connection, last)
    connection.run(_BEGIN, first=last + 1, last_before=before, reason=reason, missing=missing)
    if connection.dialect == "sqlite":
        connection.run(_CATCH_UP, position=seen.position)
    return SetBack(last + 1, before, missing, now)


def _notice(connection: Connection, looks: Sequence[Seen]) -> list[SetBack | None]:
    """Of several processes that notice it, the first draws; the others find the ledger ahead again."""
    if connection.dialect == "postgres":
        connection.run(_ONE_AT_A_TIME)
    return [begin(connection, "set_back", seen) if is_behind(connection, seen) else None for seen in looks]


_OPEN = Statement(
    "SELECT first_generation, last_before, missing, begun_at FROM histories WHERE settled_at IS NULL "
    "ORDER BY first_generation"
)
_SETTLE = Statement("UPDATE histories SET settled_at = {now} WHERE first_generation = :first AND settled_at IS NULL")


def unsettled(connection: Connection) -> list[SetBack]:
    """The ledger was set back, and this was not accepted yet."""
    return [SetBack(*row) for row in connection.run(_OPEN)]


def _settle(connection: Connection, wanted: Sequence[int]) -> list[bool]:
    for first in wanted:
        connection.run(_SETTLE, first=first)
    return [True for _ in wanted]


NOTICE = Verb("notice", _notice)
SETTLE = Verb("settle", _settle)
