"""Run groups and batches: start, look, retry, cancel."""

import json
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import msgspec

from penstock.errors import NotFound, UsageError
from penstock.intake import Order, submission
from penstock.ledger.database.store import Ledger
from penstock.ledger.engine import cancellations, groups, restarts, submissions
from penstock.ledger.reads import batches
from penstock.ledger.reads.batches import Durations, Group
from penstock.model.nouns import DocumentId, Owner, RunId

PAGE = 500
CANCELLED_AT_ONCE = 1000


class GroupView(msgspec.Struct, frozen=True):
    """A group with how fast it goes."""

    group: Group
    durations: Durations | None
    runs_per_s: float
    eta_s: float | None


class BatchStart(msgspec.Struct, frozen=True):
    """What `batch start` did."""

    group: str | None
    """The group of the started runs; None: there was nothing to start."""
    started: int
    done: int
    """COMPLETED with the same workflow and values: left as they are."""
    working: int
    """Being worked on, with the same workflow and values."""


async def view(owner: Owner, ledger: Ledger, name: str) -> GroupView:
    async with ledger.snapshot() as snapshot:
        group = await snapshot.read(lambda c: batches.resolve(owner, c, name))
        found = await snapshot.read(lambda c: batches.get(owner, c, group)) if group else None
        if found is None:
            raise NotFound(f"no group {name!r} (or more than one begins or ends so): `penstock group list` shows them")
        pace = await snapshot.read(lambda c: batches.pace(owner, c, found.id))
    return GroupView(found, pace.durations, pace.runs_per_s, pace.eta_s)


async def start(owner: Owner, ledger: Ledger, order: Order, again: bool) -> BatchStart:
    """A workflow for all documents of a batch, as one group."""
    assert order.group is not None
    assert order.batch is not None
    runtime = ledger.database.runtime
    after, seen = "", 0
    started = done = working = 0
    while True:
        look = partial(batches.documents_of_batch, owner)
        rows = await ledger.read(look, order.batch, order.collection, after, PAGE)
        if not rows:
            break
        after, seen = rows[-1][0], seen + len(rows)
        run_ids = runtime.ulids(len(rows))
        documents = tuple(
            submissions.NewDocument(
                DocumentId(row[0]), RunId(run), row[1], row[2], row[3], row[4], None, json.loads(row[5])
            )
            for row, run in zip(rows, run_ids, strict=True)
        )
        part = await ledger.write(restarts.START, restarts.Start(submission(order, documents), again))
        started, done, working = started + len(part.started), done + part.done, working + part.working
    if not seen:
        raise UsageError(
            f"no documents of a batch {order.batch!r} in collection {order.collection!r}: "
            "`penstock batch list` shows the batches, `penstock ingest PATH --batch NAME` makes one"
        )
    if started:
        await ledger.write(groups.SEAL, order.group.id)
    return BatchStart(order.group.id if started else None, started, done, working)


async def cancel(owner: Owner, ledger: Ledger, group: str) -> int:
    """How many runs it stopped. Their workers learn of it with their next heartbeat, within a second."""
    cancelled = 0
    while n := await ledger.write(
        cancellations.CANCEL_GROUP, cancellations.CancelGroup(owner, group, CANCELLED_AT_ONCE)
    ):
        cancelled += n
    return cancelled


async def retry(
    owner: Owner,
    ledger: Ledger,
    group: str,
    statuses: tuple[str, ...],
    again: Callable[[list[DocumentId]], Awaitable[set[Any]]],
) -> int:
    """Retry what ended so in the group: it opens again, and ends again."""
    retried = 0
    for status in statuses:
        after = ""
        while True:
            look = partial(batches.documents_of_group, owner)
            found = await ledger.read(look, group, status, after, PAGE)
            if not found:
                break
            after = found[-1]
            retried += len(await again(found))
    return retried
