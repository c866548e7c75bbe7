"""The checkpoint writer. It buffers the output of a stage and decides when to flush.

A flush writes one segment, then the gated row that names it together with the new cursor. A crash in between leaves an
unreferenced blob; a crash afterwards loses nothing. The row of a small segment brings its bytes with it."""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Generic, TypeVar

import msgspec

from penstock.artifacts.segments import Codec, digest
from penstock.blobs.base import Blobs
from penstock.blobs.small import small_key, small_limit
from penstock.model.nouns import Artifact, Json, Segment
from penstock.runtime import Runtime

T = TypeVar("T")

FLUSH_S = 1.0
FLUSH_BYTES = 1 << 20
CARRY_BYTES = 128 << 10
"""An artifact up to this size is stored and may also be passed to the next step in memory."""


class Flush(msgspec.Struct, frozen=True):
    segments: tuple[Segment, ...]
    cursor: Json
    items: int
    advances: bool = True
    """The cursor is one that the artifact has not had before."""


def _encode(cursor: Json) -> bytes:
    return msgspec.json.encode(cursor, order="sorted")


class Checkpoint(Generic[T]):
    def __init__(
        self,
        *,
        artifact: Artifact,
        codec: Codec[T],
        prefix: str,
        blobs: Blobs,
        runtime: Runtime,
        commit: Callable[[Flush], Awaitable[None]],
        before_batch: Callable[[], Awaitable[None]],
        after_batch: Callable[[], Awaitable[None]],
        eager: bool,
        durable: bool = False,
        passed: Iterable[Json] = (),
    ) -> None:
        """`prefix` is the beginning of the segment keys and contains the epoch. `before_batch` is called before each
        batch, `after_batch` after it; the latter may end the step. `eager`: flush every batch, because the step has
        crashed before and must make progress. `durable`: fsync segments, because they cannot be made again. `passed`:
        cursors that the artifact had before. If a step starts again and reaches them, this is not progress (I7)."""
        self.cursor: Json = artifact.cursor
        self.items = artifact.items
        self.moved = False
        """Whether a new cursor, which the artifact did not have before, was committed since the step was claimed."""
        self.begun = False
        """Whether a batch was appended since the step was claimed."""
        self._codec = codec
        self._prefix = prefix
        self._blobs = blobs
        self._runtime = runtime
        self._commit = commit
        self._before_batch = before_batch
        self._after_batch = after_batch
        self._eager = eager
        self._durable = durable
        self.only: list[T] | None = [] if artifact.segments == 0 else None
        """All items of the artifact, if they fit into one small segment."""
        self._segments = artifact.segments
        self._buffer: list[T] = []
        self._buffered_items = 0
        self._buffered_bytes = 0
        self._start_cursor: Json = artifact.cursor
        self._passed = {_encode(cursor) for cursor in (artifact.cursor, *passed)}
        self._flushed_at = runtime.clock()

    async def append(
        self, items: Sequence[T], cursor: dict[str, Any], *, count: int | None = None, size: int = 0, keep: bool = False
    ) -> None:
        """Add one batch and the cursor after it. `count`: the number of items, if one object contains several; `size`:
        the approximate number of bytes; `keep`: flush now."""
        if not isinstance(cursor, dict):
            raise TypeError(f"a cursor must be a dictionary, not {type(cursor).__name__}")
        await self._before_batch()
        self._buffer.extend(items)
        self._buffered_items += len(items) if count is None else count
        self._buffered_bytes += size
        self.cursor = cursor
        self.begun = True
        late = self._runtime.clock() - self._flushed_at >= FLUSH_S
        if keep or self._eager or late or self._buffered_bytes >= FLUSH_BYTES:
            await self.flush()
        await self._after_batch()

    async def flush(self) -> None:
        """Write and commit the buffered items. Does nothing if the cursor has not moved."""
        if self.cursor == self._start_cursor and not self._buffer:
            return
        flush = await self._write()
        flush = msgspec.structs.replace(flush, advances=_encode(flush.cursor) not in self._passed)
        await self._commit(flush)
        self.moved = self.moved or flush.advances
        self._flushed_at = self._runtime.clock()

    async def close(self) -> Flush:
        """Write the last segment. The transaction that completes the step names it."""
        return await self._write()

    @property
    def segments(self) -> int:
        return self._segments

    @property
    def total(self) -> int:
        """The number of items so far, including buffered ones."""
        return self.items + self._buffered_items

    async def _write(self) -> Flush:
        segments: tuple[Segment, ...] = ()
        if self._buffer:
            data = self._codec.encode(self._buffer)
            key = f"{self._prefix}-{self._segments:06d}"
            is_small = len(data) <= small_limit(self._blobs)
            if is_small:
                owner, _, name = key.partition("/")
                key = small_key(owner, name.rpartition("/")[2])
            else:
                await self._blobs.put(key, data, durable=self._durable)
            kept = data if is_small else None
            hashed, counted = digest(data), self._buffered_items
            segments = (Segment(self._segments, key, hashed, len(data), counted, self.items, self._start_cursor, kept),)
            small = self._segments == 0 and len(data) <= CARRY_BYTES
            self.only = self._buffer if small else None
            self._segments += 1
            self.items += self._buffered_items
        self._buffer, self._buffered_items, self._buffered_bytes = [], 0, 0
        self._start_cursor = self.cursor
        return Flush(segments, self.cursor, self.items)
