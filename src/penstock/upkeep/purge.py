"""Purge: remove the rows of replaced and deleted generations from the index, when no search reads them any more. If the
index needs a single writer, this is done under the lock of the table."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

from penstock.errors import LeaseLost, LedgerAway, Transient
from penstock.indexes.base import Fence, IndexTable, TableId
from penstock.indexes.several import Indexes
from penstock.ledger.database.store import Ledger
from penstock.ledger.engine import generations, locks
from penstock.ledger.engine.generations import Purge
from penstock.ledger.engine.locks import index_key
from penstock.model.nouns import GenerationId, Token, WorkerId

LOCK_S = 120.0
BATCH = 500
AGAIN_S = 60.0
"""Seconds until a table that could not be changed is tried again."""


async def purge(
    ledger: Ledger,
    index: Indexes,
    worker: WorkerId,
    *,
    ahead_s: float = 0.0,
    failed: Callable[[str, BaseException], None] = lambda key, error: None,
) -> int:
    """Purge what is due. Skips a table whose lock is held, and a table that cannot be changed: then `failed` is called
    with the error. Returns the number of purged generations."""
    done = 0
    due = await ledger.read(generations.due_purges, BATCH, ahead_s)
    tables: dict[TableId, list[Purge]] = {}
    for row in due:
        tables.setdefault(TableId(row.owner, row.collection, row.version), []).append(row)
    for place, rows in tables.items():
        key, leaving = index_key(*place), [row.generation for row in rows]
        async with hold_table(ledger, index, place, worker, "purge") as fence:
            if fence is None:
                continue
            try:
                await take_out(ledger, await index.open(place), place.version, leaving, fence)
            except (LeaseLost, Transient):
                # The purge rows remain, so the next purge tries again.
                continue
            except (asyncio.CancelledError, LedgerAway):
                raise
            except BaseException as error:
                await ledger.write(generations.POSTPONE, (tuple(leaving), AGAIN_S))
                failed(key, error)
                continue
            done += len(rows)
    return done


async def take_out(
    ledger: Ledger, table: IndexTable | None, version: int, leaving: Sequence[GenerationId], fence: Fence
) -> None:
    """Remove generations from a table, first the index rows and then the purge rows. After a crash in between, this is
    repeated."""
    if table is not None:
        await table.delete(leaving, fence)
    await ledger.write(generations.PURGED, generations.Removed(version, tuple(leaving)))


async def unfenced() -> None:
    """The fence for maintenance of a table with several writers. It never raises: there is no lock to lose, and the
    changes can be repeated."""


@asynccontextmanager
async def hold_table(
    ledger: Ledger, index: Indexes, table: TableId, worker: WorkerId, purpose: str
) -> AsyncIterator[Fence | None]:
    """Hold the lock of an index table, if the index needs one. Yields None if another process holds it."""
    if not (await index.of(table)).traits.single_writer:
        yield unfenced
        return
    async with hold(ledger, index_key(*table), worker, purpose) as fence:
        yield fence


@asynccontextmanager
async def hold(
    ledger: Ledger, key: str, worker: WorkerId, purpose: str, lease_s: float = LOCK_S
) -> AsyncIterator[Fence | None]:
    """Hold a lock for work that is not a step. Yields None if another process holds it."""
    token = Token(ledger.database.runtime.token())
    if not await ledger.write(locks.ACQUIRE, locks.Acquire(key, token, worker, purpose, lease_s)):
        yield None
        return

    async def fence() -> None:
        if not await ledger.read(locks.held, key, token):
            raise LeaseLost(f"the lock {key} now belongs to another worker")

    try:
        yield fence
    finally:
        await ledger.write(locks.RELEASE, (key, token))
