"""`steps`, `workers`, `lock`: inspect the engine."""

import click

from penstock.cli import completion
from penstock.cli.call import Call, InOrder, body
from penstock.cli.output import Answer, as_data, count, table, visible, when
from penstock.cli.work import parse_duration


@click.command()
@click.option(
    "--status",
    metavar="STATUS",
    shell_complete=completion.step_statuses,
    help="Only steps with this status, as in RUNNING.",
)
@click.option("--kind", metavar="KIND", help="Only steps of this kind, as in extract.")
@click.option("--stuck", metavar="TIME", help="Only started steps without progress for this time, as in 1h.")
@click.option(
    "--limit", metavar="N", type=click.IntRange(1), default=100, help="Maximum number of results.", show_default=True
)
@body
async def steps(call: Call, status: str | None, kind: str | None, stuck: str | None, limit: int) -> Answer:
    """List steps, newest first, with their worker or what they wait on."""
    async with call.scope() as scope:
        found = await scope.list_steps(
            status=status.upper() if status else None,
            kind=kind,
            stuck_s=parse_duration(stuck, "--stuck"),
            limit=limit,
        )
    head = ["ID", "STEP", "STATUS", "ATTEMPTS", "SINCE", "WAITING ON", "NAME"]
    rows = [
        [s.document_id, s.name, s.status, s.attempts, when(s.since), s.waiting_on, _with_error(s.document, s.error)]
        for s in found
    ]
    lines = table([head, *rows]) if rows else ["no such steps" if status or kind or stuck else "no steps"]
    return Answer({"steps": as_data(found)}, "\n".join(lines))


@click.command()
@body
async def workers(call: Call) -> Answer:
    """List the workers of this ledger, for all owners."""
    async with call.app() as app:
        found = await app.list_workers()
    rows = [[w.id, w.host, w.pid, when(w.started_at), w.steps, "" if w.alive else "dead"] for w in found]
    lines = table([["ID", "HOST", "PID", "SINCE", "STEPS", ""], *rows]) if rows else ["no workers"]
    dead = sum(not w.alive for w in found)
    hints = [f"{count(dead, 'worker')} died: the next worker takes their steps and locks back."] if dead else []
    return Answer({"workers": as_data(found)}, "\n".join(lines), hints=hints)


@click.group(cls=InOrder, no_args_is_help=False)
def lock() -> None:
    """Locks on indexes and on resource keys: list, release."""


@lock.command("list")
@body
async def list_locks(call: Call) -> Answer:
    """List locks with their holder, purpose and expiry, and forced releases."""
    async with call.scope() as scope:
        found = await scope.list_locks()
    held, released = found.locks, found.released
    lines = ["no locks are held"]
    if held:
        rows = [[x.key, x.purpose, x.steps, x.worker, x.host, x.pid, when(x.until)] for x in held]
        lines = table([["KEY", "FOR", "STEPS", "WORKER", "HOST", "PID", "UNTIL"], *rows])
    if released:
        rows = [[x.key, x.purpose, x.worker, x.released_by, when(x.released_at)] for x in released]
        lines += ["", *table([["RELEASED", "FOR", "FROM", "BY", "AT"], *rows])]
    return Answer(as_data(found), "\n".join(lines))


@lock.command()
@click.argument("key", metavar="KEY")
@click.option("--force", is_flag=True, help="Confirm that the lock is taken from its holder.")
@body
async def release(call: Call, key: str, force: bool) -> Answer:
    """Take a lock away from its holder.

    A lock of a dead process is released automatically. The holder can no longer write, its steps return to the queue,
    and `penstock lock list` shows who released the lock.
    """
    async with call.scope() as scope:
        done = await scope.release_lock(key, force=force)
    data = {"released": key, "worker": done.worker, "purpose": done.purpose, "steps": done.steps}
    return Answer(
        data, f"{visible(key)} was taken from {done.worker}; {count(done.steps, 'step')} returned to the queue"
    )


def _with_error(name: str, error: str | None) -> str:
    return f"{name}: {error}" if error else name
