"""One Lance dataset as an `IndexTable`.

New files are written and fsynced first, then the lock is verified, then one small commit names them. Only where Lance
commits by itself (index updates, and the remapping of indexes in a compaction) does the fsync follow the commit.
"""

import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.errors import PenstockError, StorageError, Transient
from penstock.indexes import lance_files as files
from penstock.indexes import lance_rows as arrow
from penstock.indexes import lance_upkeep as upkeep
from penstock.indexes.base import IndexHit, IndexRows, StoredRow, Verify
from penstock.model.items import Vectors
from penstock.runtime import Runtime

COMMITS = ("create", "append", "merge", "delete", "dedupe", "optimize", "compact")
FAILPOINTS = tuple(f"index.{commit}.{side}" for commit in COMMITS for side in ("before", "after"))

READER_GRACE = 600.0
"""Seconds for which a version that was replaced is kept for those who still read it."""
CONFLICT_TRIES = 5
QUERY_LENGTH = 4_000


@dataclass(frozen=True)
class Staged:
    """Files that are on disk, fsynced, and the operation that would make them part of the table."""

    operation: Any
    version: int
    rows: int = 0


Stage = Callable[[Any], Staged | None]


class LanceTable:
    def __init__(self, path: Path, top: Path, runtime: Runtime, session: Callable[[], Any]) -> None:
        self.path = path
        self._top = top
        self._runtime = runtime
        self._session = session
        self._writer: Any = None
        self._reader: Any = None
        # A handle of Lance must not be refreshed by one thread while another makes a scanner of it.
        self._reading = threading.Lock()
        self._dimensions: int | None = None

    @property
    def dimensions(self) -> int | None:
        return self._dimensions

    async def open(self) -> None:
        await self._runtime.run_blocking("read", self._scanner, lambda dataset: None)

    async def append(self, rows: Sequence[IndexRows], verify: Verify) -> None:
        if dimensions := arrow.width(rows):
            await self._create(dimensions, verify)
            await self._change("append", lambda dataset: self._stage_append(dataset, rows), verify)

    async def merge(self, rows: Sequence[IndexRows], verify: Verify) -> None:
        if dimensions := arrow.width(rows):
            await self._create(dimensions, verify)
            await self._change("merge", lambda dataset: self._stage_merge(dataset, rows), verify)

    async def delete(self, generations: Sequence[int], verify: Verify) -> None:
        if generations:
            await self._change("delete", lambda dataset: self._stage_delete(dataset, generations), verify)

    async def dedupe(self, generations: Sequence[int], verify: Verify) -> int:
        if not generations:
            return 0
        return await self._change("dedupe", lambda dataset: self._stage_dedupe(dataset, generations), verify)

    async def optimize(self, verify: Verify, *, force: bool = False) -> None:
        for kind in await self._runtime.run_blocking("index", self._due, force):
            if kind == "files":
                await self._compact_files("optimize", verify, upkeep.small_files)
            else:
                await self._lance_commits("optimize", verify, lambda dataset, kind=kind: upkeep.update_index(dataset, kind))

    async def compact(self, verify: Verify) -> None:
        await self._compact_files("compact", verify, None)
        await self.optimize(verify, force=True)
        if await self._runtime.run_blocking("index", self._outgrown):
            await self._lance_commits("optimize", verify, upkeep.create_vector_index)
        await verify()
        await self._runtime.run_blocking("index", self._clean)

    async def search_vector(self, vector: Vectors, k: int, hidden: Sequence[int]) -> list[IndexHit]:
        return await self._runtime.run_blocking("read", self._search_vector, np.asarray(vector, np.float32), k, hidden)

    async def search_text(self, query: str, k: int, hidden: Sequence[int]) -> list[IndexHit]:
        return await self._runtime.run_blocking("read", self._search_text, query, k, hidden)

    async def scan(self) -> AsyncIterator[list[StoredRow]]:
        scanner = await self._runtime.run_blocking("read", self._scanner, lambda data: data.scanner(arrow.SCAN_COLUMNS))
        if scanner is not None:
            batches = scanner.to_batches()
            while rows := await self._runtime.run_blocking("read", arrow.stored_rows, batches):
                yield rows

    async def count(self) -> int:
        return await self._runtime.run_blocking("read", lambda: self._scanner(lambda data: int(data.count_rows())) or 0)
