"""What adapters for servers check before they call the server."""

import re
from collections.abc import Iterable, Sequence

from penstock.errors import Permanent, Transient, UsageError
from penstock.indexes.base import IndexRows, TableId

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.@+-]*")


class TableGone(Transient):
    """The table was dropped while a handle of it was used."""


def check_names(table: TableId) -> None:
    for name in (table.owner, table.collection):
        if not _NAME.fullmatch(name):
            raise UsageError(f"{name!r} is not the name of an owner or collection: use letters, digits and _ . @ + -.")


def numbers(values: Iterable[int]) -> str:
    """A list of numbers for a filter. Filters are text, so only numbers may be inserted into one."""
    return ",".join(str(int(one)) for one in values)


def check_width(rows: Sequence[IndexRows], dimensions: int) -> None:
    for part in rows:
        if part.vectors.shape[1] != dimensions:
            raise mismatch(dimensions, int(part.vectors.shape[1]))


def mismatch(table: int, vectors: int) -> Permanent:
    return Permanent(
        f"The index has vectors of {table} dimensions, but these have {vectors}: the embedder has changed. "
        "Run `penstock reindex` to build the index anew with the present embedder.",
        reason="dimension_mismatch",
    )
