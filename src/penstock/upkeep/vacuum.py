"""Vacuum: under the lock of each index table, purge what is due, merge small files, update the indexes, and remove old
versions that are no longer read. At the end, store a checksum of the table for `check`. Each of these actions is one
commit, so that a crash in between leaves the table as the last commit made it.

A table on a server is only purged: the server does the rest itself."""

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Protocol

import msgspec

from penstock.errors import LeaseLost, LockHeld
from penstock.indexes.base import Fence, IndexTable, TableId, maintained
from penstock.ledger.database.compaction import CompactedLedger
from penstock.ledger.engine import generations
from penstock.ledger.engine.locks import index_key
from penstock.ledger.reads.stats import ListedLock, locks
from penstock.ledger.upkeep import checksums
from penstock.ledger.upkeep.audit_index import TablePlace
from penstock.model.nouns import Owner, Token
from penstock.upkeep.purge import BATCH, take_out, unfenced
from penstock.upkeep.report import Stores


class TableLock(Protocol):
    """The held lock of a table. Its lease is extended while it is held."""

    token: Token
    given_back: bool

    async def verify(self) -> None:
        """Raises `LeaseLost` if the lock was lost."""


Hold = Callable[[str], AbstractAsyncContextManager[TableLock]]
"""Takes the lock of a resource key, or raises `LockHeld`."""

BY_SERVER = "the server does this itself"


class Vacuumed(msgspec.Struct, frozen=True):
    collection: str
    version: int
    rows: int
    rows_removed: int
    purged: int
    """Number of replaced and deleted generations that were removed."""
    bytes_before: int
    bytes_after: int
    """The size of the latest version. `bytes_old` is the size of old files, which are kept some minutes if
    somebody reads the table."""
    bytes_old: int
    checksum: str | None
    note: str | None = None
    """The reason why nothing was merged: the table is on a server, which does this itself."""


class BusyTable(msgspec.Struct, frozen=True):
    """A table that was not changed, and who held its lock. None: the holder released it meanwhile."""

    collection: str
    version: int
    worker: str | None
    host: str | None
    pid: int | None
    purpose: str | None
    until: float | None


class VacuumReport(msgspec.Struct, frozen=True):
    """`busy`: tables that were not changed because another process held their lock, and the holders. `ledger`: the size
    of an embedded ledger; None if it was not written again."""

    collections: list[Vacuumed]
    busy: list[BusyTable]
    elapsed_s: float
    ledger: CompactedLedger | None = None


async def vacuum(stores: Stores, places: Sequence[TablePlace], hold: Hold, *, whole: bool) -> VacuumReport:
    """`whole`: the ledger too."""
    runtime = stores.ledger.database.runtime
    began = runtime.clock()
    done: list[Vacuumed] = []
    busy: list[BusyTable] = []
    for place in places:
        key = index_key(place.owner, place.collection, place.version)
        try:
            index = await stores.index.of(TableId(place.owner, place.collection, place.version))
            if not index.traits.single_writer:
                done.append(await _on_server(stores, place))
                continue
            async with hold(key) as held:
                done.append(await _vacuum(stores, place, held))
        except LockHeld:
            busy.append(await _busy(stores, place, key))
    ledger = await stores.ledger.compact() if whole else None
    return VacuumReport(done, busy, round(runtime.clock() - began, 3), ledger)


async def _vacuum(stores: Stores, place: TablePlace, held: TableLock) -> Vacuumed:
    table = await stores.open(place)
    kept = maintained(table)
    before, rows = await kept.state() if kept else None, await table.count() if table else 0
    purged = await _purge(stores, place, table, held.verify)
    if kept is not None:
        await kept.compact(held.verify, thorough=True)
    left, checksum = await table.count() if table else 0, await kept.checksum() if kept else None
    after = await kept.state() if kept else None
    if checksum is not None:
        new = checksums.NewChecksum(place, held.token, checksum.version, checksum.sha256)
        held.given_back = await stores.ledger.write(checksums.STORE_CHECKSUM, new)
        if not held.given_back:
            raise LeaseLost(f"the lock {new.key} was taken away before the end: vacuum again")
    return Vacuumed(
        collection=place.collection,
        version=place.version,
        rows=left,
        rows_removed=rows - left,
        purged=purged,
        bytes_before=before.bytes if before else 0,
        bytes_after=after.bytes if after else 0,
        bytes_old=after.old_bytes if after else 0,
        checksum=checksum.sha256 if checksum else None,
        note=None if kept is not None or table is None else BY_SERVER,
    )


async def _on_server(stores: Stores, place: TablePlace) -> Vacuumed:
    """Purge a table on a server, which has no lock."""
    table = await stores.open(place)
    before = await table.count() if table else 0
    purged = await _purge(stores, place, table, unfenced)
    left = await table.count() if table else 0
    return Vacuumed(place.collection, place.version, left, before - left, purged, 0, 0, 0, None, BY_SERVER)


async def _purge(stores: Stores, place: TablePlace, table: IndexTable | None, fence: Fence) -> int:
    look = partial(generations.due_purges_in, Owner(place.owner))
    purged = 0
    while due := await stores.ledger.read(look, place.collection, place.version, BATCH):
        await take_out(stores.ledger, table, place.version, due, fence)
        purged += len(due)
    return purged


async def _busy(stores: Stores, place: TablePlace, key: str) -> BusyTable:
    found = await stores.ledger.read(partial(locks, Owner(place.owner)))
    holder: ListedLock | None = next((lock for lock in found if lock.key == key), None)
    if holder is None:
        return BusyTable(place.collection, place.version, None, None, None, None, None)
    who = (holder.worker, holder.host, holder.pid, holder.purpose, holder.until)
    return BusyTable(place.collection, place.version, *who)
