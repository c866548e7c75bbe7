"""`check`, `prune`, `vacuum`, `backup` and `restore`: is everything as the ledger says, what can go, an index in good
order, and a copy of it all."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from penstock.cli.call import Call, body
from penstock.cli.output import Answer, bytes_size, count, drawable, table, visible, with_times
from penstock.cli.work import parse_duration

if TYPE_CHECKING:
    from penstock.upkeep.backup import CopyProgress

DAY_S = 86_400.0
DRAW_AFTER_S, DRAW_EVERY_S = 0.5, 0.2
WORDS = {
    "purged": "versions out of the index",
    "dropped": "documents without their artifacts",
    "runs": "runs that were replaced",
    "documents": "traces of deleted documents",
    "dead_letters": "closed dead letters",
    "lock_releases": "forced releases of locks",
    "events": "events that were told",
    "groups": "groups without runs",
    "snapshots": "snapshots of workflows",
    "artifacts": "artifacts",
    "blobs": "blobs",
    "bytes": "their size",
    "workers": "files of dead workers",
}
"""What `prune` counts, as people say it."""


@click.command()
@click.option("--repair", is_flag=True, help="Put right what can be put right.")
@click.option("--sample", metavar="SHARE", help="Compare the content of this share only, as in 5%; look for all.")
@body
async def check(call: Call, repair: bool, sample: str | None) -> Answer:
    """Compare ledger, blobs and index both ways; safe on a live system."""
    share = _share(sample)
    async with call.app() as app:
        with _drawn(app.runtime.clock) as progress:
            checked = app if call.owner is None else call.scoped(app)
            report = await checked.check(repair=repair, sample=share, progress=progress)
    data = {
        "ok": report.ok, "problems": report.problems, "garbage": report.garbage, "repaired": report.repaired,
        "queued": report.queued, "queued_count": report.queued_count, "sample": report.sample,
    }  # fmt: skip
    lines = [f"problem: {_line(problem)}" for problem in report.problems]
    lines += [f"repaired: {_line(repaired)}" for repaired in report.repaired]
    if report.queued_count:
        lines.append(f"queued: {count(report.queued_count, 'document')} to be made again from raw bytes (penstock run)")
    part = f" ({share:.2%} of the stored files by content, all by size)" if share < 1 else ""
    lines.append(("ok" if report.ok else count(len(report.problems), "problem")) + part)
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
    title = "at least this would go:" if dry_run else "this went:"
    lines = [title, *table(rows, "  ")] if rows else ["nothing to remove"]
    return Answer({**removed, "dry_run": dry_run}, "\n".join(lines))


@click.command()
@click.option("--collection", metavar="C", help="Only this one.  [default: all]")
@click.option(
    "--wait", metavar="TIME", default="60s", help="Wait so long for a lock; 0: not at all.", show_default=True
)
@click.option("--force", is_flag=True, help="Take the locks away from their holders.")
@body
async def vacuum(call: Call, collection: str | None, wait: str, force: bool) -> Answer:
    """Put indexes in order: purge, compact, and keep a checksum for `check`.

    Safe beside workers and searches: they wait for moments, and what somebody may still read is kept for ten minutes.
    With --force a lock's holder can write no more, its steps wait again, and `penstock lock list` shows who did it.
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
    for one in report.busy:
        where = f" on {visible(one['host'])}, pid {one['pid']}" if one["host"] else ""
        who = (
            f"held by worker {one['worker']}{where} (for: {visible(one['purpose'])})"
            if one["worker"]
            else "held by others"
        )
        lines.append(f"busy: {visible(_named(one['collection'], one['version']))} is {who}")
    hints = []
    if any(one.bytes_old for one in report.collections):
        hints.append("OLD is kept for ten minutes, for those who still read it: a later vacuum removes it.")
    hints += sorted({f"{_named(one.collection, one.version)}: {one.note}" for one in report.collections if one.note})
    if report.busy:
        hints.append(
            "Wait longer with --wait, or take the lock away with --force, and the holder's work is done again."
        )
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
        raise UsageError(f"--sample {text}: a share between 0 and 1, or between 0% and 100%, as in 5%")
    return share


@contextmanager
def _drawn(clock: Callable[[], float]) -> Iterator[Callable[[str, int], None] | None]:
    """How far it is, in one line that is drawn over; nothing where that cannot be done."""
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
@click.argument("folder", metavar="DIR")
@body
async def backup(call: Call, folder: str) -> Answer:
    """Copy one moment of everything into a folder, while others work.

    An earlier backup in the same folder is replaced when the new one is whole; what it has already is not copied again.
    """
    import msgspec

    with _Copying() as copying:
        async with call.app() as app:
            done = await app.backup(folder, report=copying.tell)
    lines = [
        f"{count(done.documents, 'document')} in {visible(done.folder)}: {count(done.blobs, 'blob')} of "
        f"{bytes_size(done.bytes)}, {done.copied:,} of them new, and {_indexes(done.tables)}"
    ]
    lines += [f"damaged: {visible(key)}" for key in done.damaged]
    hints = ["What is damaged was so before: penstock check tells what it belongs to."] if done.damaged else []
    return Answer(msgspec.to_builtins(done), "\n".join(lines), 1 if done.damaged else 0, hints=hints)


@click.command()
@click.argument("folder", metavar="DIR")
@click.option("--force", is_flag=True, help="Replace what is in the home.")
@body
async def restore(call: Call, folder: str, force: bool) -> Answer:
    """Make a home of a backup, and check it.

    The home (--home) must be empty; with --force its ledger and its index are replaced. Nobody may work there.
    """
    import msgspec

    from penstock.app import restore as put_back

    with _Copying() as copying:
        done = await put_back(folder, call.settings(), force=force, report=copying.tell)
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
    """How far it is, drawn over on a terminal and not said elsewhere."""

    def __init__(self) -> None:
        self._drawn = False

    def __enter__(self) -> "_Copying":
        return self

    def tell(self, progress: "CopyProgress") -> None:
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


def _line(entry: dict[str, Any]) -> str:
    return ", ".join(f"{name} {visible(value)}" for name, value in entry.items() if value is not None)
