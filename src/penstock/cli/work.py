"""`ingest` and `run`: submit documents, process them, and print a summary."""

import io
import os
import re
import select
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from penstock.cli import completion
from penstock.cli.call import Call, body
from penstock.cli.metadata import assignments, metadata_options
from penstock.cli.output import Answer, count, cut, duration, note, visible
from penstock.cli.passwords import chosen, passwords
from penstock.cli.plan import estimated, plan, planned
from penstock.cli.progress import ProgressDisplay
from penstock.cli.selection import listed
from penstock.cli.usage import dollars

if TYPE_CHECKING:
    from penstock.verbs.jobs import Summary

_DURATION = re.compile(r"(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m)?(?:(\d+(?:\.\d+)?)s?)?")

_RUN_AGAIN = ": run the same `penstock ingest`, or `penstock run`, to continue."
REMARKS = 5
"""Up to this many failed documents are listed one by one."""
LONGEST = 240
REFUSED = 20
"""The number of refused files that are listed."""

PRIORITY = click.option(
    "--priority",
    metavar="N",
    type=click.IntRange(-(10**6), 10**6),
    default=0,
    help="A higher priority is processed first.",
)
STRICT = click.option("--strict", is_flag=True, help="Exit with code 1 if a document is of an unsupported format.")
MAX_COST = click.option(
    "--max-cost",
    metavar="DOLLARS",
    type=click.FloatRange(0),
    help="Stop before embeddings cost more than this, and keep the progress.",
)
BUDGET = click.option("--budget", metavar="TIME", help="Stop after this time, as in 60s or 5m, and keep the progress.")


def choices(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that choose what is submitted, and how long it goes on."""
    for option in (
        click.option("--watch", is_flag=True, help="Keep on: ingest new and changed files until Ctrl-C or SIGTERM."),
        click.option("--no-wait", is_flag=True, help="Only submit; `penstock run` processes the documents."),
        click.option(
            "--hold", is_flag=True, help="Accept the documents, to be started later by `penstock batch start`."
        ),
        click.option(
            "--estimate", is_flag=True, help="Only estimate pages, chunks, tokens, cost and time; nothing is bought."
        ),
        click.option("--dry-run", is_flag=True, help="Only show what would be done, by type; nothing is written."),
        click.option("--again", is_flag=True, help="Also files that were deleted with --forget."),
        click.option(
            "--retry", is_flag=True, help="Retry documents that failed, were cancelled, unsupported or had no text."
        ),
        click.option(
            "--prune", is_flag=True, help="Delete documents that no longer exist in the folder or at the URL."
        ),
        click.option("--exclude", metavar="GLOB", multiple=True, help="Skip matching files of a folder."),
        click.option("--include", metavar="GLOB", multiple=True, help="Only matching files of a folder."),
        click.option(
            "--list",
            "lists",
            metavar="FILE",
            multiple=True,
            shell_complete=completion.files,
            help="Also the paths and URLs in FILE.",
        ),
    ):
        function = option(function)
    return function


@click.command()
@click.argument("paths", metavar="PATH...", nargs=-1, shell_complete=completion.files)
@click.option(
    "--collection", metavar="NAME", shell_complete=completion.collections, help="The collection of the documents."
)
@click.option("--workflow", metavar="ID", shell_complete=completion.files, help="The workflow, by id or file.")
@click.option("--params", metavar="ID", help="The parameter set, by id or file.")
@click.option("--name", metavar="NAME", help="The name of the document on standard input.")
@metadata_options
@click.option("--key", metavar="KEY", help="Idempotency key for one document: repeating it has no effect.")
@PRIORITY
@click.option("--batch", metavar="NAME", help="Name of the batch of these documents.")
@choices
@passwords("; also retries documents that failed without it")
@BUDGET
@MAX_COST
@STRICT
@body
async def ingest(
    call: Call,
    paths: tuple[str, ...],
    lists: tuple[str, ...],
    name: str | None,
    key: str | None,
    budget: str | None,
    max_cost: float | None,
    strict: bool,
    hold: bool,
    no_wait: bool,
    watch: bool,
    dry_run: bool,
    estimate: bool,
    password: str | None,
    password_file: str | None,
    meta: tuple[str, ...],
    **options: Any,
) -> Answer:
    """Submit files, folders and URLs, then process them until they are searchable.

    PATH is a file, a folder, a URL, or - for standard input. Accepted documents survive a power failure. Unchanged
    files are skipped. Folders are read recursively, without hidden files and without links that lead out of the folder.
    """
    files, standard_input = _sort((*paths, *listed(lists)), name, key, options["manifest"])
    options |= {"metadata": assignments(meta)[0], "wait": not no_wait}
    if watch:
        given = {"--dry-run": dry_run, "--estimate": estimate, "--max-cost": max_cost is not None, "--strict": strict}
        _refuse_with_watch({**given, "--budget": budget, "--key": key, "--hold": hold, "-": name})
    if call.server_url is not None:
        alone = {"--watch": watch, "--estimate": estimate, "--max-cost": max_cost is not None, "--budget": budget}
        alone |= {"--key": key, "--password": password, "--password-file": password_file}
        options |= {"dry_run": dry_run, "strict": strict, "name": name, "hold": hold}
        return await _ingest_there(call, files, standard_input, alone, **options)
    if dry_run or estimate:
        return await (estimated if estimate else plan)(call, files, standard_input, options)
    options["password"] = chosen(password, password_file, standard_input=standard_input)
    if watch:
        return await _watch(call, files, **options)
    data = io.BufferedReader(StandardInput(call)) if standard_input else None
    options |= {"data": data, "name": name, "key": key, "budget_s": parse_duration(budget), "max_cost": max_cost}
    return await _ingest(call, files, strict, hold=hold, **options)


async def _ingest(call: Call, files: list[str], strict: bool, **options: Any) -> Answer:
    async with call.working_app() as app:
        progress = ProgressDisplay()
        try:
            summary = await call.scoped(app).ingest(files, report=None if call.quiet else progress, **options)
        finally:
            progress.close()
    return answer_of(call, summary, strict=strict)


async def _ingest_there(
    call: Call,
    files: list[str],
    standard_input: bool,
    alone: dict[str, Any],
    *,
    strict: bool,
    dry_run: bool,
    prune: bool,
    **options: Any,
) -> Answer:
    """Ingest on a server. `alone`: options that only a home has."""
    from penstock.cli import uploading

    uploading.refuse(alone | {"--prune": prune})
    if dry_run:
        return planned(await uploading.plan(call, files, standard_input, options))
    data = io.BufferedReader(StandardInput(call)) if standard_input else None
    return answer_of(call, await uploading.ingest(call, files, data, options), strict=strict)


async def _watch(call: Call, files: list[str], **options: Any) -> Answer:
    call.signals.is_service = True

    def problem(text: str) -> None:
        note(cut(visible(text), LONGEST))

    async with call.working_app(for_ever=True) as app:
        if not call.json and not call.quiet:
            note("Watching; stop with Ctrl-C or SIGTERM.")
        report = None if call.quiet else note
        summary = await call.scoped(app).watch(files, report=report, on_problem=problem, **options)
    return answer_of(call, summary)


def _refuse_with_watch(given: dict[str, Any]) -> None:
    from penstock.errors import UsageError

    for option, value in given.items():
        if value:
            raise UsageError(f"{option} cannot be used with --watch, which keeps on until it is stopped")


@click.command()
@BUDGET
@MAX_COST
@STRICT
@body
async def run(call: Call, budget: str | None, max_cost: float | None, strict: bool) -> Answer:
    """Process the queue, then stop.

    Repeated calls with a budget finish any document.
    """
    seconds = parse_duration(budget)
    async with call.working_app() as app:
        progress = ProgressDisplay()
        try:
            report = None if call.quiet else progress
            summary = await app.run(budget_s=seconds, max_cost=max_cost, report=report)
        finally:
            progress.close()
    return answer_of(call, summary, strict=strict)


class StandardInput(io.RawIOBase):
    """Standard input that stops reading when a signal arrives, so that an open pipe does not block the exit."""

    def __init__(self, call: Call) -> None:
        self._call = call
        self._descriptor = sys.stdin.fileno()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        from penstock.errors import Cancelled

        while self._call.signals.received is None:
            if select.select([self._descriptor], [], [], 0.2)[0]:
                return os.readv(self._descriptor, [buffer])
        raise Cancelled("standard input had not ended; it was not accepted")


def parse_duration(text: str | None, what: str = "budget") -> float | None:
    """60s, 90, 5m, 1h30m, 30d or 1.5s → seconds."""
    from penstock.errors import UsageError

    if text is None:
        return None
    match = _DURATION.fullmatch(text.strip().lower())
    days, hours, minutes, seconds = match.groups() if match else (None, None, None, None)
    total = int(days or 0) * 86_400 + int(hours or 0) * 3600 + int(minutes or 0) * 60 + float(seconds or 0)
    if total <= 0:
        raise UsageError(f"{what} {text!r}: use a time as in 60s, 5m or 1h30m")
    return total


def _sort(paths: tuple[str, ...], name: str | None, key: str | None, manifest: str | None) -> tuple[list[str], bool]:
    from penstock.errors import UsageError

    if not paths and manifest is None:
        raise UsageError("Missing argument 'PATH...': use a file, a folder, a URL, - for standard input, or --manifest")
    files = [path for path in paths if path != "-"]
    standard_input = len(files) < len(paths)
    for path in files:
        if not path:
            raise UsageError("PATH is empty: use a file, a folder, or - for standard input")
    if name is not None and not standard_input:
        raise UsageError("--name is only for standard input: penstock ingest - --name notes.txt")
    if standard_input and not name:
        raise UsageError("standard input needs a name: penstock ingest - --name notes.txt")
    if key is not None and (len(files) + standard_input != 1 or any(os.path.isdir(path) for path in files)):
        raise UsageError("--key is for a single document: use one file, or -")
    return files, standard_input


def answer_of(call: Call, summary: "Summary", *, strict: bool = False) -> Answer:
    import msgspec

    hints = [f"refused: {visible(problem)}" for problem in summary.problems[:REFUSED]]
    if len(summary.problems) > REFUSED:
        hints.append(f"and {len(summary.problems) - REFUSED:,} more (--json lists all)")
    if summary.brought_back:
        hints.append(
            f"{count(summary.brought_back, 'document')} had been deleted and came back with this ingest: `penstock "
            "delete --forget` keeps such files away."
        )
    if summary.forgotten:
        verb = "stays" if summary.forgotten == 1 else "stay"
        hints.append(
            f"{count(summary.forgotten, 'file')} {verb} away, because of `penstock delete --forget`: --again brings "
            "back what you name."
        )
    if summary.disk_full:
        hints.append(
            f"The disk is full: {count(summary.submitted, 'file')} accepted, {summary.refused:,} not. Accepted files "
            "are kept. Free some space, then run the same command again."
        )
    hints += _explanations(summary)
    if summary.unsupported:
        hints.append("Unsupported documents are of a format that Penstock does not read: docs/reference/formats.md")
    if summary.failed:
        hints.append("To see why documents failed: penstock dlq list · to try again: penstock dlq replay --all")
    if summary.gone:
        hints.append(f"{count(summary.gone, 'document')} gone from the source: --prune deletes what is gone.")
    if summary.failed_before:
        hints.append(
            f"{summary.failed_before:,} of the skipped documents had failed, had no text or were unsupported: "
            "--retry tries them again."
        )
    if summary.stale_settings:
        done = "completed document was" if summary.stale_settings == 1 else "completed documents were"
        hints.append(
            f"{summary.stale_settings:,} {done} made with other settings and not changed: "
            "re-indexing is not supported yet; use `penstock delete` and ingest again."
        )
    if summary.held:
        hints.append("To start held documents: penstock batch start BATCH · penstock start ID")
    if summary.cost_spent:
        hints.append(f"Embeddings have cost {dollars(summary.cost)}, and the next ones would exceed --max-cost.")
    if call.signals.received is not None and not call.signals.is_service:
        summary.interrupted = True
        onward = ", and the server goes on: the same command follows it." if call.server_url is not None else _RUN_AGAIN
        hints.append(f"Accepted documents are kept{onward}")
    elif summary.pending and call.server_url is not None:
        hints.append("The server processes them: `penstock status` shows how far it is.")
    elif summary.pending or summary.budget_spent:
        hints.append(f"{_left(summary)}: run `penstock run` to continue.")
    return Answer(msgspec.to_builtins(summary), summary_line(summary), _code(call, summary, strict), hints=hints)


def _left(summary: "Summary") -> str:
    if not summary.left:
        return "There is work left"
    return f"{count(summary.left, 'document')} in the queue {'is' if summary.left == 1 else 'are'} not done"


def _code(call: Call, summary: "Summary", strict: bool) -> int:
    if call.signals.received is not None:
        return call.signals.code_of_stop
    if summary.budget_spent:
        return 3
    return 1 if summary.failed or summary.refused or (strict and summary.unsupported) else 0


def summary_line(summary: "Summary") -> str:
    words = (
        "completed",
        "not indexable",
        "unsupported",
        "failed",
        "cancelled",
        "held",
        "pending",
        "deleted",
        "gone",
        "refused",
    )
    parts = [f"{n:,} {word}" for word in words if (n := getattr(summary, word.replace(" ", "_")))]
    if summary.skipped:
        parts.append(f"{summary.skipped:,} skipped (unchanged)")
    inside = f" ({summary.children:,} inside others)" if summary.children else ""
    end = (
        " (interrupted)"
        if summary.interrupted
        else " (cost limit reached)"
        if summary.cost_spent
        else " (budget spent)"
        if summary.budget_spent
        else ""
    )
    made = ", ".join(count(n, name[:-1]) for name in ("pages", "chunks") if (n := summary.made.get(name)))
    tail = f" · {made}" if made else ""
    return f"{', '.join(parts) or 'nothing to do'}{inside} in {duration(summary.elapsed_s)}{end}{tail}"


def _explanations(summary: "Summary") -> list[str]:
    """A line for each document that did not become searchable, or, if there are many, one for each reason."""
    if sum(summary.reasons.values()) <= REMARKS:
        return [cut(f"  {visible(r.name)}: {visible(r.reason)} – {visible(r.error)}", LONGEST) for r in summary.remarks]
    lines = []
    for reason, n in summary.reasons.items():
        names = [visible(remark.name) for remark in summary.remarks if remark.reason == reason][:3]
        lines.append(cut(f"  {n:,} × {visible(reason)}: {', '.join(names)}{', …' if n > len(names) else ''}", LONGEST))
    return lines
