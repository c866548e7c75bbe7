"""Makes chunks from a window of clean pages. The caller uses windows of a fixed size, so that chunks depend only on the
input."""

import re
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import NamedTuple

import msgspec

from penstock.errors import ConfigError
from penstock.extractors import formats
from penstock.extractors.formats import PLAIN
from penstock.extractors.markdown import opened
from penstock.model.items import Chunk, CleanPage
from penstock.stages.cleaning import original_end, original_offset
from penstock.stages.splitting import Splitter, Unit

CHUNK_VERSION = "chunk-4"

_BETWEEN = "\n\n"
_SIZES: dict[Unit, int] = {"characters": 1000, "tokens": 512}
_OVERLAPS: dict[Unit, int] = {"characters": 200, "tokens": 50}
_UNSET = -1

_LONGEST_HEADING = 300
"""A chunk of headings with more characters than this stays alone."""
_UNDERLINE = re.compile("=+|-+")
"""The second line of a heading in Markdown, in its underlined form."""

_SECTION = 16 * 1024
_CHUNKS_A_SECTION: dict[Unit, int] = {"characters": 4, "tokens": 16}
"""A section has at least this many characters for each unit of the chunk size."""
PIECE = 64 * 1024
"""About how many characters are chunked before the step can be stopped."""
PIECE_S = 0.25
"""About how many seconds chunking may take before that. The section that exceeds the time is completed."""


class ChunkSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The largest size of a chunk, and how much of it the next one may repeat. A heading before a chunk is part of it
    and may exceed the size.

    The default of `size` is 1000 characters or 512 tokens. The default of `overlap` is 200 characters or 50 tokens, but
    at most a fifth of the size.
    """

    unit: Unit = "characters"
    size: int = _UNSET
    overlap: int = _UNSET

    def __post_init__(self) -> None:
        if self.unit not in _SIZES:
            raise ConfigError(f"chunk unit {self.unit!r}: use characters or tokens")
        if self.size == _UNSET:
            msgspec.structs.force_setattr(self, "size", _SIZES[self.unit])
        if self.size < 1:
            raise ConfigError(f"chunk size {self.size}: it must be at least 1")
        if self.overlap == _UNSET:
            msgspec.structs.force_setattr(self, "overlap", min(_OVERLAPS[self.unit], self.size // 5))
        if not 0 <= self.overlap < self.size:
            raise ConfigError(f"chunk overlap {self.overlap}: it must be at least 0 and smaller than size {self.size}")


class Window:
    """Consecutive pages that are turned into chunks, a piece at a time."""

    def __init__(self, pages: Sequence[CleanPage], settings: ChunkSettings, media_type: str = PLAIN) -> None:
        self._pages = pages
        self._settings = settings
        self._media_type = media_type

    def take(
        self, at: int, first_ordinal: int, clock: Callable[[], float] = lambda: 0.0
    ) -> tuple[list[Chunk], int | None]:
        """Return the chunks of the next PIECE characters, or of fewer if they take long, and where the next piece
        begins (None: there is no more). The end of a piece changes no chunk, because sections depend only on the text
        and `at`."""
        late = clock() + PIECE_S
        window, splitter = self._joined, self._splitter
        section = max(_SECTION, _CHUNKS_A_SECTION[self._settings.unit] * self._settings.size)
        made: list[Chunk] = []
        until = at + PIECE
        while at < len(window.text):
            found, at = _section(window, splitter, at, section)
            made += [window.chunk(first_ordinal + i, start, text) for i, (start, text) in enumerate(found, len(made))]
            if at >= until or clock() > late:
                break
        return made, at if at < len(window.text) else None

    @cached_property
    def _joined(self) -> "_Window":
        return _Window.of([page for page in self._pages if page.text])

    @cached_property
    def _splitter(self) -> Splitter:
        markdown = formats.of(self._media_type).markdown
        return Splitter(self._settings.unit, self._settings.size, self._settings.overlap, markdown=markdown)


def chunk_window(
    pages: Sequence[CleanPage], first_ordinal: int, settings: ChunkSettings, media_type: str = PLAIN
) -> list[Chunk]:
    """Return the chunks of consecutive pages, numbered from `first_ordinal` on."""
    window = Window(pages, settings, media_type)
    chunks: list[Chunk] = []
    at: int | None = 0
    while at is not None:
        made, at = window.take(at, first_ordinal + len(chunks))
        chunks += made
    return chunks


class _Window(NamedTuple):
    text: str
    pages: list[CleanPage]
    starts: list[int]
    """Where each page begins in `text`."""
    heading_starts: list[int]
    paths: list[tuple[str, ...]]
    """The headings that apply from `heading_starts[i]` on."""
    headings: set[int]
    """Where headings begin."""

    @classmethod
    def of(cls, pages: list[CleanPage]) -> "_Window":
        window = cls(_BETWEEN.join(page.text for page in pages), pages, [], [], [], set())
        start = 0
        for page in pages:
            window.starts.append(start)
            path = page.path
            window.heading_starts.append(start)
            window.paths.append(path)
            for heading in page.headings:
                path = opened(path, heading.level, heading.title)
                window.heading_starts.append(start + heading.start)
                window.headings.add(start + heading.start)
                window.paths.append(path)
            start += len(page.text) + len(_BETWEEN)
        return window

    def chunk(self, ordinal: int, start: int, text: str) -> Chunk:
        end = start + len(text)
        first, last = self._page(start), self._page(end - 1)
        path = self.paths[bisect_right(self.heading_starts, self._last_heading(start, text)) - 1]
        return Chunk(
            ordinal,
            text,
            self.pages[first].number,
            self.pages[last].number,
            original_offset(self.pages[first], min(start - self.starts[first], len(self.pages[first].text))),
            original_end(self.pages[last], min(end - self.starts[last], len(self.pages[last].text))),
            tuple(title for title in path if title),
        )

    def begins(self, offset: int) -> bool:
        """Whether a heading or a page begins at `offset`."""
        at = bisect_right(self.heading_starts, offset) - 1
        return self.heading_starts[at] == offset

    def is_bare(self, start: int, text: str) -> bool:
        """Whether a chunk contains only headings."""
        if len(text) > _LONGEST_HEADING or start not in self.headings:
            return False
        return all(self._is_heading(start + at, line) for at, line in _lines(text))

    def _last_heading(self, start: int, text: str) -> int:
        """Return where the last of the headings begins that a chunk begins with; its start if it has none."""
        last = start
        for at, line in _lines(text) if start in self.headings else ():
            if not self._is_heading(start + at, line):
                break
            last = start + at
        return last

    def _is_heading(self, start: int, line: str) -> bool:
        return start in self.headings or _UNDERLINE.fullmatch(line) is not None

    def _page(self, offset: int) -> int:
        return bisect_right(self.starts, offset) - 1


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield the lines that are not blank, without white space around them, each with its offset."""
    at = 0
    for line in text.splitlines(keepends=True):
        if line.strip():
            yield at, line.strip()
        at += len(line)


def _section(window: _Window, splitter: Splitter, at: int, section: int) -> tuple[list[tuple[int, str]], int]:
    """Return the chunks of a section, each with its start and text, and where the next section begins. The time of the
    splitter grows with the square of its input, so it gets sections. The next section begins with the chunk that the
    end of this one cut short. A single chunk that fills two sections is cut there, because tokens can be very long."""
    for end in (at + section, at + 2 * section):
        found = [(at + start, text) for start, text in splitter.split(window.text[at:end])]
        if end < len(window.text) and len(found) > 1:
            kept = _restart(window, [start for start, _ in found])
            if kept > 1 and window.is_bare(*found[kept - 1]):
                kept -= 1
            return _with_headings(window, found[:kept]), found[kept][0]
        if end >= len(window.text) or not found:
            break
    return _with_headings(window, found), end


def _with_headings(window: _Window, found: list[tuple[int, str]]) -> list[tuple[int, str]]:
    """Return the chunks with each bare heading as the beginning of the chunk after it. Alone, a heading matches a query
    better than the text that it stands for."""
    made: list[tuple[int, str]] = []
    begin: int | None = None
    for at, (start, text) in enumerate(found):
        begin = start if begin is None else min(begin, start)
        if at + 1 < len(found) and window.is_bare(start, text):
            continue
        made.append((begin, window.text[begin : start + len(text)]))
        begin = None
    return made


def _restart(window: _Window, starts: list[int]) -> int:
    """Return the index of the chunk with which the next section begins: preferably one that begins with a heading or a
    page, else the last one. If a section began inside a code block, its closing fence would be read as an opening
    one."""
    for chunk in range(len(starts) - 1, len(starts) // 2, -1):
        if window.begins(starts[chunk]):
            return chunk
    return len(starts) - 1
