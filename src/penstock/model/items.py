"""The items of artifacts: pages, clean pages, chunks. Each is frozen and encoded as one msgpack array."""

from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Vector = NDArray[np.float32]
    Vectors = NDArray[np.float32]
else:
    # Commands that only read the ledger do not import numpy, which takes longer than the command itself.
    Vector = Any
    Vectors = Any


class Block(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A piece of structure in a page: kind is heading, paragraph, list, table, code or quote."""

    kind: str
    start: int
    end: int
    level: int = 0
    title: str = ""


class Skip(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Why a page was skipped: the reason, as in dead letters, and a sentence."""

    reason: str
    error: str


class Page(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One page as it was extracted. `start` and `end` of a chunk are offsets into `text`."""

    number: int
    text: str
    label: str | None = None
    blocks: tuple[Block, ...] = ()
    path: tuple[str, ...] = ()
    """The headings that apply at the start of the page, outermost first: `path[i]` has level i + 1, "" if that level
    was skipped."""
    skipped: Skip | None = None
    """Why the page could not be read. It has no text then."""
    ocr: float | None = None
    """The text was read from an image, with this mean confidence from 0 to 100."""


class Heading(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A heading in clean text, at `start`."""

    start: int
    level: int
    title: str


class CleanPage(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A page after cleaning. `offsets` holds ascending (clean, original) pairs: from `clean` on, characters
    correspond one to one to those from `original` on, until the next pair."""

    number: int
    text: str
    offsets: tuple[tuple[int, int], ...]
    length: int
    """Length of the original page text: the maximum original offset of the end of the text."""
    label: str | None = None
    headings: tuple[Heading, ...] = ()
    path: tuple[str, ...] = ()


class Chunk(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A piece of a document that is embedded and found as one unit. `start` is an offset into the text of `page`,
    `end` into that of `page_end`, as `show --pages` prints it."""

    ordinal: int
    text: str
    page: int
    page_end: int
    start: int
    end: int
    headings: tuple[str, ...] = ()
