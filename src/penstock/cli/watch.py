"""`status --watch`: redrawn every second on a terminal, otherwise a line every few seconds."""

import asyncio
import signal
import sys
from typing import TYPE_CHECKING

from penstock.cli.call import Call
from penstock.cli.output import count, drawable, duration, say, visible
from penstock.cli.progress import WAITS, pace

if TYPE_CHECKING:
    from rich.text import Text

    from penstock.app import App
    from penstock.verbs.views import Counts, DocumentDetails


async def watch(app: "App", call: Call, document: str | None) -> None:
    """Watch until the document has ended, or without a document until Ctrl-C, which is not a failure."""
    from penstock.model.states import ENDS

    shown = _Screen() if drawable(sys.stdout) else _Lines()
    scope = call.scoped(app)
    began, before = app.runtime.clock(), -1
    try:
        while True:
            if document is not None:
                one = await scope.status(document)
                if one.status in list(ENDS):
                    shown.close()
                    return
                shown.show(one, "")
            else:
                found = await scope.status()
                ended = sum(n for status, n in found.documents.items() if status in list(ENDS))
                before = ended if before < 0 else before
                since = app.runtime.clock() - began
                alive = count(await app.count_workers(), "worker")
                rate = pace((ended - before) / since) if since else ""
                shown.show(found, f"{alive} · {rate or '0/s'} in the last {duration(since)}")
            await app.runtime.sleep(shown.every_s)
    except asyncio.CancelledError:
        if call.signals.received != signal.SIGINT:
            raise
        say("")


class _Lines:
    every_s = 2.0

    def show(self, found: "Counts | DocumentDetails", remark: str) -> None:
        from penstock.verbs.views import Counts

        say(counts_line(found, remark) if isinstance(found, Counts) else document_line(found))

    def close(self) -> None:
        return


class _Screen:
    every_s = 1.0

    def __init__(self) -> None:
        from penstock.cli.live import Screen

        self._screen = Screen(sys.stdout)

    def show(self, found: "Counts | DocumentDetails", remark: str) -> None:
        from penstock.verbs.views import Counts

        columns = self._screen.size()[0]
        if isinstance(found, Counts):
            self._screen.draw(counts_picture(found, remark, columns))
        else:
            self._screen.draw(document_picture(found, columns))

    def close(self) -> None:
        self._screen.erase()


def counts_line(found: "Counts", remark: str) -> str:
    documents = ", ".join(f"{n:,} {status}" for status, n in found.documents.items()) or "no documents"
    parts = [
        documents,
        running(found),
        f"{count(found.dead_letters, 'dead letter')}" if found.dead_letters else "",
    ]
    return "  ".join(filter(None, [*parts, remark]))


def counts_picture(found: "Counts", remark: str, columns: int) -> "list[Text]":
    from rich.text import Text

    from penstock.cli.live import Row, table
    from penstock.model.states import DocumentStatus

    total = sum(found.documents.values())
    lines = table(
        [Row(status, n / total, (f"{n:,}",)) for status in DocumentStatus if (n := found.documents.get(status))]
        + [Row("dead letters", None, (f"{found.dead_letters:,}",))],
        columns,
    )
    if running(found):
        lines.append(Text(f"running: {running(found)}"))
    return [*lines, Text(remark), Text("Ctrl-C ends this display; the work continues.", "bright_black")]


def running(found: "Counts") -> str:
    """Running steps by kind, and what they wait on."""
    parts = []
    for entry in found.running:
        on = entry.waiting_on
        waiting = f" (waiting for {WAITS.get(on, visible(on))})" if on else ""
        parts.append(f"{entry.steps:,} {visible(entry.kind)}{waiting}")
    return ", ".join(parts)


def document_line(found: "DocumentDetails") -> str:
    p = found.progress
    pages = f"{p.pages:,} of {p.total_pages:,} pages" if p.total_pages else count(p.pages, "page")
    made = f"{count(p.chunks, 'chunk')}, {p.embedded:,} embedded, {p.indexed:,} indexed"
    return f"{found.status}  {pages}, {made}{_at_work(found)}"


def document_picture(found: "DocumentDetails", columns: int) -> "list[Text]":
    from rich.text import Text

    from penstock.cli.live import Row, table

    p = found.progress
    rows = []
    wholes = (
        ("pages", "total_pages"),
        ("chunks", "total_chunks"),
        ("embedded", "total_chunks"),
        ("indexed", "total_chunks"),
    )
    for name, whole in wholes:
        done, of = getattr(p, name), getattr(p, whole)
        cell = f"{done:,} of {of:,}" if of else f"{done:,}"
        rows.append(Row(name, min(1.0, done / of) if of else None, (cell,)))
    head = Text().append(f"{visible(found.name)}  ", "bold").append(found.status, "cyan").append(_at_work(found))
    lines = [head, *table(rows, columns)]
    attempts = f"{count(found.attempts, 'attempt')} since the last progress"
    lines.append(Text(attempts + (f", retried {found.retry_count} times" if found.retry_count else "")))
    if found.error:
        lines.append(Text(visible(found.error), "red"))
    return lines


def _at_work(found: "DocumentDetails") -> str:
    """What the unfinished step waits on, or that it failed."""
    for step in found.steps:
        if step.waiting_on:
            return f"  waiting for {WAITS.get(step.waiting_on, visible(step.waiting_on))}"
        if step.status == "ERROR":
            return f"  {visible(step.name)} failed and will be tried again"
    return ""
