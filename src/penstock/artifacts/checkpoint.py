"""The checkpoint writer: buffers what a stage makes and decides itself when to flush.

A flush writes one segment, then the gated row that names it together with the cursor behind it. A kill in between
leaves a blob that nobody names; a kill after it has lost nothing."""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Generic, TypeVar

import msgspec

from penstock.artifacts.segments import Codec, digest
from penstock.blobs.base import Blobs
from penstock.model.nouns import Artifact, Json, Segment
from penstock.runtime import Runtime

T = TypeVar("T")

FLUSH_S = 1.0
FLUSH_BYTES = 1 << 20
CARRY_BYTES = 128 << 10
"""An artifact up to this size may be handed to the next step in memory, besides being stored."""


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
        """`prefix` begins the segment keys and carries the epoch; `before_batch` is called before a batch is taken;
        `after_batch` after it, and may end the step; `eager`: flush every batch, because the step has crashed before
        and must show progress; `durable`: segments survive a power cut, because they cannot be made again; `passed`:
        cursors that the artifact has had before: a step that starts over comes to them again, and that is no progress
        (I7)."""
        self.cursor: Json = artifact.cursor
        self.items = artifact.items
        self.moved = False
        """A cursor that the artifact had not had before was committed since the step was claimed."""
        self.begun = False
        """A batch was handed in since the step was claimed."""
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
        """All items, while they fit into one small segment."""
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
        """One batch and the cursor behind it. `count`: how many items these are, where one object holds many; `size`:
        about how many bytes; `keep`: flush now."""
        if not isinstance(cursor, dict):
            raise TypeError(f"a cursor is a dictionary, not {type(cursor).__name__}")
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
        """Write and commit what is buffered; nothing to do if the cursor has not moved."""
        if self.cursor == self._start_cursor and not self._buffer:
            return
        flush = await self._write()
        flush = msgspec.structs.replace(flush, advances=_encode(flush.cursor) not in self._passed)
        await self._commit(flush)
        self.moved = self.moved or flush.advances
        self._flushed_at = self._runtime.clock()

    async def close(self) -> Flush:
        """The last segment, written but not named yet: that is done by the transaction that completes the step."""
        return await self._write()

    @property
    def segments(self) -> int:
        return self._segments

    @property
    def total(self) -> int:
        """Items so far, those not flushed yet included."""
        return self.items + self._buffered_items

    async def _write(self) -> Flush:
        segments: tuple[Segment, ...] = ()
        if self._buffer:
            data = self._codec.encode(self._buffer)
            key = f"{self._prefix}-{self._segments:06d}"
            await self._blobs.put(key, data, durable=self._durable)
            segments = (
                Segment(
                    self._segments, key, digest(data), len(data), self._buffered_items, self.items, self._start_cursor
                ),
            )
            small = self._segments == 0 and len(data) <= CARRY_BYTES
            self.only = self._buffer if small else None
            self._segments += 1
            self.items += self._buffered_items
        self._buffer, self._buffered_items, self._buffered_bytes = [], 0, 0
        self._start_cursor = self.cursor
        return Flush(segments, self.cursor, self.items)
