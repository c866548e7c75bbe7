"""index: chunks and vectors become rows. Small documents share a commit; a large one makes several, with a checkpoint
behind each."""

from collections.abc import AsyncIterator, Sequence
from typing import Generic, NamedTuple, Protocol, TypeVar

from penstock.indexes.base import Fence, IndexRows
from penstock.model.items import Chunk, Vectors
from penstock.stages.base import StepContext

COMMIT_ROWS = 2000
OPTIMIZE_ROWS = 50_000
"""Rows of one document after which the text index is brought up to date; at its end alone would take much memory."""


class Writable(Protocol):
    """What is needed of an index table."""

    async def put(self, rows: Sequence[IndexRows], fence: Fence, *, fresh: bool) -> None: ...

    async def optimize(self, fence: Fence) -> None:
        """Nothing to do where a server does it itself."""


Ctx = TypeVar("Ctx", bound=StepContext)


class Entry(NamedTuple, Generic[Ctx]):
    """A step of a group. `resumed`: rows of it may be in the index already, so it is merged by id."""

    ctx: Ctx
    resumed: bool


def chunk_count(ctx: StepContext) -> int:
    count: int = ctx.input_meta("chunk").get("chunks", 0)
    return count


async def write_small(entries: Sequence[Entry[Ctx]], rows: Sequence[IndexRows], table: Writable, fence: Fence) -> None:
    """Documents that fit into one commit together; those that were begun before go into a second one, by id."""
    fresh = [r for entry, r in zip(entries, rows, strict=True) if not entry.resumed]
    again = [r for entry, r in zip(entries, rows, strict=True) if entry.resumed]
    if fresh:
        await table.put(fresh, fence, fresh=True)
    if again:
        await table.put(again, fence, fresh=False)


async def write_large(entry: Entry[Ctx], table: Writable, fence: Fence) -> None:
    """A document of many commits, from its checkpoint on. Only the first commit after an interruption can meet rows
    that are there already."""
    checkpoint = entry.ctx.checkpoint
    done: int = checkpoint.cursor.get("rows", 0)
    fresh = not entry.resumed
    async for rows in rows_of(entry.ctx, done):
        await table.put([rows], fence, fresh=fresh)
        fresh = True
        done += len(rows.chunks)
        if done % OPTIMIZE_ROWS < COMMIT_ROWS:
            await table.optimize(fence)
        await checkpoint.append([], {"rows": done})
        await checkpoint.flush()


async def all_rows(ctx: StepContext) -> IndexRows:
    """The rows of a small document."""
    async for rows in rows_of(ctx):
        return rows
    raise ValueError(f"document {ctx.document.id} has no chunks to index")


async def rows_of(ctx: StepContext, start: int = 0) -> AsyncIterator[IndexRows]:
    """The document's rows from ordinal `start` on, in pieces of at most COMMIT_ROWS."""
    vectors = _VectorStream(ctx.inputs("embed", start))
    chunks: list[Chunk] = []
    async for some in ctx.inputs("chunk", start):
        chunks.extend(some)
        while len(chunks) >= COMMIT_ROWS:
            yield _rows(ctx, chunks[:COMMIT_ROWS], await vectors.take(COMMIT_ROWS))
            del chunks[:COMMIT_ROWS]
    if chunks:
        yield _rows(ctx, chunks, await vectors.take(len(chunks)))


def _rows(ctx: StepContext, chunks: Sequence[Chunk], vectors: Vectors) -> IndexRows:
    return IndexRows(ctx.generation.id, ctx.step.lease.epoch, ctx.document.id, chunks, vectors)


class _VectorStream:
    """Vectors in pieces of any length."""

    def __init__(self, batches: AsyncIterator[list[Vectors]]) -> None:
        self._batches = batches
        self._held: list[Vectors] = []
        self._count = 0

    async def take(self, count: int) -> Vectors:
        while self._count < count:
            for block in await anext(self._batches):
                self._held.append(block)
                self._count += len(block)
        import numpy as np

        rows = np.concatenate(self._held) if len(self._held) > 1 else self._held[0]
        self._held = [rows[count:]]
        self._count -= count
        return rows[:count]
