"""Peak memory of all processes together: beside the plain script, and of a long PDF beside a short one."""

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median

from benchmarks import corpus
from benchmarks.processes import PLAIN, Ended, penstock, run, warm_up
from benchmarks.table import Row

REPEAT = 3
SHORT, LONG = 200, 2000


def measure(folder: Path, work: Path, repeat: int = REPEAT) -> dict[str, float]:
    """Megabytes: the plain script's, ours."""
    plain, ours = [], []
    for turn in range(repeat):
        plain.append(run([*PLAIN, folder, work / f"plain-{turn}.lance"], memory=True))
        ours.append(penstock(work / f"home-{turn}", "ingest", folder, memory=True))
    return {"plain": _middle(plain), "ours": _middle(ours)}


def lengths(work: Path, pages: Sequence[int] = (SHORT, LONG), repeat: int = REPEAT) -> dict[int, float]:
    """Megabytes by pages of the one document."""
    paths = {count: corpus.make_pdf(work / f"{count}.pdf", count) for count in pages}
    peaks: dict[int, list[Ended]] = {count: [] for count in pages}
    for turn in range(repeat):
        for count, path in paths.items():
            ended = penstock(work / f"home-{count}-{turn}", "ingest", path, memory=True)
            assert ended.answer["completed"] == 1, ended.answer
            peaks[count].append(ended)
    return {count: _middle(ended) for count, ended in peaks.items()}


def rows(repeat: int = REPEAT) -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as temporary:
        folder, work = Path(temporary) / "documents", Path(temporary)
        corpus.gather(folder)
        warm_up(folder, work)
        peaks = measure(folder, work, repeat)
        yield Row("peak memory of the plain script (PSS)", peaks["plain"], "MB")
        yield Row("peak memory of an ingest, all processes (PSS)", peaks["ours"], "MB")
        yield Row("peak memory against the plain script", peaks["ours"] / peaks["plain"], "×", 2, most=1.3)
    with tempfile.TemporaryDirectory() as temporary:
        by_length = lengths(Path(temporary), repeat=repeat)
        yield Row(f"peak memory, a PDF of {SHORT} pages", by_length[SHORT], "MB")
        what = f"peak memory, {LONG:,} pages against {SHORT}"
        yield Row(what, by_length[LONG] / by_length[SHORT], "×", 2, most=1.1)


def _middle(ended: Sequence[Ended]) -> float:
    return median(one.peak_mb for one in ended)
