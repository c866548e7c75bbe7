"""What is measured: the PDFs, Markdown and text of ../shared/corpus, or where that is absent made ones."""

import random
import shutil
from collections.abc import Iterator
from pathlib import Path

from benchmarks.plain import SUFFIXES
from benchmarks.processes import ROOT
from penstock.demo.pdf import PdfPage, Text, write_pdf

CORPUS = ROOT.parent / "shared" / "corpus"
MADE_PAGES = (600, 60, 40, 30, 20, 20, 15, 10, 10, *[3] * 20)
MADE_TEXTS = 50


def gather(folder: Path) -> str:
    """Fill `folder` with the files that Penstock and the plain script both read; what they are."""
    if not CORPUS.is_dir():
        make(folder, MADE_PAGES, MADE_TEXTS)
        return "made documents, as ../shared/corpus is not here"
    for path in CORPUS.rglob("*"):
        if path.suffix.lower() in SUFFIXES and path.is_file():
            place = folder / path.relative_to(CORPUS)
            place.parent.mkdir(parents=True, exist_ok=True)
            # The corpus may be read-only, and one of these files will be changed.
            shutil.copyfile(path, place)
    return "PDFs, .md and .txt of ../shared/corpus"


def make(folder: Path, pages: tuple[int, ...], texts: int) -> None:
    """PDFs of so many pages each, and so many text files; the same words every time."""
    folder.mkdir(parents=True, exist_ok=True)
    chance = random.Random(11)
    for number, count in enumerate(pages):
        make_pdf(folder / f"{number:03}.pdf", count, chance)
    for number in range(texts):
        (folder / f"{number:03}.txt").write_text("\n\n".join(" ".join(_words(chance, 80)) for _ in range(20)))


def make_pdf(path: Path, pages: int, chance: random.Random | None = None) -> Path:
    write_pdf(path, _pages(pages, chance or random.Random(13)))
    return path


def _pages(count: int, chance: random.Random) -> Iterator[PdfPage]:
    for _ in range(count):
        yield PdfPage([Text(60, 780 - 15 * line, " ".join(_words(chance, 12))) for line in range(48)])


def _words(chance: random.Random, count: int) -> list[str]:
    return [f"word{chance.randrange(20_000)}" for _ in range(count)]
