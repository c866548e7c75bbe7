"""Latency of searches over many chunks, in one process, right after the ingest, with and without filters."""

import asyncio
import csv
import random
import tempfile
import time
from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path
from typing import Any

from benchmarks.table import Row
from penstock.app import App, open_app

DOCUMENTS, CHUNKS = 10_000, 10
QUERIES = 200
SIZE = 320
FILTERS: dict[str, dict[str, Any] | None] = {
    "no filter": None,
    "a filter that half of the documents match": {"year": {"$gte": 2012}},
    "a filter that a tenth of them match": {"author": "author3"},
    "a filter that one of a thousand matches": {"case": "case7"},
}


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


async def time_searches(app: App, folder: Path, count: int, where: dict[str, Any] | None) -> tuple[list[float], float]:
    """The times of single searches, and the processor time of one of them."""
    chance = random.Random(11)
    files = sorted(folder.iterdir())
    times = []
    for i in range(count + 5):
        if i == 5:
            processor = time.process_time()
        words = chance.choice(files).read_text(encoding="utf-8").split()
        at = chance.randrange(len(words) - 6)
        began = time.perf_counter()
        await app.search(" ".join(words[at : at + 6]), 10, filter=where)
        times.append(time.perf_counter() - began)
    return sorted(times[5:]), (time.process_time() - processor) / count


async def measure(
    documents: int = DOCUMENTS, chunks: int = CHUNKS, queries: int = QUERIES
) -> tuple[dict[str, dict[str, float]], float]:
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "files"
        manifest = write_files(folder, documents, chunks)
        async with open_app(home=str(Path(temporary) / "home"), chunk={"size": SIZE, "overlap": 0}) as app:
            summary = await app.ingest(manifest=manifest)
            assert summary.completed == documents, summary
            found = {}
            for name, where in FILTERS.items():
                times, processor = await time_searches(app, folder, queries, where)
                found[name] = {
                    "p50": 1000 * times[len(times) // 2],
                    "p99": 1000 * times[len(times) * 99 // 100],
                    "processor": 1000 * processor,
                }
    return found, summary.elapsed_s


def rows() -> Iterator[Row]:
    found, seconds = asyncio.run(measure())
    yield Row(f"{DOCUMENTS * CHUNKS:,} chunks of {DOCUMENTS:,} documents: ingest", seconds, "s", 1)
    for name, times in found.items():
        most = 40 if FILTERS[name] is None else 60
        yield Row(f"hybrid search, {name}: p50", times["p50"], "ms", 1, most=most)
        yield Row(f"hybrid search, {name}: p99", times["p99"], "ms", 1, most=120 if most == 40 else None)
        yield Row(f"hybrid search, {name}: processor time", times["processor"], "ms", 1)
