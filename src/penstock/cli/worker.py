"""`worker`: work until told to stop, in one process or in several."""

from collections import Counter
from typing import TYPE_CHECKING, Any

import click

from penstock.cli.call import Call, body
from penstock.cli.output import Answer, note
from penstock.cli.work import summary_line

if TYPE_CHECKING:
    from penstock.jobs import Summary


@click.command()
@click.option("--pools", metavar="SIZES", help="Kinds of steps, or pools of workflows, as in extract=2,gpu=1,*=4.")
@click.option("--processes", metavar="N", type=click.IntRange(1, 256), default=1, help="So many workers side by side.")
@body
async def worker(call: Call, pools: str | None, processes: int) -> Answer:
    """Work until told to stop, whoever submits.

    Ctrl-C or SIGTERM hands over within two seconds what is being worked on. A pool takes only steps of its kind, or
    those whose workflow names it, so many at once; * stands for all that no other pool names, and 0 leaves them to
    other workers.
    """
    if processes > 1:
        return await _supervise(call, pools, processes)
    async with call.working_app() as app:
        if not call.json:
            note("Working until told to stop (Ctrl-C, SIGTERM).")
        summary = await app.work(pools=pools)
    return _answer(call, summary)


async def _supervise(call: Call, pools: str | None, processes: int) -> Answer:
    import asyncio

    import msgspec

    from penstock.app import pool_sizes
    from penstock.cli.supervisor import Supervisor
    from penstock.jobs import Summary
    from penstock.runtime import Runtime

    call.settings()
    if pools is not None:
        pool_sizes(pools)
    options = {"--home": call.home, "--config": call.config, "--owner": call.owner, "--pools": pools}
    given = [word for name, value in options.items() if value is not None for word in (name, value)]
    supervisor = Supervisor(["worker", "--json", *given], processes, Runtime())
    loop = asyncio.get_running_loop()
    call.signals.working = True
    call.signals.stop = lambda: loop.call_soon_threadsafe(supervisor.stop)
    if call.signals.received is not None:
        supervisor.stop()
    if not call.json:
        note(f"{processes} processes work until told to stop (Ctrl-C, SIGTERM).")
    await supervisor.run()
    if supervisor.refused is not None:
        return Answer({"error": supervisor.refused}, code=2)
    parts = [msgspec.convert(part, Summary) for part in supervisor.answers]
    return _answer(call, _sum(parts), processes=processes, restarts=supervisor.restarts)


def _sum(parts: "list[Summary]") -> "Summary":
    """What they all made; the longest time."""
    from penstock.jobs import Summary

    made: Counter[str] = Counter()
    total = Summary(elapsed_s=max((part.elapsed_s for part in parts), default=0.0))
    for part in parts:
        made.update(part.made)
        total.completed += part.completed
        total.not_indexable += part.not_indexable
        total.failed += part.failed
    total.made = dict(made)
    return total


def _answer(call: Call, summary: "Summary", **more: Any) -> Answer:
    import msgspec

    stopped = call.signals.received is not None
    summary.interrupted = stopped
    hints = ["What was begun is kept: any other worker goes on with it."] if stopped else []
    data = {"processes": 1, "restarts": 0, **msgspec.to_builtins(summary), **more}
    return Answer(data, summary_line(summary), call.signals.code if stopped else 0, hints=hints)
