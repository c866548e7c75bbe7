"""Maintenance commands: `check`, `prune`, `vacuum`, `backup` and `restore`."""

import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from penstock.cli import completion
from penstock.cli.call import Call, body
from penstock.cli.output import Answer, as_data, bytes_size, count, drawable, table, visible, with_times
from penstock.cli.work import parse_duration

if TYPE_CHECKING:
    from penstock.upkeep.backup import CopyProgress
    from penstock.upkeep.report import CheckEntry

DAY_S = 86_400.0
DRAW_AFTER_S, DRAW_EVERY_S = 0.5, 0.2
WORDS = {
    "purged": "versions removed from the index",
    "dropped": "documents without their artifacts",
    "runs": "replaced runs",
    "documents": "rows of deleted documents",
    "dead_letters": "closed dead letters",
    "lock_releases": "records of forced lock releases",
    "events": "delivered events",
    "webhook_deliveries": "ended deliveries to webhooks",
    "groups": "groups without runs",
    "snapshots": "workflow snapshots",
    "artifacts": "artifacts",
    "blobs": "blobs",
    "bytes": "total size",
    "workers": "files of dead workers",
    "answers": "bought answers",
    "trials": "trials of interrupted evaluations",
    "uploads": "expired uploads",
}
"""Labels for the counts of `prune`."""


@click.command()
@click.option("--repair", is_flag=True, help="Repair what can be repaired.")
@click.option(
    "--sample", metavar="SHARE", help="Compare the content of this share of the files, as in 5%, and the size of all."
)
@body
async def check(call: Call, repair: bool, sample: str | None) -> Answer:
    """Compare ledger, blobs and index in both directions; safe on a live system."""
    import msgspec

    share = _share(sample)
    async with call.app() as app:
        with _drawn(app.runtime.clock) as progress:
            checked = app if call.owner is None else call.scoped(app)
            report = await checked.check(repair=repair, sample=share, progress=progress)
    data = msgspec.to_builtins(report)
    lines = [f"problem: {_line(problem)}" for problem in report.problems]
    lines += [f"repaired: {_line(repaired)}" for repaired in report.repaired]
    if report.queued_count:
        lines.append(
            f"queued: {count(report.queued_count, 'document')} to be processed again from raw bytes (penstock run)"
        )
    part = f" ({share:.2%} of the stored files by content, all by size)" if share < 1 else ""
    lines.append(("ok" if report.ok else count(len(report.problems), "problem")) + part)
    hints = []
    if report.garbage:
        hints.append(f"{count(_total(report.garbage), 'leftover')}, clearable after 24 h: penstock prune")
    if not report.ok and not repair:
        hints.append("To repair: penstock check --repair")
    return Answer(data, "\n".join(lines), 0 if report.ok else 1, hints=hints)


def _total(entries: Sequence["CheckEntry"]) -> int:
    """How many objects these entries are about. If a kind has more than are listed, its last entry has their number."""
    totals: Counter[str] = Counter()
    for entry in entries:
        totals[entry.kind] = max(totals[entry.kind] + 1, entry.count or 0)
    return totals.total()


@click.command()
@click.option("--older-than", metavar="TIME", help="Only data older than this, at least 1d, as in 30d or 36h.")
@click.option("--dry-run", is_flag=True, help="Only show what would be removed.")
@body
async def prune(call: Call, older_than: str | None, dry_run: bool) -> Answer:
    """Remove unreferenced data, old history, and artifacts past their retention time.

    By default, it removes unreferenced data after a day, and replaced runs, closed dead letters and other history after
    `retention.history_days`. `keep_artifacts` alone decides about the artifacts of searchable documents.
    """
    from penstock.cli.work import parse_duration
    from penstock.errors import UsageError

    age = parse_duration(older_than, "--older-than")
    if age is not None and age < DAY_S:
        raise UsageError(
            f"--older-than {older_than}: use at least 1d, because younger bytes may belong to a submit in progress"
        )
    async with call.app() as app:
        removed = as_data(await app.prune(older_than_s=age, dry_run=dry_run))
    rows = [
        [WORDS[name], bytes_size(n) if name == "bytes" else f"{n:,}"]
        for name, n in removed.items()
        if n and name != "waiting"
    ]
    title = "would remove at least:" if dry_run else "removed:"
    lines = [title, *table(rows, "  ")] if rows else ["nothing to remove"]
    hints = []
    if waiting := removed["waiting"]:
        hints.append(f"{count(waiting, 'younger leftover')}, clearable after 24 h.")
    return Answer({**removed, "dry_run": dry_run}, "\n".join(lines), hints=hints)


@click.command()
@click.option(
    "--collection", metavar="C", shell_complete=completion.collections, help="Only this collection.  [default: all]"
)
@click.option(
    "--wait", metavar="TIME", default="60s", help="Maximum time to wait for a lock; 0: do not wait.", show_default=True
)
@click.option("--force", is_flag=True, help="Take locks from their holders.")
@body
async def vacuum(call: Call, collection: str | None, wait: str, force: bool) -> Answer:
    """Compact indexes: purge, merge files, and store a checksum for `check`. Without --collection, the ledger too.

    Safe while workers and searches run. Workers wait briefly, and replaced files are kept for ten minutes for running
    searches. With --force, the holder of a lock can no longer write, its steps return to the queue, and
    `penstock lock list` shows who released the lock.
    """
    import msgspec

    wait_s = 0.0 if wait in ("0", "0s") else parse_duration(wait, "--wait")
    async with call.scope() as scope:
        report = await scope.vacuum(collection, wait_s=wait_s, force=force)
    data = msgspec.to_builtins(report)
    data["busy"] = [with_times(one) for one in data["busy"]]
    head = ["COLLECTION", "ROWS", "REMOVED", "BEFORE", "AFTER", "OLD", "CHECKSUM"]
    rows = [
        [
            *(_named(one.collection, one.version), f"{one.rows:,}", f"{one.rows_removed:,}"),
            *(bytes_size(one.bytes_before), bytes_size(one.bytes_after), bytes_size(one.bytes_old)),
            one.checksum[:12] if one.checksum else None,
        ]
        for one in report.collections
    ]
    lines = table([head, *rows]) if rows else []
    for held in report.busy:
        where = f" on {visible(held.host)}, pid {held.pid}" if held.host else ""
        who = (
            f"held by worker {held.worker}{where} (for: {visible(held.purpose)})"
            if held.worker
            else "held by another process"
        )
        lines.append(f"busy: {visible(_named(held.collection, held.version))} is {who}")
    if report.ledger is not None:
        sizes = bytes_size(report.ledger.bytes_before), bytes_size(report.ledger.bytes_after)
        lines.append("ledger: {} before, {} after".format(*sizes))
    hints = []
    if any(one.bytes_old for one in report.collections):
        hints.append("OLD is kept for up to ten minutes, because the index is being read; a later vacuum removes it.")
    hints += sorted({f"{_named(one.collection, one.version)}: {one.note}" for one in report.collections if one.note})
    if report.busy:
        hints.append("Wait longer with --wait, or take the lock with --force; the work of its holder is then repeated.")
    return Answer(data, "\n".join(lines) or "nothing to vacuum", 1 if report.busy else 0, hints=hints)


def _share(text: str | None) -> float:
    from penstock.errors import UsageError

    if text is None:
        return 1.0
    try:
        share = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        share = -1.0
    if not 0.0 <= share <= 1.0:
        raise UsageError(f"--sample {text}: use a share between 0 and 1, or between 0% and 100%, as in 5%")
    return share


@contextmanager
def _drawn(clock: Callable[[], float]) -> Iterator[Callable[[str, int], None] | None]:
    """Show progress in one redrawn line; None if the terminal does not support it."""
    if not drawable(sys.stderr):
        yield None
        return
    next_at = clock() + DRAW_AFTER_S
    drawn = False

    def draw(what: str, done: int) -> None:
        nonlocal next_at, drawn
        if clock() >= next_at:
            next_at = clock() + DRAW_EVERY_S
            drawn = True
            sys.stderr.write(f"\r\x1b[Kchecking {what}" + (f": {done:,}" if done else ""))
            sys.stderr.flush()

    try:
        yield draw
    finally:
        if drawn:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()


@click.command()
@click.argument("folder", metavar="DIR", shell_complete=completion.folders)
@body
async def backup(call: Call, folder: str) -> Answer:
    """Copy a consistent state of everything into a folder, while workers run.

    A backup in the same folder is replaced when the new one is complete. Blobs that it already contains are not copied
    again.
    """
    import msgspec

    with _Copying() as copying:
        async with call.app() as app:
            done = await app.backup(folder, report=copying.draw)
    lines = [
        f"{count(done.documents, 'document')} in {visible(done.folder)}: {count(done.blobs, 'blob')} of "
        f"{bytes_size(done.bytes)}, {done.copied:,} of them new, and {_indexes(done.tables)}"
    ]
    lines += [f"damaged: {visible(key)}" for key in done.damaged]
    hints = ["The damage is older than the backup: penstock check shows the documents."] if done.damaged else []
    return Answer(msgspec.to_builtins(done), "\n".join(lines), 1 if done.damaged else 0, hints=hints)


@click.command()
@click.argument("folder", metavar="DIR", shell_complete=completion.folders)
@click.option("--force", is_flag=True, help="Replace the content of the home.")
@body
async def restore(call: Call, folder: str, force: bool) -> Answer:
    """Restore a backup into a home, and check it.

    The home (--home) must be empty; with --force, its ledger and its index are replaced. No worker may run there.
    """
    import msgspec

    from penstock.app import restore as put_back

    with _Copying() as copying:
        done = await put_back(folder, call.settings(), force=force, report=copying.draw)
    put, report = done.restored, done.check
    lines = [
        f"{count(put.documents, 'document')} restored: {count(put.blobs, 'blob')} of {bytes_size(put.bytes)} and "
        f"{_indexes(put.tables)}"
    ]
    lines += [f"damaged: {visible(key)}" for key in put.damaged]
    lines += [f"problem: {_line(problem)}" for problem in report.problems]
    lines.append("ok" if report.ok else count(len(report.problems), "problem"))
    return Answer(msgspec.to_builtins(done), "\n".join(lines), 0 if report.ok else 1)


class _Copying:
    """Shows the progress of copying on a terminal."""

    def __init__(self) -> None:
        self._drawn = False

    def __enter__(self) -> "_Copying":
        return self

    def draw(self, progress: "CopyProgress") -> None:
        if drawable(sys.stderr):
            line = f"{progress.blobs:,} of {progress.total:,} blobs, {bytes_size(progress.bytes)}"
            print(f"\r\x1b[K{line}", end="", file=sys.stderr, flush=True)
            self._drawn = True

    def __exit__(self, *error: object) -> None:
        if self._drawn:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def _indexes(number: int) -> str:
    return "1 index" if number == 1 else f"{number:,} indexes"


def _named(collection: str, version: int) -> str:
    return collection if version == 1 else f"{collection} (version {version})"


def _line(entry: "CheckEntry") -> str:
    import msgspec

    return ", ".join(f"{name} {visible(value)}" for name, value in msgspec.to_builtins(entry).items())
