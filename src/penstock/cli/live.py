"""Lines that are redrawn in place on a terminal. Only loaded for a terminal, because importing `rich` takes time.

The cursor is never hidden and always stays at the beginning of the line below, so that nothing needs to be restored,
however the process ends."""

import shutil
from collections.abc import Sequence
from typing import NamedTuple, TextIO

from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.text import Text

from penstock.cli.output import visible

BAR = 30
LEAST_BAR = 8


class Row(NamedTuple):
    """A line of the table: a label, the completed share (None: unknown), and text cells."""

    label: str
    share: float | None
    cells: tuple[str, ...]


class Screen:
    """The last lines of a terminal, which can be redrawn."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._console = Console(file=stream, highlight=False, soft_wrap=True)
        self._drawn: list[int] = []
        """Widths of the lines that are shown now."""

    def size(self) -> tuple[int, int]:
        """Usable columns and rows. The last column is not used, because some terminals wrap there."""
        columns, rows = shutil.get_terminal_size((80, 24))
        return max(10, columns - 1), max(1, rows - 1)

    def draw(self, lines: Sequence[Text]) -> None:
        columns, rows = self.size()
        lines = [_cut(_harmless(line), columns) for line in lines[:rows]]
        text = "".join(f"{self._escaped(line)}\x1b[K\n" for line in lines)
        self._write(f"{self._to_the_first(columns)}{text}\x1b[J")
        self._drawn = [line.cell_len for line in lines]

    def erase(self) -> None:
        if self._drawn:
            self._write(f"{self._to_the_first(self.size()[0])}\x1b[J")
            self._drawn = []

    def _to_the_first(self, columns: int) -> str:
        """The escape sequence that moves to the first line. Lines drawn on a wider terminal take several rows now."""
        rows = sum(-(-max(1, width) // (columns + 1)) for width in self._drawn)
        return f"\r\x1b[{rows}A" if rows else "\r"

    def _escaped(self, line: Text) -> str:
        with self._console.capture() as capture:
            self._console.print(line, end="")
        return capture.get()

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()


def table(rows: Sequence[Row], columns: int) -> list[Text]:
    """Aligned rows with bars. If they do not fit, the bars are dropped first, then cells from the right."""
    label = max((cell_len(row.label) for row in rows), default=0)
    for cells in range(max((len(row.cells) for row in rows), default=0), 0, -1):
        widths = [max(cell_len(row.cells[i]) if i < len(row.cells) else 0 for row in rows) for i in range(cells)]
        used = label + sum(2 + width for width in widths)
        wide = min(BAR, columns - used - 2)
        if wide >= LEAST_BAR or used <= columns or cells == 1:
            return [_line(row, label, wide if wide >= LEAST_BAR else 0, widths) for row in rows]
    return []


def _line(row: Row, label: int, wide: int, widths: Sequence[int]) -> Text:
    line = Text().append(set_cell_size(row.label, label), "bold")
    if wide:
        line.append("  ").append_text(bar(row.share, wide))
    for i, width in enumerate(widths):
        cell = row.cells[i] if i < len(row.cells) else ""
        line.append("  " + " " * (width - cell_len(cell)) + cell, "none" if i == 0 else "cyan")
    line.rstrip()
    return line


def bar(share: float | None, width: int) -> Text:
    """A progress bar that is readable without colours."""
    if share is None:
        return Text(" " * width)
    done = min(width, int(width * share + 1e-9))
    return Text().append("━" * done, "green" if share >= 1 else "blue").append("╌" * (width - done), "bright_black")


def _harmless(line: Text) -> Text:
    """Escape a line that contains control characters; it loses its colours. Callers should have escaped it."""
    return line if line.plain.isprintable() else Text(visible(line.plain))


def _cut(line: Text, columns: int) -> Text:
    if line.cell_len > columns:
        line = line.copy()
        line.truncate(columns, overflow="ellipsis")
    return line
