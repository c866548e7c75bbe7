"""Chunks out of a window of clean pages. The caller cuts windows in fixed blocks: chunks depend on the input alone."""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any, Literal, NamedTuple

import msgspec

from penstock.errors import ConfigError
from penstock.extractors.markdown import opened
from penstock.extractors.media import DOCX, HTML, MARKDOWN, PLAIN
from penstock.model.items import Chunk, CleanPage
from penstock.stages.cleaning import original_end, original_offset

CHUNK_VERSION = "chunk-1"

Unit = Literal["characters", "tokens"]

_BETWEEN = "\n\n"
_TOKEN_MODEL = "text-embedding-3-small"
_SIZES: dict[Unit, int] = {"characters": 1000, "tokens": 512}
_OVERLAPS: dict[Unit, tuple[int, int]] = {"characters": (200, 5), "tokens": (50, 10)}
_UNSET = -1

_SECTION, _CHUNKS_A_SECTION = 64 * 1024, 16


class ChunkSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How large a chunk is at most, and how much of it the next one may repeat.

    Left out, `size` is 1000 characters or 512 tokens; `overlap` a fifth of it up to 200 characters, or a tenth up to
    50 tokens."""

    unit: Unit = "characters"
    size: int = _UNSET
    overlap: int = _UNSET

    def __post_init__(self) -> None:
        if self.unit not in _SIZES:
            raise ConfigError(f"chunk unit {self.unit!r}: it is characters or tokens")
        if self.size == _UNSET:
            msgspec.structs.force_setattr(self, "size", _SIZES[self.unit])
        if self.size < 1:
            raise ConfigError(f"chunk size {self.size}: it must be at least 1")
        if self.overlap == _UNSET:
            most, part = _OVERLAPS[self.unit]
            msgspec.structs.force_setattr(self, "overlap", min(most, self.size // part))
        if not 0 <= self.overlap < self.size:
            raise ConfigError(f"chunk overlap {self.overlap}: it must be at least 0 and smaller than size {self.size}")


def chunk_window(
    pages: Sequence[CleanPage], first_ordinal: int, settings: ChunkSettings, media_type: str = PLAIN
) -> list[Chunk]:
    """The chunks of consecutive pages, numbered from `first_ordinal` on."""
    window = _Window.of([page for page in pages if page.text])
    if not window.text:
        return []
    found = _split(window, _splitter(settings, media_type), max(_SECTION, _CHUNKS_A_SECTION * settings.size))
    return [window.chunk(first_ordinal + i, start, text) for i, (start, text) in enumerate(found)]


class _Window(NamedTuple):
    text: str
    pages: list[CleanPage]
    starts: list[int]
    """Where each page begins in `text`."""
    heading_starts: list[int]
    paths: list[tuple[str, ...]]
    """The headings open from `heading_starts[i]` on."""

    @classmethod
    def of(cls, pages: list[CleanPage]) -> "_Window":
        window = cls(_BETWEEN.join(page.text for page in pages), pages, [], [], [])
        start = 0
        for page in pages:
            window.starts.append(start)
            path = page.path
            window.heading_starts.append(start)
            window.paths.append(path)
            for heading in page.headings:
                path = opened(path, heading.level, heading.title)
                window.heading_starts.append(start + heading.start)
                window.paths.append(path)
            start += len(page.text) + len(_BETWEEN)
        return window

    def chunk(self, ordinal: int, start: int, text: str) -> Chunk:
        end = start + len(text)
        first, last = self._page(start), self._page(end - 1)
        path = self.paths[bisect_right(self.heading_starts, start) - 1]
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

    def _page(self, offset: int) -> int:
        return bisect_right(self.starts, offset) - 1


def _split(window: _Window, splitter: Any, section: int) -> Iterator[tuple[int, str]]:
    """Where each chunk begins, and its text. The splitter's time grows with the square of its input, so it is given
    sections; where one ends, the next begins with the chunk that was cut short."""
    at = 0
    while at < len(window.text):
        end = at + section
        found = [(at + start, text) for start, text in splitter.chunk_indices(window.text[at:end]) if text.strip()]
        if end >= len(window.text):
            kept, at = len(found), end
        elif len(found) > 1:
            kept = _restart(window, [start for start, _ in found])
            at = found[kept][0]
        elif found:
            section *= 2
            continue
        else:
            kept, at = 0, end
        yield from found[:kept]


def _restart(window: _Window, starts: list[int]) -> int:
    """The chunk that the next section begins with: best one under a heading of its own, else the last. Begun inside
    a code block, a section would take its closing fence for an opening one."""
    for chunk in range(len(starts) - 1, len(starts) // 2, -1):
        if window.begins(starts[chunk]):
            return chunk
    return len(starts) - 1


@lru_cache(maxsize=16)
def _splitter(settings: ChunkSettings, media_type: str) -> Any:
    from semantic_text_splitter import MarkdownSplitter, TextSplitter

    splitter = MarkdownSplitter if media_type in (MARKDOWN, HTML, DOCX) else TextSplitter
    if settings.unit == "tokens":
        return splitter.from_tiktoken_model(_TOKEN_MODEL, settings.size, settings.overlap)
    return splitter(settings.size, settings.overlap)
