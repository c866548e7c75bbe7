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
    """Submits, steps and waits of the queue, each beside the same done by hand in SQL.

    Five steps a document that do nothing. What should be reached stands beside the ratios. It works in a schema of its
    own on PostgreSQL and in a folder beside the file on SQLite, and leaves nothing behind; your documents are not
    touched.
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
        ["documents submitted a second", f"{found.submit_docs_per_s:,.0f}"],
        ["documents a second of a bare insert of the same rows", f"{found.submit_bare_docs_per_s:,.0f}"],
        ["ratio", f"{found.submit_ratio:.2f}", "submit_ratio"],
        ["steps a second", f"{found.drain_steps_per_s:,.0f}"],
        ["steps a second of a bare claim loop", f"{found.bare_claim_steps_per_s:,.0f}"],
        ["ratio", f"{found.ratio:.2f}", "ratio"],
        ["from submit to the first step, median", f"{found.latency_p50_ms:.1f} ms"],
        ["from a bare insert to its claim, median", f"{found.latency_bare_p50_ms:.1f} ms"],
        ["ratio", f"{found.latency_ratio:.2f}", "latency_ratio"],
        ["from submit to the first step, 99 of 100", f"{found.latency_p99_ms:.1f} ms"],
        ["against the median", f"{found.latency_spread:.2f}", "latency_spread"],
        ["transactions a step", f"{found.transactions_per_step:.2f}", "transactions_per_step"],
    ]
    wanted = targets(Database(url, runtime).dialect)
    for row in rows:
        name = row.pop() if len(row) == 3 else ""
        row += [str(wanted[name]), "missed" if name in found.missed else ""] if name else ["", ""]
    return Answer(msgspec.to_builtins(found), "\n".join(table(rows)))
