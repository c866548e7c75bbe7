"""The documents of an owner: list, status, extracted content, steps, cancel, delete, retry."""

from collections.abc import AsyncIterator, Mapping, Sequence
from functools import partial
from typing import Any, Literal, overload

import msgspec

from penstock.errors import UsageError
from penstock.ledger.engine import cancellations, deletions, metadata, restarts, runs
from penstock.ledger.engine.documents import Counted
from penstock.ledger.reads import stats
from penstock.ledger.reads.stats import ListedStep
from penstock.model.nouns import DocumentId, RunId, Workflow
from penstock.model.states import StepStatus
from penstock.verbs import arguments, remade, views
from penstock.verbs.changing import change
from penstock.verbs.replays import replayer
from penstock.verbs.scope import Scope, chosen_collection
from penstock.verbs.selection import COUNTED, counted, listed, pages, selection
from penstock.verbs.views import Counts, DocumentDetails, DocumentView

EXAMPLES = 1_000
"""The number of documents that the result of a delete lists."""
REMAKE_BATCH = 500


async def list_documents(
    scope: Scope,
    *,
    status: str | None = None,
    collection: str | None = None,
    name: str | None = None,
    filter: Mapping[str, Any] | None = None,
    parent: str | None = None,
    batch: str | None = None,
    group: str | None = None,
    updated_since: float | None = None,
    reason: str | None = None,
    limit: int = 100,
    after: str | None = None,
) -> list[DocumentView]:
    """Return documents, newest first. `name` is a glob pattern, and `filter` a filter as for a search. With one of
    `parent`, `batch`, `group` (an id), `updated_since` (seconds since 1970) and `reason`, return only documents
    directly inside that one, of that batch, with a run of that group, changed since then, or that failed for it. With
    `after`, continue after the document with this id."""
    inside = "" if parent is None else await _resolved(scope, arguments.text("parent", parent))
    arguments.count("limit", limit)
    chosen = selection(
        status=status, collection=collection, name=name, filter=filter, after=after, parent=inside, batch=batch,
        group=group, updated_since=updated_since, reason=reason,
    )  # fmt: skip
    out: list[DocumentView] = []
    if limit:
        async for page in pages(scope, chosen, limit):
            out += map(views.listed, page)
            if len(out) >= limit:
                break
    return out[:limit]


async def count_documents(
    scope: Scope,
    *,
    status: str | None = None,
    collection: str | None = None,
    name: str | None = None,
    filter: Mapping[str, Any] | None = None,
    parent: str | None = None,
    batch: str | None = None,
    group: str | None = None,
    updated_since: float | None = None,
    reason: str | None = None,
    after: str | None = None,
    most: int = COUNTED,
) -> Counted:
    """Count the documents that `list_documents` would return without a limit. It looks at no more than `most`
    documents; `exact` is False if there are more, and then there are at least `count`."""
    arguments.count("most", most)
    inside = "" if parent is None else await _resolved(scope, arguments.text("parent", parent))
    return await counted(
        scope,
        selection(
            status=status,
            collection=collection,
            name=name,
            filter=filter,
            after=after,
            parent=inside,
            batch=batch,
            group=group,
            updated_since=updated_since,
            reason=reason,
        ),
        most,
    )


@overload
async def status(scope: Scope, document: None = None) -> Counts: ...


@overload
async def status(scope: Scope, document: str) -> DocumentDetails: ...


async def status(scope: Scope, document: str | None = None) -> Counts | DocumentDetails:
    """Return one document with its steps, progress, attempts and error. Without a name, return the counts for all
    documents."""
    if document is None:
        return await views.counts(scope.owner, scope.ledger, scope.resources.liveness())
    return await views.details(scope.owner, scope.ledger, arguments.text("document", document))


async def show(
    scope: Scope, document: str, what: Literal["pages", "chunks", "blocks"], *, start: int = 0
) -> AsyncIterator[Any]:
    """Return what was extracted: pages with their blocks, or chunks, from number `start` on (counted from 0). If the
    workflow has two steps of the kind, return the output of the last one, which search uses."""
    from penstock.worker.context import reader

    arguments.text("document", document)
    arguments.count("start", start)
    if what not in ("pages", "chunks", "blocks"):
        raise UsageError(f"what {what!r}: use one of pages, chunks, blocks")
    kind = "chunk" if what == "chunks" else "extract"
    if (dropped := await remade.find_dropped(scope, document)) is not None:
        stream, left_out = remade.chunks(scope, dropped) if what == "chunks" else remade.pages(scope, dropped), start
    else:
        stream = views.items(scope.owner, scope.ledger, reader(scope.ledger, scope.blobs), document, kind, start)
        left_out = 0
    async for batch in stream:
        for item in batch:
            if left_out:
                left_out -= 1
            else:
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


async def _resolved(scope: Scope, name: str) -> DocumentId:
    return await scope.ledger.read(lambda c: views.resolve(scope.owner, c, name))


async def cancel(scope: Scope, names: Sequence[str]) -> set[DocumentId]:
    """Cancel the documents that have not ended, and those inside them."""
    return await change(scope, cancellations.CANCEL, await _selected(scope, names))


async def delete(scope: Scope, names: Sequence[str], *, forget: bool = False) -> set[DocumentId]:
    """Delete documents and those inside them. No search that starts after this call finds them. With `forget`, an
    ingest of their folder does not bring them back, unless it is called with `again`. Many documents are deleted in
    several transactions. After an interruption, the same call deletes the rest; the result does not contain ids of
    documents that were deleted before."""
    chosen = await _selected(scope, names, deleted=True)
    return await change(scope, deletions.DELETE, msgspec.structs.replace(chosen, forget=forget))


class Deletion(msgspec.Struct, frozen=True):
    """What `delete_matching` deleted, or would delete."""

    count: int
    dry_run: bool
    documents: list[DocumentView]
    """The first 1,000 of them."""


async def delete_matching(
    scope: Scope,
    *,
    path: str | None = None,
    collection: str | None = None,
    name: str | None = None,
    status: str | None = None,
    filter: Mapping[str, Any] | None = None,
    forget: bool = False,
    dry_run: bool = False,
) -> Deletion:
    """Delete the documents that meet all criteria. `path` is a pattern of their paths, such as `drafts/*.pdf`, relative
    to the current folder: `*` matches within one folder, `**` in all folders below. `name` is a pattern of their names.
    `forget` is that of `delete`. The documents are deleted in several transactions; after an interruption, the same
    call deletes the rest. With `dry_run`, nothing is deleted, only counted."""
    chosen = selection(status=status, collection=collection, name=name, filter=filter, path=path)
    if chosen == selection():
        raise UsageError("choose what to delete: by path, collection, name, status or filter")
    count, examples = 0, list[DocumentView]()
    async for page in listed(scope, chosen):
        ids = {d.id for d in page}
        if not dry_run and page:
            ids = await change(scope, deletions.DELETE, runs.Selected(scope.owner, tuple(d.id for d in page), forget))
        count += len(ids)
        examples += [d for d in page if d.id in ids][: EXAMPLES - len(examples)]
    return Deletion(count, dry_run, examples)


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
