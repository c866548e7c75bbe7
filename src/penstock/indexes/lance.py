"""The embedded index: one Lance dataset per (owner, collection, version), `root/<owner>/<collection>/v<version>.lance`.

`lance_writer` changes a table durably, `lance_reader` searches it; this module puts them on their lanes, verifies the
lock between writing files and committing them, and passes the failpoints.
"""

import functools
import importlib
import os
import re
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from penstock.errors import StorageError, Transient, UsageError
from penstock.indexes import lance_files as files
from penstock.indexes import lance_rows as rows
from penstock.indexes import lance_upkeep as upkeep
from penstock.indexes.base import (
    IndexHit,
    IndexRows,
    StoredRow,
    TableChecksum,
    TableFiles,
    TableInfo,
    TableState,
    Verify,
)
from penstock.indexes.highest import Highest
from penstock.indexes.lance_checksum import Checksum
from penstock.indexes.lance_reader import LanceReader
from penstock.indexes.lance_writer import LanceWriter, Staged
from penstock.model.items import Vectors
from penstock.runtime import Lane, Runtime

COMMITS = ("create", "append", "merge", "delete", "dedupe", "optimize", "compact", "restore")
FAILPOINTS = tuple(f"index.{commit}.{side}" for commit in COMMITS for side in ("before", "after"))

_CONFLICT = re.compile(r"(retryable )?commit conflict for version \d", re.IGNORECASE)
READER_GRACE = 600.0
"""Seconds for which a replaced version is kept for those who still read it."""
CONFLICT_TRIES = 5
CACHE_BYTES = 512 * 2**20
"""What searches keep of the indexes of all tables."""
WRITER_CACHE_BYTES = 32 * 2**20
"""Who writes reads an index once, to merge it: what it keeps is in nobody's way, and a worker's memory stays flat."""

T = TypeVar("T")

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.@+-]*")
_TABLE = re.compile(r"v(\d+)\.lance")


class LanceTable:
    def __init__(
        self,
        path: Path,
        top: Path,
        runtime: Runtime,
        session: Callable[[], Any],
        writing: Callable[[], Any],
        highest: Highest,
    ) -> None:
        """`session`, `writing`: the caches of those who search, and of those who write."""
        self.path = path
        self._highest = highest
        self._runtime = runtime
        self._reader = LanceReader(path, session)
        self._writer = LanceWriter(path, top, writing)
        self._dimensions: int | None = None

    @property
    def dimensions(self) -> int | None:
        return self._dimensions

    async def open(self) -> None:
        self._dimensions = await self._run("read", self._reader.dimensions)

    async def append(self, rows_: Sequence[IndexRows], verify: Verify) -> None:
        if new := await self._create(rows_, verify):
            await self._change("append", lambda: self._writer.stage_append(new), verify)

    async def merge(self, rows_: Sequence[IndexRows], verify: Verify) -> None:
        if new := await self._create(rows_, verify):
            await self._change("merge", lambda: self._writer.stage_merge(new), verify)

    async def delete(self, generations: Sequence[int], verify: Verify) -> None:
        if generations:
            await self._change("delete", lambda: self._writer.stage_delete(generations), verify)

    async def dedupe(self, generations: Sequence[int], verify: Verify) -> int:
        if not generations:
            return 0
        return await self._change("dedupe", lambda: self._writer.stage_dedupe(generations), verify)

    async def optimize(self, verify: Verify, *, force: bool = False) -> None:
        for kind in await self._run("index", lambda: upkeep.due(self._writer.latest(), force)):
            if kind == "files":
                await self._rewrite("optimize", upkeep.small_files, verify)
            else:
                await self._update(functools.partial(upkeep.update_index, name=kind), verify)

    async def compact(self, verify: Verify) -> None:
        await self._rewrite("compact", None, verify)
        await self.optimize(verify, force=True)
        if await self._run("index", lambda: upkeep.outgrown(self._writer.latest())):
            await self._update(upkeep.create_vector_index, verify)
        await verify()
        before = self._runtime.now() - READER_GRACE
        await self._run("index", lambda: self._writer.clean(before))

    async def restore(self, version: int, verify: Verify) -> None:
        await verify()
        await self._commit("restore", lambda: self._writer.restore(version))

    async def search_vector(self, vector: Vectors, k: int, hidden: Sequence[int]) -> list[IndexHit]:
        query = np.asarray(vector, dtype=np.float32)
        return await self._run("read", lambda: self._reader.search_vector(query, k, hidden))

    async def search_text(self, query: str, k: int, hidden: Sequence[int]) -> list[IndexHit]:
        return await self._run("read", lambda: self._reader.search_text(query, k, hidden))

    async def scan(self) -> AsyncIterator[list[StoredRow]]:
        batches = await self._run("read", self._reader.batches)
        while found := await self._run("read", lambda: rows.stored_rows(batches)):
            yield found

    async def count(self) -> int:
        return await self._run("read", self._reader.count)

    async def state(self) -> TableState | None:
        return await self._run("read", self._reader.state)

    async def checksum(self, version: int | None = None) -> TableChecksum | None:
        found = await self._run("read", lambda: self._reader.names(version))
        if found is None:
            return None
        version, names = found
        checksum = Checksum(self.path)
        # One file at a time: others read, and an interrupt is heard.
        for name in names:
            await self._run("read", functools.partial(checksum.take, name))
        return TableChecksum(version, checksum.hexdigest())

    async def files(self) -> TableFiles | None:
        found = await self._run("read", self._reader.names)
        return None if found is None else TableFiles(self.path, found[1])

    async def _create(self, new: Sequence[IndexRows], verify: Verify) -> Sequence[IndexRows]:
        """The rows that there are, with a table to put them in."""
        if not (new := [part for part in new if part.chunks]):
            return []
        dimensions = rows.width(new)
        workshop = self.path.with_name(f".{self.path.name}.{self._runtime.token()}")
        highest = max(part.generation for part in new)

        def stage() -> Path | None:
            self._highest.reach(highest)
            return self._writer.stage_create(dimensions, workshop)

        made = await self._run("index", stage)
        if made is not None:
            await verify()
            await self._commit("create", lambda: self._writer.commit_create(made))
        self._dimensions = dimensions
        return new

    async def _change(self, name: str, stage: Callable[[], Staged | None], verify: Verify) -> int:
        """Stage, verify, commit. If somebody changed the same files in between, stage again on what is there now."""
        for _ in range(CONFLICT_TRIES):
            staged = await self._run("index", stage)
            if staged is None:
                return 0
            await verify()
            try:
                await self._commit(name, functools.partial(self._writer.commit, staged))
            except Transient:
                continue
            return staged.removed
        raise Transient(f"The index table {self.path} was changed by others {CONFLICT_TRIES} times.", reason="conflict")

    async def _rewrite(self, name: str, only: Callable[[Any], list[int]] | None, verify: Verify) -> None:
        rewritten = await self._run("index", lambda: self._writer.stage_compaction(only))
        if rewritten is not None:
            await verify()
            await self._commit(name, lambda: self._writer.commit_compaction(rewritten))

    async def _update(self, action: Callable[[Any], None], verify: Verify) -> None:
        await verify()
        await self._commit("optimize", lambda: self._writer.update(action))

    async def _commit(self, name: str, commit: Callable[[], None]) -> None:
        """The door through which every change of an index goes: durable when `after` is passed."""
        await self._run("index", lambda: self._pass(name, commit))

    def _pass(self, name: str, commit: Callable[[], None]) -> None:
        failpoints = self._runtime.failpoints
        if failpoints.armed:
            failpoints.hit(f"index.{name}.before")
        commit()
        if failpoints.armed:
            failpoints.hit(f"index.{name}.after")

    async def _run(self, lane: Lane, action: Callable[[], T]) -> T:
        return await self._runtime.run_blocking(lane, self._explained, action)

    def _explained(self, action: Callable[[], T]) -> T:
        try:
            return action()
        except (OSError, RuntimeError) as error:
            if _is_conflict(error):
                raise Transient(f"Another commit to {self.path} came first: {error}", reason="conflict") from error
            raise StorageError(f"The index table {self.path} could not be changed: {error}") from error


def _is_conflict(error: Exception) -> bool:
    """Some of Lance's calls have a class for it, others only their first words. A path may contain any word."""
    commit: Any = importlib.import_module("lance.commit")
    return isinstance(error, commit.CommitConflictError) or bool(_CONFLICT.match(str(error)))


class LanceIndex:
    def __init__(self, root: Path, runtime: Runtime) -> None:
        self._root = Path(root)
        self._runtime = runtime
        self._tables: dict[TableInfo, LanceTable] = {}
        self._highest = Highest(self._root)
        # Before the library is loaded: its warnings (a partition is empty) say nothing to a user.
        os.environ.setdefault("LANCE_LOG", "error")

    @property
    def fingerprint(self) -> str:
        return "lance/1"

    async def table(self, owner: str, collection: str, version: int) -> LanceTable:
        info = TableInfo(owner, collection, version)
        if info not in self._tables:
            self._tables[info] = LanceTable(
                self._path(info), self._root, self._runtime, self._session, self._writing, self._highest
            )
        table = self._tables[info]
        if table.dimensions is None:
            await table.open()
        return table

    async def warm_up(self) -> None:
        await self._runtime.run_blocking("index", self._session)

    async def tables(self) -> list[TableInfo]:
        return await self._runtime.run_blocking("read", lambda: sorted(self._listed()))

    async def drop(self, table: TableInfo) -> None:
        path = self._path(table)
        self._tables.pop(table, None)
        trash = path.with_name(f".{path.name}.{self._runtime.token()}")
        await self._runtime.run_blocking("index", files.remove_table, path, trash)

    def _path(self, table: TableInfo) -> Path:
        for name in (table.owner, table.collection):
            if not _NAME.fullmatch(name):
                raise UsageError(f"{name!r} is no name of an owner or collection: letters, digits and _ . @ + - only.")
        return self._root / table.owner / table.collection / f"v{table.version:d}.lance"

    def _listed(self) -> Iterator[TableInfo]:
        for path in self._root.glob("*/*/v*.lance"):
            if found := _TABLE.fullmatch(path.name):
                yield TableInfo(path.parent.parent.name, path.parent.name, int(found[1]))

    @functools.cached_property
    def _caches(self) -> Any:
        return _caches(CACHE_BYTES)

    @functools.cached_property
    def _writer_caches(self) -> Any:
        return _caches(WRITER_CACHE_BYTES)

    def _session(self) -> Any:
        return self._caches

    def _writing(self) -> Any:
        return self._writer_caches


def _caches(size: int) -> Any:
    lance: Any = importlib.import_module("lance")
    return lance.Session(index_cache_size_bytes=size, metadata_cache_size_bytes=size // 4)
