"""`check` and `prune`: is everything as the ledger says, and what can go."""

from typing import Any

import click

from penstock.cli.call import Call, body
from penstock.cli.output import Answer, count, table, visible


@click.command()
@click.option("--repair", is_flag=True, help="Put right what can be put right.")
@body
async def check(call: Call, repair: bool) -> Answer:
    """Compare ledger, blobs and index both ways; safe on a live system."""
    async with call.app() as app:
        report = await app.check(repair=repair, owner=call.owner)
    data = {"ok": report.ok, "problems": report.problems, "garbage": report.garbage, "repaired": report.repaired}
    lines = [f"problem: {_line(problem)}" for problem in report.problems]
    lines += [f"repaired: {_line(repaired)}" for repaired in report.repaired]
    lines.append("ok" if report.ok else count(len(report.problems), "problem"))
    hints = []
    if report.garbage:
        hints.append(f"{count(len(report.garbage), 'leftover')} to clear away: penstock prune")
    if not report.ok and not repair:
        hints.append("What can be made again: penstock check --repair")
    return Answer(data, "\n".join(lines), 0 if report.ok else 1, hints=hints)


@click.command()
@body
async def prune(call: Call) -> Answer:
    """Remove what nothing refers to any more and is older than a day."""
    async with call.app() as app:
        removed = await app.prune()
    rows = [[name.replace("_", " "), f"{n:,}"] for name, n in removed.items()]
    return Answer(dict(removed), "\n".join(table(rows)) or "nothing to remove")


def _line(entry: dict[str, Any]) -> str:
    return ", ".join(f"{name} {visible(value)}" for name, value in entry.items() if value is not None)
