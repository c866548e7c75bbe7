"""PORT: the searchable index. Rows are known by (generation, ordinal) and carry the epoch that wrote them.

A table is one (owner, collection, version). Its caller holds the index lock; `verify` is awaited right before each
commit and raises if the lock is gone, so that the window in which a stale worker can still commit is small.
What such a worker does commit is harmless: hits of one id are collapsed, and dead generations are never read.
"""

import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

import msgspec

from penstock.model.items import Chunk, Vectors

Verify = Callable[[], Awaitable[None]]


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


class TableInfo(NamedTuple):
    owner: str
    collection: str
    version: int


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
    async def append(self, rows: Sequence[IndexRows], verify: Verify) -> None:
        """One durable commit of rows that are not there yet."""

    async def merge(self, rows: Sequence[IndexRows], verify: Verify) -> None:
        """One durable commit that replaces rows of the same id and adds the others: for resumed steps."""

    async def delete(self, generations: Sequence[int], verify: Verify) -> None:
        """One durable commit that removes all rows of these generations."""

    async def dedupe(self, generations: Sequence[int], verify: Verify) -> int:
        """One durable commit that leaves exactly one row for each id of these generations, that of the highest
        epoch. Says how many it removed."""

    async def optimize(self, verify: Verify, *, force: bool = False) -> None:
        """Bring the text and vector indexes up to date if enough rows have come (or `force`), durably."""

    async def compact(self, verify: Verify) -> None:
        """Merge small files and drop old versions no reader can still be using, durably."""

    async def search_vector(self, vector: Vectors, k: int, hidden: Sequence[int]) -> list[IndexHit]:
        """The k best rows outside the hidden generations, doubles of one id collapsed. `vector` is one-dimensional."""

    async def search_text(self, query: str, k: int, hidden: Sequence[int]) -> list[IndexHit]:
        """The same by BM25. Any query string is a bag of words, never a syntax error."""

    def scan(self) -> AsyncIterator[list[StoredRow]]:
        """All rows, in batches, for `check`."""

    async def count(self) -> int: ...

    async def state(self) -> TableState | None:
        """None while the table does not exist."""

    async def checksum(self, version: int | None = None) -> TableChecksum | None:
        """Over all that a version is made of, the latest if none is named; the same as long as nobody touches a
        file."""

    async def files(self) -> TableFiles | None:
        """Of the latest version; None while the table does not exist. A copy of them is the same table."""

    async def restore(self, version: int, verify: Verify) -> None:
        """One durable commit that makes the table what it was at an earlier version."""

    @property
    def dimensions(self) -> int | None:
        """None while the table does not exist."""


class Index(Protocol):
    @property
    def fingerprint(self) -> str: ...

    async def table(self, owner: str, collection: str, version: int) -> IndexTable:
        """A handle, kept open; the table itself is made by the first append."""

    async def warm_up(self) -> None:
        """Load what the first call would load."""

    async def tables(self) -> list[TableInfo]: ...

    async def drop(self, table: TableInfo) -> None: ...
