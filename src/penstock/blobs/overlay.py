"""Blobs of a trial: new blobs are stored in its own folder. Blobs that are not there are read from the blobs of the
app, which are never changed."""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import TypeVar

from penstock.blobs.base import BlobInfo, Blobs, BlobSum, Copied, OpenSubmit, Stored, Unread
from penstock.errors import BlobMissing

T = TypeVar("T")


class OverlayBlobs:
    def __init__(self, own: Blobs, below: Blobs) -> None:
        self._own = own
        self._below = below

    async def put(self, key: str, data: bytes, *, durable: bool) -> None:
        await self._own.put(key, data, durable=durable)

    async def put_many(self, blobs: Sequence[tuple[str, bytes]], *, durable: bool) -> None:
        await self._own.put_many(blobs, durable=durable)

    async def put_stream(self, key: str, pieces: AsyncIterator[bytes]) -> Stored:
        return await self._own.put_stream(key, pieces)

    async def stat(self, key: str) -> BlobInfo | None:
        return await self._own.stat(key) or await self._below.stat(key)

    async def get(self, key: str, size: int | None = None) -> bytes:
        try:
            return await self._own.get(key, size)
        except BlobMissing:
            return await self._below.get(key, size)

    async def get_many(self, keys: Sequence[str]) -> list[bytes | Unread]:
        return await _both(keys, self._own.get_many, self._below.get_many)

    async def sums(self, keys: Sequence[str], *, content: bool = True) -> list[BlobSum | Unread]:
        return await _both(
            keys,
            lambda some: self._own.sums(some, content=content),
            lambda some: self._below.sums(some, content=content),
        )

    async def read_range(self, key: str, offset: int, length: int) -> bytes:
        try:
            return await self._own.read_range(key, offset, length)
        except BlobMissing:
            return await self._below.read_range(key, offset, length)

    @asynccontextmanager
    async def file(self, key: str) -> AsyncIterator[Path]:
        there = self._own if await self._own.stat(key) is not None else self._below
        async with there.file(key) as path:
            yield path

    async def delete(self, keys: Sequence[str]) -> None:
        await self._own.delete(keys)

    async def copy_out(self, keys: Sequence[str], folder: Path) -> Sequence[Copied | None]:
        return await self._own.copy_out(keys, folder)

    async def copy_in(self, keys: Sequence[str], folder: Path) -> Sequence[Copied | None]:
        return await self._own.copy_in(keys, folder)

    def submitting(self, since: str) -> AbstractAsyncContextManager[OpenSubmit]:
        return self._own.submitting(since)

    async def submitted_since(self) -> str | None:
        return await self._own.submitted_since()

    def list(self, prefix: str) -> AsyncIterator[BlobInfo]:
        return self._own.list(prefix)


async def _both(
    keys: Sequence[str],
    own: Callable[[Sequence[str]], Awaitable[list[T | Unread]]],
    below: Callable[[Sequence[str]], Awaitable[list[T | Unread]]],
) -> list[T | Unread]:
    found = await own(keys)
    missing = [i for i, one in enumerate(found) if isinstance(one, BlobMissing)]
    if missing:
        for i, one in zip(missing, await below([keys[i] for i in missing]), strict=True):
            found[i] = one
    return found
