"""VACUUM of an embedded ledger, which writes the file again without its free space. Other processes can read meanwhile,
and wait with what they write. PostgreSQL does this itself."""

import os
from contextlib import suppress
from pathlib import Path

import msgspec

from penstock.errors import StorageError
from penstock.ledger.database.connection import Connection

LARGEST = 512 << 20
"""A larger ledger is not written again: writers would wait too long. SQLite uses its free space for what comes next."""
LEAST = 1 << 20
"""Less free space than this is not worth it."""


class CompactedLedger(msgspec.Struct, frozen=True):
    bytes_before: int
    bytes_after: int


def compact(path: Path, connection: Connection) -> CompactedLedger | None:
    """The size of the file before and after; None if it is not worth it, or cannot be done now: the disk is full, or
    somebody writes for a long time."""
    with suppress(StorageError, OSError):
        # The log holds what belongs into the file, and later the whole file.
        connection.script("PRAGMA wal_checkpoint(TRUNCATE)")
        before = os.path.getsize(path)
        [(free,)] = connection.script("SELECT freelist_count * page_size FROM pragma_freelist_count, pragma_page_size")
        if before > LARGEST or free < LEAST:
            return None
        connection.script("VACUUM")
        connection.script("PRAGMA wal_checkpoint(TRUNCATE)")
        return CompactedLedger(before, os.path.getsize(path))
    return None
