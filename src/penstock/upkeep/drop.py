"""Drop collections: delete their documents in several transactions. A worker, `prune`, and an ingest into the
collection continue a drop that was interrupted."""

from functools import partial

from penstock.ledger.database.store import Ledger
from penstock.ledger.engine import collections, deletions
from penstock.ledger.engine.collections import Drop
from penstock.ledger.engine.runs import Selected
from penstock.model.nouns import Owner

BATCH = 1_000
"""The number of documents that one transaction deletes."""


async def finish_drop(ledger: Ledger, drop: Drop) -> int:
    """Delete what is left of a collection. Returns the number of documents."""
    done = 0
    while page := await ledger.read(partial(collections.left, drop.owner), drop, BATCH):
        deleted = await ledger.write(deletions.DELETE, Selected(drop.owner, tuple(page)))
        done += len(deleted)
    await ledger.write(collections.END_DROP, drop)
    return done


async def finish_drops(ledger: Ledger) -> int:
    """Finish the drops of all owners that were interrupted. Returns the number of documents."""
    return sum([await finish_drop(ledger, drop) for drop in await ledger.read(collections.begun)])


async def finish_drops_of(ledger: Ledger, owner: Owner, collection: str) -> None:
    """Finish the drop of a collection, if one was interrupted."""
    for drop in await ledger.read(partial(collections.begun_in, owner), collection):
        await finish_drop(ledger, drop)
