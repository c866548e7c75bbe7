"""`status`, `list`, `retry`, `cancel`, `delete`: commands about documents."""

import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from penstock.cli import completion, usage
from penstock.cli.call import Call, body
from penstock.cli.changes import by_step, changes
from penstock.cli.intake import sentence
from penstock.cli.output import Answer, as_data, bytes_size, count, distinct, duration, labelled, table, visible, when
from penstock.cli.passwords import chosen, passwords

if TYPE_CHECKING:
    from penstock.ledger.engine.documents import Counted
    from penstock.ledger.reads.stats import AwayTarget
    from penstock.model.nouns import StepView
    from penstock.verbs.owner import OwnerScope
    from penstock.verbs.views import Counts, DocumentDetails, DocumentView

MOST_SKIPPED = 10
"""Skipped pages that are listed."""
SHOWN = 20
"""The number of deleted documents that are listed."""
IDS = click.argument("ids", metavar="ID...", nargs=-1, required=True, shell_complete=completion.documents)


@click.command()
@click.argument("document", metavar="[ID]", required=False, shell_complete=completion.documents)
@click.option("--watch", is_flag=True, help="Refresh every second, until Ctrl-C or the end of the document.")
@body
async def status(call: Call, document: str | None, watch: bool) -> Answer:
    """Show counts by status, or one document with its steps.

    Completed steps are not counted. For one document, it shows status, progress, attempts, error, and each step.
    """
    from penstock.errors import UsageError

    if watch and call.json:
        raise UsageError("--watch cannot be used with --json")
    if call.server_url is not None and not watch:
        async with call.scope() as scope:
            return await _status(scope, document)
    async with call.app() as app:
        if watch:
            from penstock.cli.watch import watch as watch_status

            await watch_status(app, call, document)
            if document is None or call.signals.received is not None:
                return Answer({})
        return await _status(call.scoped(app), document)


@click.command("list")
@click.option(
    "--status",
    metavar="STATUS",
    shell_complete=completion.statuses,
    help="Only documents with this status, as in FAILED.",
)
@click.option(
    "--collection",
    metavar="NAME",
    shell_complete=completion.collections,
    help="Only documents of this collection.",
)
@click.option("--name", metavar="GLOB", help="Only documents whose name matches.")
@click.option("--parent", metavar="ID", help="Only documents directly inside this one.")
@click.option("--after", metavar="ID", help="Continue after this document.")
@click.option(
    "--limit", metavar="N", type=click.IntRange(1), default=100, help="Maximum number of results.", show_default=True
)
@click.option("--filter", "filters", metavar="FILTER", multiple=True, help="Only matching documents: 'year>=2020'.")
@body
async def list_documents(
    call: Call,
    status: str | None,
    collection: str | None,
    name: str | None,
    parent: str | None,
    after: str | None,
    limit: int,
    filters: tuple[str, ...],
) -> Answer:
    """List documents, newest first."""
    from penstock.search.filters import parsed

    where: dict[str, Any] = {
        "status": status.upper() if status else None,
        "collection": collection,
        "name": name,
        "filter": parsed(filters),
        "parent": parent,
    }
    async with call.scope() as scope:
        found = await scope.list_documents(**where, limit=limit, after=after)
        if not found and collection is not None:
            # An unknown collection is an error, not an empty list.
            await scope.collection(collection)
        last = found[-1].id if len(found) == limit else None
        more = await scope.count_documents(**where, after=last) if last else None
        total = await scope.count_documents(**where) if after or more is not None else None
    lines = _listed(found)
    if more is not None and (more.count or not more.exact):
        lines.append(f"{len(found):,} shown, {_at_least(more)} more: --after {last}")
    data = {
        "documents": [as_data(d) for d in found],
        "after": last if more is not None and (more.count or not more.exact) else None,
        "more": more.count if more is not None else 0,
        "total": total.count if total is not None else len(found),
        "exact": (more is None or more.exact) and (total is None or total.exact),
    }
    return Answer(data, "\n".join(lines))


def _listed(found: "Sequence[DocumentView]") -> list[str]:
    names = distinct([(_title(d), d.source) for d in found])
    rows = [
        [d.id, d.status, d.pages, d.chunks, visible(name) + _remark(d)] for d, name in zip(found, names, strict=True)
    ]
    return table([["ID", "STATUS", "PAGES", "CHUNKS", "NAME"], *rows]) if rows else ["no documents"]


def _at_least(found: "Counted") -> str:
    return f"{found.count:,}" if found.exact else f"at least {found.count:,}"


@click.command()
@IDS
@passwords()
@changes
@click.option(
    "--dropped", is_flag=True, help="Completed documents whose pages and chunks were dropped: make them again."
)
@body
async def retry(
    call: Call,
    ids: tuple[str, ...],
    password: str | None,
    password_file: str | None,
    workflow: str | None,
    params: str | None,
    values: tuple[str, ...],
    dropped: bool,
) -> Answer:
    """Queue failed or cancelled documents again, or documents without text.

    They continue where they stopped; `penstock run` processes them. Another workflow or other values start a new run,
    which repeats only the affected steps.
    """
    notes: list[str] = []
    word = chosen(password, password_file)
    answer = await _change(
        call,
        ids,
        "queued again",
        "retried",
        lambda scope: scope.retry(
            ids,
            workflow=workflow,
            params=params,
            values=by_step(values),
            password=word,
            dropped=dropped,
            notes=notes,
        ),
    )
    run = [] if call.server_url is not None else ["Run `penstock run` to process them."]
    hints = [*notes, *run] if answer.data["retried"] else []
    return replace(answer, data={**answer.data, "notes": notes}, hints=hints)


@click.command()
@IDS
@body
async def cancel(call: Call, ids: tuple[str, ...]) -> Answer:
    """Cancel the processing of documents.

    An older version of a document stays searchable. `penstock retry` resumes the processing.
    """
    return await _change(call, ids, "cancelled", "cancelled", lambda scope: scope.cancel(ids))


@click.command()
@click.argument("names", metavar="[ID|PATH|GLOB]...", nargs=-1, shell_complete=completion.documents_or_files)
@click.option(
    "--collection",
    metavar="NAME",
    shell_complete=completion.collections,
    help="Only documents of this collection; alone: all of them.",
)
@click.option("--name", metavar="GLOB", help="Documents whose name matches.")
@click.option(
    "--status", metavar="STATUS", shell_complete=completion.statuses, help="Documents with this status, as in FAILED."
)
@click.option("--filter", "filters", metavar="FILTER", multiple=True, help="Matching documents: 'year>=2020'.")
@click.option("--forget", is_flag=True, help="Keep them away: an ingest of their folder does not bring them back.")
@click.option("--dry-run", is_flag=True, help="Only show what would be deleted.")
@body
async def delete(
    call: Call, names: tuple[str, ...], filters: tuple[str, ...], forget: bool, dry_run: bool, **options: Any
) -> Answer:
    """Delete documents: no search that starts afterwards finds them.

    A document is named by its id, path or name. A pattern in quotes chooses several by path, below the current folder:
    'drafts/*.pdf' in one folder, 'drafts/**' in all folders below. Options choose by collection, name, status or
    filter; a document must meet all of them. After an interruption, the same command deletes the rest. `penstock
    ingest` of a folder brings deleted files back, unless --forget was given.
    """
    from penstock.errors import UsageError
    from penstock.search.filters import parsed

    options["status"] = options["status"].upper() if options["status"] else None
    where = {"filter": parsed(filters), **options}
    chosen = {name: value for name, value in where.items() if value}
    if not names and not chosen:
        raise UsageError("choose what to delete: an ID, PATH or GLOB, --collection, --name, --status or --filter")
    async with call.scope() as scope:
        single, patterns = await _sorted(scope, names)
        if single and chosen:
            raise UsageError(f"{single[0].name}: name documents, or choose them by options, not both")
        found = {d.id: d for d in single}
        total = len(found)
        unchanged: list[str] = []
        if single and not dry_run:
            gone = await scope.delete(list(found), forget=forget)
            unchanged = [document for document in found if document not in gone]
            total = len(gone)
        chosen_paths: Sequence[str | None] = patterns or ([None] if chosen else [])
        for pattern in chosen_paths:
            done = await scope.delete_matching(path=pattern, **chosen, forget=forget, dry_run=dry_run)
            found |= {d.id: d for d in done.documents}
            total += done.count
    return _deleted([d for d in found.values() if d.id not in unchanged], total, unchanged, dry_run)


async def _sorted(scope: "OwnerScope", names: Sequence[str]) -> "tuple[list[DocumentView], list[str]]":
    """The documents that are named, and the patterns. A name with wildcards that names a document is no pattern."""
    from penstock.errors import NotFound
    from penstock.verbs.selection import is_pattern

    single: list[DocumentView] = []
    patterns: list[str] = []
    for name in dict.fromkeys(names):
        try:
            single.append(await scope.status(name))
        except NotFound:
            if not is_pattern(name):
                below = f"{name.rstrip('/')}/**"
                if (await scope.delete_matching(path=below, dry_run=True)).count:
                    raise NotFound(f"no document {name!r}: for the documents in this folder, use '{below}'") from None
                raise
            patterns.append(name)
    return single, patterns


def _deleted(found: "Sequence[DocumentView]", total: int, unchanged: Sequence[str], dry_run: bool) -> Answer:
    word = "would be deleted" if dry_run else "deleted"
    shown = found[:SHOWN]
    lines = [f"{count(total, 'document')} {word}"]
    names = distinct([(d.name, d.source) for d in shown])
    lines += table([[d.id, visible(name)] for d, name in zip(shown, names, strict=True)], "  ")
    if total > len(shown) > 0:
        lines.append(f"  and {total - len(shown):,} more")
    data = {"deleted": [d.id for d in found], "unchanged": unchanged, "count": total, "dry_run": dry_run}
    hints = ["Nothing was deleted: run it without --dry-run."] if dry_run and total else []
    if not total:
        hints.append("A pattern is a path below the current folder; ** matches any folders, as in '**/*.pdf'.")
    return Answer(data, "\n".join(lines), hints=hints)


async def _change(
    call: Call, ids: Sequence[str], done: str, field: str, verb: "Callable[[OwnerScope], Awaitable[set[Any]]]"
) -> Answer:
    async with call.scope() as scope:
        before = [await scope.status(name) for name in dict.fromkeys(ids)]
        changed = await verb(scope)
    names = {d.id: d for d in before}
    other = [d for d in names.values() if d.id not in changed]
    lines = [f"{count(len(changed), 'document')} {done}"]
    lines += table([[i, visible(names[i].name)] for i in names if i in changed], "  ")
    lines += [f"unchanged: {d.id} is {d.status}" for d in other]
    data = {field: [i for i in names if i in changed], "unchanged": [d.id for d in other]}
    return Answer(data, "\n".join(lines))


async def _status(scope: "OwnerScope", document: str | None) -> Answer:
    if document is None:
        totals = await scope.status()
        return Answer(as_data(totals), "\n".join(counts(totals)))
    found = await scope.status(document)
    return Answer(as_data(found), "\n".join(overview(found)))


def counts(found: "Counts") -> list[str]:
    documents, steps, letters = found.documents, found.steps, found.dead_letters
    rows: list[Sequence[object]] = [[f"documents {name}", f"{n:,}"] for name, n in documents.items()]
    rows += [[f"steps {name}", f"{n:,}"] for name, n in steps.items()]
    if waiting := found.events.waiting:
        rows.append(["events waiting", f"{waiting:,}"])
    rows.append(["dead letters", f"{letters:,}"])
    rows.append(["workers", _workers(found)])
    if bought := usage.line(found.usage):
        rows.append(["usage", bought])
    lines = table(rows) if documents else ["no documents; add some with: penstock ingest PATH"]
    lines += ["", *map(_away, found.away)] if found.away else []
    if found.intake.paused:
        lines += ["", sentence(found.intake) + ". To resume it: penstock intake resume"]
    waiting = sum(n for name, n in steps.items() if name in ("PENDING", "ERROR"))
    if waiting and not found.workers:
        lines += [
            "",
            "Work waits, but no worker runs. To process it: penstock run · to keep one running: penstock worker",
        ]
    return lines + (["", "To see why documents failed: penstock dlq list"] if letters else [])


def _workers(found: "Counts") -> str:
    """How many there are, on which hosts, and since when the oldest one on each of them runs."""
    if not found.workers:
        return "none"
    since: dict[str, float] = {}
    for worker in found.workers:
        since[worker.host] = min(worker.started_at, since.get(worker.host, worker.started_at))
    hosts = ", ".join(f"on {visible(host)} since {when(at)}" for host, at in since.items())
    return f"{len(found.workers):,} ({hosts})"


def _away(target: "AwayTarget") -> str:
    said = f": {visible(target.error.rstrip('.'))}" if target.error else ""
    change = f". Set {visible(target.setting)}" if target.setting else ""
    return f"{visible(target.target)}: {target.state} since {when(target.since)}{said}{change}. Its documents wait."


def overview(d: "DocumentDetails") -> list[str]:
    """The lines that describe one document and its steps."""
    p = d.progress
    pages, chunks = count(p.pages, "page"), count(p.chunks, "chunk")
    fields = {
        "id": d.id,
        "name": d.name,
        "source": d.source,
        "collection": d.collection,
        "status": d.status + _remark(d),
        "content": f"{d.media_type or 'unknown type'}, {bytes_size(d.size)}",
        "children": _by_status(d.children),
        "metadata": json.dumps(d.metadata, ensure_ascii=False) if d.metadata else None,
        "progress": f"{pages}, {chunks}, {p.embedded:,} embedded, {p.indexed:,} indexed",
        "skipped": _skipped(d),
        "usage": usage.line(d.usage) if d.usage is not None else None,
        "note": next((str(s.meta[key]) for s in d.steps for key in ("note", "error") if key in s.meta), None),
        "artifacts": f"dropped {when(d.artifacts_dropped_at)}, as keep_artifacts says"
        if d.artifacts_dropped_at
        else None,
        "attempts": f"{d.attempts}" + (f", retried {d.retry_count} times" if d.retry_count else ""),
        "submitted": when(d.created_at),
        "checkpoint": when(p.last_checkpoint),
        "progress at": when(max((s.last_progress for s in _at_work(d) if s.last_progress), default=None)),
        "error": d.error,
    }
    steps = [[step.name, step.status, step.attempts, _took(step), step.waiting_on or ""] for step in d.steps]
    return [*labelled(fields), "", *table([["STEP", "STATUS", "ATTEMPTS", "TOOK", "WAITING ON"], *steps])]


def _skipped(d: "DocumentDetails") -> str | None:
    """The pages that could not be read, with their reasons."""
    listed = [
        f"page {page['page']}{' = ' + visible(page['label']) if 'label' in page else ''} ({page['reason']})"
        for page in d.pages_skipped[:MOST_SKIPPED]
    ]
    more = len(d.pages_skipped) - len(listed)
    return ", ".join(listed) + (f" and {more:,} more" if more else "") if listed else None


def _by_status(children: dict[str, int]) -> str | None:
    counts = ", ".join(f"{n:,} {status}" for status, n in children.items())
    return f"{sum(children.values()):,} ({counts})" if children else None


def _at_work(d: "DocumentDetails") -> "list[StepView]":
    return [step for step in d.steps if step.status == "RUNNING"]


def _took(step: "StepView") -> str:
    if step.started_at is None or step.finished_at is None:
        return ""
    return duration(step.finished_at - step.started_at)


def _title(d: "DocumentView") -> str:
    """The name; for a document inside another, the names of both."""
    outer, mark, inner = d.source.partition("!/")
    return f"{outer.rpartition('/')[2]}{mark}{inner}" if d.parent is not None else d.name


def _remark(d: "DocumentView") -> str:
    if d.stale:
        return " (an older version is searchable)" if d.searchable else " (an older version is active)"
    return ""
