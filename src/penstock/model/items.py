"""What the stages hand to each other: pages, clean pages, chunks. Frozen, compact, one msgpack array each."""

from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Vector = NDArray[np.float32]
    Vectors = NDArray[np.float32]
else:
    # Who reads only the ledger does without numpy, which takes longer to load than the answer.
    Vector = Any
    Vectors = Any


class Block(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A piece of structure in a page: kind is heading, paragraph, list, table, code or quote."""

    kind: str
    start: int
    end: int
    level: int = 0
    title: str = ""


class Page(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One page as it was extracted. `start` and `end` of a chunk are offsets into `text`."""

    number: int
    text: str
    label: str | None = None
    blocks: tuple[Block, ...] = ()
    path: tuple[str, ...] = ()
    """The headings that are open where the page begins, outermost first: `path[i]` is of level i + 1, "" if that
    level was skipped."""


class Heading(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A heading in clean text, at `start`."""

    start: int
    level: int
    title: str


class CleanPage(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A page after cleaning. `offsets` holds (clean, original) pairs, ascending: from `clean` on, characters
    stand one to one with those from `original` on, until the next pair."""

    number: int
    text: str
    offsets: tuple[tuple[int, int], ...]
    length: int
    """Length of the original page text: where the end of the last clean character leads at most."""
    label: str | None = None
    headings: tuple[Heading, ...] = ()
    path: tuple[str, ...] = ()


class Chunk(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A piece of a document that is embedded and found as one. `start` counts in the text of `page`, `end` in
    that of `page_end`; both are offsets into what `show --pages` prints."""

    ordinal: int
    text: str
    page: int
    page_end: int
    start: int
    end: int
    headings: tuple[str, ...] = ()
