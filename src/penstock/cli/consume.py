"""`consume`: submit what the messages of a stream name, until stopped."""

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any

import click

from penstock.cli.call import Call, body
from penstock.cli.output import Answer, note

if TYPE_CHECKING:
    from penstock.metrics.registry import Registry


@click.command()
@click.argument("stream", metavar="STREAM")
@click.option("--collection", metavar="NAME", help="Collection of the documents.")
@click.option("--only", "places", metavar="URI", multiple=True, help="Bucket or prefix that messages may name.")
@click.option("--workflow", metavar="NAME", help="Workflow of the documents.")
@click.option("--params", metavar="NAME", help="Parameter set of the workflow.")
@click.option(
    "--priority", metavar="N", type=int, default=0, help="Higher ones are processed first.", show_default=True
)
@click.option(
    "--queue-limit",
    metavar="N",
    type=click.IntRange(1),
    default=10_000,
    help="Take no messages while more steps wait.",
    show_default=True,
)
@click.option("--until-empty", is_flag=True, help="Stop when the stream has no more messages.")
@click.option(
    "--metrics-port", metavar="P", type=click.IntRange(0, 65535), help="Serve metrics on this port; 0: any free port."
)
@click.option("--metrics-host", metavar="ADDRESS", help="The address of that port  [default: 127.0.0.1]")
@body
async def consume(call: Call, stream: str, metrics_port: int | None, metrics_host: str | None, **wanted: Any) -> Answer:
    """Submit the objects that the messages of a stream name, until stopped.

    STREAM is kafka://HOST:PORT/TOPIC or sqs://QUEUE. Messages are events of uploads, or notifications of an object
    store. A message is confirmed when its documents are durable, so that none is lost; one that is delivered again
    changes nothing. Messages that cannot be used become dead letters. Workers process the documents: penstock worker.
    """
    import msgspec

    call.signals.is_service = True
    with _metrics(call, metrics_port, metrics_host, stream) as (registry, on_lag):
        async with call.working_app(registry, for_ever=True) as app:
            if not call.json and not call.quiet:
                note("Consuming; stop with Ctrl-C or SIGTERM.")
            done = await app.consume(stream, owner=call.owner, report=note, on_lag=on_lag, **wanted)
    shown = ("accepted", "unchanged", "deleted", "gone", "refused")
    counts = [f"{getattr(done, name):,} {name}" for name in shown if getattr(done, name)]
    text = f"{done.messages:,} messages in {done.elapsed_s:.1f} s" + (f" · {', '.join(counts)}" if counts else "")
    hints = ["`penstock dlq list` shows what was refused."] if done.refused else []
    code = call.signals.code_of_stop if call.signals.received is not None else 0
    return Answer(msgspec.to_builtins(done), text, code, hints=hints)


@contextmanager
def _metrics(
    call: Call, port: int | None, host: str | None, stream: str
) -> "Iterator[tuple[Registry | None, Callable[[int], None]]]":
    """The registry of metrics, and what is told the lag. They are served meanwhile, if a port is given."""
    if port is None:
        yield None, lambda lag: None
        return
    from penstock.cli.metrics import MetricsServer, ledger_gauges, registry_for
    from penstock.metrics.registry import Gauge
    from penstock.redaction import masked

    settings, registry = call.settings(), registry_for(None)
    lags: list[Gauge] = []

    def on_lag(lag: int) -> None:
        lags[:] = [Gauge("stream_lag", lag, {"stream": masked(stream)})]

    with (
        closing(ledger_gauges(settings)) as gauges,
        MetricsServer(
            host or settings.worker.metrics_host, port, lambda: registry.render([*gauges(), *lags])
        ) as server,
    ):
        note(f"Metrics: {server.url}")
        yield registry, on_lag
