"""Latency of searches over many chunks, in one process, right after the ingest, with and without filters."""

import asyncio
import csv
import random
import tempfile
import time
from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.table import Row
from penstock.app import App, open_app
from penstock.search.ranking import Mode

DOCUMENTS, CHUNKS = 10_000, 10
QUERIES = 200
WARM_UP = 10
"""Searches that are not counted: after some, a process loads the text indexes whole."""
SIZE = 320
FILTERS: dict[str, dict[str, Any] | None] = {
    "no filter": None,
    "a filter that half of the documents match": {"year": {"$gte": 2012}},
    "a filter that a tenth of them match": {"author": "author3"},
    "a filter that one of a thousand matches": {"case": "case7"},
}

MODES: dict[Mode, str] = {"text": "words (BM25)", "vector": "vectors", "hybrid": "default"}


def write_files(folder: Path, documents: int, chunks: int) -> Path:
    """Texts of made-up words whose frequencies fall as in a language, and a manifest with their metadata."""
    chance = random.Random(7)
    syllables = [a + b + c for a in "bcdfghjklmnprstvwz" for b in "aeiou" for c in ("", *"lmnrst")]
    words = ["".join(chance.choices(syllables, k=chance.randint(1, 4))) for _ in range(30_000)]
    frequencies = list(accumulate(1 / (rank + 3) for rank in range(len(words))))
    folder.mkdir()
    manifest = folder.parent / "manifest.csv"
    with manifest.open("w", encoding="utf-8", newline="") as stream:
        rows = csv.writer(stream)
        rows.writerow(["path", "author", "year", "case"])
        for i in range(documents):
            paragraphs = []
            for _ in range(chunks):
                text = " ".join(chance.choices(words, cum_weights=frequencies, k=60))[: SIZE - 40]
                paragraphs.append(text[: text.rfind(" ")] + ".")
            (folder / f"{i:05}.txt").write_text("\n\n".join(paragraphs), encoding="utf-8")
            rows.writerow([f"{folder.name}/{i:05}.txt", f"author{i % 10}", 2000 + i % 24, f"case{i % 1000}"])
    return manifest


class Times(NamedTuple):
    """Of one search, in milliseconds."""

    p50: float
    p99: float
    processor: float


async def time_searches(app: App, folder: Path, count: int, mode: Mode, where: dict[str, Any] | None) -> Times:
    chance = random.Random(11)
    files = sorted(folder.iterdir())
    times = []
    for i in range(count + WARM_UP):
        if i == WARM_UP:
            processor = time.process_time()
        words = chance.choice(files).read_text(encoding="utf-8").split()
        at = chance.randrange(len(words) - 6)
        began = time.perf_counter()
        await app.search(" ".join(words[at : at + 6]), 10, mode=mode, filter=where)
        times.append(1000 * (time.perf_counter() - began))
    spent = 1000 * (time.process_time() - processor) / count
    ordered = sorted(times[WARM_UP:])
    return Times(ordered[count // 2], ordered[count * 99 // 100], spent)


Found = dict[tuple[str, Mode], Times]
"""By filter and mode."""


async def measure(documents: int = DOCUMENTS, chunks: int = CHUNKS, queries: int = QUERIES) -> tuple[Found, float]:
    """The times of searches right after an ingest, and the seconds that the ingest took."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "files"
        manifest = write_files(folder, documents, chunks)
        async with open_app(home=str(Path(temporary) / "home"), chunk={"size": SIZE, "overlap": 0}) as app:
            summary = await app.ingest(manifest=manifest)
            assert summary.completed == documents, summary
            found = {
                (name, mode): await time_searches(app, folder, queries, mode, where)
                for name, where in FILTERS.items()
                for mode in MODES
            }
    return found, summary.elapsed_s


def rows() -> Iterator[Row]:
    found, seconds = asyncio.run(measure())
    yield Row(f"{DOCUMENTS * CHUNKS:,} chunks of {DOCUMENTS:,} documents: ingest", seconds, "s", 1)
    for (name, mode), times in found.items():
        limits = (None, None) if mode != "hybrid" else (40, 120) if FILTERS[name] is None else (60, None)
        for what, figure, most in (("p50", times.p50, limits[0]), ("p99", times.p99, limits[1])):
            yield Row(f"{name}, {MODES[mode]}: {what}", figure, "ms", 1, most=most)
        yield Row(f"{name}, {MODES[mode]}: processor time", times.processor, "ms", 1)
