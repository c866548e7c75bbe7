"""Write docs/picture.svg: what a terminal shows while the sample documents are ingested, and at the end.

`python scripts/picture.py` runs a real ingest in a pseudo-terminal; figures differ from run to run."""

import fcntl
import io
import os
import pty
import re
import struct
import sys
import tempfile
import termios
from pathlib import Path

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.terminal_theme import DIMMED_MONOKAI
from rich.text import Text

from penstock.demo.samples import write_samples

ROOT = Path(__file__).resolve().parents[1]
COLUMNS = 84
TOKENS = re.compile(r"\x1b\[(\d*)([AKJ])|(\r)|(\n)|((?:\x1b\[[\d;]*m|[^\x1b\r\n])+)")

FORMAT = re.sub(r"<!--.*?-->|@font-face \{\{.*?\}\}", "", CONSOLE_SVG_FORMAT, flags=re.S).replace("Fira Code, ", "")


class Terminal:
    """As much of a terminal as our own output needs: whole lines, up, and erasing."""

    def __init__(self) -> None:
        self.lines = [""]
        self.frames: list[list[str]] = []
        self._row = 0
        self._fresh = True

    def feed(self, text: str) -> None:
        for count, verb, back, down, words in TOKENS.findall(text):
            if verb == "A":
                self._row = max(0, self._row - int(count or 1))
            elif verb == "J":
                del self.lines[self._row + 1 :]
                self.lines[self._row] = ""
                self.frames.append(self.lines[:-1])
            elif back:
                self._fresh = True
            elif down:
                self._row += 1
                self.lines += [""] * (self._row + 1 - len(self.lines))
            elif words:
                self.lines[self._row] = words if self._fresh else self.lines[self._row] + words
                self._fresh = False


def run(arguments: list[str], folder: Path) -> Terminal:
    """A command in a pseudo-terminal of its own."""
    child, leader = pty.fork()
    if child == 0:
        os.chdir(folder)
        environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": str(COLUMNS), "PENSTOCK_HOME": "home"}
        os.execve(sys.executable, [sys.executable, "-m", "penstock.cli.main", *arguments], environment)
    fcntl.ioctl(leader, termios.TIOCSWINSZ, struct.pack("HHHH", 24, COLUMNS, 0, 0))
    terminal, data = Terminal(), b""
    while True:
        try:
            some = os.read(leader, 1 << 16)
        except OSError:
            # Nobody holds the other end any more.
            break
        data += some
    os.waitpid(child, 0)
    terminal.feed(data.decode())
    return terminal


def middle(frames: list[list[str]]) -> list[str]:
    """From halfway through the reading of a long document, if one is seen."""
    reading = [frame for frame in frames if re.search(r"page \d+ of \d\d", "\n".join(frame))] or frames
    return reading[len(reading) // 2]


def picture(shown: list[str]) -> str:
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    for line in shown:
        console.print(Text.from_ansi(line), soft_wrap=True)
    return console.export_svg(title="", theme=DIMMED_MONOKAI, code_format=FORMAT, unique_id="penstock")


def main() -> None:
    question = "How thick is the wall of the penstock at Tarnhead?"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_samples(folder / "documents")
        ingest = run(["ingest", "documents"], folder)
        search = run(["search", question, "-k", "1"], folder)
    shown = ["$ penstock ingest documents", *middle(ingest.frames), "", *ingest.lines[:-1]]
    shown += [f'$ penstock search "{question}" -k 1', *search.lines[:-1]]
    (ROOT / "docs" / "picture.svg").write_text(picture(shown), encoding="utf-8")


if __name__ == "__main__":
    main()
