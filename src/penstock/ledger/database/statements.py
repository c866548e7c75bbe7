"""SQL that both databases run. A `Statement` is written once; a few macros cover where SQLite and PostgreSQL differ:
`{now}` the database's clock, `{rows}` a set of rows passed in, `{skip}` and `{hold}` row locks, `{bytes}` after a text
that is ordered or compared by its bytes, whatever the collation of the database, `{instr}` the function that returns
where a text contains another one.

The other macros control PostgreSQL's plans, which may be made while a table is small and would then scan it for ever:
`{steps.id = r.step}` joins by key and repeats the key as an array; `id IN (SELECT r.step FROM {rows})` becomes
`id = ANY (…)`; `JOIN {documents d: d.source = r.source}` looks rows up one by one; `{owner}` compares the owner of rows
that are found by another key, so that no index that begins with the owner is used.
"""

import re
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any, Literal

from penstock.user_code import clean

DialectName = Literal["sqlite", "postgres"]

Rows = Sequence[Sequence[Any]]

# The one clock of leases and back-offs (I2). A simulation replaces these two texts.
NOW: dict[DialectName, str] = {
    "sqlite": "((julianday('now') - 2440587.5) * 86400.0)",
    "postgres": "extract(epoch FROM clock_timestamp())::double precision",
}

_KEY = re.compile(r"\{([\w.]+) = r\.(\w+)\}")

_EACH = re.compile(r"\{(\w+) (\w+): ([^}]+)\}")

_OWNER = re.compile(r"\{(\w+\.)?owner\}")

_IN = re.compile(r"([\w.]+) IN \(SELECT r\.(\w+) FROM \{rows\}\)")

_PARAM = re.compile(r"(?<![:\w]):([a-z_]\w*)")

_EACH_AS: dict[DialectName, str] = {
    "sqlite": r"\1 \2 ON \3",
    "postgres": r"LATERAL (SELECT \2.* FROM \1 \2 WHERE \3 OFFSET 0) AS \2 ON true",
}

NOTIFY = "NOTIFY penstock"

VALUES_LIMIT = 64
"""A larger set is run in pieces of this size; the text for each size is kept."""


class Statement:
    """One SQL text for both dialects. `rows` names the columns of the set that `{rows}` stands for, as r; a statement
    for PostgreSQL alone may have a second set, `{more}`, as m. `plan_anew`: for large sets that come seldom; no plan is
    kept for them that was made while the tables were empty."""

    def __init__(self, text: str, rows: str = "", more: str = "", *, plan_anew: bool = False) -> None:
        self.prepare = False if plan_anew else None
        self.text = _OWNER.sub(r"\1owner || '' = :owner", text)
        self.columns = _columns(rows)
        self.more = _columns(more)
        self._sqlite: dict[int, str] = {}

    def _fill(self, dialect: DialectName, rows: str) -> str:
        skip = "FOR UPDATE SKIP LOCKED" if dialect == "postgres" else ""
        hold = "FOR UPDATE" if dialect == "postgres" else ""
        in_bytes = 'COLLATE "C"' if dialect == "postgres" else ""
        text = self.text.replace("{now}", NOW[dialect]).replace("{skip}", skip).replace("{hold}", hold)
        text = text.replace("{bytes}", in_bytes).replace("{instr}", "strpos" if dialect == "postgres" else "instr")
        text = _EACH.sub(_EACH_AS[dialect], text)
        if dialect == "postgres":
            text = _IN.sub(lambda match: f"{match[1]} = ANY ({self._array(match[2])})", text)
        text = text.replace("{rows}", rows)
        return _KEY.sub(self._key_postgres if dialect == "postgres" else r"\1 = r.\2", text)

    def _key_postgres(self, match: re.Match[str]) -> str:
        return f"{match[1]} = r.{match[2]} AND {match[1]} = ANY ({self._array(match[2])})"

    def _array(self, column: str) -> str:
        return f":r_{column}::{dict(self.columns)[column]}[]"

    @cached_property
    def parameters(self) -> list[str]:
        """The names in the order of their numbers in SQLite's text."""
        return list(dict.fromkeys(_PARAM.findall(self.text)))

    def sqlite(self, count: int) -> str:
        """The text for a set of `count` rows, bound as a list of values: JSON takes twice as long, and makes SQLite
        scan the other table instead."""
        if count not in self._sqlite:
            first = len(self.parameters) + 1
            width = len(self.columns)
            picks = ", ".join(f"column{i + 1} AS {name}" for i, (name, _) in enumerate(self.columns))
            if count:
                places = ", ".join(
                    "(" + ", ".join(f"?{first + row * width + i}" for i in range(width)) + ")" for row in range(count)
                )
                source = f"(SELECT {picks} FROM (VALUES {places})) AS r"
            else:
                source = f"(SELECT {picks} FROM (VALUES ({', '.join(['NULL'] * width)})) WHERE false) AS r"
            numbers = {name: f"?{i + 1}" for i, name in enumerate(self.parameters)}
            filled = _PARAM.sub(lambda match: numbers[match[1]], self._fill("sqlite", "{rows}"))
            self._sqlite[count] = filled.replace("{rows}", source)
        return self._sqlite[count]

    @cached_property
    def postgres(self) -> tuple[str, list[str]]:
        """The text, and the names of its parameters in the order of their numbers. The driver, which can do this too,
        would do it at each call of a long text."""
        filled = self._fill("postgres", "{rows}")
        filled = filled.replace("{rows}", _unnest("r", self.columns)).replace("{more}", _unnest("m", self.more))
        names = list(dict.fromkeys(_PARAM.findall(filled)))
        numbers = {name: f"${i + 1}" for i, name in enumerate(names)}
        return _PARAM.sub(lambda match: numbers[match[1]], filled), names


def _columns(text: str) -> list[tuple[str, str]]:
    return [(part.split()[0], part.split()[1]) for part in text.split(",") if part.strip()]


def _unnest(alias: str, columns: list[tuple[str, str]]) -> str:
    arrays = ", ".join(f":{alias}_{name}::{kind}[]" for name, kind in columns)
    return f"unnest({arrays}) AS {alias}({', '.join(name for name, _ in columns)})"


def clean_values(values: Iterable[Any]) -> list[Any]:
    return [clean(value) if isinstance(value, str) else value for value in values]


def clean_rows(rows: Rows | None) -> Rows | None:
    return None if rows is None else [clean_values(row) for row in rows]
