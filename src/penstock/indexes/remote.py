"""The index in a vector database: what Qdrant, Milvus and Pinecone have in common. Each has a `Store` with the calls of
its own client.

The rows of all tables with the same number of dimensions are in one collection of the server, because such servers are
made for few collections with many rows. A row names its owner, collection and version; a record for each table says
that the table exists. Rows have deterministic ids, so that every write may be repeated. A put is several requests.
Until all of them are done, its rows belong to generations that no search shows.

A row of a later attempt is not replaced by one of an earlier attempt. A server that cannot compare them itself is asked
first, if the ledger knows that an earlier attempt has begun to write."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np

from penstock.indexes import remote_rows as layout
from penstock.indexes.base import (
    EVERYTHING,
    Fence,
    Filter,
    IndexHit,
    IndexRows,
    Query,
    RowSpan,
    StoredRow,
    TableId,
    Traits,
    VectorQuery,
)
from penstock.indexes.checks import TableGone, check_names, check_width, mismatch
from penstock.indexes.remote_calls import Calls, Missing
from penstock.indexes.remote_rows import Fields, Limits, Row
from penstock.indexes.sparse import Frequencies, Sparse, frequencies, of_query

T = TypeVar("T")

AT_ONCE = 4
"""Requests of one put that are in flight at once."""
DELETED_AT_ONCE = 500
"""Generations of one delete."""
KNOWN_S = 60.0
"""How long the document frequencies of a table are used before they are estimated again."""
SAMPLE, LEAST_SAMPLE = 1_000, 200
"""Rows of a sample: at most so many, and if the table has them, at least so many."""
Found = tuple[Fields, float]
"""Fields of a row, at least those in `IDENTITY`, and a score."""


class Place(NamedTuple):
    """A table and the dimensions of its vectors, which say where the rows are."""

    table: TableId
    dimensions: int


class Store(Protocol):
    """The calls of one client. They block, and raise what the client raises; `explain` says what that means. `Missing`:
    the collection does not exist, which is the same as an empty one."""

    @property
    def limits(self) -> Limits: ...

    @property
    def compares_epochs(self) -> bool:
        """Whether `upsert` leaves rows of later epochs."""

    def records(self) -> list[Place]: ...

    def record(self, table: TableId) -> Place | None: ...

    def add(self, place: Place) -> None:
        """Add a record, and create what is needed for rows of this width."""

    def remove(self, place: Place) -> None:
        """Remove a record."""

    def upsert(self, place: Place, rows: Sequence[Row]) -> Any:
        """Durably write rows. Returns what `settle` needs."""

    def settle(self, place: Place, receipts: Sequence[Any]) -> None:
        """Return when every search finds what was written."""

    def delete(self, place: Place, generations: Sequence[int] | None) -> None:
        """Remove the rows of these generations, or all."""

    def nearest(self, place: Place, vector: list[float], k: int, where: Filter, whole: bool) -> list[Found]: ...

    def matching(self, place: Place, query: Sparse, k: int, where: Filter, whole: bool) -> list[Found]: ...

    def get(self, place: Place, ids: Sequence[str]) -> list[Fields]: ...

    def spans(self, place: Place, spans: Sequence[RowSpan]) -> list[Fields]: ...

    def scan(self, place: Place) -> Iterator[list[Fields]]: ...

    def count(self, place: Place) -> int: ...

    def sample(self, place: Place, buckets: int, most: int) -> list[Fields]:
        """Up to so many rows of the first buckets."""

    def warm_up(self) -> None: ...

    def close(self) -> None: ...


class RemoteTable:
    def __init__(self, index: "RemoteIndex", place: Place) -> None:
        self._index = index
        self._store = index.store
        self._place = place
        self.dimensions = place.dimensions
        self._known: tuple[float, Frequencies] | None = None

    async def put(self, rows: Sequence[IndexRows], fence: Fence, *, fresh: bool) -> None:
        new = [part for part in rows if part.chunks]
        if not new:
            return
        check_width(new, self.dimensions)
        await self._check_record()
        kind = "append" if fresh else "merge"
        made = layout.batches(self._place.table, new, self._store.limits)
        sending: set[asyncio.Task[Any]] = set()
        receipts: list[Any] = []
        try:
            while (batch := await self._index.calls.once("index", next, made, None)) is not None:
                if len(sending) >= AT_ONCE:
                    done, sending = await asyncio.wait(sending, return_when=asyncio.FIRST_COMPLETED)
                    receipts += [task.result() for task in done]
                if not fresh and not self._store.compares_epochs:
                    batch = await self._not_later(batch)
                await fence()
                if batch:
                    sending.add(asyncio.create_task(self._send(kind, batch)))
            receipts += await asyncio.gather(*sending)
        finally:
            for task in sending:
                task.cancel()
            await asyncio.gather(*sending, return_exceptions=True)
        await self._index.run("net", self._store.settle, self._place, receipts)

    async def _send(self, kind: str, batch: Sequence[Row]) -> Any:
        def send() -> Any:
            self._index.hit(f"index.{kind}.before")
            receipt = self._index.calls.patiently(self._store.upsert, self._place, batch)
            self._index.hit(f"index.{kind}.after")
            return receipt

        try:
            return await self._index.calls.once("net", send)
        except Missing as error:
            raise self._gone(error) from None

    async def _not_later(self, batch: list[Row]) -> list[Row]:
        """The rows of which the server has none of a later attempt."""
        there = await self._read(self._store.get, self._place, [row.id for row in batch])
        epochs = {(int(one["generation"]), int(one["ordinal"])): int(one["epoch"]) for one in there}
        return [row for row in batch if epochs.get((row.fields["generation"], row.fields["ordinal"]), 0) <= row.epoch]

    async def _check_record(self) -> None:
        if await self._index.record(self._place.table) != self._place:
            raise self._gone(None)

    def _gone(self, error: Exception | None) -> TableGone:
        said = f": {error}" if error is not None else ""
        return TableGone(f"the index table {layout.record_id(self._place.table)} was dropped{said}")

    async def delete(self, generations: Sequence[int], fence: Fence) -> None:
        for start in range(0, len(generations), DELETED_AT_ONCE):
            some = [int(one) for one in generations[start : start + DELETED_AT_ONCE]]
            await fence()
            self._index.hit("index.delete.before")
            with suppress(Missing):
                await self._index.run("net", self._store.delete, self._place, some)
            self._index.hit("index.delete.after")

    async def search(self, query: Query, k: int, where: Filter = EVERYTHING, *, whole: bool = True) -> list[IndexHit]:
        if isinstance(query, VectorQuery):
            vector = np.asarray(query.vector, np.float32)
            if vector.shape[-1] != self.dimensions:
                raise mismatch(self.dimensions, int(vector.shape[-1]))
        most = self._store.limits.hits
        k = k if most is None else min(k, most)
        if k <= 0 or (where.only is not None and not where.only):
            return []
        where = Filter([int(one) for one in where.hidden], None if where.only is None else [*map(int, where.only)])
        if isinstance(query, VectorQuery):
            found = await self._read(self._store.nearest, self._place, vector.tolist(), k, where, whole)
        else:
            known = await self._frequencies()
            asked = await self._index.calls.once("net", of_query, query.field, query.text, known)
            if asked is None:
                return []
            found = await self._read(self._store.matching, self._place, asked, k, where, whole)
        hits = sorted((layout.hit(*one) for one in found), key=lambda one: (-one.score, one.generation, one.ordinal))
        return await self.fill(hits) if whole else hits

    async def _frequencies(self) -> Frequencies:
        now = self._index.calls.runtime.clock()
        if self._known is None or now - self._known[0] >= KNOWN_S:
            buckets, rows = 64, list[Fields]()
            while True:
                rows = await self._read(self._store.sample, self._place, buckets, SAMPLE)
                if len(rows) >= LEAST_SAMPLE or buckets >= layout.BUCKETS:
                    break
                buckets *= 32
            texts = map(layout.text_of, rows)
            self._known = now, await self._index.calls.once("net", frequencies, texts)
        return self._known[1]

    async def fill(self, hits: Sequence[IndexHit]) -> list[IndexHit]:
        bare = [hit for hit in hits if hit.place is not None]
        if not bare:
            return list(hits)
        table = self._place.table
        ids = [layout.row_id(table, hit.generation, hit.document_id, hit.ordinal) for hit in bare]
        rows = {one[:2]: one for one in map(layout.hit, await self._read(self._store.get, self._place, ids))}
        return [
            hit if hit.place is None else rows[hit[:2]]._replace(score=hit.score)
            for hit in hits
            if hit.place is None or hit[:2] in rows
        ]

    async def rows(self, spans: Sequence[RowSpan]) -> list[IndexHit]:
        if not spans:
            return []
        wanted = [RowSpan(int(span.generation), max(0, int(span.first)), int(span.last)) for span in spans]
        found = map(layout.hit, await self._read(self._store.spans, self._place, wanted))
        return list({hit[:2]: hit for hit in found}.values())

    async def scan(self) -> AsyncIterator[list[StoredRow]]:
        pages = self._store.scan(self._place)
        with suppress(Missing):
            while (page := await self._index.calls.once("net", _stored, pages)) is not None:
                yield page

    async def count(self) -> int:
        try:
            return await self._index.run("net", self._store.count, self._place)
        except Missing:
            return 0

    async def _read(self, call: Callable[..., list[T]], *values: Any) -> list[T]:
        try:
            return await self._index.run("net", call, *values)
        except Missing:
            return []


def _stored(pages: Iterator[list[Fields]]) -> list[StoredRow] | None:
    page = next(pages, None)
    return None if page is None else [layout.stored(one) for one in page]


class RemoteIndex:
    """An index in a vector database."""

    def __init__(self, store: Store, calls: Calls, fingerprint: str) -> None:
        self.store = store
        self.calls = calls
        self.fingerprint = fingerprint
        self.traits = Traits(
            single_writer=False,
            filters=frozenset({"generation", "only"}),
            text_fields=frozenset({"words", "grams"}),
            max_hits=store.limits.hits,
        )
        self._open: dict[Place, RemoteTable] = {}

    async def open(self, table: TableId) -> RemoteTable | None:
        check_names(table)
        place = await self.record(table)
        if place is None:
            return None
        if place not in self._open:
            self._open[place] = RemoteTable(self, place)
        return self._open[place]

    async def record(self, table: TableId) -> Place | None:
        try:
            return await self.run("net", self.store.record, table)
        except Missing:
            return None

    async def create(self, table: TableId, dimensions: int) -> RemoteTable:
        check_names(table)
        if (found := await self.open(table)) is None:
            self.hit("index.create.before")
            await self.run("net", self._add, Place(table, dimensions))
            self.hit("index.create.after")
            found = await self.open(table)
        if found is None:
            raise TableGone(f"the index table {layout.record_id(table)} was dropped while it was created")
        if found.dimensions != dimensions:
            raise mismatch(found.dimensions, dimensions)
        return found

    def _add(self, place: Place) -> None:
        try:
            self.store.add(place)
        except Missing as error:
            raise TableGone(f"the index table {layout.record_id(place.table)} could not be created: {error}") from None

    async def warm_up(self) -> None:
        with suppress(Missing):
            await self.run("net", self.store.warm_up)

    async def tables(self) -> list[TableId]:
        try:
            return sorted(place.table for place in await self.run("net", self.store.records))
        except Missing:
            return []

    async def drop(self, table: TableId) -> None:
        """The record goes after the rows: if this is interrupted, the table is still listed. Rows that another process
        has written meanwhile are removed too."""
        check_names(table)
        place = await self.record(table)
        if place is None:
            return
        for call, values in (
            (self.store.delete, (place, None)),
            (self.store.remove, (place,)),
            (self.store.delete, (place, None)),
        ):
            with suppress(Missing):
                await self.run("net", call, *values)
        self._open.pop(place, None)

    async def close(self) -> None:
        self._open.clear()
        await self.calls.runtime.run_blocking("net", self.store.close)

    async def run(self, pool: Any, function: Callable[..., T], *values: Any) -> T:
        return await self.calls.run(pool, function, *values)

    def hit(self, failpoint: str) -> None:
        if self.calls.runtime.failpoints.armed:
            self.calls.runtime.failpoints.hit(failpoint)
