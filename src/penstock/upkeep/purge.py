"""Purge: take replaced and deleted generations out of the index, under its lock, when their readers are gone."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

from penstock.errors import LeaseLost, LedgerAway, Transient
from penstock.indexes.base import Index, IndexTable, Verify
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
    """Process what is due. A table whose lock is held is left for another time, and so is one that cannot be changed,
    whatever it raises: `failed` is told. Returns how many generations went."""
    done = 0
    due = await ledger.read(generations.due_purges, BATCH, ahead_s)
    tables: dict[tuple[str, str, int], list[Purge]] = {}
    for row in due:
        tables.setdefault((row.owner, row.collection, row.version), []).append(row)
    for place, rows in tables.items():
        key, leaving = index_key(*place), [row.generation for row in rows]
        async with hold(ledger, key, worker, "purge") as verify:
            if verify is None:
                continue
            try:
                await take_out(ledger, await index.table(*place), leaving, verify)
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


async def take_out(ledger: Ledger, table: IndexTable, leaving: Sequence[GenerationId], verify: Verify) -> None:
    """The rows first: a kill in between leaves work that is done once more."""
    if table.dimensions is not None:
        await table.delete(leaving, verify)
    await ledger.write(generations.PURGED, tuple(leaving))


@asynccontextmanager
async def hold(
    ledger: Ledger, key: str, worker: WorkerId, purpose: str, lease_s: float = LOCK_S
) -> AsyncIterator[Verify | None]:
    """A lock for something that is not a step; None where somebody else has it."""
    token = Token(ledger.database.runtime.token())
    if not await ledger.write(locks.ACQUIRE, locks.Acquire(key, token, worker, purpose, lease_s)):
        yield None
        return

    async def verify() -> None:
        if not await ledger.read(locks.held, key, token):
            raise LeaseLost(f"the lock {key} belongs to somebody else now")

    try:
        yield verify
    finally:
        await ledger.write(locks.RELEASE, (key, token))
