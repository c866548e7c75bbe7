"""The sample documents of the demo, in five formats: six files of the package, and a handbook of 200 pages that is
generated. Their bytes never change."""

import shutil
from pathlib import Path
from typing import NamedTuple

from penstock.demo.handbook import FILES, FRONT, TITLE, pages, stations
from penstock.demo.pdf import Bookmark, Label, write_pdf

HANDBOOK = "handbook.pdf"
HANDBOOK_PAGES = 200
NOTES = "field-notes.md"
OTHERS = (NOTES, "flood-watch.html", "inspection.pdf", "outage-plan.docx", "shift-log.txt", "water-rights.md")
ADDED = """
## Boats

The old boat at the upper landing was given to the school. The new one is vermilion, so that it can be seen from the
road, carries three, and has its own rope: seventeen metres, with a float at the end.
"""


class Question(NamedTuple):
    text: str
    document: str
    page: int
    answer: str
    """Text that the found passage must contain."""


def question() -> Question:
    """Return a question that exactly one page of the handbook answers."""
    place, station = next((i, station) for i, station in enumerate(stations()) if station.name == "Tarnhead")
    answer = f"{station.number('wall', '11', '46')} millimetres thick"
    return Question("How thick is the wall of the penstock at Tarnhead?", HANDBOOK, FRONT + 8 * place + 3, answer)


def write_samples(folder: Path) -> list[Path]:
    """Write all sample documents and return their paths, the largest first."""
    folder.mkdir(parents=True, exist_ok=True)
    bookmarks: list[Bookmark] = []
    labels = [Label(0, "r"), Label(FRONT, "D")]
    write_pdf(folder / HANDBOOK, pages(bookmarks), title=TITLE, outline=bookmarks, labels=labels)
    for name in OTHERS:
        shutil.copyfile(FILES / name, folder / name)
    return sorted(folder.iterdir(), key=lambda path: -path.stat().st_size)


def change(folder: Path) -> Question:
    """Add a chapter to the field notes, and return a question that only the changed document answers."""
    with open(folder / NOTES, "a", encoding="utf-8") as file:
        file.write(ADDED)
    return Question("Which colour is the new boat at the upper landing?", NOTES, 1, "vermilion")
