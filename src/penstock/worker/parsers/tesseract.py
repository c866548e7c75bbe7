"""Read an image with Tesseract, in a parser process that may execute Tesseract and nothing else.

The process decodes nothing itself. Tesseract gets the image through a pipe, and inherits the isolation and the limits.
"""

import ctypes
import os
import signal
import subprocess  # noqa: TID251 - this process is isolated, and Tesseract with it
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from itertools import groupby
from typing import NamedTuple

from penstock.errors import Permanent, Transient
from penstock.worker.parsers import isolation

_PR_SET_PDEATHSIG = 1
_SAID = 300
_DOUBTFUL = 65.0
"""The mean confidence below which a page may be upside down. Such pages have 40 to 50, clear ones above 90."""
_LOADED = ctypes.CDLL(None) if sys.platform == "linux" else None


def read(image: bytes, program: str, data: str, languages: list[str], dpi: int | None) -> tuple[str, float]:
    """The text of the image, with an empty line between paragraphs, and the mean confidence of its words. If that is
    low, the page may be upside down: it is turned and read again. Tesseract itself recognises lines that go up or
    down."""
    command = [program, "stdin", "stdout", "--tessdata-dir", data, "-l", "+".join(languages)]
    command += ["--dpi", str(dpi)] if dpi else []
    command += ["-c", "tessedit_create_tsv=1"]
    found = _execute(command, image)
    if found.text and found.confidence < _DOUBTFUL and (turned := upside_down(image)) is not None:
        with suppress(Permanent, Transient, MemoryError):
            found = max(found, _execute(command, turned), key=lambda one: one.confidence)
    return found.text, found.confidence


class _Found(NamedTuple):
    text: str
    confidence: float


def _execute(command: list[str], image: bytes) -> _Found:
    done = subprocess.run(
        command,
        input=image,
        capture_output=True,
        check=False,
        env={"OMP_THREAD_LIMIT": "1", "LC_ALL": "C"},
        preexec_fn=_prepared(),
    )
    if done.returncode:
        raise _failure(done.returncode, " ".join(done.stderr.decode(errors="replace").split())[-_SAID:])
    return _Found(*_text(done.stdout.decode(errors="replace")))


@cache
def _prepared() -> Callable[[], None]:
    """What the new process does before it executes Tesseract: it dies with its parent, and starts no others."""
    restrict = isolation.alone()

    def prepare() -> None:
        if _LOADED is not None:
            _LOADED.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        restrict()

    return prepare


def upside_down(image: bytes) -> bytes | None:
    """A grey image (PGM) turned by half; None for other images."""
    header, newline, pixels = image.partition(b"\n")
    return header + newline + pixels[::-1] if header.startswith(b"P5 ") else None


def _failure(code: int, said: str) -> Exception:
    if "bad_alloc" in said or "allocate" in said:
        return MemoryError(said)
    if code < 0:
        return Transient(f"Tesseract crashed ({signal.Signals(-code).name}) {said}".rstrip(), reason="parser_crash")
    return Permanent(f"Tesseract cannot read the image: {said or f'exit code {code}'}", reason="damaged")


class _Word(NamedTuple):
    block: str
    paragraph: str
    line: str
    confidence: float
    text: str


def _text(table: str) -> tuple[str, float]:
    words = list(_words(table))
    paragraphs = []
    for _, inside in groupby(words, key=lambda word: word[:2]):
        lines = (" ".join(word.text for word in line) for _, line in groupby(inside, key=lambda word: word.line))
        paragraphs.append("\n".join(lines))
    confidence = sum(word.confidence for word in words) / len(words) if words else 0.0
    return "\n\n".join(paragraphs), round(confidence, 1)


def _words(table: str) -> Iterator[_Word]:
    """The words in reading order. The columns are level, page, block, paragraph, line, word, four of the place,
    confidence, and text."""
    for row in table.split("\n")[1:]:
        columns = row.split("\t")
        if len(columns) == 12 and columns[0] == "5" and columns[11].strip():
            yield _Word(columns[2], columns[3], columns[4], float(columns[10]), columns[11].strip())


def executables(program: str) -> list[str]:
    """The files that the process may execute: Tesseract, and the loader of shared libraries."""
    loaders = ("/lib64/ld-linux-x86-64.so.2", "/lib/ld-linux-aarch64.so.1", "/lib/ld-musl-x86_64.so.1",
               "/lib/ld-musl-aarch64.so.1")  # fmt: skip
    return [os.path.realpath(path) for path in (program, *loaders) if os.path.exists(path)]
