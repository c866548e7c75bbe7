"""Documents as they are shown to users: lists, status, and what was extracted."""

import json
import os
from collections.abc import AsyncIterator, Sequence
from typing import Any

import msgspec

from penstock.artifacts.reader import ArtifactReader
from penstock.errors import Ambiguous, NotFound
from penstock.ledger.database import workers
from penstock.ledger.database.connection import Connection
from penstock.ledger.database.liveness import Liveness
from penstock.ledger.database.store import Ledger
from penstock.ledger.engine import admission, checkpoints, children, documents
from penstock.ledger.engine import usage as booked
from penstock.ledger.engine.documents import ArtifactProgress, Listed
from penstock.ledger.reads import stats
from penstock.ledger.reads.stats import RunningSteps, WaitingEvents
from penstock.model.nouns import Artifact, DocumentId, GenerationId, Json, Owner, RunId, StepView
from penstock.model.states import DocumentStatus, StepStatus
from penstock.sources.folder import printable
from penstock.stages import bad_pages
from penstock.verbs.intake_pauses import IntakeState, state_of
from penstock.verbs.usage import Usage, summed
from penstock.workflows.load import decode
from penstock.workflows.routing import ahead


class DocumentView(msgspec.Struct, frozen=True):
    """A document as lists show it."""

    id: DocumentId
    name: str
    source: str
    collection: str
    status: DocumentStatus
    media_type: str | None
    size: int
    pages: int | None
    chunks: int | None
    searchable: bool
    stale: bool
    """The searchable version is not the newest one."""
    error: str | None
    created_at: float
    metadata: Json
    parent: DocumentId | None
    """The document that contains it."""


class DocumentProgress(msgspec.Struct, frozen=True):
    """How far the processing of a document is."""

    phase: DocumentStatus
    pages: int
    total_pages: int | None
    """None: not known yet; the same holds for `total_chunks`."""
    chunks: int
    total_chunks: int | None
    embedded: int
    indexed: int
    last_checkpoint: float | None


class DocumentDetails(DocumentView, frozen=True):
    """One document with its progress and its steps."""

    attempts: int
    retry_count: int
    artifacts_dropped_at: float | None
    progress: DocumentProgress
    steps: list[StepView]
    pages_skipped: list[Json] = []
    """The pages that could not be read: `page`, `reason` and `error` of each, at most 200."""
    children: dict[str, int] = {}
    """The number of documents directly inside it, by status."""
    usage: Usage | None = None
    """What its last run bought and saved."""


class WorkerView(workers.Busy, frozen=True):
    """A worker, as `list_workers` returns it."""

    alive: bool


class Counts(msgspec.Struct, frozen=True):
    """The counts for one owner."""

    documents: dict[str, int]
    """The number of documents by status."""
    steps: dict[str, int]
    """The number of steps by status, without completed ones."""
    dead_letters: int
    running: list[RunningSteps]
    events: WaitingEvents
    away: list[stats.AwayTarget]
    """The targets that are away."""
    workers: list[WorkerView]
    """The workers that are alive, for all owners: `penstock worker`, and calls of `ingest` and `run`."""
    usage: Usage
    """What the owner has bought and saved so far."""
    intake: IntakeState
    """Whether new documents are accepted."""


def listed(entry: Listed) -> DocumentView:
    d = entry.document
    return DocumentView(
        d.id,
        d.name,
        d.source,
        d.collection,
        d.status,
        d.media_type,
        d.size,
        d.pages,
        d.chunks,
        entry.searchable,
        entry.stale,
        d.error,
        d.created_at,
        d.metadata,
        entry.parent,
    )


async def list_workers(ledger: Ledger, liveness: Liveness) -> list[WorkerView]:
    """Return the workers of a ledger, for all owners. A worker that is not alive has died, and its steps were not
    reaped yet."""

    def look(connection: Connection) -> list[WorkerView]:
        found = workers.busy(connection)
        dead = set(liveness.dead([worker.id for worker in found], connection))
        return [WorkerView(**msgspec.structs.asdict(worker), alive=worker.id not in dead) for worker in found]

    return await ledger.read(look)


async def counts(owner: Owner, ledger: Ledger, liveness: Liveness) -> Counts:
    alive = [worker for worker in await list_workers(ledger, liveness) if worker.alive]
    async with ledger.snapshot() as snapshot:
        return Counts(
            await snapshot.read(lambda c: stats.documents(owner, c)),
            await snapshot.read(lambda c: stats.steps(owner, c)),
            await snapshot.read(lambda c: stats.dead_letters(owner, c)),
            await snapshot.read(lambda c: stats.running(owner, c)),
            await snapshot.read(lambda c: stats.events(owner, c)),
            await snapshot.read(lambda c: stats.away(owner, c)),
            alive,
            summed(await snapshot.read(lambda c: booked.totals(owner, c))),
            state_of(await snapshot.read(lambda c: admission.pause(owner, c))),
        )


async def details(owner: Owner, ledger: Ledger, document: str) -> DocumentDetails:
    """Return one document with its steps, progress, attempts and error."""
    async with ledger.snapshot() as snapshot:
        return await snapshot.read(lambda c: _details(owner, c, document))


def _details(owner: Owner, connection: Connection, name: str) -> DocumentDetails:
    found = resolve(owner, connection, name)
    entry = documents.get(owner, connection, found)
    run = documents.last_run(owner, connection, found)
    assert entry is not None
    assert run is not None
    steps = documents.steps(owner, connection, found)
    made = {p.kind: p for p in documents.progress(owner, connection, run.generation)}
    workflow = decode(run.body)
    later = list(ahead(workflow, workflow.position(steps[-1].name))) if steps and run.status != "COMPLETED" else []
    if run.status == "HELD":
        later = [workflow.steps[0], *ahead(workflow, 0)]
    waiting = StepStatus.PENDING if run.status in ("OPEN", "HELD") else StepStatus.CANCELLED
    dropped = run.status == "COMPLETED" and entry.artifacts_dropped_at is not None
    return DocumentDetails(
        **msgspec.structs.asdict(listed(entry)),
        attempts=max((step.attempts for step in steps), default=0),
        retry_count=entry.document.retry_count,
        artifacts_dropped_at=entry.artifacts_dropped_at,
        progress=_counted(entry, steps) if dropped else _progress(entry.document.status, made),
        steps=[*steps, *(StepView(step.name, step.kind, waiting, 0, None, None, None, {}) for step in later)],
        pages_skipped=_skipped(steps, made),
        children=children.counts(owner, connection, found),
        usage=summed(booked.of_run(owner, connection, RunId(run.id))),
    )


def _skipped(steps: Sequence[StepView], made: dict[str, ArtifactProgress]) -> list[Json]:
    """From the results of the extract steps. One that has not ended has its record in the cursor."""
    found = [page for step in steps if step.kind == "extract" for page in step.meta.get(bad_pages.SKIPPED, ())]
    if not found and "extract" in made:
        return bad_pages.of_cursor(json.loads(made["extract"].cursor))
    return found


def _progress(phase: DocumentStatus, made: dict[str, ArtifactProgress]) -> DocumentProgress:
    def items(kind: str) -> int:
        return made[kind].items if kind in made else 0

    def total(kind: str) -> int | None:
        return made[kind].items if kind in made and made[kind].complete else None

    of = json.loads(made["extract"].cursor).get("of") if "extract" in made else None
    rows = json.loads(made["index"].cursor).get("rows", 0) if "index" in made else 0
    return DocumentProgress(
        phase=phase,
        pages=items("extract"),
        total_pages=total("extract") or of,
        chunks=items("chunk"),
        total_chunks=total("chunk"),
        embedded=items("embed"),
        indexed=total("chunk") or 0 if phase == DocumentStatus.COMPLETED else rows,
        last_checkpoint=max((p.updated_at for p in made.values()), default=None),
    )


def _counted(entry: Listed, steps: Sequence[StepView]) -> DocumentProgress:
    """Return the progress of a document whose artifacts were removed: the counts of the time when it became
    searchable."""
    pages, chunks = entry.document.pages or 0, entry.document.chunks or 0
    last = max((step.finished_at for step in steps if step.finished_at is not None), default=None)
    return DocumentProgress(entry.document.status, pages, pages, chunks, chunks, chunks, chunks, last)


def resolve(owner: Owner, connection: Connection, name: str) -> DocumentId:
    """Find a document by its id, a unique prefix or suffix of it, its path or source URI, its unique name, or the
    unique end of its path."""
    found = documents.candidates(owner, connection, name, sorted({name, *_paths(name)}))
    if not found:
        raise NotFound(f"no document {name!r}: `penstock list` shows all documents")
    if len(found) > 1:
        lines = [f"{one.id}  {one.status}  {printable(one.source)}" for one in found]
        raise Ambiguous(f"{name!r} may mean any of these documents: use the id", lines)
    return found[0].id


def _paths(name: str) -> set[str]:
    try:
        return {printable(os.path.abspath(name)), printable(os.path.realpath(name))}
    except (OSError, ValueError):
        return set()


def resolve_all(owner: Owner, connection: Connection, names: Sequence[str], *, deleted: bool) -> list[DocumentId]:
    """Find documents like `resolve`. With `deleted`, complete ids may also name deleted documents."""
    whole = documents.known(owner, connection, [name.upper() for name in names], deleted=deleted)
    return [whole.get(name.upper()) or resolve(owner, connection, name) for name in names]


async def items(
    owner: Owner, ledger: Ledger, reader: ArtifactReader, document: str, kind: str, start: int = 0
) -> AsyncIterator[list[Any]]:
    """Yield the output of a step, from item `start` on: that of the searchable version, or of the one being built if
    there is none. If there are two steps of one kind, it is the output of the last one, which search uses."""
    artifact = await ledger.read(lambda c: _artifact(owner, c, document, kind))
    if artifact is not None:
        async for batch in reader.items(artifact, kind, start):
            yield batch


def _artifact(owner: Owner, connection: Connection, document: str, kind: str) -> Artifact | None:
    found = resolve(owner, connection, document)
    active = documents.active_generation(owner, connection, found)
    run = documents.last_run(owner, connection, found)
    for generation in (active, run.generation if run else None):
        if generation is None:
            continue
        made = checkpoints.of_generations(connection, [GenerationId(generation)])[GenerationId(generation)]
        steps = [p.step for p in documents.progress(owner, connection, generation) if p.kind == kind]
        if steps and generation == active and not made[steps[-1]].complete:
            raise NotFound(
                f"artifacts of {found} were damaged and are not repaired yet: `penstock check --repair` "
                "queues the document to be processed again from its raw bytes, and `penstock run` processes it"
            )
        if steps:
            return made[steps[-1]]
    entry = documents.get(owner, connection, found)
    if entry is not None and entry.artifacts_dropped_at is not None:
        raise NotFound(
            f"the artifacts of {entry.document.name!r} were dropped (keep_artifacts): `penstock "
            f"retry --dropped {found}` makes it again from the raw bytes"
        )
    return None
