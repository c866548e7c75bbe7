"""A long PDF whose worker is killed again and again in the middle of its pages (I4, I12)."""

import asyncio
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from tests.crash.harness import LONG, REPOSITORY, Picture, environment, open_home, picture, said
from tests.kit.pdfs import Entry, page, pdf

from penstock.app import App
from penstock.extractors.pdf import CALLS, PAGES

SEED = 20_250_119
KILLS = 20 if LONG else 3
PAGES_MADE = 1600 if LONG else 300
CHILDREN = 2
QUERY = "chapter 3"
LONG_REPORT = REPOSITORY / ".." / "shared" / "corpus" / "unstructured" / "DA-619p.pdf"
SHORT_LIFE = 8
"""The most calls after which a worker dies: it never lives to see the end."""


def written(folder: Path) -> Path:
    contents = [
        page(f"Page {i} of chapter {i // 10}", f"tells of matter{i}", *(["and so on and on " * 5] * 20 * (i % 3 == 0)))
        for i in range(PAGES_MADE)
    ]
    path = folder / "long.pdf"
    path.write_bytes(pdf(*contents, outline=[Entry(f"Page {i}", i) for i in range(0, PAGES_MADE, 10)]))
    return path


def look(home: Path) -> Any:
    return open_home(home, chunk={"unit": "characters"}, parsers={"children": CHILDREN})


def start(home: Path, log: Path, *arguments: str) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        [sys.executable, "-m", "tests.crash.pdf_player", str(log), *arguments, "--home", str(home)],
        cwd=REPOSITORY,
        env=environment(EMBEDDER="fake", PARSERS__CHILDREN=str(CHILDREN)),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def calls(log: Path, total: int) -> list[tuple[int, int]]:
    """(first page, pages) of every call that was handed out."""
    if not log.exists():
        return []
    found = [line.split() for line in log.read_text().splitlines()]
    return [(int(first), min(int(count), total - int(first))) for first, count in found]


async def kept(app: App) -> int:
    """Pages that are committed."""
    listed = await app.list_documents()
    if not listed:
        return 0
    pages: int = (await app.status(listed[0].id)).progress.pages
    return pages


async def view(app: App) -> tuple[Picture, list[Any], list[tuple[Any, ...]]]:
    """All that a reader can notice, its pages, and what a search finds."""
    [entry] = await app.list_documents()
    pages = [page async for page in app.show(entry.id, "pages")]
    hits = sorted((hit.page, hit.start, hit.end, hit.text) for hit in await app.search(QUERY, 5000, mode="text"))
    assert hits
    return await picture(app, ()), pages, hits


@pytest.mark.parametrize("source", ["made", pytest.param("corpus", marks=pytest.mark.corpus)])
async def test_i4_i12_a_kill_costs_a_few_pages_and_changes_nothing(tmp_path: Path, source: str) -> None:
    if source == "corpus" and not (LONG and LONG_REPORT.exists()):
        pytest.skip("the corpus is not here, or time is short: PENSTOCK_LONG=1")
    path = LONG_REPORT if source == "corpus" else written(tmp_path)
    async with look(tmp_path / "undisturbed") as app:
        assert (await app.ingest([path])).completed == 1
        wanted = await view(app)
    total = len(wanted[1])
    chance = random.Random(SEED)
    home = tmp_path / "home"
    async with look(home) as reader:
        handed_out = 0
        for life in range(KILLS):
            before, log = await kept(reader), tmp_path / f"life{life}"
            if before + (SHORT_LIFE + CALLS * CHILDREN) * PAGES > total:
                break
            running = start(home, log, "ingest", str(path))
            enough, deadline = chance.randint(1, SHORT_LIFE), time.monotonic() + 30
            while len(calls(log, total)) < enough and time.monotonic() < deadline:  # noqa: ASYNC110
                await asyncio.sleep(0.002)
            await asyncio.sleep(chance.uniform(0, 0.02))
            running.send_signal(signal.SIGKILL)
            assert await asyncio.to_thread(running.wait) == -signal.SIGKILL
            given = calls(log, total)
            after = await kept(reader)
            assert given[0][0] == before, "it goes on where the life before had got to"
            lost = sum(count for _, count in given) - (after - before)
            assert 0 <= lost <= CALLS * PAGES * CHILDREN
            handed_out += sum(count for _, count in given)
        assert life >= 2
        last = tmp_path / "last"
        assert await asyncio.to_thread(start(home, last, "run").wait) == 0
        handed_out += sum(count for _, count in calls(last, total))
        assert handed_out <= total + KILLS * CALLS * PAGES * CHILDREN
        assert await view(reader) == wanted
        assert (await reader.status()).dead_letters == 0
        report = await reader.check()
        assert report.ok, said(report)
