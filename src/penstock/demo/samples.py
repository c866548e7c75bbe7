"""The sample documents of the demo: written from code, always the same, in six formats. One of them has 200 pages."""

import html
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from penstock.demo.docx import paragraph, table, write_docx
from penstock.demo.handbook import TITLE, sections
from penstock.demo.layout import Sheet
from penstock.demo.pdf import Bookmark, Label, PdfPage, write_pdf
from penstock.demo.stations import STATIONS
from penstock.demo.texts import (
    ADDED,
    BRING,
    CREW,
    FIELD_NOTES,
    FLOOD_MARKS,
    GLOSSARY,
    INSPECTION,
    OUTAGE,
    PREFACE,
    READING,
    REMARKS,
    UNITS,
    WATER_RIGHTS,
)

HANDBOOK = "handbook.pdf"
HANDBOOK_PAGES = 200
FRONT = 6
"""Pages before page 1, numbered i to vi."""
NOTES = "field-notes.md"


class Question(NamedTuple):
    text: str
    document: str
    page: int
    answer: str
    """What the passage that is found has to say."""


def question() -> Question:
    """It has one right page in the handbook."""
    tarnhead = next(i for i, station in enumerate(STATIONS) if station.name == "Tarnhead")
    wall = STATIONS[tarnhead].number("wall", 11, 46)
    text, answer = "How thick is the wall of the penstock at Tarnhead?", f"{wall} millimetres thick"
    return Question(text, HANDBOOK, FRONT + 8 * tarnhead + 3, answer)


def write_samples(folder: Path) -> list[Path]:
    """Write all of them; their paths, the largest first."""
    folder.mkdir(parents=True, exist_ok=True)
    bookmarks: list[Bookmark] = []
    labels = [Label(0, "r"), Label(FRONT, "D")]
    write_pdf(folder / HANDBOOK, _handbook(bookmarks), title=TITLE, outline=bookmarks, labels=labels)
    write_pdf(folder / "inspection.pdf", _inspection(), title="Inspection of the Glasmere penstock")
    write_docx(folder / "outage-plan.docx", _outage_plan())
    (folder / "flood-watch.html").write_text(_flood_watch(), encoding="utf-8")
    (folder / NOTES).write_text(FIELD_NOTES, encoding="utf-8")
    (folder / "water-rights.md").write_text(WATER_RIGHTS, encoding="utf-8")
    (folder / "shift-log.txt").write_text(_shift_log(), encoding="utf-8")
    return sorted(folder.iterdir(), key=lambda path: -path.stat().st_size)


def change(folder: Path) -> Question:
    """Add a chapter to the field notes; a question that only the changed document answers."""
    with open(folder / NOTES, "a", encoding="utf-8") as file:
        file.write(ADDED)
    return Question("Which colour is the new boat at the upper landing?", NOTES, 1, "vermilion")


def _handbook(bookmarks: list[Bookmark]) -> Iterator[PdfPage]:
    """Title, preface, how to read it, contents, abbreviations; eight pages for each station; two of a glossary."""
    yield from _front()
    number = 0
    for chapter, station in enumerate(STATIONS, 1):
        bookmarks.append(Bookmark(f"{chapter} {station.name}", FRONT + number))
        for part, section in enumerate(sections(station), 1):
            title = f"{chapter}.{part} {section.title}"
            bookmarks.append(Bookmark(title, FRONT + number, 2))
            number += 1
            sheet = Sheet(f"{TITLE}  ·  {station.name}", str(number))
            if part == 1:
                sheet.heading(f"{chapter} {station.name}", 20)
            sheet.heading(title)
            for text in section.paragraphs:
                sheet.paragraph(text)
            sheet.heading("On the round", 10.5)
            sheet.steps(section.steps)
            sheet.table(section.caption, section.table)
            sheet.table(f"Readings of the last full year at {station.name}", section.monthly)
            yield sheet.page()
    bookmarks.append(Bookmark("Glossary", FRONT + number))
    half = len(GLOSSARY) // 2
    for heading, words in (("Glossary", GLOSSARY[:half]), ("Glossary, continued", GLOSSARY[half:])):
        number += 1
        sheet = Sheet(f"{TITLE}  ·  Glossary", str(number))
        sheet.heading(heading, 20)
        for word, meaning in words:
            sheet.line(word, 10, "bold")
            sheet.paragraph(meaning)
        yield sheet.page()


def _front() -> Iterator[PdfPage]:
    title = Sheet()
    title.space(190)
    title.line(TITLE, 26, "bold")
    title.space(14)
    title.line("Twenty-four stations, from the intake to the tail water", 13, "italic")
    title.space(420)
    title.line("For the use of shifts. Keep it dry, and write in it with a pencil.", 10)
    yield title.page()
    for heading, texts in (("Preface", PREFACE), ("How to read a chapter", READING)):
        sheet = Sheet(f"{TITLE}  ·  {heading}", "ii" if heading == "Preface" else "iii")
        sheet.heading(heading, 20)
        for text in texts:
            sheet.paragraph(text)
        yield sheet.page()
    half = len(STATIONS) // 2
    for first in (0, half):
        sheet = Sheet(f"{TITLE}  ·  Contents", "iv" if first == 0 else "v")
        sheet.heading("Contents" if first == 0 else "Contents, continued", 20)
        for chapter in range(first + 1, first + half + 1):
            station = STATIONS[chapter - 1]
            sheet.line(f"{chapter} {station.name}, from page {8 * chapter - 7}", 10, "bold")
            titles = " · ".join(f"{s.title} {8 * chapter - 7 + i}" for i, s in enumerate(sections(station)))
            sheet.paragraph(titles)
        yield sheet.page()
    sheet = Sheet(f"{TITLE}  ·  Units", "vi")
    sheet.heading("Units and abbreviations", 20)
    sheet.table("Used throughout", UNITS)
    yield sheet.page()


def _inspection() -> Iterator[PdfPage]:
    for number, (heading, texts) in enumerate(INSPECTION, 1):
        sheet = Sheet("Inspection of the Glasmere penstock", f"{number} of {len(INSPECTION)}")
        sheet.heading(heading, 16)
        for text in texts:
            sheet.paragraph(text)
        yield sheet.page()


def _shift_log() -> str:
    """A plain text, a week long, with something to say for every watch."""
    lines = ["LOG OF THE MARROWSTONE CONTROL DESK", ""]
    station = next(s for s in STATIONS if s.name == "Marrowstone")
    for day in range(1, 8):
        for watch in ("night", "morning", "evening"):
            key = f"log.{day}.{watch}"
            level, power = station.decimal(f"{key}.level", 120, 148), station.decimal(f"{key}.power", 31, 118)
            lines.append(f"{day} March, {watch} watch. Level {level} m, load {power} MW. {_remark(day, watch)}")
        lines.append("")
    return "\n".join(lines)


def _remark(day: int, watch: str) -> str:
    if (day, watch) == (4, "evening"):
        return "The farmer reports a humming fence; an earthing strap of the penstock had come loose and was bolted on."
    return REMARKS[(3 * day + len(watch)) % len(REMARKS)]


def _outage_plan() -> list[str]:
    parts = [paragraph("Outage plan of the Halvorsdal station", "Title")]
    for heading, texts in OUTAGE:
        parts += [paragraph(heading, "Heading1"), *map(paragraph, texts)]
    parts += [paragraph("What to bring", "Heading1"), *(paragraph(item, "ListBullet") for item in BRING)]
    return [*parts, paragraph("Who does what", "Heading1"), table(CREW)]


def _flood_watch() -> str:
    rows = "".join(
        f"<tr><td>{html.escape(name)}</td><td>{warn}</td><td>{act}</td></tr>\n" for name, warn, act in FLOOD_MARKS
    )
    return textwrap.dedent("""\
        <!DOCTYPE html>
        <html lang="en">
        <head><meta charset="utf-8"><title>Flood watch</title><style>body { font-family: sans-serif }</style></head>
        <body>
        <h1>Flood watch</h1>
        <p>When the rain gauge at Kestrel Rock shows more than 40 millimetres in six hours, the watch begins. It ends
        when the river has fallen for a whole day, and not before the person who began it says so.</p>
        <h2>Marks on the staff</h2>
        <table>
        <tr><th>Gauge</th><th>Warn at (cm)</th><th>Act at (cm)</th></tr>
        {rows}</table>
        <h2>The first hour</h2>
        <ol>
        <li>Telephone the stations downstream, from the mouth of the valley upwards.</li>
        <li>Lift the boom at Lindenau, or the lime trees of last year will come down with it.</li>
        <li>Open the sluice at Ravensluice by a hand's breadth, wait ten minutes, and open it by another.</li>
        <li>Write down the time of each step: afterwards nobody remembers.</li>
        </ol>
        <h2>Afterwards</h2>
        <p>Mud is shovelled while it is wet. The pit pumps are run dry for one minute &amp; listened to. Sandbags are
        dried on the south wall and counted: there are 1,200 of them, and last spring 37 were missing.</p>
        </body>
        </html>
        """).replace("{rows}", rows)
