"""The run groups and batches of an owner: list, show, start, retry, cancel."""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import msgspec

from penstock.errors import NotFound, UsageError
from penstock.intake import RunSpec, submission
from penstock.ledger.engine import cancellations, documents, groups, restarts, submissions, work
from penstock.ledger.engine import usage as booked
from penstock.ledger.engine.documents import Origin
from penstock.ledger.reads import batches
from penstock.ledger.reads.batches import Batch, Durations, Group
from penstock.model.nouns import DocumentId, RunId, WorkflowRef
from penstock.model.states import DocumentStatus
from penstock.verbs import arguments, views
from penstock.verbs.changes import Changes
from penstock.verbs.documents import retry
from penstock.verbs.querying import fitted
from penstock.verbs.scope import Scope, chosen_collection
from penstock.verbs.usage import Usage, summed
from penstock.workflows.load import decode, merged

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
    values: Mapping[str, Mapping[str, Any]] | None = None,
    collection: str | None = None,
    priority: int = 0,
    again: bool = False,
) -> BatchStart:
    """Start a workflow for the documents of a batch, as one group, and return without waiting for the workers.
    Searchable documents stay searchable until their new run has ended. Documents that are COMPLETED with the same
    workflow and values are skipped, unless `again` is set. `values` are single parameters, by step. Without `workflow`
    and `params`, held documents start with those that they were submitted with."""
    where = chosen_collection(scope, collection)
    starting = await _Starting.begin(scope, where, workflow, params, values, priority, arguments.text("batch", batch))
    after, seen = "", 0
    while True:
        rows = await scope.ledger.read(partial(batches.documents_of_batch, scope.owner), batch, where, after, PAGE)
        if not rows:
            break
        after, seen = rows[-1][0], seen + len(rows)
        await starting.start([(DocumentId(row[0]), row[1:]) for row in rows], again=again)
    if not seen:
        raise UsageError(
            f"no documents of a batch {batch!r} in collection {where!r}: "
            "`penstock batch list` shows the batches, `penstock ingest PATH --batch NAME` makes one"
        )
    return await starting.end()


async def start_document(
    scope: Scope,
    document: str,
    *,
    workflow: str | None = None,
    params: str | None = None,
    values: Mapping[str, Mapping[str, Any]] | None = None,
    priority: int = 0,
) -> BatchStart:
    """Start a workflow for one document, as a group of one run, and return without waiting for the workers. Without
    `workflow` and `params`, a held document starts with those that it was submitted with."""
    arguments.text("document", document)
    found = await scope.ledger.read(lambda c: views.resolve(scope.owner, c, document))
    entry = await scope.ledger.read(lambda c: documents.get(scope.owner, c, found))
    if entry is None:
        raise NotFound(f"no document {document!r}: `penstock list` shows all documents")
    one = entry.document
    starting = await _Starting.begin(scope, one.collection, workflow, params, values, priority, None)
    row = (one.source, one.name, one.sha256, one.size, json.dumps(dict(one.metadata)))
    await starting.start([(one.id, row)], again=True)
    return await starting.end()


class _Starting:
    """One call that starts a workflow for documents, as one group."""

    def __init__(self, scope: Scope, spec: RunSpec, changes: Changes) -> None:
        assert spec.group is not None
        self._scope = scope
        self._spec = spec
        self._group = spec.group
        self._changes = changes
        self._own: dict[str, RunSpec] = {}
        """What held documents start with, by the snapshot that they were submitted with."""
        self._started = self._done = self._working = 0

    @classmethod
    async def begin(
        cls,
        scope: Scope,
        collection: str,
        workflow: str | None,
        params: str | None,
        values: Mapping[str, Mapping[str, Any]] | None,
        priority: int,
        batch: str | None,
    ) -> "_Starting":
        arguments.number("priority", priority, -arguments.PRIORITY, arguments.PRIORITY)
        changes, specs = Changes(workflow, params, arguments.values(values)), scope.resources.run_specs
        asked = specs.asked(collection, workflow, params)
        asked = WorkflowRef(asked.workflow, asked.params, merged(changes.values))
        spec = await fitted(scope, specs.start(scope.owner, collection, asked, batch=batch, priority=priority))
        return cls(scope, spec, changes)

    async def start(self, rows: Sequence[tuple[DocumentId, Sequence[Any]]], *, again: bool) -> None:
        alike: dict[str, list[submissions.NewDocument]] = {}
        origins: dict[DocumentId, Origin] = {}
        if self._changes.workflow is None and self._changes.params is None:
            ids = [document for document, _ in rows]
            origins = await self._scope.ledger.read(partial(documents.origins, self._scope.owner), ids)
        run_ids = self._scope.runtime.ulids(len(rows))
        for (document, row), run in zip(rows, run_ids, strict=True):
            source, name, sha256, size, metadata = row
            new = submissions.NewDocument(
                document, RunId(run), source, name, sha256, size, None, json.loads(metadata)
            )  # fmt: skip
            origin = origins.get(document)
            own = origin.snapshot if origin is not None and origin.status == DocumentStatus.HELD else ""
            if origin is not None and own and own not in self._own:
                self._own[own] = await self._own_spec(origin)
            alike.setdefault(own, []).append(new)
        for own, some in alike.items():
            part = submission(self._own[own] if own else self._spec, tuple(some))
            done = await self._scope.ledger.write(restarts.START, restarts.Start(part, again))
            self._started += len(done.started)
            self._done += done.done
            self._working += done.working

    async def _own_spec(self, origin: Origin) -> RunSpec:
        body = await self._scope.ledger.read(work.snapshot, origin.snapshot)
        spec, _ = self._scope.resources.run_specs.again(self._scope.owner, origin, decode(body), self._changes)
        spec = await fitted(self._scope, spec)
        # The group shows the workflow that its first documents start with.
        asked = spec.workflow.asked
        group = msgspec.structs.replace(self._group, workflow=spec.workflow.id, params=asked.params if asked else None)
        return dataclasses.replace(spec, group=group, priority=self._spec.priority, batch=self._spec.batch)

    async def end(self) -> BatchStart:
        if self._started:
            await self._scope.ledger.write(groups.SEAL, self._group.id)
        group = self._group.id if self._started else None
        return BatchStart(group, self._started, self._done, self._working)
