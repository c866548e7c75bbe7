"""`bench`: how fast the queue is on your own database."""

import click

from penstock.cli.call import Call, InOrder, body
from penstock.cli.output import Answer, table


@click.group(cls=InOrder, no_args_is_help=False)
def bench() -> None:
    """Measure: queue."""


@bench.command()
@click.option("--database", metavar="URL", help="Which database  [default: that of the settings]")
@click.option("--documents", metavar="N", type=click.IntRange(1), default=500, help="So many.", show_default=True)
@click.option(
    "--workers",
    metavar="N",
    type=click.IntRange(1, 8),
    default=1,
    help="Workers, each with its own connection.",
    show_default=True,
)
@body
async def queue(call: Call, database: str | None, documents: int, workers: int) -> Answer:
    """Steps a second through the queue, beside a bare claim loop in SQL.

    Five steps a document that do nothing. It works in a schema of its own on PostgreSQL and in a folder beside the file
    on SQLite, and leaves nothing behind; your documents are not touched.
    """
    import msgspec

    from penstock.bench.queue import measure
    from penstock.runtime import Runtime

    call.signals.working = True
    runtime = Runtime()
    try:
        found = await measure(database or call.settings().database_url, runtime, documents=documents, workers=workers)
    finally:
        runtime.close()
    rows = [
        ["documents submitted a second", f"{found.submit_docs_per_s:,.0f}"],
        ["steps a second", f"{found.drain_steps_per_s:,.0f}"],
        ["steps a second of a bare claim loop", f"{found.bare_claim_steps_per_s:,.0f}"],
        ["ratio", f"{found.ratio:.2f}"],
        ["from submit to the first step, median", f"{found.latency_p50_ms:.1f} ms"],
        ["from submit to the first step, 99 of 100", f"{found.latency_p99_ms:.1f} ms"],
        ["transactions a step", f"{found.transactions_per_step:.2f}"],
    ]
    return Answer(msgspec.to_builtins(found), "\n".join(table(rows)))
