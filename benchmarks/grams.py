"""What the index of character grams costs: the processor time of the same ingest with it and without it, in turn."""

import asyncio
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from unittest.mock import patch

from benchmarks.latency import SIZE, write_files
from benchmarks.table import Row
from penstock.app import open_app
from penstock.indexes import lance_rows, lance_upkeep

DOCUMENTS, CHUNKS, ROUNDS = 1_000, 10, 3


async def ingest(manifest: Path, home: Path, documents: int) -> float:
    """The processor time of an ingest, with the update of the indexes at its end."""
    async with open_app(home=str(home), chunk={"size": SIZE, "overlap": 0}) as app:
        began = time.process_time()
        summary = await app.ingest(manifest=manifest)
        assert summary.completed == documents, summary
        return time.process_time() - began


def without_grams(stack: ExitStack) -> None:
    words = {"words": lance_upkeep.WORDS}
    stack.enter_context(patch.object(lance_upkeep, "TEXT", words))
    stack.enter_context(patch.object(lance_rows, "grams", lambda text: ""))


def measure(documents: int = DOCUMENTS, chunks: int = CHUNKS, rounds: int = ROUNDS) -> tuple[float, float]:
    """The medians with grams and without."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        manifest = write_files(folder / "files", documents, chunks)
        times: dict[bool, list[float]] = {True: [], False: []}
        # The first one loads the models, and is not counted.
        for i in range(2 * rounds + 1):
            with ExitStack() as stack:
                if i % 2:
                    without_grams(stack)
                times[i % 2 == 0].append(asyncio.run(ingest(manifest, folder / f"home{i}", documents)))
    return statistics.median(times[True][1:]), statistics.median(times[False])


def rows() -> Iterator[Row]:
    with_grams, without = measure()
    yield Row(f"ingest of {DOCUMENTS * CHUNKS:,} chunks without grams: processor time", without, "s", 1)
    yield Row("the same with grams", with_grams, "s", 1)
    yield Row("the same, as a multiple", with_grams / without, "×", 2, most=1.08)
