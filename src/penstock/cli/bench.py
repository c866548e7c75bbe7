"""`bench`: measure the queue on the user's database."""

import click

from penstock.cli.call import Call, InOrder, body
from penstock.cli.output import Answer, table


@click.group(cls=InOrder, no_args_is_help=False)
def bench() -> None:
    """Benchmarks: queue."""


@bench.command()
@click.option("--database", metavar="URL", help="The database to measure  [default: from the settings]")
@click.option(
    "--documents", metavar="N", type=click.IntRange(1), default=500, help="Number of documents.", show_default=True
)
@click.option(
    "--workers",
    metavar="N",
    type=click.IntRange(1, 8),
    default=1,
    help="Number of workers, each with its own connection.",
    show_default=True,
)
@body
async def queue(call: Call, database: str | None, documents: int, workers: int) -> Answer:
    """Measure submit, throughput and latency of the queue, compared with plain SQL.

    Each document has five steps that do nothing. The output shows the target of each ratio. The benchmark uses a
    temporary schema on PostgreSQL, or a temporary folder beside the SQLite file, and removes it at the end. It does not
    touch your documents.
    """
    import msgspec

    from penstock.bench.queue import measure, targets
    from penstock.ledger.database.database import Database
    from penstock.runtime import Runtime

    call.signals.working = True
    runtime = Runtime()
    url = database or call.settings().database_url
    try:
        found = await measure(url, runtime, documents=documents, workers=workers)
    finally:
        runtime.close()
    rows = [
        ["documents submitted per second", f"{found.submit_docs_per_s:,.0f}"],
        ["plain inserts of the same rows, documents per second", f"{found.submit_bare_docs_per_s:,.0f}"],
        ["ratio", f"{found.submit_ratio:.2f}", "submit_ratio"],
        ["steps per second", f"{found.drain_steps_per_s:,.0f}"],
        ["plain claim loop, steps per second", f"{found.bare_claim_steps_per_s:,.0f}"],
        ["ratio", f"{found.ratio:.2f}", "ratio"],
        ["from submit to the first step, median", f"{found.latency_p50_ms:.1f} ms"],
        ["from a plain insert to its claim, median", f"{found.latency_bare_p50_ms:.1f} ms"],
        ["ratio", f"{found.latency_ratio:.2f}", "latency_ratio"],
        ["from submit to the first step, 99th percentile", f"{found.latency_p99_ms:.1f} ms"],
        ["ratio to the median", f"{found.latency_spread:.2f}", "latency_spread"],
        ["transactions per step", f"{found.transactions_per_step:.2f}", "transactions_per_step"],
    ]
    wanted = targets(Database(url, runtime).dialect)
    for row in rows:
        name = row.pop() if len(row) == 3 else ""
        row += [str(wanted[name]), "missed" if name in found.missed else ""] if name else ["", ""]
    return Answer(msgspec.to_builtins(found), "\n".join(table(rows)))
