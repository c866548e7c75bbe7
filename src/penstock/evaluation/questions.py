"""Questions with what counts as a right hit, and their file: JSON lines, or CSV with a header."""

import csv
import io
import json
import unicodedata
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from penstock.errors import UsageError

FIELDS = ("question", "answer", "answers", "document", "page")
SEPARATE = (
    (0x0E00, 0x0EFF), (0x1000, 0x109F), (0x1780, 0x17FF), (0x2E80, 0x30FF), (0x3130, 0x318F), (0x3400, 0x9FFF),
    (0xAC00, 0xD7AF), (0xF900, 0xFAFF), (0x20000, 0x3FFFF),
)  # fmt: skip
"""Characters of scripts that do not separate words by spaces, or add endings to them: each counts as a word."""


class Passage(msgspec.Struct, frozen=True):
    """A hit or a chunk, as questions judge it."""

    document_id: str
    name: str
    source: str
    page: int
    page_end: int
    words: str
    """The result of `normalise`."""


class Question(msgspec.Struct, frozen=True):
    """A question. A hit is right if everything that is given holds: it contains one of the answers, it is of the
    document, and it covers the page."""

    line: int
    question: str
    answers: tuple[str, ...] = ()
    """The result of `normalise` for each."""
    document: str | None = None
    """The id, the name, the path, or the end of the path of a document."""
    page: int | None = None

    def is_of(self, document_id: str, name: str, source: str) -> bool:
        wanted = self.document
        if wanted is None or wanted in (name, source) or wanted.upper() == document_id:
            return True
        return source.endswith("/" + wanted.removeprefix("./")) or str(Path(wanted).absolute()) == source

    def accepts(self, passage: Passage) -> bool:
        if self.page is not None and not passage.page <= self.page <= passage.page_end:
            return False
        if self.answers and not any(answer in passage.words for answer in self.answers):
            return False
        return self.is_of(passage.document_id, passage.name, passage.source)


def normalise(text: str) -> str:
    """The words of a text in lower case between spaces. Accents stay; punctuation is removed, but not symbols as in
    `C++` or `$5`."""
    letters = []
    for letter in unicodedata.normalize("NFKC", text).casefold():
        if letter.isalnum():
            letters.append(f" {letter} " if _is_separate(letter) else letter)
        elif letter.isspace():
            letters.append(" ")
        else:
            category = unicodedata.category(letter)
            if category.startswith("M"):
                letters.append(letter)
            elif category in ("Sc", "Sm", "So") and letter not in "|~":
                letters.append(f" {letter} ")
            elif category != "Cf":
                # Apostrophes and full stops within words also separate, in the answer as in the text.
                letters.append(" ")
    return f" {' '.join(''.join(letters).split())} "


def _is_separate(letter: str) -> bool:
    code = ord(letter)
    return code >= 0x0E00 and any(low <= code <= high for low, high in SEPARATE)


def read_questions(path: Path) -> list[Question]:
    """Read a file of questions. Raises UsageError with the number of the line."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise UsageError(f"{path} could not be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not UTF-8 text: {error.reason} at byte {error.start}") from None
    except ValueError:
        # A NUL, or bytes that cannot be part of a name.
        raise UsageError(f"questions {str(path)!r}: this cannot be the name of a file") from None
    rows = _csv_rows(path, text) if path.suffix.lower() in (".csv", ".tsv") else _json_rows(path, text)
    found = [make_question(row, line, f"{path}:{line}") for line, row in rows]
    if not found:
        raise UsageError(f"{path} contains no questions: write one JSON object a line")
    return found


def _json_rows(path: Path, text: str) -> list[tuple[int, Any]]:
    rows = []
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            rows.append((number, json.loads(line)))
        except (ValueError, RecursionError) as error:
            raise UsageError(f"{path}:{number}: not a JSON object on one line ({error})") from None
    return rows


def _csv_rows(path: Path, text: str) -> list[tuple[int, Any]]:
    reader = csv.DictReader(io.StringIO(text, newline=""), delimiter="\t" if path.suffix.lower() == ".tsv" else ",")
    rows = []
    try:
        for row in reader:
            if None in row:
                raise UsageError(f"{path}:{reader.line_num}: more cells than the header has columns")
            rows.append((reader.line_num, {name: value for name, value in row.items() if value}))
    except csv.Error as error:
        raise UsageError(f"{path}:{reader.line_num}: not CSV ({error})") from None
    return rows


def make_question(row: object, line: int, where: str) -> Question:
    """Validate one question. `where` names it in error messages."""
    if not isinstance(row, Mapping):
        raise UsageError(f'{where}: expected an object, as in {{"question": "…", "answer": "…"}}')
    if unknown := sorted(str(name) for name in row if name not in FIELDS):
        raise UsageError(f"{where}: unknown field {unknown[0]!r}: use {', '.join(FIELDS)}")
    question = _text(row, "question", where)
    if question is None or not question.strip():
        raise UsageError(f"{where}: `question` is missing or empty")
    answer, answers = _text(row, "answer", where), row.get("answers", ())
    if isinstance(answers, str) or not isinstance(answers, Sequence):
        raise UsageError(f"{where}: `answers` must be a list of texts; one text is `answer`")
    found = []
    for one in (*([answer] if answer is not None else []), *answers):
        words = normalise(one) if isinstance(one, str) else ""
        if not words.strip():
            raise UsageError(f"{where}: the answer {one!r} has no letters or digits to look for")
        found.append(words)
    document, page = _text(row, "document", where), row.get("page")
    if isinstance(page, str) and page.strip().isdecimal():
        page = int(page)
    if page is not None and (not isinstance(page, int) or isinstance(page, bool) or page < 1):
        raise UsageError(f"{where}: page {page!r}: expected a number from 1")
    if not found and not document:
        raise UsageError(f"{where}: say what is right: `answer`, `answers` or `document` (with `page` if you like)")
    return Question(line, question, tuple(dict.fromkeys(found)), document, page)


def _text(row: Mapping[str, Any], field: str, where: str) -> str | None:
    value = row.get(field)
    if value is not None and not isinstance(value, str):
        raise UsageError(f"{where}: `{field}` must be text, not {value!r}")
    return value or None
