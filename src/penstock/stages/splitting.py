"""Splits text into pieces of a limited size. semantic-text-splitter does the work; if it panics, `plain_cut` does."""

import unicodedata
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Literal

from penstock.errors import is_panic

Unit = Literal["characters", "tokens"]
Piece = tuple[int, str]
"""The start of a piece, and its text."""

SPLITTER = "semantic-text-splitter"
_TOKEN_MODEL = "text-embedding-3-small"
_NEWLINES = "\r\n"
_LOOK_BACK = 64
"""A cut moves back by at most this many characters to keep a grapheme whole. Longer graphemes do not occur in real
text."""
_ZERO_WIDTH_JOINER = "\u200d"


class Splitter:
    def __init__(self, unit: Unit, size: int, overlap: int, *, markdown: bool) -> None:
        self._unit, self._size, self._overlap, self._markdown = unit, size, overlap, markdown

    def split(self, text: str) -> list[Piece]:
        """Return the pieces that contain more than white space, each a slice of `text`. The result depends only on the
        text and the settings, and no text makes it fail."""
        try:
            found = _engine(self._unit, self._size, self._overlap, self._markdown).chunk_indices(text)
        except BaseException as error:
            # A panic in Rust is not an Exception. Any other error (a stop, no memory) is not caused by the text.
            if not is_panic(error):
                raise
            return plain_cut(text, self._size, self._overlap, self._unit)
        return _trimmed(found) if self._markdown else [piece for piece in found if piece[1].strip()]


@lru_cache(maxsize=16)
def _engine(unit: Unit, size: int, overlap: int, markdown: bool) -> Any:
    from semantic_text_splitter import MarkdownSplitter, TextSplitter

    # The library trims Markdown so that a piece may begin before the previous one. It then panics while it counts the
    # characters up to there. Therefore Markdown is trimmed here.
    splitter, trim = (MarkdownSplitter, False) if markdown else (TextSplitter, True)
    if unit == "tokens":
        return splitter.from_tiktoken_model(_TOKEN_MODEL, size, overlap, trim)
    return splitter(size, overlap, trim)


def _trimmed(found: list[Piece]) -> list[Piece]:
    """Return the pieces without white space around them. A piece of several lines keeps the indentation of the
    first."""
    kept: list[Piece] = []
    end = 0
    for start, text in found:
        body = text.strip()
        if "\n" in body or "\r" in body:
            body = text.strip(_NEWLINES).rstrip()
        if not body:
            continue
        start += text.index(body)
        # A piece that contains only what the overlap repeats is left out.
        if start + len(body) > end:
            kept.append((start, body))
            end = start + len(body)
    return kept


def plain_cut(text: str, size: int, overlap: int, unit: Unit) -> list[Piece]:
    """Return pieces of at most `size`. They are cut at line breaks or spaces in their second half if there are any,
    else between two graphemes. Tokens cannot be counted here; since a token has at least one byte, bytes are counted
    instead."""
    reach: Callable[[str, int, int, int], int] = _reach_in_characters if unit == "characters" else _reach_in_bytes
    found: list[Piece] = []
    at, end = _next_word(text, 0), 0
    while at < len(text):
        end = _end(text, max(at, end), at + reach(text, at, size, 1))
        body = text[at:end].rstrip()
        if not found or at + len(body) > found[-1][0] + len(found[-1][1]):
            found.append((at, body))
        if end == len(text):
            break
        at = _next_word(text, _overlap_start(text, max(at + 1, end - reach(text, end, overlap, -1)), end))
    return found


def _end(text: str, start: int, most: int) -> int:
    """Return the best offset after `start` and not after `most` to end a piece."""
    if most >= len(text):
        return len(text)
    if text[most].isspace():
        return most
    half = start + (most - start) // 2
    if (line := text.rfind("\n", half, most)) >= 0:
        return line + 1
    spaces = (place for place in range(most, half, -1) if text[place - 1].isspace())
    letters = (place for place in range(most, max(start, most - _LOOK_BACK), -1) if not _joined(text, place))
    return next(spaces, None) or next(letters, most)


def _overlap_start(text: str, earliest: int, end: int) -> int:
    """Return where the next piece begins, not before `earliest`: at a word, or at a grapheme if there is only one
    word."""
    if earliest == end or not any(map(str.isspace, text[earliest - 1 : end + 1])):
        return next((place for place in range(earliest, end) if not _joined(text, place)), end)
    words = (place for place in range(earliest, end) if text[place - 1].isspace() and not text[place].isspace())
    return next(words, end)


def _next_word(text: str, at: int) -> int:
    while at < len(text) and text[at].isspace():
        at += 1
    return at


def _reach_in_characters(text: str, at: int, size: int, step: int) -> int:
    return size


def _reach_in_bytes(text: str, at: int, size: int, step: int) -> int:
    """Return how many characters from `at` on (or before it) fit into `size` bytes. Forward it is at least one, so that
    the cut advances."""
    part = text[at : at + size] if step > 0 else text[max(0, at - size) : at][::-1]
    used = 0
    for count, character in enumerate(part):
        used += len(character.encode())
        if used > size:
            return max(step, count, 0)
    return max(step, len(part), 0)


def _joined(text: str, place: int) -> bool:
    """Whether the characters before and at `place` belong to one grapheme. This is nearly always as in Unicode (UAX
    29)."""
    after, before = text[place], text[place - 1]
    if after == _ZERO_WIDTH_JOINER or before == _ZERO_WIDTH_JOINER or (before, after) == ("\r", "\n"):
        return True
    if unicodedata.category(after)[0] == "M" or "\U0001f3fb" <= after <= "\U0001f3ff":
        return True
    if not (_is_flag_half(after) and _is_flag_half(before)):
        return False
    run = place
    while run > 0 and _is_flag_half(text[run - 1]):
        run -= 1
    return (place - run) % 2 == 1


def _is_flag_half(character: str) -> bool:
    return "\U0001f1e6" <= character <= "\U0001f1ff"
