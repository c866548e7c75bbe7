"""Setting text on pages: lines of a width that suits Helvetica, headings, lists, tables."""

import textwrap
from collections.abc import Sequence

from penstock.demo.pdf import A4, Font, PdfPage, Text

LEFT, RIGHT, TOP, FOOT = 62.0, 533.0, 778.0, 34.0
SIZE, LEADING = 9.3, 11.9
COLUMNS = 104
"""Letters in a line of that size."""


class Sheet:
    """One page, filled from above."""

    def __init__(self, head: str = "", number: str = "") -> None:
        self._texts: list[Text] = []
        self._drawing: list[str] = []
        self._number = number
        self.y = TOP
        if head:
            self._texts.append(Text(LEFT, 806, head, 8, "italic"))
            self._drawing.append(f"0.6 G 0.5 w {LEFT:g} 800 m {RIGHT:g} 800 l S")

    def line(self, text: str, size: float = SIZE, font: Font = "regular", indent: float = 0) -> None:
        self._texts.append(Text(LEFT + indent, round(self.y, 2), text, size, font))
        self.y -= size * LEADING / SIZE

    def heading(self, text: str, size: float = 14) -> None:
        self.y -= 0.35 * size
        self.line(text, size, "bold")
        self.space(3)

    def space(self, points: float) -> None:
        self.y -= points

    def paragraph(self, text: str, font: Font = "regular") -> None:
        for line in textwrap.wrap(text, COLUMNS):
            self.line(line, font=font)
        self.space(4.5)

    def steps(self, steps: Sequence[str]) -> None:
        for number, step in enumerate(steps, 1):
            first, *rest = textwrap.wrap(step, COLUMNS - 4)
            self.line(f"{number}. {first}", indent=6)
            for line in rest:
                self.line(line, indent=16)
        self.space(4.5)

    def table(self, caption: str, rows: Sequence[Sequence[str]]) -> None:
        """Columns of equal width, the first row in bold."""
        self.line(caption, font="italic")
        width = (RIGHT - LEFT) / len(rows[0])
        for i, row in enumerate(rows):
            for column, cell in enumerate(row):
                place = LEFT + column * width
                self._texts.append(Text(place, round(self.y, 2), cell, SIZE - 0.6, "bold" if i == 0 else "regular"))
            if i == 0:
                self._drawing.append(f"0.8 G 0.4 w {LEFT:g} {self.y - 2.5:g} m {RIGHT:g} {self.y - 2.5:g} l S")
            self.y -= LEADING
        self.space(4.5)

    def page(self) -> PdfPage:
        if self.y < FOOT + LEADING:
            raise ValueError(f"the page is over-full by {FOOT + LEADING - self.y:.0f} points: {self._texts[0].text}")
        foot = [Text(A4[0] / 2 - 2.2 * len(self._number), FOOT, self._number, 8)] if self._number else []
        return PdfPage([*self._texts, *foot], "\n".join(self._drawing).encode())
