"""The extract step of one long PDF, by the ledger's clock, beside PDFium in one process.

On both sides the document is opened within the measured time, and imports are not in it: as in a worker that runs, the
parser processes are there and the models are loaded.
"""

import asyncio
import importlib
import json
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import NamedTuple

from benchmarks import corpus
from benchmarks.plain import read
from benchmarks.processes import run
from benchmarks.table import Row
from penstock import open_app

REPEAT = 5
LONG_PDF = corpus.CORPUS / "unstructured" / "DA-619p.pdf"
MADE_PAGES = 600


class Rates(NamedTuple):
    """Pages a second."""

    alone: float
    ours: float


def measure(path: Path, work: Path, repeat: int = REPEAT) -> Rates:
    alone, ours = [], []
    for turn in range(repeat):
        answer = run([sys.executable, "-m", "benchmarks.extract", path]).answer
        alone.append(answer["pages"] / answer["seconds"])
        pages, seconds = _step(path, work / f"home-{turn}")
        assert pages == answer["pages"], (pages, answer)
        ours.append(pages / seconds)
    return Rates(median(alone), median(ours))


def rows(repeat: int = REPEAT) -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as temporary:
        work = Path(temporary)
        path = LONG_PDF if LONG_PDF.exists() else corpus.make_pdf(work / "made.pdf", MADE_PAGES)
        rates = measure(path, work, repeat)
    yield Row(f"{path.name}: PDFium in one process, pages/s", rates.alone)
    yield Row(f"{path.name}: extract step, pages/s", rates.ours)
    yield Row(f"{path.name}: extract step against one process", rates.ours / rates.alone, "×", 2, least=1.6)


def _step(path: Path, home: Path) -> tuple[int, float]:
    """Pages and seconds of the extract step."""
    answer = run([sys.executable, "-m", "benchmarks.extract", path, home]).answer
    return answer["pages"], answer["seconds"]


async def _ours(path: Path, home: Path) -> dict[str, float]:
    async with open_app(home=str(home)) as app:
        await app.ingest([corpus.make_pdf(home / "first.pdf", 2)])
        await app.ingest([path])
        (document,) = await app.list_documents(name=path.name)
        (step,) = [s for s in (await app.status(document.id)).steps if s.kind == "extract"]
    assert document.pages is not None
    assert step.started_at is not None
    assert step.finished_at is not None
    return {"pages": document.pages, "seconds": step.finished_at - step.started_at}


def _alone(path: Path) -> dict[str, float]:
    importlib.import_module("pypdfium2")
    began = time.perf_counter()
    pages = read(path)
    return {"pages": len(pages), "seconds": time.perf_counter() - began}


if __name__ == "__main__":
    given = [Path(argument) for argument in sys.argv[1:]]
    print(json.dumps(_alone(*given) if len(given) == 1 else asyncio.run(_ours(*given))))
