"""What people see of a document: lists, status, and what was extracted."""

import json
from collections.abc import AsyncIterator, Sequence
from typing import Any

from penstock.artifacts.reader import ArtifactReader
from penstock.errors import NotFound
from penstock.ledger.database.connection import Connection
from penstock.ledger.database.store import Ledger
from penstock.ledger.engine import checkpoints, documents
from penstock.ledger.engine.documents import ArtifactProgress, Listed
from penstock.model.nouns import Artifact, DocumentId, GenerationId, Owner, StepView
from penstock.workflows.load import decode
from penstock.workflows.way import ahead


def listed(entry: Listed) -> dict[str, Any]:
    d = entry.document
    return {
        "id": d.id,
        "name": d.name,
        "source": d.source,
        "collection": d.collection,
        "status": d.status,
        "media_type": d.media_type,
        "size": d.size,
        "pages": d.pages,
        "chunks": d.chunks,
        "searchable": entry.searchable,
        "stale": entry.stale,
        "error": d.error,
        "created_at": d.created_at,
    }


async def status(owner: Owner, ledger: Ledger, document: str) -> dict[str, Any]:
    """One document with its steps, progress, attempts and error."""
    async with ledger.snapshot() as snapshot:
        return await snapshot.read(lambda c: _status(owner, c, document))


def _status(owner: Owner, connection: Connection, name: str) -> dict[str, Any]:
    found = resolve(owner, connection, name)
    entry = documents.get(owner, connection, found)
    run = documents.last_run(owner, connection, found)
    assert entry is not None
    assert run is not None
    steps = documents.steps(owner, connection, found)
    made = {p.kind: p for p in documents.progress(owner, connection, run.generation)}
    workflow = decode(run.body)
    later = ahead(workflow, workflow.position(steps[-1].name))
    waiting = "PENDING" if run.status == "OPEN" else "CANCELLED"
    return {
        **listed(entry),
        "attempts": max((step.attempts for step in steps), default=0),
        "retry_count": entry.document.retry_count,
        "metadata": entry.document.metadata,
        "artifacts_dropped_at": entry.artifacts_dropped_at,
        "progress": _counted(entry, steps)
        if run.status == "COMPLETED" and entry.artifacts_dropped_at is not None
        else _progress(str(entry.document.status), made),
        "steps": [
            {
                "name": step.name,
                "kind": step.kind,
                "status": step.status,
                "attempts": step.attempts,
                "waiting_on": step.waiting_on,
                "started_at": step.started_at,
                "finished_at": step.finished_at,
                "meta": step.meta,
                "last_progress": step.last_progress,
            }
            for step in steps
        ]
        + ([] if run.status == "COMPLETED" else [_later(step.name, step.kind, waiting) for step in later]),
    }


def _later(name: str, kind: str, status: str) -> dict[str, Any]:
    return {
        "name": name, "kind": kind, "status": status, "attempts": 0, "waiting_on": None, "started_at": None,
        "finished_at": None, "meta": {}, "last_progress": None,
    }  # fmt: skip


def _progress(phase: str, made: dict[str, ArtifactProgress]) -> dict[str, Any]:
    def items(kind: str) -> int:
        return made[kind].items if kind in made else 0

    def total(kind: str) -> int | None:
        return made[kind].items if kind in made and made[kind].complete else None

    of = json.loads(made["extract"].cursor).get("of") if "extract" in made else None
    rows = json.loads(made["index"].cursor).get("rows", 0) if "index" in made else 0
    indexed = total("chunk") or 0 if phase == "COMPLETED" else rows
    return {
        "phase": phase,
        "pages": items("extract"),
        "total_pages": total("extract") or of,
        "chunks": items("chunk"),
        "total_chunks": total("chunk"),
        "embedded": items("embed"),
        "indexed": indexed,
        "last_checkpoint": max((p.updated_at for p in made.values()), default=None),
    }


def _counted(entry: Listed, steps: Sequence[StepView]) -> dict[str, Any]:
    """The same of a document whose artifacts were dropped: what was counted when it became searchable."""
    pages, chunks = entry.document.pages or 0, entry.document.chunks or 0
    return {
        "phase": str(entry.document.status), "pages": pages, "total_pages": pages, "chunks": chunks,
        "total_chunks": chunks, "embedded": chunks, "indexed": chunks,
        "last_checkpoint": max((step.finished_at for step in steps if step.finished_at is not None), default=None),
    }  # fmt: skip


def resolve(owner: Owner, connection: Connection, name: str) -> DocumentId:
    found = documents.resolve(owner, connection, name)
    if found is None:
        raise NotFound(f"no document {name!r} (or more than one begins so): `penstock list` shows them")
    return found


def resolve_all(owner: Owner, connection: Connection, names: Sequence[str], *, deleted: bool) -> list[DocumentId]:
    """`deleted`: whole ids may also name documents that are deleted."""
    whole = documents.known(owner, connection, [name.upper() for name in names], deleted=deleted)
    return [whole.get(name.upper()) or resolve(owner, connection, name) for name in names]


async def items(
    owner: Owner, ledger: Ledger, reader: ArtifactReader, document: str, kind: str
) -> AsyncIterator[list[Any]]:
    """What a step made of a document: of the searchable version, or of the one being built where there is none. Of two
    steps of one kind it is the last one, whose chunks search finds."""
    artifact = await ledger.read(lambda c: _artifact(owner, c, document, kind))
    if artifact is not None:
        async for batch in reader.items(artifact, kind):
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
                f"what was extracted from {found} was damaged, and is not whole again yet: `penstock check --repair` "
                "queues it to be made again from its raw bytes, `penstock run` does it"
            )
        if steps:
            return made[steps[-1]]
    entry = documents.get(owner, connection, found)
    if entry is not None and entry.artifacts_dropped_at is not None:
        raise NotFound(
            f"what was extracted from {entry.document.name!r} was dropped when it was done (keep_artifacts): `penstock "
            f"retry --dropped {found}` makes it again from the raw bytes"
        )
    return None
