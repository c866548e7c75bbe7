"""`worker`: process the queue until stopped, in one process or several."""

from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any

import click

from penstock.cli.call import Call, body
from penstock.cli.output import Answer, note
from penstock.cli.work import summary_line

if TYPE_CHECKING:
    from penstock.metrics.registry import Registry
    from penstock.verbs.jobs import Summary


@click.command()
@click.option("--pools", metavar="SIZES", help="Slots by kind of step or by pool, as in extract=2,gpu=1,*=4.")
@click.option("--processes", metavar="N", type=click.IntRange(1, 256), default=1, help="Number of worker processes.")
@click.option(
    "--metrics-port", metavar="P", type=click.IntRange(0, 65535), help="Serve metrics on this port; 0: any free port."
)
@click.option("--metrics-host", metavar="ADDRESS", help="The address of that port  [default: 127.0.0.1]")
@click.option("--send-metrics", metavar="FD", type=int, hidden=True)
@body
async def worker(
    call: Call,
    pools: str | None,
    processes: int,
    metrics_port: int | None,
    metrics_host: str | None,
    send_metrics: int | None,
) -> Answer:
    """Process the queue until stopped.

    Ctrl-C or SIGTERM releases the running steps within two seconds. A pool takes only steps of its kind, or steps whose
    workflow names it, up to its number of slots. * stands for all other kinds and pools; 0 leaves them to other
    workers.

    With --metrics-port, http://127.0.0.1:P/metrics serves the metrics of all processes in the format of Prometheus.
    """
    call.signals.is_service = True
    if pools is not None:
        from penstock.verbs.working import pool_sizes

        pool_sizes(pools)
    with _shown(call, pools, metrics_port, metrics_host, send_metrics) as (registry, port):
        if processes > 1:
            return await _supervise(call, pools, processes, registry, port)
        async with call.working_app(registry, for_ever=True) as app:
            if not call.json and not call.quiet:
                note("Working; stop with Ctrl-C or SIGTERM.")
            summary = await app.work(pools=pools, report=note)
    return _answer(call, summary, metrics_port=port)


@contextmanager
def _shown(
    call: Call, pools: str | None, port: int | None, host: str | None, send: int | None
) -> "Iterator[tuple[Registry | None, int | None]]":
    """The registry of metrics, and the port that serves it meanwhile; None if metrics are off."""
    settings = call.settings()
    chosen = settings.worker.metrics_port if port is None else port
    if chosen is None and send is None:
        yield None, None
        return
    from penstock.cli.metrics import MetricsServer, Sender, ledger_gauges, registry_for

    registry = registry_for(pools)
    if send is not None:
        with Sender(registry, send):
            yield registry, None
        return
    assert chosen is not None
    host = host or settings.worker.metrics_host
    with (
        closing(ledger_gauges(settings)) as gauges,
        MetricsServer(host, chosen, lambda: registry.render(gauges())) as server,
    ):
        note(f"Metrics: {server.url}")
        yield registry, server.port


async def _supervise(
    call: Call, pools: str | None, processes: int, registry: "Registry | None", port: int | None
) -> Answer:
    import asyncio

    import msgspec

    from penstock.cli.supervisor import Supervisor
    from penstock.runtime import Runtime
    from penstock.verbs.jobs import Summary

    options = {"--home": call.home, "--config": call.config, "--owner": call.owner, "--pools": pools}
    given = [word for name, value in options.items() if value is not None for word in (name, value)]
    supervisor = Supervisor(["worker", "--json", *given], processes, Runtime(), registry)
    loop = asyncio.get_running_loop()
    call.signals.working = True
    call.signals.stop = lambda: loop.call_soon_threadsafe(supervisor.stop)
    if call.signals.received is not None:
        supervisor.stop()
    if not call.json and not call.quiet:
        note(f"{processes} worker processes are running; stop with Ctrl-C or SIGTERM.")
    await supervisor.run()
    if supervisor.refused is not None:
        return Answer({"error": supervisor.refused}, code=2)
    parts = [msgspec.convert(part, Summary) for part in supervisor.answers]
    return _answer(call, _sum(parts), processes=processes, restarts=supervisor.restarts, metrics_port=port)


def _sum(parts: "list[Summary]") -> "Summary":
    """The sum of all summaries, with the longest elapsed time."""
    from penstock.verbs.jobs import Summary

    made: Counter[str] = Counter()
    total = Summary(elapsed_s=max((part.elapsed_s for part in parts), default=0.0))
    for part in parts:
        made.update(part.made)
        total.completed += part.completed
        total.not_indexable += part.not_indexable
        total.unsupported += part.unsupported
        total.failed += part.failed
    total.made = dict(made)
    return total


def _answer(call: Call, summary: "Summary", **more: Any) -> Answer:
    import msgspec

    stopped = call.signals.received is not None
    summary.interrupted = stopped
    hints = ["The progress is kept: any other worker continues it."] if stopped else []
    data = {"processes": 1, "restarts": 0, "metrics_port": None, **msgspec.to_builtins(summary), **more}
    return Answer(data, summary_line(summary), call.signals.code_of_stop if stopped else 0, hints=hints)
