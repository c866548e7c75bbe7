"""`status`, `list`, `retry`, `cancel`, `delete`: commands about documents."""

import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from penstock.cli.call import Call, body
from penstock.cli.changes import by_step, changes
from penstock.cli.output import Answer, as_data, bytes_size, count, duration, labelled, table, visible, when
from penstock.cli.passwords import chosen, passwords

if TYPE_CHECKING:
    from penstock.ledger.reads.stats import AwayTarget
    from penstock.model.nouns import StepView
    from penstock.verbs.owner import OwnerScope
    from penstock.verbs.views import Counts, DocumentDetails, DocumentView

MOST_SKIPPED = 10
"""Skipped pages that are listed."""
IDS = click.argument("ids", metavar="ID...", nargs=-1, required=True)


@click.command()
@click.argument("document", metavar="[ID]", required=False)
@click.option("--watch", is_flag=True, help="Refresh every second, until Ctrl-C or the end of the document.")
@body
async def status(call: Call, document: str | None, watch: bool) -> Answer:
    """Show counts by status, or one document with its steps.

    Completed steps are not counted. For one document, it shows status, progress, attempts, error, and each step.
    """
    from penstock.errors import UsageError

    if watch and call.json:
        raise UsageError("--watch cannot be used with --json")
    async with call.app() as app:
        if watch:
            from penstock.cli.watch import watch as watch_status

            await watch_status(app, call, document)
            if document is None or call.signals.received is not None:
                return Answer({})
        return await _status(call.scoped(app), document)


@click.command("list")
@click.option("--status", metavar="STATUS", help="Only documents with this status, as in FAILED.")
@click.option("--collection", metavar="NAME", help="Only documents of this collection.")
@click.option("--name", metavar="GLOB", help="Only documents whose name matches.")
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
    after: str | None,
    limit: int,
    filters: tuple[str, ...],
) -> Answer:
    """List documents, newest first."""
    from penstock.search.filters import parsed

    where = parsed(filters)
    async with call.scope() as scope:
        found = await scope.list_documents(
            status=status.upper() if status else None,
            collection=collection,
            name=name,
            filter=where,
            limit=limit,
            after=after,
        )
    rows = [[d.id, d.status, d.pages, d.chunks, visible(d.name) + _remark(d)] for d in found]
    lines = table([["ID", "STATUS", "PAGES", "CHUNKS", "NAME"], *rows]) if rows else ["no documents"]
    last = found[-1].id if len(found) == limit else None
    lines += [f"{len(found):,} shown; for more: --after {last}"] if last else []
    return Answer({"documents": [as_data(d) for d in found], "after": last}, "\n".join(lines))


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
    hints = [*notes, "Run `penstock run` to process them."] if answer.data["retried"] else []
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
@IDS
@body
async def delete(call: Call, ids: tuple[str, ...]) -> Answer:
    """Delete documents: no search that starts afterwards finds them."""
    return await _change(call, ids, "deleted", "deleted", lambda scope: scope.delete(ids))


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
    lines = table(rows) if documents else ["no documents; add some with: penstock ingest PATH"]
    lines += ["", *map(_away, found.away)] if found.away else []
    return lines + (["", "To see why documents failed: penstock dlq list"] if letters else [])


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
        "metadata": json.dumps(d.metadata, ensure_ascii=False) if d.metadata else None,
        "progress": f"{pages}, {chunks}, {p.embedded:,} embedded, {p.indexed:,} indexed",
        "skipped": _skipped(d),
        "artifacts": f"dropped {when(d.artifacts_dropped_at)}: cannot be shown or reused"
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
    listed = [f"page {page['page']} ({page['reason']})" for page in d.pages_skipped[:MOST_SKIPPED]]
    more = len(d.pages_skipped) - len(listed)
    return ", ".join(listed) + (f" and {more:,} more" if more else "") if listed else None


def _at_work(d: "DocumentDetails") -> "list[StepView]":
    return [step for step in d.steps if step.status == "RUNNING"]


def _took(step: "StepView") -> str:
    if step.started_at is None or step.finished_at is None:
        return ""
    return duration(step.finished_at - step.started_at)


def _remark(d: "DocumentView") -> str:
    if d.stale:
        return " (an older version is searchable)" if d.searchable else " (an older version is active)"
    return ""
