"""`batch`, `group`: start workflows for many documents, and follow their runs."""

from typing import TYPE_CHECKING, Any

import click

from penstock.cli import completion, usage
from penstock.cli.call import Call, InOrder, body
from penstock.cli.changes import by_step, changes
from penstock.cli.output import Answer, count, duration, labelled, table, when, with_times

if TYPE_CHECKING:
    from penstock.verbs.groups import BatchStart


@click.group(cls=InOrder, no_args_is_help=False)
def batch() -> None:
    """Batches of documents that were submitted together: list, start."""


@batch.command("list")
@body
async def list_batches(call: Call) -> Answer:
    """List batches, newest first."""
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
@changes
@click.option("--collection", metavar="NAME", help="The collection of the documents.")
@click.option("--priority", metavar="N", type=int, default=0, help="A higher priority is processed first.")
@click.option("--again", is_flag=True, help="Include documents that are done with the same workflow and values.")
@body
async def start_batch(
    call: Call,
    name: str,
    workflow: str | None,
    params: str | None,
    values: tuple[str, ...],
    collection: str | None,
    priority: int,
    again: bool,
) -> Answer:
    """Start a workflow for the documents of a batch.

    The new runs form one group. Documents stay searchable until their new run has ended. Steps whose input and values
    are unchanged are not repeated. Held documents start with the workflow that they were submitted with, unless another
    one is given.
    """
    async with call.scope() as scope:
        done = await scope.start_batch(
            name,
            workflow=workflow,
            params=params,
            values=by_step(values),
            collection=collection,
            priority=priority,
            again=again,
        )
    return _began(done)


@click.command("start")
@click.argument("ids", metavar="ID...", nargs=-1, required=True, shell_complete=completion.documents)
@changes
@click.option("--priority", metavar="N", type=int, default=0, help="A higher priority is processed first.")
@body
async def start(
    call: Call, ids: tuple[str, ...], workflow: str | None, params: str | None, values: tuple[str, ...], priority: int
) -> Answer:
    """Start a workflow for documents, also for held ones.

    Each gets a new run. Held documents start with the workflow that they were submitted with, unless another one is
    given.
    """
    from penstock.verbs.groups import BatchStart

    options: dict[str, Any] = {"workflow": workflow, "params": params, "values": by_step(values), "priority": priority}
    async with call.scope() as scope:
        done = [await scope.start_document(one, **options) for one in ids]
    return _began(
        BatchStart(
            next((one.group for one in done if one.group), None),
            *(sum(getattr(one, what) for one in done) for what in ("started", "done", "working")),
        )
    )


def _began(done: "BatchStart") -> Answer:
    import msgspec

    lines = [f"started {count(done.started, 'run')}" + (f", group {done.group}" if done.group else "")]
    if done.done:
        lines.append(f"{count(done.done, 'document')} done with the same workflow and values (--again repeats them)")
    if done.working:
        lines.append(f"{count(done.working, 'document')} in progress")
    hints = [f"Run `penstock run` to process them; `penstock group show {done.group}` shows their progress."]
    return Answer(msgspec.structs.asdict(done), "\n".join(lines), hints=hints if done.group else [])


@click.group(cls=InOrder, no_args_is_help=False)
def group() -> None:
    """Groups of runs that were started together: list, show, retry, cancel."""


@group.command("list")
@click.option("--batch", metavar="NAME", help="Only groups of this batch.")
@click.option(
    "--limit", metavar="N", type=click.IntRange(1), default=20, help="Maximum number of results.", show_default=True
)
@body
async def list_groups(call: Call, batch: str | None, limit: int) -> Answer:
    """List groups, newest first."""
    import msgspec

    async with call.scope() as scope:
        found = await scope.list_groups(batch=batch, limit=limit)
    head = ["ID", "STATUS", "RUNS", "DONE", "FAILED", "SINCE", "WORKFLOW", "BATCH"]
    rows = [
        [
            g.id, g.status, g.total, g.completed + g.not_indexable + g.unsupported, g.failed, when(g.created_at),
            g.workflow, g.batch or "",
        ]
        for g in found
    ]  # fmt: skip
    lines = table([head, *rows]) if rows else ["no groups"]
    return Answer({"groups": [with_times(msgspec.structs.asdict(g)) for g in found]}, "\n".join(lines))


@group.command("show")
@click.argument("name", metavar="ID")
@body
async def show_group(call: Call, name: str) -> Answer:
    """Show one group: counts, durations, rate, and estimated time left."""
    import msgspec

    async with call.scope() as scope:
        view = await scope.group(name)
    g, took = view.group, view.durations
    counts = {
        "completed": g.completed, "not indexable": g.not_indexable, "unsupported": g.unsupported,
        "running": g.running, "pending": g.pending,
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
        and f"average {duration(took.average)}, median {duration(took.p50)}, 95 % within {duration(took.p95)}, "
        f"99 % within {duration(took.p99)}, longest {duration(took.longest)}",
        "rate": f"{view.runs_per_s:.1f} runs/s",
        "time left": duration(view.eta_s) if view.eta_s is not None else None,
        "usage": usage.line(view.usage),
        "started": when(g.created_at),
        "ended": when(g.finished_at),
    }
    hints = (
        [f"`penstock group retry {g.id}` retries failed runs; `penstock dlq list` shows the reasons."]
        if g.failed
        else []
    )
    data = {
        **with_times(msgspec.structs.asdict(g)),
        "durations": took and msgspec.structs.asdict(took),
        "runs_per_s": round(view.runs_per_s, 3),
        "eta_s": view.eta_s and round(view.eta_s, 1),
        "usage": msgspec.to_builtins(view.usage),
    }
    return Answer(data, "\n".join(labelled(fields)), hints=hints)


@group.command("retry")
@click.argument("name", metavar="ID")
@click.option("--cancelled", is_flag=True, help="Include cancelled runs.")
@body
async def retry_group(call: Call, name: str, cancelled: bool) -> Answer:
    """Queue the failed runs of a group again.

    They continue at their checkpoints. The group opens again, and GROUP_END fires again when it ends.
    """
    async with call.scope() as scope:
        retried = await scope.retry_group(name, cancelled=cancelled)
    hints = ["Run `penstock run` to process them."] if retried else []
    return Answer({"retried": retried}, f"{count(retried, 'run')} queued again", hints=hints)


@group.command("cancel")
@click.argument("name", metavar="ID")
@body
async def cancel_group(call: Call, name: str) -> Answer:
    """Cancel all runs of a group that have not ended.

    Older versions of its documents stay searchable. `penstock group retry --cancelled` resumes the runs.
    """
    async with call.scope() as scope:
        cancelled = await scope.cancel_group(name)
    return Answer({"cancelled": cancelled}, f"{count(cancelled, 'run')} cancelled")


def _counts(numbers: dict[str, int]) -> str:
    return ", ".join(f"{n:,} {name}" for name, n in numbers.items() if n) or "none"
