"""Maintenance of the data of one owner: check, vacuum, and the locks of its indexes."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import msgspec

from penstock.ledger.engine.locks import Forced
from penstock.ledger.reads import stats
from penstock.ledger.reads.stats import ListedLock, LockRelease
from penstock.verbs import arguments
from penstock.verbs.scope import Scope, chosen_collection

if TYPE_CHECKING:
    from penstock.upkeep.report import CheckReport
    from penstock.upkeep.vacuum import VacuumReport
    from penstock.worker.holding import HeldLock

LOCK_RELEASES = 100


async def check(
    scope: Scope,
    *,
    repair: bool = False,
    sample: float = 1.0,
    progress: Callable[[str, int], None] | None = None,
) -> "CheckReport":
    """Compare ledger, blobs and index in both directions. With `repair`, correct what can be corrected. `sample` is the
    share of stored files, chosen at random, whose content is compared; all files are checked for existence. `progress`
    is called with what is being checked, and how much of it is done."""
    arguments.share("sample", sample)
    return await scope.resources.maintenance.check(scope.owner, repair=repair, sample=sample, progress=progress)


async def vacuum(
    scope: Scope,
    collection: str | None = None,
    *,
    wait_s: float | None = 60.0,
    force: bool = False,
    by: str | None = None,
) -> "VacuumReport":
    """Purge and compact the indexes of one collection or of all, and store their checksums. If of all, an embedded
    ledger is written again without its free space. Wait at most `wait_s` seconds for each lock (None: without limit);
    `busy` lists the indexes that stayed locked. With `force`, release the lock first, like `release_lock`."""
    wait_s, by = arguments.seconds("wait_s", wait_s), arguments.maybe("by", by)
    return await scope.resources.maintenance.vacuum(scope.owner, collection, wait_s, force=force, by=by)


@asynccontextmanager
async def hold_index(
    scope: Scope, collection: str | None = None, *, max_wait: float | None = None
) -> "AsyncIterator[HeldLock]":
    """Make the block the only writer to the index of a collection: `async with app.hold_index() as held:`. Wait at most
    `max_wait` seconds for the lock (None: without limit; 0: not at all), then raise `LockHeld`. If the lock is lost
    during the block, `held.raise_if_lost()` and the end of the block raise `LeaseLost`."""
    longest = arguments.seconds("max_wait", max_wait)
    where = chosen_collection(scope, collection)
    async with scope.resources.maintenance.hold_index(scope.owner, where, longest) as held:
        yield held


class Locks(msgspec.Struct, frozen=True):
    """The locks of an owner."""

    locks: list[ListedLock]
    released: list[LockRelease]
    """The newest records of forced releases."""


async def list_locks(scope: Scope) -> Locks:
    """Return the locks that are held, and the newest records of forced releases."""
    async with scope.ledger.snapshot() as snapshot:
        return Locks(
            await snapshot.read(lambda c: stats.locks(scope.owner, c)),
            await snapshot.read(lambda c: stats.lock_releases(scope.owner, c, LOCK_RELEASES)),
        )


async def release_lock(scope: Scope, key: str, *, force: bool = False, by: str | None = None) -> Forced:
    """Release a lock by force. Its holder can no longer write, its steps return to the queue, and the ledger records
    who released it: `by`, or else the user of this process."""
    key, by = arguments.text("key", key), arguments.maybe("by", by)
    return await scope.resources.maintenance.release_lock(scope.owner, key, force=force, by=by)
