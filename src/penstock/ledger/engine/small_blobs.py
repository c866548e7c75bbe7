"""The rows of small blobs. They are written by the transactions that name them: submit, checkpoint, complete and flip.

These statements cross owners (I10): keys begin with the owner, and come from rows of that owner."""

from collections.abc import Sequence

from penstock.ledger.database.connection import Connection, Row
from penstock.ledger.database.statements import VALUES_LIMIT, Statement
from penstock.ledger.database.writer import Verb

PAGE = 500

_KEEP = Statement(
    "INSERT INTO small_blobs (key, data, added_at) SELECT r.key, r.data, {now} FROM {rows} WHERE true",
    rows="key text, data bytea",
)
_GET = Statement("SELECT b.key, b.data FROM {rows} JOIN {small_blobs b: b.key = r.key}", rows="key text")
_SIZES = Statement(
    "SELECT b.key, length(b.data), b.added_at FROM {rows} JOIN {small_blobs b: b.key = r.key}", rows="key text"
)
_LIST = Statement(
    "SELECT key, length(data), added_at FROM small_blobs WHERE key {bytes} > :after AND key {bytes} < :until "
    "ORDER BY key {bytes} LIMIT :count"
)
_DELETE = Statement("DELETE FROM small_blobs WHERE key IN (SELECT r.key FROM {rows})", rows="key text")


def keep(connection: Connection, blobs: Sequence[tuple[str, bytes]]) -> None:
    if blobs:
        connection.run(_KEEP, blobs)


def get(connection: Connection, keys: Sequence[str]) -> dict[str, bytes]:
    """The bytes of those that are there."""
    return {row[0]: bytes(row[1]) for row in connection.run(_GET, [(key,) for key in keys])}


def sizes(connection: Connection, keys: Sequence[str]) -> dict[str, tuple[int, float]]:
    """Size and time of those that are there."""
    return {row[0]: (row[1], row[2]) for row in connection.run(_SIZES, [(key,) for key in keys])}


def page(connection: Connection, after: str, until: str) -> list[Row]:
    """Some of the keys between two others, in order, each with its size and time."""
    return connection.run(_LIST, after=after, until=until, count=PAGE)


def remove(connection: Connection, keys: Sequence[str]) -> None:
    for start in range(0, len(keys), VALUES_LIMIT):
        connection.run(_DELETE, [(key,) for key in keys[start : start + VALUES_LIMIT]])


def _delete(connection: Connection, requests: Sequence[Sequence[str]]) -> list[None]:
    for keys in requests:
        remove(connection, keys)
    return [None for _ in requests]


DELETE = Verb("delete_small_blobs", _delete)
