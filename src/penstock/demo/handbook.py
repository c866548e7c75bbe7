"""The sample handbook: 200 pages about 24 invented power stations, with figures that never change.

`files/handbook-sections.txt` has the eight sections that each station fills in: paragraphs, steps (`- `) and a table of
monthly readings (`| `). A placeholder such as `{number wall 11 46}` becomes a figure that depends only on the station
and on the word after its kind."""

import calendar
import hashlib
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from penstock.demo.pdf import A4, Bookmark, Font, PdfPage, Text

FILES = Path(__file__).parent / "files"
TITLE = "The Penstock Operator's Handbook"
FRONT = 6
"""Pages before page 1, numbered i to vi."""
LEFT, RIGHT, TOP, FOOT = 62.0, 533.0, 778.0, 34.0
SIZE, LEADING, COLUMNS = 9.3, 11.9, 104
MONTHS = list(calendar.month_name)[1:]


class Section(NamedTuple):
    title: str
    text: str


def sections(name: str) -> list[Section]:
    """The sections of a file: each begins with `# ` and its title."""
    parts = re.split(r"^# (.*)\n", (FILES / f"handbook-{name}.txt").read_text(encoding="utf-8"), flags=re.M)[1:]
    return [Section(title, text) for title, text in zip(parts[::2], parts[1::2], strict=True)]


class Station(NamedTuple):
    name: str
    river: str
    built: str
    tale: str
    """A paragraph that only this station has."""

    def number(self, what: str, low: str, high: str, step: str = "1") -> int:
        digest = hashlib.sha256(f"{self.name}/{what}".encode()).digest()
        choices = (int(high) - int(low)) // int(step) + 1
        return int(low) + int.from_bytes(digest[:6], "big") % choices * int(step)

    def decimal(self, what: str, low: str, high: str) -> str:
        """Return a number with one decimal place. `low` and `high` are in tenths."""
        return f"{self.number(what, low, high) / 10:.1f}"

    def pick(self, what: str, *options: str) -> str:
        choices = " ".join(options).split("|")
        return choices[self.number(what, "0", str(len(choices) - 1))]

    def date(self, what: str, low: str, high: str) -> str:
        day, month = self.number(f"{what}.day", "1", "28"), self.pick(f"{what}.month", "|".join(MONTHS))
        return f"{day} {month} {self.number(what, low, high)}"

    @property
    def head(self) -> int:
        return self.number("head", "38", "412")

    def fill(self, text: str) -> str:
        """Return the text with its placeholders filled in."""

        def figure(found: re.Match[str]) -> str:
            kind, *arguments = found[1].split()
            value = getattr(self, kind)
            return str(value(*arguments) if arguments else value)

        return re.sub(r"\{([^}]*)\}", figure, text)


def stations() -> list[Station]:
    lines = (FILES / "handbook-stations.txt").read_text(encoding="utf-8").splitlines()
    return [Station(*line.split(" | ")) for line in lines]


class Sheet:
    """One page, filled from the top."""

    def __init__(self, head: str, number: str) -> None:
        self._texts = [Text(LEFT, 806, f"{TITLE}  ·  {head}", 8, "italic")]
        self._texts.append(Text(A4[0] / 2 - 2.2 * len(number), FOOT, number, 8))
        self._y = TOP

    def line(self, text: str, size: float = SIZE, font: Font = "regular", indent: float = 0) -> None:
        self._texts.append(Text(LEFT + indent, round(self._y, 2), text, size, font))
        self._y -= size * LEADING / SIZE

    def heading(self, text: str, size: float) -> None:
        self._y -= 0.35 * size
        self.line(text, size, "bold")
        self._y -= 3

    def body(self, text: str, station: Station | None = None) -> None:
        """Write paragraphs, steps and a table, each on separate lines."""
        for line in filter(None, (station.fill(text) if station else text).splitlines()):
            if line.startswith("| ") and station:
                self._readings(line[2:].split(" | "), station)
            else:
                for wrapped in textwrap.wrap(line, COLUMNS):
                    self.line(wrapped)
                self._y -= 0 if line.startswith("- ") else 4.5

    def page(self) -> PdfPage:
        if self._y < FOOT + LEADING:
            raise ValueError(f"the page is over-full by {FOOT + LEADING - self._y:.0f} points")
        return PdfPage([*self._texts[:1], *self._texts[2:], self._texts[1]])

    def _readings(self, columns: list[str], station: Station) -> None:
        """Write the table of readings. Each column is a quantity with its lowest and highest reading, in tenths."""
        self._y -= 4.5
        self.line(f"Readings of the last full year at {station.name}", font="italic")
        split = [column.rsplit(" ", 2) for column in columns]
        rows = [["Month", *(name for name, _, _ in split)]]
        rows += [[m, *(station.decimal(f"{m}.{name}", low, high) for name, low, high in split)] for m in MONTHS]
        width = (RIGHT - LEFT) / len(rows[0])
        for i, row in enumerate(rows):
            for place, cell in enumerate(row):
                font: Font = "regular" if i else "bold"
                self._texts.append(Text(LEFT + place * width, round(self._y, 2), cell, SIZE - 0.6, font))
            self._y -= LEADING


def pages(bookmarks: list[Bookmark]) -> Iterator[PdfPage]:
    """Yield the pages: title, preface, instructions, contents and units; eight pages for each station; a glossary of
    two pages. Adds to `bookmarks`."""
    everywhere, frame = sections("sections"), sections("frame")
    all_stations = stations()
    front = [Section("For the use of shifts", f"{len(all_stations)} stations, from the intake to the tail water")]
    half = len(all_stations) // 2
    contents = [f"{i} {station.name}, from page {8 * i - 7}" for i, station in enumerate(all_stations, 1)]
    front += [*frame[:2], Section("Contents", "\n".join(contents[:half]))]
    front += [Section("Contents, continued", "\n".join(contents[half:])), frame[2]]
    for label, (title, text) in zip(("i", "ii", "iii", "iv", "v", "vi"), front, strict=True):
        yield _page(title, label, text)
    number = 0
    for chapter, station in enumerate(all_stations, 1):
        bookmarks.append(Bookmark(f"{chapter} {station.name}", FRONT + number))
        for part, (heading, text) in enumerate(everywhere, 1):
            title = f"{chapter}.{part} {heading}"
            bookmarks.append(Bookmark(title, FRONT + number, 2))
            number += 1
            sheet = Sheet(station.name, str(number))
            if part == 1:
                sheet.heading(f"{chapter} {station.name}", 20)
            sheet.heading(title, 14)
            sheet.body(text, station)
            yield sheet.page()
    bookmarks.append(Bookmark("Glossary", FRONT + number))
    for more, (title, text) in enumerate(frame[3:], 1):
        yield _page(title, str(number + more), text)


def _page(title: str, number: str, text: str) -> PdfPage:
    sheet = Sheet(title, number)
    sheet.heading(title, 20)
    sheet.body(text)
    return sheet.page()
