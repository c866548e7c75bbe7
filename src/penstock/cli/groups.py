"""`batch`, `group`: workflows for many documents at once, and what became of them."""

from typing import Any

import click

from penstock.cli.call import Call, InOrder, body
from penstock.cli.output import Answer, count, duration, labelled, table, when, with_times


@click.group(cls=InOrder, no_args_is_help=False)
def batch() -> None:
    """Documents that were submitted under one name: list, start."""


@batch.command("list")
@body
async def list_batches(call: Call) -> Answer:
    """The batches, newest first."""
    import msgspec

    async with call.scope() as scope:
        found = await scope.list_batches()
    rows = [
        [b.name, b.collection, sum(b.documents.values()), b.groups, when(b.created_at), _counts(b.documents)]
        for b in found
    ]
    head = ["BATCH", "COLLECTION", "DOCUMENTS", "GROUPS", "SINCE", "STATUS"]
    lines = table([head, *rows]) if rows else ["no batches: penstock ingest PATH --batch NAME"]
    return Answer({"batches": [with_times(msgspec.structs.asdict(b)) for b in found]}, "\n".join(lines))


@batch.command("start")
@click.argument("name", metavar="BATCH")
@click.option("--workflow", metavar="ID", help="A workflow, by id or file.")
@click.option("--params", metavar="ID", help="A parameter set, by id or file.")
@click.option("--collection", metavar="NAME", help="Where its documents are.")
@click.option("--priority", metavar="N", type=int, default=0, help="Above 0 it overtakes others.")
@click.option("--again", is_flag=True, help="Also for documents that are done with the same workflow and values.")
@body
async def start_batch(
    call: Call,
    name: str,
    workflow: str | None,
    params: str | None,
    collection: str | None,
    priority: int,
    again: bool,
) -> Answer:
    """Start a workflow for the documents of a batch.

    They become one group. What is searchable stays so until its new run has ended; steps whose input and values are
    the same are not done again.
    """
    import msgspec

    async with call.scope() as scope:
        done = await scope.start_batch(
            name,
            workflow=workflow,
            params=params,
            collection=collection,
            priority=priority,
            again=again,
        )
    lines = [f"started {count(done.started, 'run')}" + (f", group {done.group}" if done.group else "")]
    if done.done:
        lines.append(f"{count(done.done, 'document')} done with the same workflow and values (--again does them anew)")
    if done.working:
        lines.append(f"{count(done.working, 'document')} being worked on")
    hints = [f"`penstock run` works them off; `penstock group show {done.group}` tells about them."]
    return Answer(msgspec.structs.asdict(done), "\n".join(lines), hints=hints if done.group else [])


@click.group(cls=InOrder, no_args_is_help=False)
def group() -> None:
    """Runs that were started together: list, show, retry, cancel."""


@group.command("list")
@click.option("--batch", metavar="NAME", help="Only those of one batch.")
@click.option("--limit", metavar="N", type=click.IntRange(1), default=20, help="At most so many.", show_default=True)
@body
async def list_groups(call: Call, batch: str | None, limit: int) -> Answer:
    """Groups, newest first."""
    import msgspec

    async with call.scope() as scope:
        found = await scope.list_groups(batch=batch, limit=limit)
    head = ["ID", "STATUS", "RUNS", "DONE", "FAILED", "SINCE", "WORKFLOW", "BATCH"]
    rows = [
        [
            g.id, g.status, g.total, g.completed + g.not_indexable, g.failed, when(g.created_at), g.workflow,
            g.batch or "",
        ]
        for g in found
    ]  # fmt: skip
    lines = table([head, *rows]) if rows else ["no groups"]
    return Answer({"groups": [with_times(msgspec.structs.asdict(g)) for g in found]}, "\n".join(lines))


@group.command("show")
@click.argument("name", metavar="ID")
@body
async def show_group(call: Call, name: str) -> Answer:
    """One group: counts, durations, pace, and about how long the rest takes."""
    import msgspec

    async with call.scope() as scope:
        view = await scope.group(name)
    g, took = view.group, view.durations
    counts = {
        "completed": g.completed, "not indexable": g.not_indexable, "running": g.running, "pending": g.pending,
        "failed": g.failed, "cancelled": g.cancelled,
    }  # fmt: skip
    fields: dict[str, Any] = {
        "id": g.id,
        "status": g.status,
        "batch": g.batch,
        "workflow": g.workflow + (f", parameter set {g.params}" if g.params else ""),
        "collection": g.collection,
        "runs": f"{g.total:,}: " + _counts(counts),
        "durations": took
        and f"average {duration(took.average)}, half within {duration(took.p50)}, 95 % within {duration(took.p95)}, "
        f"99 % within {duration(took.p99)}, longest {duration(took.longest)}",
        "pace": f"{view.runs_per_s:.1f} runs/s",
        "left": duration(view.eta_s) if view.eta_s is not None else None,
        "started": when(g.created_at),
        "ended": when(g.finished_at),
    }
    hints = (
        [f"`penstock group retry {g.id}` tries what failed again; `penstock dlq list` says why."] if g.failed else []
    )
    data = {
        **with_times(msgspec.structs.asdict(g)),
        "durations": took and msgspec.structs.asdict(took),
        "runs_per_s": round(view.runs_per_s, 3),
        "eta_s": view.eta_s and round(view.eta_s, 1),
    }
    return Answer(data, "\n".join(labelled(fields)), hints=hints)


@group.command("retry")
@click.argument("name", metavar="ID")
@click.option("--cancelled", is_flag=True, help="Also what was cancelled.")
@body
async def retry_group(call: Call, name: str, cancelled: bool) -> Answer:
    """Queue the failed runs of a group again.

    They go on from their checkpoints. The group opens again, and GROUP_END fires again when it ends.
    """
    async with call.scope() as scope:
        retried = await scope.retry_group(name, cancelled=cancelled)
    hints = ["`penstock run` works them off."] if retried else []
    return Answer({"retried": retried}, f"{count(retried, 'run')} queued again", hints=hints)


@group.command("cancel")
@click.argument("name", metavar="ID")
@body
async def cancel_group(call: Call, name: str) -> Answer:
    """Stop what has not ended of a group.

    Older versions of its documents stay searchable. `penstock group retry --cancelled` takes the work up again.
    """
    async with call.scope() as scope:
        cancelled = await scope.cancel_group(name)
    return Answer({"cancelled": cancelled}, f"{count(cancelled, 'run')} cancelled")


def _counts(numbers: dict[str, int]) -> str:
    return ", ".join(f"{n:,} {name}" for name, n in numbers.items() if n) or "none"
