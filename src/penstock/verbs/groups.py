"""The run groups and batches of an owner: list, show, start, retry, cancel."""

import json
from functools import partial

import msgspec

from penstock.errors import NotFound, UsageError
from penstock.intake import RunSpec, submission
from penstock.ledger.database.store import Ledger
from penstock.ledger.engine import cancellations, documents, groups, restarts, submissions
from penstock.ledger.engine import usage as booked
from penstock.ledger.reads import batches
from penstock.ledger.reads.batches import Batch, Durations, Group
from penstock.model.nouns import DocumentId, Owner, RunId
from penstock.verbs import arguments, views
from penstock.verbs.documents import retry
from penstock.verbs.querying import fitted
from penstock.verbs.scope import Scope, chosen_collection
from penstock.verbs.usage import Usage, summed

PAGE = 500
CANCELLED_AT_ONCE = 1000


class GroupView(msgspec.Struct, frozen=True):
    """A group with its rate and its estimated time left."""

    group: Group
    durations: Durations | None
    runs_per_s: float
    eta_s: float | None
    usage: Usage
    """What its runs bought and saved."""


class BatchStart(msgspec.Struct, frozen=True):
    """What `batch start` did."""

    group: str | None
    """The group of the started runs; None if no run was started."""
    started: int
    done: int
    """Documents that are COMPLETED with the same workflow and values. They are not changed."""
    working: int
    """Documents that have an open run with the same workflow and values."""


async def list_groups(scope: Scope, *, batch: str | None = None, limit: int = 100) -> list[Group]:
    """Return groups of runs that were started together, newest first."""
    look = partial(batches.newest, scope.owner)
    return await scope.ledger.read(look, arguments.maybe("batch", batch), arguments.count("limit", limit))


async def group(scope: Scope, name: str) -> GroupView:
    """Return one group with its counts, durations, rate and estimated time left."""
    arguments.text("name", name)
    async with scope.ledger.snapshot() as snapshot:
        known = await snapshot.read(lambda c: batches.resolve(scope.owner, c, name))
        found = await snapshot.read(lambda c: batches.get(scope.owner, c, known)) if known else None
        if found is None:
            raise NotFound(f"no group {name!r} (or it is ambiguous): `penstock group list` shows all groups")
        pace = await snapshot.read(lambda c: batches.pace(scope.owner, c, found.id))
        bought = await snapshot.read(lambda c: booked.of_group(scope.owner, c, found.id))
    return GroupView(found, pace.durations, pace.runs_per_s, pace.eta_s, summed(bought))


async def retry_group(scope: Scope, name: str, *, cancelled: bool = False) -> int:
    """Continue the failed runs of a group (with `cancelled`, also the cancelled ones) at their checkpoints. The group
    opens again, and ends again."""
    found = (await group(scope, name)).group
    retried = 0
    for status in ("FAILED", "CANCELLED") if cancelled else ("FAILED",):
        after = ""
        while True:
            look = partial(batches.documents_of_group, scope.owner)
            page = await scope.ledger.read(look, found.id, status, after, PAGE)
            if not page:
                break
            after = page[-1]
            retried += len(await retry(scope, page))
    return retried


async def cancel_group(scope: Scope, name: str) -> int:
    """Cancel the runs of a group that have not ended, and return their number. Workers learn of it with their next
    heartbeat, within a second."""
    found = (await group(scope, name)).group
    cancelled = 0
    while n := await scope.ledger.write(
        cancellations.CANCEL_GROUP, cancellations.CancelGroup(scope.owner, found.id, CANCELLED_AT_ONCE)
    ):
        cancelled += n
    return cancelled


async def list_batches(scope: Scope) -> list[Batch]:
    """Return batches, newest first. A batch is the documents that were submitted under one name."""
    return await scope.ledger.read(partial(batches.batches, scope.owner))


async def start_batch(
    scope: Scope,
    batch: str,
    *,
    workflow: str | None = None,
    params: str | None = None,
    collection: str | None = None,
    priority: int = 0,
    again: bool = False,
) -> BatchStart:
    """Start a workflow for the documents of a batch, as one group, and return without waiting for the workers.
    Searchable documents stay searchable until their new run has ended. Documents that are COMPLETED with the same
    workflow and values are skipped, unless `again` is set."""
    where, specs = chosen_collection(scope, collection), scope.resources.run_specs
    arguments.text("batch", batch)
    arguments.number("priority", priority, -arguments.PRIORITY, arguments.PRIORITY)
    asked = specs.asked(where, workflow, params)
    spec = specs.start(scope.owner, where, asked, batch=batch, priority=priority)
    spec = await fitted(scope, spec)
    return await _start(scope.owner, scope.ledger, spec, again)


async def start_document(
    scope: Scope, document: str, *, workflow: str | None = None, params: str | None = None, priority: int = 0
) -> BatchStart:
    """Start a workflow for one document, as a group of one run, and return without waiting for the workers."""
    arguments.text("document", document)
    arguments.number("priority", priority, -arguments.PRIORITY, arguments.PRIORITY)
    specs = scope.resources.run_specs
    found = await scope.ledger.read(lambda c: views.resolve(scope.owner, c, document))
    entry = await scope.ledger.read(lambda c: documents.get(scope.owner, c, found))
    if entry is None:
        raise NotFound(f"no document {document!r}: `penstock list` shows all documents")
    one = entry.document
    spec = specs.start(scope.owner, one.collection, specs.asked(one.collection, workflow, params), priority=priority)
    spec = await fitted(scope, spec)
    assert spec.group is not None
    run = RunId(scope.runtime.ulid())
    new = submissions.NewDocument(one.id, run, one.source, one.name, one.sha256, one.size, None, dict(one.metadata))
    done = await scope.ledger.write(restarts.START, restarts.Start(submission(spec, (new,)), again=True))
    if done.started:
        await scope.ledger.write(groups.SEAL, spec.group.id)
    return BatchStart(spec.group.id if done.started else None, len(done.started), done.done, done.working)


async def _start(owner: Owner, ledger: Ledger, spec: RunSpec, again: bool) -> BatchStart:
    """Start the workflow for all documents of the batch."""
    assert spec.group is not None
    assert spec.batch is not None
    runtime = ledger.database.runtime
    after, seen = "", 0
    started = done = working = 0
    while True:
        look = partial(batches.documents_of_batch, owner)
        rows = await ledger.read(look, spec.batch, spec.collection, after, PAGE)
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
        part = await ledger.write(restarts.START, restarts.Start(submission(spec, documents), again))
        started, done, working = started + len(part.started), done + part.done, working + part.working
    if not seen:
        raise UsageError(
            f"no documents of a batch {spec.batch!r} in collection {spec.collection!r}: "
            "`penstock batch list` shows the batches, `penstock ingest PATH --batch NAME` makes one"
        )
    if started:
        await ledger.write(groups.SEAL, spec.group.id)
    return BatchStart(spec.group.id if started else None, started, done, working)
