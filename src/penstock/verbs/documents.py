"""The documents of an owner: list, status, extracted content, steps, cancel, delete, retry."""

import fnmatch
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from functools import partial
from typing import Any, Literal, overload

from penstock.errors import UsageError
from penstock.ledger.database.writer import Verb
from penstock.ledger.engine import cancellations, deletions, documents, metadata, restarts, runs
from penstock.ledger.reads import stats
from penstock.ledger.reads.stats import ListedStep
from penstock.model.nouns import DocumentId, RunId, Workflow
from penstock.model.states import DocumentStatus, StepStatus
from penstock.search.filters import Fields, Predicate, compiled
from penstock.verbs import arguments, views
from penstock.verbs.replays import replayer
from penstock.verbs.scope import Scope, chosen_collection
from penstock.verbs.views import Counts, DocumentDetails, DocumentView

PAGE = 500
REMAKE_BATCH = 500
CHANGED_AT_ONCE = 1_000
"""The maximum number of documents that one transaction deletes or cancels."""


async def list_documents(
    scope: Scope,
    *,
    status: str | None = None,
    collection: str | None = None,
    name: str | None = None,
    filter: Mapping[str, Any] | None = None,
    limit: int = 100,
    after: str | None = None,
) -> list[DocumentView]:
    """Return documents, newest first. `name` is a glob pattern, and `filter` a filter as for a search. With `after`,
    continue after the document with this id."""
    accepts = None if not filter else compiled(filter)
    newest = partial(documents.newest, scope.owner)
    wanted = arguments.one_of("status", status, DocumentStatus) or ""
    where = arguments.maybe("collection", collection) or ""
    arguments.maybe("name", name)
    arguments.count("limit", limit)
    before = (arguments.maybe("after", after) or "").upper()
    out: list[DocumentView] = []
    while len(out) < limit:
        page = await scope.ledger.read(newest, status=wanted, collection=where, before=before, count=PAGE)
        out += [views.listed(e) for e in page if _is_wanted(e, name, accepts)]
        if len(page) < PAGE:
            break
        before = page[-1].document.id
    return out[:limit]


def _is_wanted(entry: documents.Listed, name: str | None, accepts: Predicate | None) -> bool:
    d = entry.document
    if name is not None and not fnmatch.fnmatchcase(d.name, name):
        return False
    if accepts is None:
        return True
    metadata = (json.dumps(d.metadata),)
    place = (d.id, d.collection, d.name, d.source, d.media_type, d.size, d.status, d.pages, d.created_at)
    return accepts(Fields(*place, metadata))


@overload
async def status(scope: Scope, document: None = None) -> Counts: ...


@overload
async def status(scope: Scope, document: str) -> DocumentDetails: ...


async def status(scope: Scope, document: str | None = None) -> Counts | DocumentDetails:
    """Return one document with its steps, progress, attempts and error. Without a name, return the counts for all
    documents."""
    if document is None:
        return await views.counts(scope.owner, scope.ledger)
    return await views.details(scope.owner, scope.ledger, arguments.text("document", document))


async def show(scope: Scope, document: str, what: Literal["pages", "chunks", "blocks"]) -> AsyncIterator[Any]:
    """Return what was extracted: pages with their blocks, or chunks. If the workflow has two steps of the kind, return
    the output of the last one, which search uses."""
    from penstock.worker.context import reader

    arguments.text("document", document)
    if what not in ("pages", "chunks", "blocks"):
        raise UsageError(f"what {what!r}: use one of pages, chunks, blocks")
    kind = "chunk" if what == "chunks" else "extract"
    stream = views.items(scope.owner, scope.ledger, reader(scope.ledger, scope.blobs), document, kind)
    async for batch in stream:
        for item in batch:
            yield item


async def list_steps(
    scope: Scope,
    *,
    status: StepStatus | str | None = None,
    kind: str | None = None,
    stuck_s: float | None = None,
    limit: int = 100,
) -> list[ListedStep]:
    """Return steps, newest first. With `stuck_s`, return only steps that started and made no progress for that many
    seconds."""
    return await scope.ledger.read(
        partial(stats.list_steps, scope.owner),
        status=arguments.one_of("status", status, StepStatus),
        kind=arguments.maybe("kind", kind) or "",
        stuck_s=arguments.seconds("stuck_s", stuck_s),
        count=arguments.count("limit", limit),
    )


async def set_metadata(scope: Scope, document: str, changes: dict[str, Any], *, remove: Sequence[str] = ()) -> bool:
    """Set keys of a document's submitted metadata, and remove others. Nothing is extracted or embedded again. Returns
    whether anything changed."""
    arguments.text("document", document)
    given = arguments.metadata(changes)
    gone = tuple(arguments.texts("remove", remove))
    found = await scope.ledger.read(lambda c: views.resolve(scope.owner, c, document))
    return await scope.ledger.write(metadata.CHANGE, metadata.MetadataChange(scope.owner, found, given, gone))


async def cancel(scope: Scope, names: Sequence[str]) -> set[DocumentId]:
    """Cancel the documents that have not ended."""
    return await change(scope, cancellations.CANCEL, await _selected(scope, names))


async def delete(scope: Scope, names: Sequence[str]) -> set[DocumentId]:
    """Delete documents. No search that starts after this call finds them. Many documents are deleted in several
    transactions. After an interruption, the same call deletes the rest; the result does not contain ids of documents
    that were deleted before."""
    return await change(scope, deletions.DELETE, await _selected(scope, names, deleted=True))


async def retry(
    scope: Scope,
    names: Sequence[str],
    *,
    workflow: str | None = None,
    params: str | None = None,
    values: Mapping[str, Mapping[str, Any]] | None = None,
    password: str | None = None,
    dropped: bool = False,
    notes: list[str] | None = None,
) -> set[DocumentId]:
    """Continue failed, cancelled and not indexable documents at their checkpoint, with zero attempts. With another
    workflow, parameter set or `values` (by step and name), a new run starts, which repeats only the affected steps. The
    workflow and values of the run are used if no others are given. `password` decrypts the documents. With `dropped`,
    completed documents whose artifacts were removed are made again from their raw bytes instead, with the settings of
    their run. Notes for the caller are appended to `notes`."""
    chosen = await _selected(scope, names)
    if dropped:
        if workflow or params or values:
            raise UsageError("--dropped repeats the original run: omit --workflow, --params and --set")
        return await _remake(scope, chosen)
    attempt = replayer(scope, workflow, params, values, password)
    done = await attempt.retry(chosen.documents)
    if notes is not None:
        notes += attempt.answer.notes
    return done


def workflow(
    scope: Scope, name: str | None = None, *, params: str | None = None, collection: str | None = None
) -> Workflow:
    """Return a workflow as a run of a collection would store it, with all its values."""
    where, specs = chosen_collection(scope, collection), scope.resources.run_specs
    return specs.workflow(where, specs.asked(where, name, params))


async def change(scope: Scope, verb: Verb[runs.Selected, set[DocumentId]], chosen: runs.Selected) -> set[DocumentId]:
    """Change documents in several transactions. A single one could last longer than a lease, and would block all other
    writers."""
    done: set[DocumentId] = set()
    for i in range(0, len(chosen.documents), CHANGED_AT_ONCE):
        part = runs.Selected(chosen.owner, chosen.documents[i : i + CHANGED_AT_ONCE])
        changed = await scope.ledger.write(verb, part)
        done |= changed
    return done


async def _selected(scope: Scope, names: Sequence[str], *, deleted: bool = False) -> runs.Selected:
    chosen = arguments.texts("names", names)
    found = await scope.ledger.read(lambda c: views.resolve_all(scope.owner, c, chosen, deleted=deleted))
    return runs.Selected(scope.owner, tuple(dict.fromkeys(found)))


async def _remake(scope: Scope, chosen: runs.Selected) -> set[DocumentId]:
    done: set[DocumentId] = set()
    for i in range(0, len(chosen.documents), REMAKE_BATCH):
        part = tuple((d, RunId(scope.runtime.ulid())) for d in chosen.documents[i : i + REMAKE_BATCH])
        queued = await scope.ledger.write(restarts.REMAKE, restarts.Remake(scope.owner, part))
        done |= queued
    return done
