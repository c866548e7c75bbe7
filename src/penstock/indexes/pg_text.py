"""Text search of the index in PostgreSQL. The server gets finished lexemes with their positions.

The score of a row is the sum over the lexemes of the query: inverse document frequency × `ts_rank`. Like BM25 it
saturates with the number of occurrences and prefers rare words and short chunks; the formulas differ."""

import math
import struct
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from penstock.indexes.base import TextField
from penstock.indexes.lexemes import asked

MOST_POSITIONS, LAST_POSITION = 255, 16_383
"""Limits of PostgreSQL."""
SCORED: Mapping[TextField, int] = {"words": 32, "grams": 40}
"""So many lexemes of a query are compared: the rarest ones, as far as their frequency is known."""
CANDIDATES = 5_000
"""About so many rows are compared if a query has rare lexemes: those that contain one of them."""


def tsvector(found: Sequence[str]) -> bytes:
    """In the binary format of PostgreSQL."""
    positions: dict[str, list[int]] = {}
    for at, lexeme in enumerate(found[:LAST_POSITION], 1):
        some = positions.setdefault(lexeme, [])
        if len(some) < MOST_POSITIONS:
            some.append(at)
    parts = [struct.pack("!i", len(positions))]
    for lexeme, some in positions.items():
        parts.append(lexeme.encode() + b"\0" + struct.pack(f"!H{len(some)}H", len(some), *some))
    return b"".join(parts)


class Frequencies(NamedTuple):
    """What the server knows about the lexemes of a column."""

    rows: float
    """Rows of the table, about."""
    shares: Mapping[str, float]
    """The share of rows that contain a lexeme, for frequent ones."""
    rarest: float
    """The share of the least frequent of these."""

    def share(self, lexeme: str) -> float:
        return self.shares.get(lexeme, self.rarest / 2)


UNKNOWN = Frequencies(0.0, {}, 0.0)


class Plan(NamedTuple):
    """How a query is answered."""

    found_by: Sequence[str]
    """Rows that contain one of these lexemes are compared."""
    scored: Sequence[str]
    """By all of these."""
    complete: bool
    """Whether no row can be missed."""


def plan(field: TextField, text: str, known: Frequencies, *, complete: bool) -> Plan:
    order = sorted(asked(field, text)[:2000], key=known.share)
    scored = order[: SCORED[field]]
    if complete or not known.rows:
        return Plan(scored, scored, True)
    found_by: list[str] = []
    total = 0.0
    for lexeme in scored:
        total += known.share(lexeme) * known.rows
        if found_by and total > CANDIDATES:
            break
        found_by.append(lexeme)
    return Plan(found_by, scored, len(found_by) == len(scored))


def statement(field: TextField, table: str, columns: str, condition: str, how: Plan, known: Frequencies, k: int) -> (
    tuple[str, list[Any]]
):  # fmt: skip
    """Returns the SQL and its parameters. `condition` may use `$1` and `$2`; it is about the row `c`. The document
    frequencies of the lexemes that find the rows are counted, those of the others are estimates."""
    values: list[Any] = [" | ".join(map(_quoted, how.found_by)), k]
    first = 5

    def parameter(value: Any) -> str:
        values.append(value)
        return f"${first + len(values) - 3}"

    ranks, counts, sums = [], [], []
    exact = set(how.found_by)
    for at, lexeme in enumerate(how.scored):
        ranks.append(f"ts_rank(c.{field}, {parameter(_quoted(lexeme))}::tsquery, 1) AS r{at}")
        if lexeme in exact:
            counts.append(f"count(*) FILTER (WHERE r{at} > 0) AS d{at}")
            sums.append(f"r{at} * ln(1 + (n - d{at} + 0.5) / (d{at} + 0.5))")
        else:
            share = known.share(lexeme)
            sums.append(f"r{at} * {parameter(math.log(1 + (1 - share) / max(share, 1e-9)))}::float8")
    counted = ", ".join([*counts, "greatest(count(*), (SELECT reltuples FROM pg_class WHERE oid = "
                         f"'{table}'::regclass)) AS n"])  # fmt: skip
    text = (
        f"WITH m AS MATERIALIZED (SELECT c.generation, c.ordinal, {', '.join(ranks)} FROM {table} c "
        f"WHERE c.{field} @@ $3::tsquery{condition}), d AS (SELECT {counted} FROM m), "
        f"best AS (SELECT generation, ordinal, {' + '.join(sums)} AS score FROM m, d "
        "ORDER BY score DESC, generation, ordinal LIMIT $4) "
        f"SELECT {columns}, best.score FROM best JOIN {table} c USING (generation, ordinal) "
        "ORDER BY best.score DESC, c.generation, c.ordinal"
    )
    return text, values


def _quoted(lexeme: str) -> str:
    return "'" + lexeme.replace("\\", "\\\\").replace("'", "''") + "'"
