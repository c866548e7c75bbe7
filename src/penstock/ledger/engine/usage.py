"""Usage: what was bought from providers, and what was saved because it was bought before. It is booked in the
transaction that stores what it counts: a purchase with its answers, a saving with the checkpoint that uses it."""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

import msgspec

from penstock.ledger.database.connection import Connection
from penstock.ledger.database.statements import Statement
from penstock.ledger.database.writer import Verb
from penstock.model.nouns import Owner, RunId
from penstock.model.usage import Amount, Booking, UsageKind


class DayUsage(msgspec.Struct, frozen=True):
    """The usage of one model on one day (UTC)."""

    owner: str
    model: str
    day: str
    kind: UsageKind
    amount: Amount


_NOW = Statement("SELECT {now}")
_COUNTS = ("texts", "characters", "tokens", "cost", "unpriced")
_ROWS = ", ".join(f"{name} bigint" for name in _COUNTS)
_PICKED = ", ".join(f"r.{name}" for name in _COUNTS)


def _adding(table: str) -> str:
    return ", ".join(f"{name} = {table}.{name} + excluded.{name}" for name in _COUNTS)


_BY_DAY = Statement(
    f"INSERT INTO usage (owner, model, day, kind, {', '.join(_COUNTS)}) SELECT r.tenant, r.name, :day, r.kind, "
    f"{_PICKED} FROM {{rows}} WHERE true ON CONFLICT (owner, model, day, kind) DO UPDATE SET {_adding('usage')}",
    rows=f"tenant text, name text, kind text, {_ROWS}",
)
_BY_RUN = Statement(
    f"INSERT INTO run_usage (run_id, model, kind, owner, {', '.join(_COUNTS)}) SELECT r.run, r.name, r.kind, r.tenant, "
    f"{_PICKED} FROM {{rows}} WHERE true ON CONFLICT (run_id, model, kind) DO UPDATE SET {_adding('run_usage')}",
    rows=f"run text, name text, kind text, tenant text, {_ROWS}",
)


def book(connection: Connection, bookings: Iterable[Booking]) -> None:
    """Add to the counts, inside the transaction of what is counted. Rows are written in a fixed order, so that two
    transactions do not wait for each other."""
    days: dict[tuple[str, str, str], Amount] = {}
    runs: dict[tuple[str, str, str, str], Amount] = {}
    for one in bookings:
        day = (one.owner, one.model, one.kind)
        days[day] = days.get(day, Amount()) + one.amount
        if one.run is not None:
            run = (one.run, one.model, one.kind, one.owner)
            runs[run] = runs.get(run, Amount()) + one.amount
    if not days:
        return
    [(now,)] = connection.run(_NOW)
    today = datetime.fromtimestamp(now, UTC).date().isoformat()
    connection.run(_BY_DAY, [(*key, *msgspec.structs.astuple(days[key])) for key in sorted(days)], day=today)
    if runs:
        connection.run(_BY_RUN, [(*key, *msgspec.structs.astuple(runs[key])) for key in sorted(runs)])


def _book(connection: Connection, bookings: Sequence[tuple[Booking, ...]]) -> list[None]:
    book(connection, [one for some in bookings for one in some])
    return [None for _ in bookings]


BOOK = Verb("book", _book)
"""For purchases whose answers are not stored: the vectors of queries."""

_SUMS = ", ".join(f"coalesce(sum(u.{name}), 0)" for name in _COUNTS)
_DAYS = Statement(
    f"SELECT u.owner, u.model, u.day, u.kind, {', '.join('u.' + name for name in _COUNTS)} FROM usage u "
    "WHERE u.owner = :owner AND u.day >= :first ORDER BY u.day DESC, u.model, u.kind"
)
_EVERYBODY = Statement(
    f"SELECT u.owner, u.model, u.day, u.kind, {', '.join('u.' + name for name in _COUNTS)} FROM usage u "
    "WHERE u.day >= :first ORDER BY u.day DESC, u.owner, u.model, u.kind"
)
_TOTALS = Statement(f"SELECT u.kind, {_SUMS} FROM usage u WHERE u.owner = :owner GROUP BY u.kind")
_OF_RUN = Statement(
    f"SELECT u.kind, {_SUMS} FROM run_usage u WHERE u.run_id = :run AND u.owner = :owner GROUP BY u.kind"
)
_OF_GROUP = Statement(
    f"SELECT u.kind, {_SUMS} FROM runs x JOIN run_usage u ON u.run_id = x.id WHERE x.group_id = :group "
    "AND x.owner = :owner GROUP BY u.kind"
)
_OF_MODEL = Statement(
    f"SELECT 'bought', {_SUMS} FROM usage u WHERE u.owner = :owner AND u.model = :model AND u.kind = 'bought'"
)


def by_day(owner: Owner, connection: Connection, first: str = "") -> list[DayUsage]:
    """The usage of an owner since a day, newest first."""
    return _days(connection, _DAYS, owner=owner, first=first)


def _days(connection: Connection, statement: Statement, **values: object) -> list[DayUsage]:
    rows = connection.run(statement, **values)
    return [DayUsage(row[0], row[1], row[2], row[3], Amount(*map(int, row[4:]))) for row in rows]


def by_owner(connection: Connection, first: str = "") -> list[DayUsage]:
    """The usage of all owners, for the operator."""
    return _days(connection, _EVERYBODY, first=first)


Totals = dict[UsageKind, Amount]


def totals(owner: Owner, connection: Connection) -> Totals:
    return _totals(connection, _TOTALS, owner=owner)


def of_run(owner: Owner, connection: Connection, run: RunId) -> Totals:
    return _totals(connection, _OF_RUN, owner=owner, run=run)


def of_group(owner: Owner, connection: Connection, group: str) -> Totals:
    return _totals(connection, _OF_GROUP, owner=owner, group=group)


def of_model(owner: Owner, connection: Connection, model: str) -> Amount:
    """What the owner bought from a model."""
    return _totals(connection, _OF_MODEL, owner=owner, model=model)["bought"]


def _totals(connection: Connection, statement: Statement, **values: object) -> Totals:
    return {row[0]: Amount(*map(int, row[1:])) for row in connection.run(statement, **values)}
