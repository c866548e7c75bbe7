"""Numbers for clients that know things by integers: batches, groups, runs and steps. A number is allotted when it is
first asked for, and stays."""

from collections.abc import Sequence

import msgspec

from penstock.ledger.database.connection import Connection
from penstock.ledger.database.statements import Statement
from penstock.ledger.database.writer import Verb
from penstock.model.nouns import Owner


class Numbering(msgspec.Struct, frozen=True):
    owner: Owner
    kind: str
    ids: tuple[str, ...]


_KNOWN = Statement(
    "SELECT m.id, m.n FROM {rows} JOIN numbers m ON m.owner = :owner AND m.kind = :kind AND m.id = r.wanted",
    rows="wanted text",
)
# Two processes may choose the same number: then one of them inserts nothing, and looks again.
_ALLOT = Statement(
    "INSERT INTO numbers (owner, kind, n, id) SELECT :owner, :kind, "
    "coalesce((SELECT max(n) FROM numbers WHERE owner = :owner AND kind = :kind), 0) + r.place, r.wanted FROM {rows} "
    "WHERE true ON CONFLICT DO NOTHING",
    rows="wanted text, place bigint",
)
_NAMED = Statement("SELECT id FROM numbers WHERE owner = :owner AND kind = :kind AND n = :number")
TRIES = 100


def known(owner: Owner, connection: Connection, kind: str, ids: Sequence[str]) -> dict[str, int]:
    """The numbers of those ids that have one."""
    rows = connection.run(_KNOWN, [(one,) for one in ids], owner=owner, kind=kind) if ids else []
    return {row[0]: row[1] for row in rows}


def named(owner: Owner, connection: Connection, kind: str, number: int) -> str | None:
    """The id that has a number."""
    return next((row[0] for row in connection.run(_NAMED, owner=owner, kind=kind, number=number)), None)


def _allot(connection: Connection, orders: Sequence[Numbering]) -> list[dict[str, int]]:
    return [_of(connection, order) for order in orders]


def _of(connection: Connection, order: Numbering) -> dict[str, int]:
    ids = list(dict.fromkeys(order.ids))
    for _ in range(TRIES):
        found = known(order.owner, connection, order.kind, ids)
        missing = [one for one in ids if one not in found]
        if not missing:
            return found
        rows = [(one, place) for place, one in enumerate(missing, 1)]
        connection.run(_ALLOT, rows, owner=order.owner, kind=order.kind)
    raise AssertionError("numbers were taken again and again")


ALLOT = Verb("allot_numbers", _allot)
