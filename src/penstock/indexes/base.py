"""PORT: the searchable index. A row is known by (generation, ordinal) and carries the epoch that wrote it.

A table is one (owner, collection, version). `Index` and `IndexTable` are what every adapter has: rows in, rows out,
search. `Maintained` is what an embedded index needs besides and a server does itself; ask `maintained(table)` for it.

Every change takes a `fence`. The adapter awaits it right before it commits; the fence raises if the caller has lost its
lock (`traits.single_writer`) or the leases of its steps. What a stale worker commits in the time that is left is
harmless: hits with one id are collapsed, and rows of dead generations are never returned by a search.
"""

import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple, Protocol, runtime_checkable

import msgspec

from penstock.model.items import Chunk, Vector, Vectors

Fence = Callable[[], Awaitable[None]]
Mode = Literal["vector", "text"]


@dataclass(frozen=True)
class Traits:
    """What an adapter can do. Callers and the contract suite ask this, never the name of an adapter."""

    single_writer: bool
    """Two writers at once would harm the table: whoever changes it holds its lock in the ledger. Otherwise index steps
    are claimed like any other step, and each write is fenced by the leases of its steps alone."""
    modes: frozenset[Mode] = frozenset({"vector", "text"})
    """The queries that `search` takes."""
    filters: frozenset[str] = frozenset({"generation"})
    """The parts of a `Filter` that the adapter applies by itself. What it does not apply, search leaves out of the
    answer and fetches more."""
    max_hits: int | None = None
    """The most hits that one search returns; None: as many as it is asked for."""


@dataclass(frozen=True)
class IndexRows:
    """Rows of one document's generation: chunks and their vectors, one to one."""

    generation: int
    epoch: int
    document_id: str
    chunks: Sequence[Chunk]
    vectors: Vectors


class IndexHit(NamedTuple):
    generation: int
    ordinal: int
    document_id: str
    score: float
    """Higher is better. Cosine for vectors, BM25 for text."""
    text: str
    page: int
    page_end: int
    start: int
    end: int
    headings: tuple[str, ...]


class StoredRow(NamedTuple):
    """What `check` reads back. `digest` is `row_digest` of the chunk, made from what the index holds."""

    generation: int
    ordinal: int
    epoch: int
    digest: str


def row_digest(chunk: Chunk) -> str:
    """Over all that a reader could notice: text, pages, offsets, headings."""
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
    """A bag of words, never a syntax error."""


Query = VectorQuery | TextQuery


class Filter(NamedTuple):
    """Which rows a search may return."""

    hidden: Sequence[int] = ()
    """Generations to leave out."""


EVERYTHING = Filter()


class TableState(NamedTuple):
    """A table as it is now, counted in files."""

    version: int
    """Every commit makes the next."""
    bytes: int
    old_bytes: int
    """Files that are not of this version: of those before it, which somebody may still read, or being written."""


class TableFiles(NamedTuple):
    """What a version is made of. No file of it is ever changed; all are kept for some minutes after it was replaced."""

    root: Path
    names: list[str]


class TableChecksum(NamedTuple):
    version: int
    sha256: str


class IndexTable(Protocol):
    """A table that exists. If it is dropped while a handle is open, the handle reads as empty, and `put` makes the
    table again or raises `Transient`."""

    @property
    def dimensions(self) -> int: ...

    async def put(self, rows: Sequence[IndexRows], fence: Fence, *, fresh: bool) -> None:
        """One durable commit that adds these rows and replaces rows of the same id. `fresh`: the caller knows that no
        row of them is there, so the adapter need not look for any."""

    async def delete(self, generations: Sequence[int], fence: Fence) -> None:
        """One durable commit that removes all rows of these generations."""

    async def search(self, query: Query, k: int, where: Filter = EVERYTHING) -> list[IndexHit]:
        """The k best rows, best first, doubles of one id collapsed."""

    def scan(self) -> AsyncIterator[list[StoredRow]]:
        """All rows, in batches, for `check`."""

    async def count(self) -> int: ...


@runtime_checkable
class Maintained(Protocol):
    """Upkeep of a table that nobody else does: the files of an embedded index."""

    async def optimize(self, fence: Fence, *, force: bool = False) -> None:
        """Bring the text and vector indexes up to date if enough rows have come (or `force`), durably."""

    async def compact(self, fence: Fence) -> None:
        """Merge small files and drop old versions that no reader can still be using, durably."""

    async def dedupe(self, generations: Sequence[int], fence: Fence) -> int:
        """One durable commit that leaves one row for each id of these generations, the row of the highest epoch.
        Returns how many rows it removed."""

    async def state(self) -> TableState | None:
        """None if the table is gone."""

    async def checksum(self, version: int | None = None) -> TableChecksum | None:
        """Over all that a version is made of, the latest if none is named. It stays the same as long as nobody changes
        a file."""

    async def files(self) -> TableFiles | None:
        """The files of the latest version; None if the table is gone. A copy of them is the same table."""

    async def restore(self, version: int, fence: Fence) -> None:
        """One durable commit that makes the table what it was at an earlier version."""


def maintained(table: object) -> Maintained | None:
    """None where the server behind the table does its own upkeep."""
    return table if isinstance(table, Maintained) else None


class Index(Protocol):
    @property
    def traits(self) -> Traits: ...

    @property
    def fingerprint(self) -> str: ...

    async def open(self, table: TableId) -> IndexTable | None:
        """A handle, kept open; None while there is no such table."""

    async def create(self, table: TableId, dimensions: int) -> IndexTable:
        """A handle of the table, made empty if it is not there. Raises `Permanent` if it is there with other
        dimensions."""

    async def warm_up(self) -> None:
        """Load what the first call would load."""

    async def tables(self) -> list[TableId]: ...

    async def drop(self, table: TableId) -> None:
        """Dropping a table that is not there does nothing."""
