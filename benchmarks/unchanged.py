"""A second ingest of a folder in which nothing changed, as a share of the first; each in a process of its own."""

import random
import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.processes import penstock
from benchmarks.table import Row

FILES = 2000


def write_files(folder: Path, count: int) -> None:
    chance = random.Random(7)
    words = [f"word{chance.randrange(10**4)}" for _ in range(3000)]
    folder.mkdir()
    for i in range(count):
        paragraphs = (" ".join(chance.choices(words, k=70)) for _ in range(chance.randint(1, 8)))
        (folder / f"{i:05}.txt").write_text("\n\n".join(paragraphs), encoding="utf-8")


def measure(count: int = FILES) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as temporary:
        folder, home = Path(temporary) / "files", Path(temporary) / "home"
        write_files(folder, count)
        first = penstock(home, "ingest", folder).seconds
        second = min(penstock(home, "ingest", folder).seconds for _ in range(3))
    return {"first_s": first, "second_s": second, "ratio": second / first}


def rows() -> Iterator[Row]:
    again = measure()
    yield Row(f"{FILES:,} text files: first ingest", again["first_s"], "s", 1)
    yield Row("nothing changed: second ingest against the first", again["ratio"], "×", 3, most=0.15)
