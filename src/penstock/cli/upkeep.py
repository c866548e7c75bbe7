"""`check` and `prune`: is everything as the ledger says, and what can go."""

from typing import Any

import click

from penstock.cli.call import Call, body
from penstock.cli.output import Answer, bytes_size, count, table, visible

DAY_S = 86_400.0
WORDS = {
    "purged": "versions out of the index",
    "dropped": "documents without their artifacts",
    "runs": "runs that were replaced",
    "documents": "traces of deleted documents",
    "dead_letters": "closed dead letters",
    "lock_releases": "forced releases of locks",
    "artifacts": "artifacts",
    "blobs": "blobs",
    "bytes": "their size",
    "workers": "files of dead workers",
}
"""What `prune` counts, as people say it."""


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
@click.option("--older-than", metavar="TIME", help="Only what is so old, at least 1d, as in 30d or 36h.")
@click.option("--dry-run", is_flag=True, help="Only say what would go.")
@body
async def prune(call: Call, older_than: str | None, dry_run: bool) -> Answer:
    """Remove what nothing refers to any more, old history, and artifacts that need not be kept.

    Without a time: a day for what nothing refers to, `retention.history_days` for runs that were replaced, closed dead
    letters and the like. The artifacts of searchable documents go as `keep_artifacts` says, whatever the time.
    """
    from penstock.cli.work import parse_duration
    from penstock.errors import UsageError

    age = parse_duration(older_than, "--older-than")
    if age is not None and age < DAY_S:
        raise UsageError(
            f"--older-than {older_than}: at least 1d, as younger bytes may be of a submit that is under way"
        )
    async with call.app() as app:
        removed = await app.prune(older_than_s=age, dry_run=dry_run)
    rows = [[WORDS[name], bytes_size(n) if name == "bytes" else f"{n:,}"] for name, n in removed.items() if n]
    lines = ["this would go:" if dry_run else "this went:", *table(rows, "  ")] if rows else ["nothing to remove"]
    return Answer({**removed, "dry_run": dry_run}, "\n".join(lines))


def _line(entry: dict[str, Any]) -> str:
    return ", ".join(f"{name} {visible(value)}" for name, value in entry.items() if value is not None)
