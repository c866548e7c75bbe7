"""Makes clean text from page text, with a map from each clean character to its original offset.

There are five passes, each of which runs only if needed: furniture, unwanted characters, NFC, white space, hyphens at
line ends.
"""

import re
import unicodedata
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

from penstock.model.items import Block, CleanPage, Heading, Page

CLEAN_VERSION = "clean-1"

_BLANK = " \t\xa0\n"
_UNWANTED_CHARS = "\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u200b\ufeff"
_UNWANTED = re.compile(rf"[{_UNWANTED_CHARS}]+(?:[ \t]*\n)?")
_UNWANTED_CHAR = re.compile(rf"[{_UNWANTED_CHARS}]")
_LINE_BREAK = re.compile("\r\n?|[\x0b\x0c\x85]")
_BLANKS = re.compile(r"[ \t\xa0\n](?:[ \t\xa0\n]+|(?<=[\t\xa0]))")
_NEEDS_BLANKS = ("  ", " \n", "\n ", "\t", "\xa0", "\n\n\n")
_HYPHEN = re.compile("[-\u2010]\n")
_ITEM = re.compile(r"(?:[-*+•]|\d{1,9}[.)])[ \t\xa0]+[^ \t\xa0\n]")

_Pairs = list[tuple[int, int]]
_Edit = tuple[int, int, str]
"""Start, end and replacement."""


class _Mapped(NamedTuple):
    """A text, and the (clean, original) pairs that map it to the page text."""

    text: str
    pairs: _Pairs


def clean_page(page: Page, furniture: Sequence[tuple[int, int]] = ()) -> CleanPage:
    """Return the page as it is chunked and embedded: in NFC, without control characters and furniture, with one blank
    between words. `furniture` are spans of its text."""
    mapped = _edited(_Mapped(page.text, [(0, 0)]), ((start, end, "") for start, end in furniture))
    mapped = _edited(mapped, _unwanted(mapped.text))
    mapped = _edited(mapped, _not_nfc(mapped.text))
    codes = [block for block in page.blocks if block.kind == "code"]
    prose = _prose(mapped, codes)
    last = max(len(mapped.text.rstrip(_BLANK)), prose[-1][0])
    mapped = _edited(mapped, _blanks(mapped.text, prose, last), last)
    mapped = _edited(mapped, _hyphens(mapped.text, _prose(mapped, codes)))
    headings = tuple(
        Heading(_forward(mapped, block.start), block.level, _clean_title(block.title))
        for block in page.blocks
        if block.kind == "heading"
    )
    path = tuple(_clean_title(title) for title in page.path)
    return CleanPage(page.number, mapped.text, tuple(mapped.pairs), len(page.text), page.label, headings, path)


def original_offset(page: CleanPage, clean_offset: int) -> int:
    """Return where the clean character at `clean_offset` was in the page text."""
    at = bisect_right(page.offsets, clean_offset, key=_first) - 1
    clean, original = page.offsets[at]
    limit = page.offsets[at + 1][1] - 1 if at + 1 < len(page.offsets) else page.length
    return min(original + clean_offset - clean, limit)


def original_end(page: CleanPage, clean_end: int) -> int:
    """Return the end, in the page text, of the clean character before `clean_end`, including what was composed into
    it."""
    at = bisect_left(page.offsets, clean_end, key=_first)
    following = page.offsets[at] if 0 < at < len(page.offsets) else (len(page.text) + 1, page.length)
    if following[0] == clean_end:
        return following[1]
    return min(original_offset(page, max(clean_end - 1, 0)) + 1, following[1])


def _first(pair: tuple[int, int]) -> int:
    return pair[0]


def _unwanted(text: str) -> Iterator[_Edit]:
    if not _UNWANTED_CHAR.search(text):
        return
    for match in _UNWANTED.finditer(text):
        start, end = match.span()
        run = match.group()
        yield start, end, "\n" if run == "\r\n" else _visible(run, text[start - 1 : start].isalpha())


def _visible(run: str, after_letter: bool) -> str:
    """Return what replaces a run of unwanted characters: its line breaks, and a hyphen if a soft hyphen ends a line."""
    lines = _LINE_BREAK.sub("\n", run)
    soft = after_letter and re.match(r"[^\n]*[\xad\x02][^\n]*\n", lines)
    return ("-" if soft else "") + _UNWANTED_CHAR.sub("", lines)


def _not_nfc(text: str) -> Iterator[_Edit]:
    if unicodedata.is_normalized("NFC", text):
        return
    for match in _composable().finditer(text):
        composed = unicodedata.normalize("NFC", match.group())
        if composed != match.group():
            yield match.start(), match.end(), composed


@lru_cache(maxsize=1)
def _composable() -> re.Pattern[str]:
    """Match a character with everything that NFC might compose into it, or one that NFC replaces. A text can be
    normalised match by match."""
    following: set[str] = {chr(code) for code in range(0x1161, 0x11C3)}
    replaced: set[str] = set()
    for code in (*range(0x300, 0xAC00), *range(0xF900, 0x30000)):
        char = chr(code)
        if unicodedata.combining(char):
            following.add(char)
        parts = unicodedata.decomposition(char)
        if parts and not parts.startswith("<"):
            following.update(chr(int(part, 16)) for part in parts.split()[1:])
            if unicodedata.normalize("NFC", char) != char:
                replaced.add(char)
    marks, singles = (re.escape("".join(sorted(chars))) for chars in (following, replaced))
    return re.compile(f"(?s:.)[{marks}]+|[{singles}]")


def _prose(mapped: _Mapped, codes: list[Block]) -> list[tuple[int, int]]:
    """Return the spans of the text that are not code."""
    stretches, at = [], 0
    for block in codes:
        stretches.append((at, _forward(mapped, block.start)))
        at = _forward(mapped, block.end)
    return [*stretches, (at, len(mapped.text))]


def _blanks(text: str, prose: list[tuple[int, int]], last: int) -> Iterator[_Edit]:
    first = len(text) - len(text.lstrip(_BLANK))
    if prose[0][1] >= first > 0:
        yield 0, first, ""
    if any(sign in text for sign in _NEEDS_BLANKS):
        for start, end in prose:
            for match in _BLANKS.finditer(text, max(start, first), min(end, last)):
                run = match.group()
                fitting = " " if "\n" not in run else _fitting(run, text, match.end())
                if fitting != run:
                    yield match.start(), match.end(), fitting


def _fitting(run: str, text: str, end: int) -> str:
    """Return one line break or one blank line. Only list items keep their indent."""
    indent = run[run.rfind("\n") + 1 :]
    if indent:
        indent = indent.replace("\xa0", " ") if _ITEM.match(text, end) else ""
    return ("\n" if run.count("\n") == 1 else "\n\n") + indent


def _hyphens(text: str, prose: list[tuple[int, int]]) -> Iterator[_Edit]:
    if "-\n" not in text and "\u2010\n" not in text:
        return
    for start, end in prose:
        for match in _HYPHEN.finditer(text, start, end):
            before, after = match.span()
            if text[before - 1 : before].isalpha() and before and text[after : after + 1].islower():
                yield before, after, ""


def _edited(source: _Mapped, edits: Iterable[_Edit], stop: int | None = None) -> _Mapped:
    """Return the text up to `stop` with the edits applied. A replacement maps to the start of what it replaces."""
    text = source.text[:stop]
    pieces: list[str] = []
    pairs: _Pairs = [(0, 0)]
    size = at = 0
    for start, end, new in edits:
        pieces.append(text[at:start])
        pieces.append(new)
        shifted = at - size
        size += start - at + len(new)
        at = end
        if end - size != shifted:
            _add_pair(pairs, size, end)
    pieces.append(text[at:])
    if source.pairs == [(0, 0)]:
        return _Mapped("".join(pieces), pairs)
    return _Mapped("".join(pieces), _composed(pairs, source.pairs, size + len(text) - at))


def _composed(pairs: _Pairs, earlier: _Pairs, size: int) -> _Pairs:
    """Combine two maps. `pairs` map the newest text, of length `size`, to a text that `earlier` maps to the page
    text."""
    composed: _Pairs = []
    known = 0
    for (clean, middle), (until, limit) in zip(pairs, [*pairs[1:], (size, earlier[-1][0] + size)], strict=True):
        while known + 1 < len(earlier) and earlier[known + 1][0] <= middle:
            known += 1
        _add_pair(composed, clean, _map_offset(earlier, known, middle))
        reach = min(middle + until - clean, limit)
        while known + 1 < len(earlier) and earlier[known + 1][0] <= reach:
            known += 1
            _add_pair(composed, clean + earlier[known][0] - middle, earlier[known][1])
    return composed


def _map_offset(pairs: _Pairs, at: int, offset: int) -> int:
    """Map `offset` with pair `at`, at most to where the next pair begins."""
    clean, original = pairs[at]
    return min(original + offset - clean, pairs[at + 1][1]) if at + 1 < len(pairs) else original + offset - clean


def _add_pair(pairs: _Pairs, clean: int, original: int) -> None:
    if pairs and pairs[-1][0] == clean:
        pairs.pop()
    if not pairs or clean - pairs[-1][0] != original - pairs[-1][1]:
        pairs.append((clean, original))


def _forward(mapped: _Mapped, original: int) -> int:
    """Return the clean offset of the text that was at `original` in the page text."""
    at = bisect_right(mapped.pairs, original, key=lambda pair: pair[1]) - 1
    if at < 0:
        return 0
    clean, origin = mapped.pairs[at]
    limit = mapped.pairs[at + 1][0] if at + 1 < len(mapped.pairs) else len(mapped.text)
    return min(clean + original - origin, limit)


def _clean_title(title: str) -> str:
    return " ".join(unicodedata.normalize("NFC", _UNWANTED_CHAR.sub("", title)).split())
