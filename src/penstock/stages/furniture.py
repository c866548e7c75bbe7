"""Furniture of pages: running heads, running feet and page numbers, recognised by how they recur.

Only the outermost lines of a page can be furniture, and only if the same words are at the same end of pages nearby. A
number in such a line must increase from page to page as page numbers do. The first of the recurring lines is kept, so
that a document loses only repetitions and page numbers.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple, TypeVar

from penstock.model.items import Page

FURNITURE_VERSION = "furniture-1"
BLOCK = 32
"""How many pages are examined together, counted from the first page of the document."""

DEPTH = 3
"""The largest number of lines of a running head or foot."""

_RUN, _GAP = 3, 2
"""A line recurs if it is on _RUN pages at most _GAP pages apart: left pages may differ from right ones."""
_OFTEN, _SHARE = 4, 1 / 3
"""A line also recurs if it is on _OFTEN pages, and on this share of the examined pages."""
_BODY_SHARE = 1 / 4
"""A line that is this often in the middle of pages, relative to how often it is at their ends, is text."""
_LONG, _LONG_RULE = 24, 4
_YEARS = range(1900, 2100)
_CONTENT = {"heading", "table", "code"}

_NUMBER = r"(\d{1,4}|[ivxlc]{1,8})"
_WORD = r"(?:page|pag|pagina|página|pg|p|seite|s|sida|side|slide|folie|strona|str|страница|стр|第)\.?"
_OF = r"(?:\s*(?:of|von|de|sur|di|van|av|af|из|/|\|)\s*\d{1,5})?"
_ALONE = re.compile(rf"[^\w(]*(?:{_WORD}\s*)?{_NUMBER}{_OF}\s*(?:页|頁|쪽|페이지)?[^\w.)]*")
_CHAPTERED = re.compile(r"(?:[a-z]|\d{1,2})\s?[-\u2010-\u2013]\s?(\d{1,3})")
_LEADING = re.compile(rf"[^\w(]*(?:{_WORD}\s*)?{_NUMBER}{_OF}(?=[\s|])")
_TRAILING = re.compile(rf"(?<=[\s|]){_NUMBER}{_OF}[^\w.)]*$")
_ORNAMENTS, _NUMBER_ENDS = " |-\u2010\u2013\u2014]", set("0123456789ivxlc")
_ROMAN = re.compile("(c{0,3})(xc|xl|l?x{0,3})(ix|iv|v?i{0,3})")
_ROMAN_DIGITS = {"i": 1, "v": 5, "x": 10, "l": 50, "c": 100}
_ALNUM = re.compile(r"[^\W_]")
_LONG_WORD = re.compile(r"[^\W\d_]{3,}")

T = TypeVar("T")
Span = tuple[int, int]


class _Mark(NamedTuple):
    """One way to read a line: its words, and the number that may be the page number. A page number alone has no
    words."""

    words: str
    value: int | None = None
    counted: bool = False
    """Fewer than two words and then the number. This may be `Exercise 5` as well as a running head."""


class _Line(NamedTuple):
    start: int
    end: int
    """The offset after the line break."""
    text: str
    marks: tuple[_Mark, ...]


class Sheet(NamedTuple):
    """A page with the lines at both ends, the outermost first: one line more than can be removed."""

    number: int
    text: str
    head: list[_Line]
    foot: list[_Line]


def sheet(page: Page) -> Sheet:
    content = [(block.start, block.end) for block in page.blocks if block.kind in _CONTENT]
    head = [_line(page, span, content) for span in _first(page.text)]
    foot = [_line(page, span, content) for span in _last(page.text)]
    return Sheet(page.number, page.text, head, foot)


def furniture(before: Sequence[Sheet], block: Sequence[Sheet]) -> list[list[Span]]:
    """Return, for each page of the block, the spans of its text that are furniture. `before` is the block before, as
    evidence."""
    sheets = [*before, *block]
    heads, feet = _Evidence(sheets, at_foot=False), _Evidence(sheets, at_foot=True)
    return [_spans(sheets[at], heads.removable(at) | feet.removable(at)) for at in range(len(before), len(sheets))]


def _spans(page: Sheet, lines: dict[Span, _Mark]) -> list[Span]:
    """Return the spans to remove. If they are all that the page has, none is removed, unless they are only page
    numbers."""
    if any(mark.words for mark in lines.values()) and len(lines) == len({line.start for line in page.head + page.foot}):
        return []
    return sorted(lines)


class _Evidence:
    """How lines recur at one end of the pages."""

    def __init__(self, sheets: Sequence[Sheet], at_foot: bool) -> None:
        self._sheets = sheets
        self._at_foot = at_foot
        self._ends = [page.foot if at_foot else page.head for page in sheets]
        self._texts: dict[int, set[str]] = {}
        self._first: dict[str, int] = {}
        """The sheet on which words are found first."""
        found: dict[tuple[str, int | None], dict[int, str]] = defaultdict(dict)
        values: dict[str, dict[int, int]] = defaultdict(dict)
        ahead: dict[int, dict[int, None]] = defaultdict(dict)
        counted: dict[str, list[int]] = defaultdict(list)
        for at, (page, lines) in enumerate(zip(sheets, self._ends, strict=True)):
            for line in lines:
                for mark in line.marks:
                    found[_key(mark, page.number)][page.number] = line.text
                    self._first.setdefault(mark.words, at)
                    if mark.value is not None:
                        ahead[mark.value - page.number][page.number] = None
                        if len(mark.words) >= _LONG:
                            values[mark.words][page.number] = mark.value
                    if mark.counted:
                        counted[mark.words].append(page.number)
        self._recurring = {key: self._pages(key, texts) for key, texts in found.items() if len(texts) >= _RUN}
        self._numbered = {offset: set(_runs(list(pages), _near, _OFTEN)) for offset, pages in ahead.items()}
        self._growing = {words: _growing(numbers) for words, numbers in values.items() if len(numbers) >= _RUN}
        self._counts = {words for words, numbers in counted.items() if any(b - a == 1 for a, b in pairwise(numbers))}

    def removable(self, at: int) -> dict[Span, _Mark]:
        """Return the lines to remove at this end of a page: from the edge on, as long as each line is recognised."""
        known = self._known(at, self._ends[at])
        if len(known) > DEPTH:
            # So many lines recur that it is a form, a table or a refrain.
            known = self._known(at, [line._replace(marks=_alone(line)) for line in self._ends[at]])
        return {
            (line.start, line.end): mark for line, mark in known if not mark.words or not self._is_first(mark.words, at)
        }

    def _known(self, at: int, lines: list[_Line]) -> list[tuple[_Line, _Mark]]:
        known: list[tuple[_Line, _Mark]] = []
        numbered = False
        for line in lines:
            mark = next((mark for mark in line.marks if self._is_known(mark, self._sheets[at].number, numbered)), None)
            if mark is None:
                break
            numbered = numbered or mark.value is not None
            known.append((line, mark))
        return known

    def _is_known(self, mark: _Mark, number: int, numbered: bool) -> bool:
        """Whether the line recurs, or contains the page number in a place where pages nearby have theirs. A page has
        only one number, and `1 Introduction` may be on page 1."""
        if mark.counted and mark.words in self._counts:
            return False
        if number in self._recurring.get(_key(mark, number), ()):
            return True
        if mark.value is None or mark.counted or numbered:
            return False
        return number in self._numbered[mark.value - number] or number in self._growing.get(mark.words, ())

    def _pages(self, key: tuple[str, int | None], texts: dict[int, str]) -> set[int]:
        """Return the pages on which the line counts as recurring."""
        numbers = list(texts)
        often = len(numbers) >= _OFTEN and len(numbers) > len(self._sheets) * _SHARE
        pages = set(numbers if often else _runs(numbers, _near))
        if pages and key[1] is None and self._in_text(texts[numbers[0]]) > len(numbers) * _BODY_SHARE:
            return set()
        return pages

    def _in_text(self, line: str) -> int:
        """How often a line is in the middle of pages."""
        pages = (page for page in self._sheets if page.head)
        return sum(page.text.count("\n" + line, page.head[-1].end - 1, page.foot[-1].start) for page in pages)

    def _is_first(self, words: str, at: int) -> bool:
        """Whether the document would lose these words: no earlier page has them here, and no line nearby that stays is
        the same. A heading that becomes the running head is such a line."""
        near = (page for page in range(max(at - 2, 0), at + 1) if self._ends[page])
        return self._first[words] == at and not any(_letters(words) in self._text(page) for page in near)

    def _text(self, at: int) -> set[str]:
        """Return the lines of a page that are certain to stay: those between the recognised lines here and the other
        end."""
        if at not in self._texts:
            page = self._sheets[at]
            known = [line for line, _ in self._known(at, self._ends[at])]
            if self._at_foot:
                start, end = page.head[-1].end, known[-1].start if known else len(page.text)
            else:
                start, end = known[-1].end if known else 0, page.foot[-1].start
            self._texts[at] = {_letters(line) for line in page.text[start:end].split("\n")} - {""}
        return self._texts[at]


def _key(mark: _Mark, number: int) -> tuple[str, int | None]:
    """Return what recurs: the words, and the difference between the number and the position of the page in the
    document."""
    return mark.words, None if mark.value is None else mark.value - number


def _alone(line: _Line) -> tuple[_Mark, ...]:
    return tuple(mark for mark in line.marks if not mark.words)


def _growing(values: dict[int, int]) -> set[int]:
    """Return the pages where the number beside the same words grows as page numbers do. Pages may be missing."""
    return {page for page, _ in _runs(list(values.items()), lambda a, b: b[1] - a[1] >= b[0] - a[0])}


def _near(number: int, following: int) -> bool:
    return following - number <= _GAP


def _runs(items: Sequence[T], together: Callable[[T, T], bool], least: int = _RUN) -> Iterator[T]:
    """Yield the items that are in runs of at least `least`, in which each is `together` with the next."""
    run: list[T] = []
    for item in items:
        if run and not together(run[-1], item):
            if len(run) >= least:
                yield from run
            run = []
        run.append(item)
    if len(run) >= least:
        yield from run


def _first(text: str) -> Iterator[Span]:
    """Yield the first lines that are not blank."""
    start = found = 0
    while found <= DEPTH and start < len(text):
        end = text.find("\n", start) + 1 or len(text)
        if not text[start:end].isspace():
            yield start, end
            found += 1
        start = end


def _last(text: str) -> Iterator[Span]:
    end, found = len(text), 0
    while found <= DEPTH and end > 0:
        start = text.rfind("\n", 0, end - 1) + 1
        if not text[start:end].isspace():
            yield start, end
            found += 1
        end = start


def _line(page: Page, span: Span, content: list[Span]) -> _Line:
    start, end = span
    text = page.text[start:end].replace("\xa0", " ").strip()
    if not text.isprintable() or any(first < end and start < last for first, last in content):
        return _Line(start, end, text, ())
    return _Line(start, end, text, tuple(_marks(text.casefold(), page.number)))


def _marks(text: str, number: int) -> Iterator[_Mark]:
    """Yield the ways to read a line of page `number`."""
    alone = _ALONE.fullmatch(text) or _CHAPTERED.fullmatch(text)
    if alone:
        value = _value(alone[1], number)
        if value is not None:
            yield _Mark("", value)
        return
    if _LONG_WORD.search(text) or (len(text) >= _LONG_RULE and not _ALNUM.search(text)):
        yield _Mark(" ".join(text.split()))
    for match, before in ((_LEADING.match(text), False), (_trailing(text), True)):
        value = _value(match[1], number) if match else None
        if match and value is not None:
            words = " ".join((text[: match.start()] + text[match.end() :]).strip(_ORNAMENTS).split())
            yield _Mark(words, value, before and len(_LONG_WORD.findall(words)) < 2)


def _trailing(text: str) -> re.Match[str] | None:
    """Match a number at the end of a line. The search reads the whole line, so it is made only if the line ends like a
    number."""
    return _TRAILING.search(text) if text.rstrip(_ORNAMENTS)[-1:] in _NUMBER_ENDS else None


def _letters(text: str) -> str:
    """Return only letters and digits, which stay the same if case, spacing and punctuation change."""
    return "".join(filter(str.isalnum, text.casefold()))


def _value(text: str, number: int) -> int | None:
    """Return the value of a page number, or None if the text is not one."""
    if text.isdecimal():
        value = int(text)
        # Years on consecutive pages could increase like page numbers.
        return None if value in _YEARS and number < 1000 else value
    if not _ROMAN.fullmatch(text):
        return None
    digits = [_ROMAN_DIGITS[letter] for letter in text]
    return sum(-a if a < b else a for a, b in pairwise([*digits, 0]))
