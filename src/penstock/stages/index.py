"""index: turns chunks and vectors into index rows. Small documents share a commit. A large document makes several, with
a checkpoint after each."""

from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, Protocol

from penstock.artifacts.fingerprints import fingerprint
from penstock.artifacts.segments import JSON_ITEMS
from penstock.errors import Away, Permanent
from penstock.indexes.base import Fence, IndexRows, title_of
from penstock.model.items import Chunk, Vectors
from penstock.model.states import DocumentStatus
from penstock.runtime import Runtime
from penstock.stages.base import Alone, GroupedStage, Member, Ports, StepContext, StepResult

COMMIT_ROWS = 2000
OPTIMIZE_ROWS = 50_000
"""The text index is updated after this many rows of one document. A single update at the end would need much memory."""


class Writable(Protocol):
    """The operations that this stage needs of an index table."""

    async def put(self, rows: Sequence[IndexRows], fence: Fence, *, fresh: bool) -> None: ...

    async def optimize(self, fence: Fence) -> None:
        """Update the text index. There is nothing to do if a server does that itself."""


class Target(NamedTuple):
    """The table of a group, and the check that is made right before each commit to it."""

    table: Writable
    fence: Fence


def chunk_count(ctx: StepContext) -> int:
    count: int = ctx.input_meta("chunk").get("chunks", 0)
    return count


def weigh(ctx: StepContext) -> int:
    """The rows of a document. Vectors of another model than the present one are refused: the version belongs to the
    present one, and the settings may have changed between the steps."""
    model = ctx.ports.embedder_for(ctx.params).model
    made_with = ctx.input_meta("embed").get("embedder_fingerprint")
    if made_with not in (None, model.fingerprint, *model.former_names):
        raise Permanent(
            f"its vectors were made with {made_with}, but the embedder is {model.fingerprint} now: retry the document, "
            "which embeds it again",
            reason="embedder_changed",
        )
    return chunk_count(ctx)


async def write(target: Target, members: Sequence[Member[Any]], rows: Sequence[IndexRows]) -> None:
    """Write documents that fit into one commit. Documents that were begun before go into a second commit, by id."""
    fresh = [r for member, r in zip(members, rows, strict=True) if not member.resumed]
    again = [r for member, r in zip(members, rows, strict=True) if member.resumed]
    if fresh:
        await target.table.put(fresh, target.fence, fresh=True)
    if again:
        await target.table.put(again, target.fence, fresh=False)


async def write_large(target: Target, member: Member[Any]) -> None:
    """Write a document of many commits, from its checkpoint on. Only the first commit after an interruption can meet
    rows that exist already."""
    ctx: StepContext = member.ctx
    done: int = ctx.checkpoint.cursor.get("rows", 0)
    fresh = not member.resumed
    async for rows in rows_of(ctx, done):
        await target.table.put([rows], target.fence, fresh=fresh)
        fresh = True
        done += len(rows.chunks)
        if done % OPTIMIZE_ROWS < COMMIT_ROWS:
            await target.table.optimize(target.fence)
        await ctx.checkpoint.append([], {"rows": done})
        await ctx.checkpoint.flush()


async def all_rows(ctx: StepContext) -> IndexRows:
    """Return the rows of a small document."""
    async for rows in rows_of(ctx):
        return rows
    raise ValueError(f"document {ctx.document.id} has no chunks to index")


async def rows_of(ctx: StepContext, start: int = 0) -> AsyncIterator[IndexRows]:
    """Yield the rows of a document from ordinal `start` on, in pieces of at most COMMIT_ROWS."""
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
    return IndexRows(ctx.generation.id, ctx.step.lease.epoch, ctx.document.id, chunks, vectors, _title(ctx))


def _title(ctx: StepContext) -> str:
    try:
        found = ctx.input_meta("extract").get("metadata", {})
    except Permanent:
        # A workflow may have no extract step.
        found = {}
    return title_of(ctx.document.name, ctx.document.metadata, found if isinstance(found, dict) else {})


class _VectorStream:
    """A stream from which any number of vectors can be taken."""

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


async def warm_up(ports: Ports, runtime: Runtime) -> None:
    index = await runtime.run_blocking("index", lambda: ports.index)
    # If the server does not answer, the steps that need it wait.
    with suppress(Away):
        await index.warm_up()


INDEX = GroupedStage(
    "index",
    write,
    group_key=lambda document, generation: f"{document.collection}/{generation.index_version}",
    exclusive=lambda ports, generation: ports.index.at(generation.store).traits.single_writer,
    weigh=weigh,
    most=lambda: COMMIT_ROWS,
    load=all_rows,
    alone=Alone(
        write_large,
        JSON_ITEMS,
        lambda ctx: fingerprint("index", ctx.step.generation_id, ctx.generation.index_version),
    ),
    result=lambda ctx: StepResult({"rows": chunk_count(ctx)}, end=DocumentStatus.COMPLETED),
    inputs=("chunk", "embed"),
    warm_up=warm_up,
)
