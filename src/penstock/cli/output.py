"""Output as text or JSON. Text from outside is always escaped before it is written to a terminal."""

import os
import re
import shutil
import sys
import textwrap
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any, TextIO

from penstock.redaction import masked
from penstock.verbs.as_json import as_data as as_data
from penstock.verbs.as_json import encode as encode
from penstock.verbs.as_json import when as when
from penstock.verbs.as_json import with_times as with_times

if TYPE_CHECKING:
    from rich.text import Text


@dataclass(frozen=True)
class Answer:
    """The output of a command: `data` with --json, else `text`; or the content of `spool` in both cases."""

    data: dict[str, Any]
    text: str = ""
    code: int = 0
    spool: IO[bytes] | None = None
    hints: Sequence[str] = ()
    """Further notes, written to standard error, also with --json."""
    styled: "Sequence[Text] | None" = None
    """The same text for a terminal, with bold words. Every line must already be escaped."""


def repair_streams() -> None:
    """Replace closed standard streams by /dev/null, and escape characters that the encoding lacks."""
    for name in ("stdin", "stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "r" if name == "stdin" else "w"))  # noqa: SIM115
        elif name != "stdin" and hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


def deliver(answer: Answer, as_json: bool, quiet: bool = False) -> None:
    sys.stdout.flush()
    if answer.spool is not None:
        with answer.spool as spool:
            spool.seek(0)
            shutil.copyfileobj(spool, sys.stdout.buffer)
    elif as_json:
        write_json(answer.data)
    elif answer.styled and drawable(sys.stdout):
        from rich.console import Console

        console = Console(file=sys.stdout, highlight=False)
        for line in answer.styled:
            console.print(line if line.plain.isprintable() else visible(line.plain), soft_wrap=True, markup=False)
    elif answer.text:
        text = readable(answer.text)
        lines = text.split("\n") if sys.stdout.isatty() else []
        print("\n".join(wrapped(line, width()) for line in lines) if lines else text)
    sys.stdout.flush()
    for hint in () if quiet else answer.hints:
        note(hint)


def write_json(data: object) -> None:
    sys.stdout.buffer.write(encode(data) + b"\n")
    sys.stdout.flush()


def say(line: str) -> None:
    """Write one line to standard output and flush it."""
    print(visible(line), flush=True)


def note(line: str) -> None:
    """Write one message to standard error, wrapped on a terminal. A closed standard error is not a failure."""
    try:
        text = visible(masked(line))
        print(wrapped(text, _columns(sys.stderr)) if sys.stderr.isatty() else text, file=sys.stderr, flush=True)
    except OSError:
        return


# All output to a terminal passes through one of these two functions where it is written (`deliver`, `say`, `note`,
# `Screen`). Values within a line are also escaped where the line is composed, so that a name cannot start a new line.


def visible(text: object) -> str:
    """Text for one line: line breaks, escape sequences and invisible characters are escaped."""
    line = str(text)
    return line if line.isprintable() else _SPECIAL.sub(_strictly, line)


def readable(text: str) -> str:
    """Text of several lines: only characters that control the terminal or the text direction are escaped."""
    return _SPECIAL.sub(_leniently, text.replace("\r\n", "\n"))


_SPECIAL = re.compile(r"[^ -~]")
_JOINERS = "\u200c\u200d"
"""Invisible characters that some languages need."""


def _strictly(found: re.Match[str]) -> str:
    letter = found[0]
    return letter if letter.isprintable() else letter.encode("unicode_escape", "surrogatepass").decode()


def _leniently(found: re.Match[str]) -> str:
    letter = found[0]
    kept = letter in "\n\t" or letter in _JOINERS or unicodedata.category(letter) in ("Zs", "Co")
    return letter if kept else _strictly(found)


def drawable(stream: TextIO) -> bool:
    """Whether lines can be redrawn: a terminal that supports it and uses UTF-8."""
    letters = (stream.encoding or "").lower().replace("-", "") == "utf8"
    return stream.isatty() and os.environ.get("TERM", "dumb") != "dumb" and letters


def width() -> int:
    return _columns(sys.stdout)


def _columns(stream: TextIO) -> int:
    """The width of a terminal, or 80."""
    if not stream.isatty():
        return 80
    if os.environ.get("COLUMNS", "").isdecimal():
        return shutil.get_terminal_size((80, 24)).columns
    try:
        return os.get_terminal_size(stream.fileno()).columns or 80
    except OSError:
        return 80


def wrapped(line: str, columns: int) -> str:
    """A line in several, none longer than `columns` unless one word is. Those after the first are indented like it."""
    if len(line) <= columns:
        return line
    indent = line[: len(line) - len(line.lstrip())]
    return textwrap.fill(
        line, columns, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False,
        drop_whitespace=True, replace_whitespace=False,
    )  # fmt: skip


def distinct(documents: Sequence[tuple[str, str]]) -> list[str]:
    """The names of documents, given with their sources. Equal names of different sources are shown with as many folders
    as tell them apart."""
    sources: dict[str, set[str]] = {}
    for name, source in documents:
        sources.setdefault(name, set()).add(source)
    return [name if len(sources[name]) == 1 else _ending(source, sources[name]) for name, source in documents]


def _ending(source: str, others: set[str]) -> str:
    parts = source.split("/")
    for length in range(2, len(parts)):
        ending = "/".join(parts[-length:])
        if sum(other == ending or other.endswith("/" + ending) for other in others) == 1:
            return ending
    return source


def table(rows: Iterable[Sequence[object]], indent: str = "") -> list[str]:
    """Aligned columns, with numbers to the right. On a terminal, the last column is cut to the width."""
    cells = [[visible(cell) if cell is not None else "-" for cell in row] for row in rows]
    if not cells:
        return []
    widths = [max(len(row[i]) for row in cells) for i in range(len(cells[0]))]
    right = [all(re.fullmatch(r"[\d,]+|-", row[i]) for row in cells[1:] or cells) for i in range(len(widths))]
    lines = [
        indent
        + "  ".join(
            cell.rjust(widths[i]) if right[i] else cell.ljust(widths[i]) if i + 1 < len(row) else cell
            for i, cell in enumerate(row)
        ).rstrip()
        for row in cells
    ]
    return [cut(line, width()) for line in lines] if sys.stdout.isatty() else lines


def labelled(fields: Mapping[str, object], column: int = 12) -> list[str]:
    """A name and its value on each line; a long sentence is wrapped beside its name. What is None is left out."""
    lines = []
    for name, value in fields.items():
        if value is not None:
            indent, space = f"{name:<{column}}", width() - column
            wrap = textwrap.wrap(visible(value), space, break_long_words=False, break_on_hyphens=False) or [""]
            lines += [f"{indent if i == 0 else ' ' * column}{line}".rstrip() for i, line in enumerate(wrap)]
    return lines


def cut(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


def count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min {rest:02} s"


def bytes_size(size: int) -> str:
    value, unit = float(size), "bytes"
    for unit in ("bytes", "kB", "MB", "GB"):
        if value < 1000 or unit == "GB":
            break
        value /= 1000
    return f"{size} bytes" if unit == "bytes" else f"{value:.1f} {unit}"
