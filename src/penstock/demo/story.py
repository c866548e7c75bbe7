"""The steps of the demo. It runs the real command line in child processes and kills one of them. It compares each claim
that it prints with the ledger and the processes."""

import asyncio
import os
import shlex
import signal
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from penstock.app import App, open_app
from penstock.config import Config
from penstock.demo.printer import Printer
from penstock.demo.samples import HANDBOOK, HANDBOOK_PAGES, Question, change, question, write_samples
from penstock.errors import PenstockError
from penstock.extractors.pdf import CALLS, PAGES
from penstock.verbs.views import DocumentDetails

FOLDER = "documents"
LOOK_S = 0.01
"""Polling interval. It is short, because the 200 pages are read in a fraction of a second and the kill must happen in
the middle."""
THE_MIDDLE = HANDBOOK_PAGES // 3

COUNTED = ("pages", "chunks", "embedded")

Render = Callable[[dict[str, Any]], str]
"""Formats the JSON output of a command as the text that the command prints without --json."""


@dataclass(frozen=True)
class LedgerCounts:
    """The content of the ledger at one moment."""

    accepted: int
    completed: int
    handbook: DocumentDetails | None
    """The handbook's details; None until it is accepted."""
    made: Mapping[str, int]
    """The number of pages, chunks and vectors of all documents."""

    @property
    def handbook_pages(self) -> int:
        return self.handbook.progress.pages if self.handbook is not None else 0

    @property
    def half_done(self) -> bool:
        return self.handbook_pages > 0 and self.handbook is not None and self.handbook.status != "COMPLETED"


@dataclass
class DemoRun:
    folder: Path
    """An empty folder, for the documents and the home."""
    teller: Printer
    renders: Mapping[str, Render]
    """Formatters by command: ingest, search, check."""
    result: dict[str, Any] = field(default_factory=dict)
    claims: list[dict[str, Any]] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return all(claim["ok"] for claim in self.claims)

    async def run(self) -> dict[str, Any]:
        """Run the demo and return its figures. `ok` says whether all claims were verified."""
        async with open_app(Config(home=str(self.folder / ".penstock"))) as app:
            began = app.runtime.clock()
            documents = self._write_samples()
            held = await self._kill(app, documents)
            await self._unseen(held)
            await self._go_on(app, held, documents)
            changed = await self._change(app, documents)
            await self._ask(question())
            await self._ask(changed)
            await self._check()
            self.result["elapsed_s"] = round(app.runtime.clock() - began, 1)
        return {"ok": self.ok, **self.result, "claims": self.claims}

    def _write_samples(self) -> int:
        files = write_samples(self.folder / FOLDER)
        self.teller.chapter(f"1. {len(files)} documents, one of them a PDF of {HANDBOOK_PAGES} pages")
        self.teller.as_is("\n".join(f"{file.stat().st_size:>9,} bytes  {FOLDER}/{file.name}" for file in files))
        self.result["documents"] = len(files)
        return len(files)

    async def _kill(self, app: App, documents: int) -> LedgerCounts:
        self.teller.chapter("2. Ingest them, and kill the process halfway through the large one")
        async with self._started("ingest", FOLDER) as process:
            while process.returncode is None:
                handbook = await _handbook(app)
                if handbook is not None and handbook.progress.pages >= THE_MIDDLE:
                    process.kill()
                    break
                await app.runtime.sleep(LOOK_S)
            await process.communicate()
        if process.returncode not in (0, -signal.SIGKILL):
            raise PenstockError(f"`penstock ingest {FOLDER}` ended with {process.returncode}")
        held = await _counts(app)
        self.result["killed"] = {
            "by": "SIGKILL" if process.returncode else None, "accepted": held.accepted, "completed": held.completed,
            "handbook_pages": held.handbook_pages, **held.made,
        }  # fmt: skip
        if process.returncode == 0:
            self.teller.say("The process finished before the demo could kill it: nothing is left to resume.")
        else:
            self.teller.say(
                "The demo sent SIGKILL, so the process could not clean up. The ledger holds "
                f"{held.accepted} of {documents} documents, {held.completed} of them searchable, and of {HANDBOOK} "
                f"{held.handbook_pages} of {HANDBOOK_PAGES} pages."
            )
        self._claim(held.handbook_pages >= THE_MIDDLE, f"Kept: {_figures(held.made)}.")
        return held

    async def _unseen(self, held: LedgerCounts) -> None:
        if held.half_done:
            hits = await self._search(question().text, 1)
            seen = [hit for hit in hits if hit["name"] == HANDBOOK]
            self._claim(not seen, f"Half-done is never seen: no page of {HANDBOOK} is found yet.")

    async def _go_on(self, app: App, before: LedgerCounts, documents: int) -> None:
        self.teller.chapter("3. Run the same command again: it resumes")
        summary = await self._answer("ingest", FOLDER)
        after = await _counts(app)
        made: dict[str, int] = summary["made"]
        rest = {name: after.made[name] - before.made[name] for name in COUNTED}
        self.result["resumed"] = {"made": made, "held": dict(after.made)}
        self._claim(
            all(made[name] == rest[name] for name in COUNTED),
            f"Done is kept: of {_figures(after.made)} in total, this process made {_figures(made)}, "
            "exactly those that were missing from the ledger.",
        )
        if before.half_done:
            self.teller.say(
                "Pages that the killed process had read but not stored were read again: at most "
                f"{CALLS * PAGES} pages for each of its parsers."
            )
        self._claim(
            after.completed == after.accepted == documents and after.handbook_pages == HANDBOOK_PAGES,
            f"All {documents} documents are searchable, {HANDBOOK} with all of its {after.handbook_pages} pages.",
        )

    async def _change(self, app: App, documents: int) -> Question:
        asked = change(self.folder / FOLDER)
        self.teller.chapter(f"4. Add a chapter to {asked.document}, and ingest again")
        summary = await self._answer("ingest", FOLDER)
        [entry] = await app.list_documents(name=asked.document)
        made: dict[str, int] = summary["made"]
        self.result["changed"] = {"made": made, "skipped": summary["skipped"]}
        self._claim(
            summary["completed"] == 1
            and summary["skipped"] == documents - 1
            and (made["pages"], made["chunks"]) == (entry.pages, entry.chunks),
            f"Only {asked.document} was processed again: {_figures(made)}. The other {documents - 1} were skipped.",
        )
        return asked

    async def _ask(self, asked: Question) -> None:
        if "hits" not in self.result:
            self.teller.chapter("5. Search")
        first = (await self._search(asked.text, 2))[0]
        self.result.setdefault("hits", []).append({**first, "question": asked.text})
        self._claim(
            (first["name"], first["page"]) == (asked.document, asked.page) and asked.answer in first["text"],
            f"Found in the right place: {asked.document}, page {asked.page}.",
        )

    async def _check(self) -> None:
        self.teller.chapter("6. Compare the ledger, the blobs and the index")
        report = await self._answer("check")
        self.result["check"] = report["ok"]
        self._claim(report["ok"] is True, "Nothing is missing, and nothing is stored twice.")

    async def _search(self, text: str, k: int) -> list[dict[str, Any]]:
        hits: list[dict[str, Any]] = (await self._answer("search", text, "-k", str(k)))["hits"]
        return hits

    async def _answer(self, *arguments: str) -> dict[str, Any]:
        """Run a command until it ends, print its output as text, and return it."""
        async with self._started(*arguments) as process:
            out, _ = await process.communicate()
        if process.returncode:
            raise PenstockError(f"`{_typed(arguments)}` ended with {process.returncode}")
        answer: dict[str, Any] = msgspec.json.decode(out)
        self.teller.as_is(self.renders[arguments[0]](answer))
        return answer

    @asynccontextmanager
    async def _started(self, *arguments: str) -> AsyncIterator[Process]:
        """Start a command as a user would, with --json. Its progress goes to our standard error. The process is killed
        at the end of the block if it still runs."""
        self.teller.command(_typed(arguments))
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}
        if self.teller.terminal:
            # The command takes the width from its standard output, which is a pipe here.
            environment["COLUMNS"] = str(self.teller.columns)
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", "penstock.cli.main", *arguments, "--json"),
            cwd=self.folder,
            env=environment,
            stdin=DEVNULL,
            stdout=PIPE,
        )
        try:
            yield process
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()

    def _claim(self, ok: bool, text: str) -> None:
        self.claims.append({"ok": ok, "text": text})
        self.teller.claim(ok, text)


async def _handbook(app: App) -> DocumentDetails | None:
    for entry in await app.list_documents(name=HANDBOOK):
        return await app.status(entry.id)
    return None


async def _counts(app: App) -> LedgerCounts:
    listed = await app.list_documents()
    found = [await app.status(entry.id) for entry in listed]
    return LedgerCounts(
        len(found),
        sum(document.status == "COMPLETED" for document in found),
        next((document for document in found if document.name == HANDBOOK), None),
        {name: sum(getattr(document.progress, name) for document in found) for name in COUNTED},
    )


def _figures(made: Mapping[str, int]) -> str:
    pages, chunks = made["pages"], made["chunks"]
    words = f"{pages:,} page{'s' * (pages != 1)}, {chunks:,} chunk{'s' * (chunks != 1)}"
    return f"{words} and {made['embedded']:,} vector{'s' * (made['embedded'] != 1)}"


def _typed(arguments: tuple[str, ...]) -> str:
    words = (f'"{word}"' if " " in word else shlex.quote(word) for word in arguments)
    return " ".join(("penstock", *words))
