"""A second ingest of a folder in which nothing changed, as a share of the first; each in a process of its own."""

import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

FILES = 2000


def write_files(folder: Path, count: int) -> None:
    chance = random.Random(7)
    words = [f"word{chance.randrange(10**4)}" for _ in range(3000)]
    folder.mkdir()
    for i in range(count):
        paragraphs = (" ".join(chance.choices(words, k=70)) for _ in range(chance.randint(1, 8)))
        (folder / f"{i:05}.txt").write_text("\n\n".join(paragraphs), encoding="utf-8")


def ingest(folder: Path, home: Path) -> float:
    began = time.perf_counter()
    command = [sys.executable, "-m", "penstock.cli.main", "ingest", str(folder), "--home", str(home), "--json"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - began


def measure(count: int = FILES) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as temporary:
        folder, home = Path(temporary) / "files", Path(temporary) / "home"
        write_files(folder, count)
        first = ingest(folder, home)
        second = min(ingest(folder, home) for _ in range(3))
    return {"first_s": first, "second_s": second, "ratio": second / first}


if __name__ == "__main__":
    print(measure())
