"""Purge: take replaced and deleted generations out of the index when their readers are gone. Where a table has a single
writer, this is done under its lock."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

from penstock.errors import LeaseLost, LedgerAway, Transient
from penstock.indexes.base import Fence, Index, IndexTable, TableId
from penstock.ledger.database.store import Ledger
from penstock.ledger.engine import generations, locks
from penstock.ledger.engine.generations import Purge
from penstock.ledger.engine.locks import index_key
from penstock.model.nouns import GenerationId, Token, WorkerId

LOCK_S = 120.0
BATCH = 500
AGAIN_S = 60.0
"""Until a table that could not be changed is tried again."""


async def purge(
    ledger: Ledger,
    index: Index,
    worker: WorkerId,
    *,
    ahead_s: float = 0.0,
    failed: Callable[[str, BaseException], None] = lambda key, error: None,
) -> int:
    """Process what is due. A table whose lock is held is left for another time, and so is one that cannot be changed:
    `failed` is told the error. Returns how many generations were taken out."""
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
                # The purge rows stay: another time.
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
    """The rows first: a kill in between leaves work that is done once more."""
    if table is not None:
        await table.delete(leaving, fence)
    await ledger.write(generations.PURGED, generations.Removed(version, tuple(leaving)))


async def unfenced() -> None:
    """The fence of a table with many writers, for what is not a step: there is no lock that could be lost, and what is
    done twice is done once."""


@asynccontextmanager
async def hold_table(
    ledger: Ledger, index: Index, table: TableId, worker: WorkerId, purpose: str
) -> AsyncIterator[Fence | None]:
    """The lock of an index table, if it needs one; None where somebody else has it."""
    if not index.traits.single_writer:
        yield unfenced
        return
    async with hold(ledger, index_key(*table), worker, purpose) as fence:
        yield fence


@asynccontextmanager
async def hold(
    ledger: Ledger, key: str, worker: WorkerId, purpose: str, lease_s: float = LOCK_S
) -> AsyncIterator[Fence | None]:
    """A lock for something that is not a step; None where somebody else has it."""
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
