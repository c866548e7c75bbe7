"""Continue re-indexes: start runs for the next version, switch to it, and clear away what was cancelled or can no
longer be undone. Every step is one transaction that checks everything again, so any number of processes may call
this, and any of them may die."""

from functools import partial

from penstock.ledger.database.store import Ledger
from penstock.ledger.engine import reindexes, switches
from penstock.ledger.engine.reindexes import Reindex, Start
from penstock.ledger.engine.switches import Clear, Switch
from penstock.model.nouns import RunId

BATCH = 500
"""The number of documents in one transaction."""
AHEAD = 1_000
"""The number of runs that wait at once. What is submitted meanwhile is not behind all others."""


async def advance(ledger: Ledger, one: Reindex) -> bool:
    """Do what can be done now. Returns whether anything was done."""
    if one.state == "CANCELLING":
        await clear(ledger, one, one.version)
        return True
    if one.state != "BUILDING":
        return False
    busy = await ledger.read(partial(reindexes.working, one.owner), one.collection, one.version)
    started, after = 0, ""
    while busy + started < AHEAD:
        count = min(BATCH, AHEAD - busy - started)
        page = await ledger.read(partial(reindexes.wanted, one.owner), one, after, count)
        if not page:
            break
        after = page[-1]
        runs = [RunId(run) for run in ledger.database.runtime.ulids(len(page))]
        order = Start(one.owner, one.collection, one.version, tuple(zip(page, runs, strict=True)))
        started += await ledger.write(reindexes.START_REINDEX, order)
    if busy or started:
        return bool(started)
    return await ledger.write(switches.SWITCH, Switch(one.owner, one.collection, one.version))


async def clear(ledger: Ledger, one: Reindex, version: int) -> None:
    """Give up the generations of a version, and the re-index."""
    order = Clear(one.owner, one.collection, version, BATCH)
    while await ledger.write(switches.CLEAR_REINDEX, order):
        pass


async def advance_all(ledger: Ledger) -> bool:
    """Continue the re-indexes of all owners. A worker calls this from time to time."""
    done = [await advance(ledger, one) for one in await ledger.read(reindexes.worked)]
    return any(done)


async def expire(ledger: Ledger, kept_s: float) -> None:
    """Give up former versions that were kept for `kept_s` seconds. `prune` then removes their rows and tables."""
    for one in await ledger.read(reindexes.expired, kept_s):
        await clear(ledger, one, one.former)
