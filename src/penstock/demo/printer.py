"""The output of the demo: wrapped to the width of the terminal, or plain lines if there is none."""

import os
import shutil
import textwrap
from typing import TextIO

WIDEST = 100


class Printer:
    def __init__(self, stream: TextIO) -> None:
        self.stream = stream
        self.terminal = stream.isatty() and os.environ.get("TERM") != "dumb"
        self._bold = self.terminal and not os.environ.get("NO_COLOR")

    def chapter(self, text: str) -> None:
        self._write("")
        for line in self._wrap(text):
            self._write(f"\x1b[1m{line}\x1b[0m" if self._bold else line)

    def say(self, text: str) -> None:
        for line in self._wrap(text):
            self._write(line)

    def as_is(self, text: str) -> None:
        """Print the output of a command, which is already wrapped."""
        for line in text.splitlines():
            self._write(line)

    def claim(self, ok: bool, text: str) -> None:
        mark = "✓ " if ok else "✗ WRONG: "
        for line in self._wrap(mark + text, "  "):
            self._write(line)

    def command(self, line: str) -> None:
        self._write(f"$ {line}")

    @property
    def columns(self) -> int:
        return shutil.get_terminal_size((80, 24)).columns if self.terminal else 81

    def _wrap(self, text: str, indent: str = "") -> list[str]:
        # Do not break a path, so that it can be copied.
        return textwrap.wrap(
            text,
            min(self.columns - 1, WIDEST),
            subsequent_indent=indent,
            break_on_hyphens=False,
            break_long_words=False,
        )

    def _write(self, line: str) -> None:
        print(line, file=self.stream, flush=True)
