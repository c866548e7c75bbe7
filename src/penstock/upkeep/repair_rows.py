"""Repair the rows of the index from stored chunks and vectors. The table's lock is held for one commit at a time, so
that workers wait only briefly. Under the lock the ledger is read again, because a finding may be seconds old.

If chunks and vectors were dropped on purpose, or are damaged, the document is queued to be processed again from its raw
bytes (I9)."""

from collections import Counter
from collections.abc import AsyncIterator, Collection, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import NamedTuple

import numpy as np

from penstock.artifacts.reader import ArtifactReader
from penstock.blobs.small import is_small
from penstock.errors import PenstockError, TornSegment
from penstock.indexes.base import Fence, IndexRows, IndexTable, TableId, maintained, title_of
from penstock.ledger.engine import checkpoints
from penstock.ledger.engine.locks import index_key
from penstock.ledger.upkeep import audit, audit_index, checksums, repairs
from penstock.ledger.upkeep.audit_index import RowSource, State, TablePlace
from penstock.model.items import Chunk, Vectors
from penstock.model.nouns import Artifact, ArtifactId, Segment, WorkerId
from penstock.upkeep.purge import hold_table
from penstock.upkeep.remake import Remaker, queued
from penstock.upkeep.report import Finding, Stores

COMMIT_ROWS = 2000
WHOLE_ROWS = 20_000
"""A document with too many rows is rewritten if it has at most this many chunks."""
WAIT_S = 30.0
POLL_S = 0.05
OTHER_FILES = ("index_changed", "index_written_elsewhere")
"""Findings about files that differ from those of the last vacuum. Comparing rows does not find all damage: vectors and
indexes may be wrong too."""
IN_ROWS = ("row_missing", "row_differs", "row_double", "row_extra", "dead_rows", "row_misplaced")
IN_TABLES = ("table_broken", *OTHER_FILES, *IN_ROWS)


class Busy(PenstockError):
    """Another process held the table's lock all the time."""


class Incomplete(PenstockError):
    """Not all rows could be restored."""


class _Part(NamedTuple):
    """Rows of one document that are written in one commit."""

    finding: int
    generation: int
    chunks: list[Chunk]
    vectors: list[Vectors]


class TableRepair:
    """Repairs one index table."""

    def __init__(self, stores: Stores, worker: WorkerId, place: TablePlace, remaker: Remaker) -> None:
        self._stores = stores
        self._remaker = remaker
        self._ledger = stores.ledger
        self._worker = worker
        self._place = place
        self._table = TableId(place.owner, place.collection, place.version)
        self._reader = ArtifactReader(stores.blobs, self._segments)

    async def repair(self, found: Sequence[Finding], torn: Collection[int] = ()) -> AsyncIterator[Finding]:
        of = {kind: [finding for finding in found if finding.kind == kind] for kind in IN_TABLES}
        if of["index_written_elsewhere"] and not of["table_broken"] and await self._restore():
            yield of["index_written_elsewhere"][0]
            return
        other_files = [finding for kind in OTHER_FILES for finding in of[kind]]
        whole = not other_files or await self._can_be_made_again(torn)
        if of["table_broken"] or (other_files and whole):
            await self._drop()
            for finding in (*of["table_broken"], *other_files):
                yield finding
            return
        unequal = [finding for finding in of["row_double"] if finding.problem]
        for some in _pages([*of["row_missing"], *of["row_differs"], *unequal, *of["row_extra"]]):
            remade = await self._remake([finding.ids["generation"] for finding in some])
            rest = []
            for finding in some:
                if finding.ids["generation"] in remade:
                    yield queued(finding)
                elif finding.kind != "row_extra":
                    rest.append(finding)
                elif await self._replace(finding):
                    yield finding
            for finding in await self._rebuild(rest):
                yield finding
        for some in _pages([finding for finding in of["row_double"] if not finding.problem]):
            async for finding in self._dedupe(some):
                yield finding
        for some in _pages([*of["dead_rows"], *of["row_misplaced"]]):
            await self._remove([finding.ids["generation"] for finding in some])
            for finding in some:
                yield finding
        if not whole:
            raise Incomplete("chunks or vectors that its rows are made of are damaged; `penstock vacuum` accepts it")

    async def _dedupe(self, findings: Sequence[Finding]) -> AsyncIterator[Finding]:
        """Remove duplicate rows. In a table that a server maintains, the rows are written again instead, which leaves
        one for each id."""
        async with self._hold() as (table, fence):
            kept = maintained(table)
            if kept is not None:
                await kept.dedupe([finding.ids["generation"] for finding in findings], fence)
        for finding in findings if kept is not None else await self._rebuild(findings):
            yield finding

    async def _restore(self) -> bool:
        """Restore the version of the last vacuum, if its files are unchanged. Does nothing if a process has held the
        lock of the table since then. Returns False if the version cannot be restored."""
        async with self._hold() as (opened, fence):
            table = maintained(opened)
            if table is None:
                return False
            stored = await self._ledger.read(checksums.before_holder, self._place)
            if stored is None:
                return True
            try:
                kept = await table.checksum(stored.table_version)
            except PenstockError:
                return False
            if kept != (stored.table_version, stored.sha256):
                return False
            await table.restore(stored.table_version, fence)
        return True

    async def _drop(self) -> None:
        """Drop a table that cannot be read or whose files were changed. The next round finds its rows missing and
        writes them again."""
        async with self._lock() as fence:
            await self._ledger.write(repairs.RESTART, self._place)
            await fence()
            await self._stores.index.drop(self._table)
            await self._ledger.write(checksums.DROP_CHECKSUM, self._place)

    async def _can_be_made_again(self, torn: Collection[int]) -> bool:
        """Whether all rows of the table can be restored: from artifacts, or, of small text files whose artifacts were
        dropped, from their raw bytes. A readable table is dropped only then."""
        last = 0
        while page := await self._ledger.read(audit_index.actives, self._place, last):
            generations = [active.generation for active in page]
            sources = await self._ledger.read(audit_index.sources, generations)
            texts = await self._ledger.read(audit_index.dropped_texts, generations)
            for active in page:
                document, raw_key = texts.get(active.generation, ("", ""))
                if is_small(raw_key) and self._remaker.can_read(document):
                    continue
                for kind in ("chunk", "embed") if active.chunks else ():
                    made = sources.get((active.generation, kind))
                    if made is None or made.artifact in torn or made.items != active.chunks:
                        return False
            last = page[-1].generation
        return True

    async def _remake(self, wanted: Sequence[int]) -> set[int]:
        """Queue documents whose artifacts are lost to be processed again from their raw bytes. Returns the generations
        whose documents are queued."""
        states = await self._ledger.read(audit_index.states, wanted, self._place.version)
        lost = {one: state for one, state in states.items() if state.lost and not _stranger(state, self._place)}
        if not lost:
            return set()
        async with self._hold() as (table, _):
            if table is None:
                await self._ledger.write(repairs.RESTART, self._place)
        made = await self._remaker.queue(self._place.owner, {state.document for state in lost.values()})
        return {one for one, state in lost.items() if state.document in made}

    async def _rebuild(self, findings: Sequence[Finding]) -> list[Finding]:
        """Merge the rows of these findings by id, many documents in one commit. Returns the findings that are
        repaired."""
        written: Counter[int] = Counter()
        batch: list[_Part] = []
        for number, finding in enumerate(findings):
            async for part in self._parts(number, finding):
                # A merge may not contain a row twice, and two findings may be about the same document.
                if batch and (_count(batch) >= COMMIT_ROWS or part.generation in {one.generation for one in batch}):
                    written += await self._merge(batch)
                    batch = []
                batch.append(part)
        written += await self._merge(batch)
        return [finding for number, finding in enumerate(findings) if written[number] >= _wanted(finding)]

    async def _parts(self, number: int, finding: Finding) -> AsyncIterator[_Part]:
        """Yield the rows of a finding that can be read, at most COMMIT_ROWS at a time."""
        only = None if finding.ordinals is None else frozenset(finding.ordinals)
        generation = finding.ids["generation"]
        part = _Part(number, generation, [], [])
        try:
            async for chunk, vector in self._rows(generation):
                if only is None or chunk.ordinal in only:
                    part.chunks.append(chunk)
                    part.vectors.append(vector)
                if len(part.chunks) == COMMIT_ROWS:
                    yield part
                    part = _Part(number, generation, [], [])
        except TornSegment:
            pass
        if part.chunks:
            yield part

    async def _merge(self, parts: Sequence[_Part]) -> Counter[int]:
        """Write the parts in one commit, except those of documents that have changed meanwhile. Returns the number of
        rows written for each finding."""
        if not parts:
            return Counter()
        async with self._hold() as (table, fence):
            states = await self._actives([part.generation for part in parts])
            good = [part for part in parts if part.generation in states]
            if not good:
                return Counter()
            rows = [_index_rows(part.generation, states[part.generation], part.chunks, part.vectors) for part in good]
            if table is None:
                await self._ledger.write(repairs.RESTART, self._place)
                table = await self._stores.index.create(self._table, rows[0].vectors.shape[1])
            await table.put(rows, fence, fresh=False)
        return Counter({part.finding: len(part.chunks) for part in good})

    async def _replace(self, finding: Finding) -> bool:
        """Delete all rows of a generation that has too many, then write the correct ones, each in one commit. In
        between, a search does not find the document, but it never finds a part of it. Returns whether this was
        done."""
        generation = finding.ids["generation"]
        state = await self._active(generation)
        if state is None or state.chunks > WHOLE_ROWS:
            return False
        try:
            rows = [row async for row in self._rows(generation)]
        except TornSegment:
            return False
        if len(rows) != state.chunks:
            return False
        async with self._hold() as (table, fence):
            if table is None or await self._active(generation) is None:
                return False
            await table.delete([generation], fence)
            if rows:
                chunks, vectors = zip(*rows, strict=True)
                await table.put([_index_rows(generation, state, chunks, vectors)], fence, fresh=True)
        return True

    async def _remove(self, generations: Sequence[int]) -> None:
        """Remove rows that do not belong in this table: those of dead generations, and of active generations that are
        placed in another table."""
        async with self._hold() as (table, fence):
            states = await self._ledger.read(audit_index.states, generations, self._place.version)
            out = [one for one in generations if _stranger(states.get(one), self._place)]
            if out and table is not None:
                await table.delete(out, fence)

    async def _active(self, generation: int) -> State | None:
        return (await self._actives([generation])).get(generation)

    async def _actives(self, generations: Sequence[int]) -> dict[int, State]:
        states = await self._ledger.read(audit_index.states, generations, self._place.version)
        return {one: state for one, state in states.items() if state.state == "ACTIVE" and state.place == self._place}

    @asynccontextmanager
    async def _hold(self) -> AsyncIterator[tuple[IndexTable | None, Fence]]:
        async with self._lock() as fence:
            yield await self._stores.open(self._place), fence

    @asynccontextmanager
    async def _lock(self) -> AsyncIterator[Fence]:
        """Hold the lock of the table, and wait for it up to WAIT_S. Frees the lock of a dead worker when its lease has
        expired. Raises Busy."""
        runtime = self._ledger.database.runtime
        key = index_key(*self._table)
        limit = runtime.clock() + WAIT_S
        while True:
            await self._ledger.write(repairs.FREE, key)
            async with hold_table(self._ledger, self._stores.index, self._table, self._worker, "repair") as fence:
                if fence is not None:
                    yield fence
                    return
            if runtime.clock() > limit:
                raise Busy(f"it was in use for {WAIT_S:.0f} s, try again later")
            await runtime.sleep(POLL_S)

    async def _rows(self, generation: int) -> AsyncIterator[tuple[Chunk, Vectors]]:
        sources = await self._ledger.read(audit_index.sources, [generation])
        chunk, embed = sources.get((generation, "chunk")), sources.get((generation, "embed"))
        if chunk is None or embed is None:
            return
        vectors = self._vectors(embed)
        async for chunks in self._reader.items(_artifact(chunk), "chunk"):
            for one in chunks:
                vector = await anext(vectors, None)
                if vector is None:
                    return
                yield one, vector

    async def _vectors(self, source: RowSource) -> AsyncIterator[Vectors]:
        async for blocks in self._reader.items(_artifact(source), "embed"):
            for block in blocks:
                for vector in block:
                    yield vector

    async def _segments(self, artifact: ArtifactId, start: int, count: int) -> list[Segment]:
        return await self._ledger.read(checkpoints.segments, artifact, start, count)


def _count(parts: Sequence[_Part]) -> int:
    return sum(len(part.chunks) for part in parts)


def _wanted(finding: Finding) -> int:
    return finding.count if finding.ordinals is None else len(frozenset(finding.ordinals))


def _artifact(source: RowSource) -> Artifact:
    return Artifact(
        ArtifactId(source.artifact), source.fingerprint, source.complete, {}, source.items, source.segments, {}
    )


def _index_rows(generation: int, state: State, chunks: Sequence[Chunk], vectors: Sequence[Vectors]) -> IndexRows:
    title = title_of(state.name, state.metadata)
    return IndexRows(generation, state.epoch, state.document, chunks, np.stack(vectors), title)


def _stranger(state: State | None, place: TablePlace) -> bool:
    return state is None or state.state == "PURGED" or (state.state == "ACTIVE" and state.place != place)


def _pages(findings: Sequence[Finding]) -> Iterator[Sequence[Finding]]:
    for start in range(0, len(findings), audit.PAGE):
        yield findings[start : start + audit.PAGE]
