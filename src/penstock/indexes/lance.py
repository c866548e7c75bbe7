"""The embedded index: one Lance dataset per (owner, collection, version), `root/<owner>/<collection>/v<version>.lance`.

`lance_writer` changes a table durably, and `lance_reader` searches it. This module runs both on their thread pools,
awaits the fence between writing files and committing them, and hits the failpoints.
"""

import functools
import importlib
import os
import re
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from penstock.errors import StorageError, Transient, UsageError
from penstock.indexes import lance_files as files
from penstock.indexes import lance_rows as rows
from penstock.indexes import lance_upkeep as upkeep
from penstock.indexes.base import (
    EVERYTHING,
    Fence,
    Filter,
    IndexHit,
    IndexRows,
    Query,
    RowSpan,
    StoredRow,
    TableChecksum,
    TableFiles,
    TableId,
    TableState,
    Traits,
    VectorQuery,
)
from penstock.indexes.highest import HighestGeneration
from penstock.indexes.lance_checksum import Checksum
from penstock.indexes.lance_reader import LanceReader
from penstock.indexes.lance_readers import Readers, Searches
from penstock.indexes.lance_writer import LanceWriter, Staged
from penstock.runtime import Runtime, ThreadPool

COMMITS = ("create", "append", "merge", "delete", "dedupe", "optimize", "compact", "clean", "restore")
FAILPOINTS = tuple(f"index.{commit}.{side}" for commit in COMMITS for side in ("before", "after"))

_CONFLICT = re.compile(r"(retryable )?commit conflict for version \d", re.IGNORECASE)
READER_GRACE = 600.0
"""Seconds for which a replaced version is kept while somebody reads the table."""
CONFLICT_TRIES = 5
CACHE_BYTES = 512 * 2**20
"""Size of the index cache that the searches of all tables share."""
WRITER_CACHE_BYTES = 32 * 2**20
"""Writers read an index only once, to merge it. A small cache keeps the memory of a worker constant."""

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
        highest: HighestGeneration,
    ) -> None:
        """`session` returns the cache for searches, `writing` the cache for writes."""
        self.path = path
        self._highest = highest
        self._runtime = runtime
        self._reader = LanceReader(path, session)
        self._readers = Readers(path)
        self._searches = Searches(path)
        self._writer = LanceWriter(path, top, writing)
        self._dimensions: int | None = None

    @property
    def dimensions(self) -> int:
        assert self._dimensions is not None
        return self._dimensions

    async def open(self) -> bool:
        """Read the dimensions of the table. Returns whether the table exists."""
        if self._dimensions is None:
            self._dimensions = await self._read(self._reader.dimensions)
        return self._dimensions is not None

    async def create(self, dimensions: int, fence: Fence | None = None, generation: int = 0) -> None:
        """Create the table if it does not exist. `generation`: the highest generation whose rows will be written
        next."""
        workshop = self.path.with_name(f".{self.path.name}.{self._runtime.token()}")

        def stage() -> Path | None:
            self._highest.reach(generation)
            return self._writer.stage_create(dimensions, workshop)

        made = await self._run("index", stage)
        if made is not None:
            if fence is not None:
                await fence()
            await self._commit("create", lambda: self._writer.commit_create(made))
        self._dimensions = dimensions

    async def put(self, rows_: Sequence[IndexRows], fence: Fence, *, fresh: bool) -> None:
        if not (new := [part for part in rows_ if part.chunks]):
            return
        # On every call, because the table may have been dropped.
        await self.create(rows.width(new), fence, max(part.generation for part in new))
        if fresh:
            await self._change("append", lambda: self._writer.stage_append(new), fence)
        else:
            await self._change("merge", lambda: self._writer.stage_merge(new), fence)

    async def delete(self, generations: Sequence[int], fence: Fence) -> None:
        if generations:
            await self._change("delete", lambda: self._writer.stage_delete(generations), fence)

    async def dedupe(self, generations: Sequence[int], fence: Fence) -> int:
        if not generations:
            return 0
        return await self._change("dedupe", lambda: self._writer.stage_dedupe(generations), fence)

    async def optimize(self, fence: Fence, *, force: bool = False, text_rows: int | None = None) -> None:
        pace = await self._run("index", lambda: self._pace(force, text_rows))
        due = await self._run("index", lambda: upkeep.due(self._writer.latest(), pace))
        for kind in due:
            if kind in upkeep.FILES:
                await self._rewrite("optimize", upkeep.FILES[kind], fence)
        if names := [kind for kind in due if kind not in upkeep.FILES]:
            await self._update_indexes(names, pace, fence)

    def _pace(self, force: bool, text_rows: int | None) -> upkeep.Pace:
        is_searched = self._searches.are_recent(self._runtime.now())
        every = upkeep.TEXT_EVERY if is_searched else upkeep.BULK_EVERY
        return upkeep.Pace(text_rows or every, force, settles=force or text_rows is not None, bulk=not is_searched)

    async def compact(self, fence: Fence, *, thorough: bool = False) -> None:
        if await self._run("index", lambda: upkeep.lacks_columns(self._writer.latest())):
            await self._update(upkeep.add_text_columns, fence)
        stale = thorough and await self._run("index", lambda: upkeep.has_removed_rows(self._writer.latest()))
        await self._rewrite("compact", None, fence, thorough=thorough)
        await self.optimize(fence, force=True)
        if stale:
            await self._update(upkeep.rebuild_text_indexes, fence)
        if await self._run("index", lambda: upkeep.outgrown(self._writer.latest())):
            await self._update(upkeep.create_vector_index, fence)
        await self.clean(fence)

    async def clean(self, fence: Fence) -> None:
        await fence()
        before = self._runtime.now() - READER_GRACE
        await self._commit("clean", lambda: self._writer.clean(before))

    async def restore(self, version: int, fence: Fence) -> None:
        async with self.reading():
            await fence()
            await self._commit("restore", lambda: self._writer.restore(version))

    async def search(self, query: Query, k: int, where: Filter = EVERYTHING, *, whole: bool = True) -> list[IndexHit]:
        self._searches.note(self._runtime.now())
        if isinstance(query, VectorQuery):
            vector = np.asarray(query.vector, dtype=np.float32)
            found = await self._read(lambda: self._reader.search_vector(vector, k, where))
        else:
            found = await self._read(lambda: self._reader.search_text(query, k, where))
            if self._reader.wants_warming():
                self._runtime.executor("upkeep").submit(self._warm)
        return await self.fill(found) if whole else found

    async def fill(self, hits: Sequence[IndexHit]) -> list[IndexHit]:
        if all(hit.place is None for hit in hits):
            return list(hits)
        return await self._read(lambda: self._reader.fill(hits))

    async def rows(self, spans: Sequence[RowSpan]) -> list[IndexHit]:
        return await self._read(lambda: self._reader.spans(spans))

    async def scan(self) -> AsyncIterator[list[StoredRow]]:
        async with self.reading():
            batches = await self._read(self._reader.batches)
            while found := await self._read(lambda: rows.stored_rows(batches)):
                yield found

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[None]:
        # Not on a thread: a task that is cancelled while it waits for one would leave the lock behind.
        with self._readers.reading():
            yield

    async def count(self) -> int:
        return await self._read(self._reader.count)

    async def state(self) -> TableState | None:
        return await self._read(self._reader.state)

    async def checksum(self, version: int | None = None) -> TableChecksum | None:
        async with self.reading():
            found = await self._read(lambda: self._reader.names(version))
            if found is None:
                return None
            version, names = found
            checksum = Checksum(self.path)
            # One file per call, so that other reads can use the thread pool and the task can be cancelled in between.
            for name in names:
                await self._read(functools.partial(checksum.take, name))
        return TableChecksum(version, checksum.hexdigest())

    async def files(self) -> TableFiles | None:
        found = await self._read(self._reader.names)
        return None if found is None else TableFiles(self.path, found[1])

    async def _change(self, name: str, stage: Callable[[], Staged | None], fence: Fence) -> int:
        """Stage, await the fence, commit. If another writer changed the same files in between, stage again on the
        latest version. Returns the number of removed rows."""
        for _ in range(CONFLICT_TRIES):
            # Lance finds conflicts by the versions since. If another process removed these, it would find none.
            async with self.reading():
                staged = await self._run("index", stage)
                if staged is None:
                    return 0
                await fence()
                try:
                    await self._commit(name, functools.partial(self._writer.commit, staged))
                except Transient:
                    continue
                return staged.removed
        raise Transient(
            f"The index table {self.path} was changed by other writers {CONFLICT_TRIES} times.", reason="conflict"
        )

    async def _rewrite(
        self, name: str, only: Callable[[Any], list[int]] | None, fence: Fence, *, thorough: bool = False
    ) -> None:
        async with self.reading():
            rewritten = await self._run("index", lambda: self._writer.stage_compaction(only, thorough=thorough))
            if rewritten is not None:
                await fence()
                await self._commit(name, lambda: self._writer.commit_compaction(rewritten))

    async def _update_indexes(self, names: Sequence[str], pace: upkeep.Pace, fence: Fence) -> None:
        """The index of grams takes as long as all others together, and one processor. So both are updated at once."""
        changes = [
            functools.partial(upkeep.update_indexes, names=some, pace=pace)
            for some in ([one for one in names if one == "grams"], [one for one in names if one != "grams"])
            if some
        ]
        beside = self._runtime.executor("upkeep")
        async with self.reading():
            await fence()
            await self._commit("optimize", lambda: self._writer.update(*changes, beside=beside))

    async def _update(self, action: Callable[[Any], None], fence: Fence) -> None:
        async with self.reading():
            await fence()
            await self._commit("optimize", lambda: self._writer.update(action))

    async def _commit(self, name: str, commit: Callable[[], None]) -> None:
        """Run a commit, or a removal of old versions, between its two failpoints. Every change of a table uses this.
        The change is durable when the failpoint `after` is hit."""
        await self._run("index", lambda: self._pass(name, commit))

    def _pass(self, name: str, commit: Callable[[], None]) -> None:
        failpoints = self._runtime.failpoints
        if failpoints.armed:
            failpoints.hit(f"index.{name}.before")
        commit()
        if failpoints.armed:
            failpoints.hit(f"index.{name}.after")

    def _warm(self) -> None:
        with self._readers.reading():
            self._reader.warm()

    async def _read(self, action: Callable[[], T]) -> T:
        def read() -> T:
            with self._readers.reading():
                return action()

        return await self._run("read", read)

    async def _run(self, pool: ThreadPool, action: Callable[[], T]) -> T:
        return await self._runtime.run_blocking(pool, self._explained, action)

    def _explained(self, action: Callable[[], T]) -> T:
        try:
            return action()
        except (OSError, RuntimeError) as error:
            if _is_conflict(error):
                raise Transient(f"Another commit to {self.path} came first: {error}", reason="conflict") from error
            raise StorageError(f"The index table {self.path} could not be changed: {error}") from error


def _is_conflict(error: Exception) -> bool:
    """Whether Lance reports a commit conflict. Some of its calls raise a class for this; for others only the beginning
    of the message tells it. Only the beginning is matched, because a path in the message may contain any word."""
    commit: Any = importlib.import_module("lance.commit")
    return isinstance(error, commit.CommitConflictError) or bool(_CONFLICT.match(str(error)))


class LanceIndex:
    def __init__(self, root: Path, runtime: Runtime) -> None:
        self._root = Path(root)
        self._runtime = runtime
        self._tables: dict[TableId, LanceTable] = {}
        self._highest = HighestGeneration(self._root)
        # Set before the library is loaded: its warnings (such as an empty partition) do not help a user.
        os.environ.setdefault("LANCE_LOG", "error")

    @property
    def fingerprint(self) -> str:
        return "lance/1"

    @property
    def traits(self) -> Traits:
        # Two processes that merge the same ids create duplicate rows without an error.
        filters = frozenset({"generation", "only"})
        return Traits(single_writer=True, filters=filters, text_fields=frozenset({"words", "grams"}))

    async def open(self, table: TableId) -> LanceTable | None:
        handle = self._handle(table)
        return handle if await handle.open() else None

    async def create(self, table: TableId, dimensions: int) -> LanceTable:
        handle = self._handle(table)
        await handle.create(dimensions)
        return handle

    async def warm_up(self) -> None:
        await self._runtime.run_blocking("index", self._session)

    async def tables(self) -> list[TableId]:
        return await self._runtime.run_blocking("read", lambda: sorted(self._listed()))

    async def drop(self, table: TableId) -> None:
        path = self._path(table)
        self._tables.pop(table, None)
        trash = path.with_name(f".{path.name}.{self._runtime.token()}")
        await self._runtime.run_blocking("index", files.remove_table, path, trash)

    def _handle(self, table: TableId) -> LanceTable:
        if table not in self._tables:
            self._tables[table] = LanceTable(
                self._path(table), self._root, self._runtime, self._session, self._writing, self._highest
            )
        return self._tables[table]

    def _path(self, table: TableId) -> Path:
        for name in (table.owner, table.collection):
            if not _NAME.fullmatch(name):
                raise UsageError(
                    f"{name!r} is not the name of an owner or collection: use letters, digits and _ . @ + -."
                )
        return self._root / table.owner / table.collection / f"v{table.version:d}.lance"

    def _listed(self) -> Iterator[TableId]:
        for path in self._root.glob("*/*/v*.lance"):
            if found := _TABLE.fullmatch(path.name):
                yield TableId(path.parent.parent.name, path.parent.name, int(found[1]))

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
