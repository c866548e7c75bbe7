"""PORT: the searchable index. A row is identified by (generation, ordinal), and stores the epoch that wrote it.

A table holds the rows of one (owner, collection, version). Every adapter implements `Index` and `IndexTable`: write,
delete, search and scan rows. `Maintained` is an optional protocol for the maintenance of embedded indexes; a server
does this itself. `maintained(table)` returns it.

Every change takes a `fence`. The adapter awaits it right before it commits. The fence raises if the caller has lost its
lock (`traits.single_writer`) or the leases of its steps. A stale worker can still commit after the fence has returned.
This is harmless: search merges hits with the same id, and never returns rows of dead generations.
"""

import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

import msgspec

from penstock.model.items import Chunk, Vector, Vectors

Fence = Callable[[], Awaitable[None]]
Mode = Literal["vector", "text"]
TextField = Literal["words", "grams"]
"""What a text query compares: the words of a chunk and its headings, or their character grams (`indexes/grams.py`)."""


@dataclass(frozen=True)
class Traits:
    """The capabilities of an adapter. Callers and the contract suite test these, never the name of an adapter."""

    single_writer: bool
    """Whether concurrent writers would damage a table. If so, a writer must hold the table's lock in the ledger.
    Otherwise index steps are claimed like other steps, and only the leases of its steps fence a write."""
    modes: frozenset[Mode] = frozenset({"vector", "text"})
    """The kinds of query that `search` accepts."""
    text_fields: frozenset[TextField] = frozenset({"words"})
    """The fields that a text query can name."""
    filters: frozenset[str] = frozenset({"generation"})
    """The parts of a `Filter` that the adapter applies. For the other parts, the search code removes hits from the
    result and fetches more."""
    max_hits: int | None = None
    """The maximum number of hits that one search returns; None: no limit."""


@dataclass(frozen=True)
class IndexRows:
    """Rows of one generation: chunks, and one vector for each chunk."""

    generation: int
    epoch: int
    document_id: str
    chunks: Sequence[Chunk]
    vectors: Vectors
    title: str = ""
    """Searched with the words of each chunk."""


class IndexHit(NamedTuple):
    generation: int
    ordinal: int
    document_id: str
    score: float
    """Higher is better. Cosine similarity for vectors, BM25 for text."""
    text: str
    page: int
    page_end: int
    start: int
    end: int
    headings: tuple[str, ...]
    place: int | None = None
    """None: the hit is whole. Else only the id and the score are valid, and this tells the adapter where the row is."""


class StoredRow(NamedTuple):
    """A row as `check` reads it. `digest` is the `row_digest` of the chunk that the index stores."""

    generation: int
    ordinal: int
    epoch: int
    digest: str


LONGEST_TITLE = 300


def title_of(name: str, *origins: Mapping[str, Any]) -> str:
    """The title of a document for its rows: that of the first origin of metadata that has one, or else its name without
    folder and suffix."""
    for metadata in origins:
        title = metadata.get("title")
        if isinstance(title, str) and title.strip():
            return title[:LONGEST_TITLE]
    return PurePosixPath(name).stem[:LONGEST_TITLE]


def row_digest(chunk: Chunk) -> str:
    """A hash of the fields that a search returns: text, pages, offsets, headings."""
    seen = (chunk.text, chunk.page, chunk.page_end, chunk.start, chunk.end, chunk.headings)
    return hashlib.sha256(msgspec.msgpack.encode(seen)).hexdigest()[:16]


class TableId(NamedTuple):
    owner: str
    collection: str
    version: int


class VectorQuery(NamedTuple):
    vector: Vector
    """One-dimensional, of unit length."""


class TextQuery(NamedTuple):
    text: str
    """Words to search for. Every text is valid; there is no query syntax."""
    field: TextField = "words"


Query = VectorQuery | TextQuery


class Joined(NamedTuple):
    """The active generations of a ledger that is in the same database as the index. A search that joins them sees rows
    and ledger at the same moment."""

    condition: str
    """An SQL condition on `c.generation`."""
    execute: Callable[[str, Sequence[Any]], Awaitable[list[tuple[Any, ...]]]]
    """Runs a statement in the read snapshot of the search."""


class Filter(NamedTuple):
    """Which rows a search may return."""

    hidden: Sequence[int] = ()
    """Generations to exclude."""
    only: Sequence[int] | None = None
    """The only generations to include; None: all. An adapter applies it if its `traits.filters` contain `only`."""
    joined: Joined | None = None
    """Only given if `traits.filters` contain `active`. Then `hidden` need not contain inactive generations."""


EVERYTHING = Filter()


class RowSpan(NamedTuple):
    """Consecutive rows of a generation."""

    generation: int
    first: int
    last: int
    """The last ordinal, which is included."""


class Searchable(Protocol):
    async def search(self, query: Query, k: int, where: Filter = EVERYTHING, *, whole: bool = True) -> list[IndexHit]:
        """Return the k best rows, best first, each id once. `whole=False`: the adapter may leave out all but the ids
        and scores, if this is cheaper."""

    async def fill(self, hits: Sequence[IndexHit]) -> list[IndexHit]:
        """Return the hits of a search whole, in the same order. Rows that were removed meanwhile are left out."""


class TableState(NamedTuple):
    """The current version of a table, and the sizes of its files."""

    version: int
    """Every commit increases it."""
    bytes: int
    old_bytes: int
    """Size of the files that are not part of this version: they belong to earlier versions, which may still be read,
    or are being written."""


class TableFiles(NamedTuple):
    """The files of a version. Files are never modified. They are kept for some minutes after the version was
    replaced."""

    root: Path
    names: list[str]


class TableChecksum(NamedTuple):
    version: int
    sha256: str


class IndexTable(Searchable, Protocol):
    """A table that exists. If it is dropped while a handle is open, reads through the handle find no rows, and `put`
    creates the table again or raises `Transient`."""

    @property
    def dimensions(self) -> int: ...

    async def put(self, rows: Sequence[IndexRows], fence: Fence, *, fresh: bool) -> None:
        """Add these rows and replace rows with the same ids, in one durable commit. `fresh`: the caller knows that the
        table has none of these rows, so the adapter does not need to look for them."""

    async def delete(self, generations: Sequence[int], fence: Fence) -> None:
        """Remove all rows of these generations, in one durable commit."""

    async def rows(self, spans: Sequence[RowSpan]) -> list[IndexHit]:
        """Return the rows of these spans that exist, each id once, with the score 0."""

    def scan(self) -> AsyncIterator[list[StoredRow]]:
        """Yield all rows in batches."""

    async def count(self) -> int: ...


@runtime_checkable
class Maintained(Protocol):
    """Maintenance of a table whose files no server maintains."""

    async def optimize(self, fence: Fence, *, force: bool = False, text_rows: int | None = None) -> None:
        """Durably update the text and vector indexes if enough rows were added, or if `force` is set. `text_rows`: how
        many rows are enough for the text indexes; None: as many as is cheapest in total. If it is given, no work
        follows soon, and fewer rows are enough for the vector index too."""

    async def compact(self, fence: Fence, *, thorough: bool = False) -> None:
        """Durably merge small files, and remove old versions as `clean` does. `thorough`: afterwards, no file contains
        anything of a row that was removed."""

    async def clean(self, fence: Fence) -> None:
        """Remove old versions: at once if nobody reads the table in any process, else after some minutes."""

    def reading(self) -> AbstractAsyncContextManager[None]:
        """Keep the latest version, and later ones, some minutes after they are replaced. The other functions do this
        themselves. It is for a caller that reads the files."""

    async def dedupe(self, generations: Sequence[int], fence: Fence) -> int:
        """Keep only the row with the highest epoch for each id of these generations, in one durable commit. Returns the
        number of removed rows."""

    async def state(self) -> TableState | None:
        """The current version and sizes; None if the table does not exist."""

    async def checksum(self, version: int | None = None) -> TableChecksum | None:
        """The checksum of all files of a version (default: the latest). It changes only if a file is modified."""

    async def files(self) -> TableFiles | None:
        """The files of the latest version; None if the table does not exist. A copy of them is a copy of the table, if
        they are copied while `reading`."""

    async def restore(self, version: int, fence: Fence) -> None:
        """Restore the content of an earlier version, in one durable commit."""


def maintained(table: object) -> Maintained | None:
    """The table as `Maintained`; None if a server maintains it."""
    return table if isinstance(table, Maintained) else None


@runtime_checkable
class Closable(Protocol):
    """An index with connections that must be closed."""

    async def close(self) -> None: ...


class Index(Protocol):
    @property
    def traits(self) -> Traits: ...

    @property
    def fingerprint(self) -> str: ...

    async def open(self, table: TableId) -> IndexTable | None:
        """Return a handle, which stays open; None if there is no such table."""

    async def create(self, table: TableId, dimensions: int) -> IndexTable:
        """Return a handle of the table. Creates an empty table if it does not exist. Raises `Permanent` if it exists
        with other dimensions."""

    async def warm_up(self) -> None:
        """Load now what the first call would load."""

    async def tables(self) -> list[TableId]: ...

    async def drop(self, table: TableId) -> None:
        """Remove a table. Does nothing if it does not exist."""
