"""Store a stream as one object, in parts, without a second copy of it."""

import asyncio
import hashlib
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import TYPE_CHECKING

from penstock.blobs.base import Stored
from penstock.blobs.object_errors import Errors
from penstock.errors import PenstockError
from penstock.runtime import Runtime, shielded

if TYPE_CHECKING:
    from penstock.net.buckets import Store

PART = 8 << 20
"""Bytes of one part. Stores allow 10,000 parts (Azure 50,000), so a blob may have 80 GB."""
PARTS_AT_ONCE = 2
"""Parts in flight: the memory of a stream is three parts."""


LEFT_S = 1.0


class _Stopped(Exception):
    """Ends an upload, so that the library removes its parts."""


class Upload:
    def __init__(self, store: "Store", path: str, errors: Errors, runtime: Runtime) -> None:
        self._store = store
        self._path = path
        self._errors = errors
        self._runtime = runtime
        self._digest, self._size = hashlib.sha256(), 0
        self._parts: asyncio.Queue[bytes | None] = asyncio.Queue(1)
        self._stopped = asyncio.Event()

    async def run(self, pieces: AsyncIterator[bytes]) -> Stored:
        """Exceptions of `pieces` are raised unchanged. After any exception there is no new object."""
        parts = self._cut(pieces)
        first = await anext(parts, b"")
        if len(first) < PART:
            self._hit_before()
            with self._errors:
                await self._store.put_async(self._path, first, use_multipart=False)
        else:
            await self._run_parts(first, parts)
        return Stored(self._digest.hexdigest(), self._size)

    async def _run_parts(self, first: bytes, parts: AsyncIterator[bytes]) -> None:
        upload = asyncio.create_task(self._upload(first))
        try:
            async for part in parts:
                await self._hand_over(part, upload)
            self._hit_before()
            await self._hand_over(None, upload)
            await asyncio.shield(upload)
        except BaseException:
            await shielded(self._take_back(upload))
            raise

    async def _take_back(self, upload: "asyncio.Task[None]") -> None:
        """End the upload. A store that does not answer is left alone: an object that no row names is garbage."""
        self._stopped.set()
        await asyncio.wait({upload}, timeout=LEFT_S)
        if not upload.done():
            upload.cancel()
        elif not upload.cancelled() and upload.exception() is None:
            with suppress(PenstockError), self._errors:
                await self._store.delete_async(self._path)

    async def _hand_over(self, part: bytes | None, upload: "asyncio.Task[None]") -> None:
        """Give a part to the upload. Raises its error if it has failed."""
        putting = asyncio.ensure_future(self._parts.put(part))
        await asyncio.wait({putting, upload}, return_when=asyncio.FIRST_COMPLETED)
        if not putting.done():
            putting.cancel()
            await asyncio.shield(upload)

    async def _upload(self, first: bytes) -> None:
        with self._errors:
            await self._store.put_async(
                self._path, self._taken(first), use_multipart=True, chunk_size=PART, max_concurrency=PARTS_AT_ONCE
            )

    async def _taken(self, first: bytes) -> AsyncIterator[bytes]:
        yield first
        del first
        while True:
            taking = asyncio.ensure_future(self._parts.get())
            stopping = asyncio.ensure_future(self._stopped.wait())
            try:
                await asyncio.wait({taking, stopping}, return_when=asyncio.FIRST_COMPLETED)
                if self._stopped.is_set():
                    raise _Stopped
                part = taking.result()
            finally:
                taking.cancel()
                stopping.cancel()
            if part is None:
                return
            yield part

    async def _cut(self, pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """Join and cut the pieces into parts. All but the last have the full size."""
        held = bytearray()
        async for piece in pieces:
            await self._runtime.run_sized("io", len(piece), self._digest.update, piece)
            self._size += len(piece)
            held += piece
            del piece
            while len(held) >= PART:
                yield bytes(held[:PART])
                del held[:PART]
        if held:
            yield bytes(held)

    def _hit_before(self) -> None:
        if self._runtime.failpoints.armed:
            self._runtime.failpoints.hit("blob.put.before")
