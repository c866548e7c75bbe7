"""Blobs with the small ones in the ledger: readers use one port, wherever the bytes are.

Only the rows that name small blobs write them (`engine/small_blobs.py`). Here they are read, listed and removed. A blob
that the ledger does not have is looked for in the blobs below: those of a trial are in the ledger of the app."""

import hashlib
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TypeVar

from penstock.blobs.base import BlobInfo, Blobs, BlobSum, Copied, OpenSubmit, Stored, Unread, parts_of
from penstock.blobs.small import is_small
from penstock.ledger.database.connection import Connection
from penstock.ledger.database.store import Ledger
from penstock.ledger.engine import small_blobs

S = TypeVar("S")
T = TypeVar("T")
_LAST = "\U0010ffff"


class LedgerBlobs:
    def __init__(self, ledger: Ledger, below: Blobs, small_bytes: int) -> None:
        """`small_bytes`: blobs up to this size are kept in the ledger."""
        self.small_bytes = small_bytes
        self._ledger = ledger
        self._below = below
        self._runtime = ledger.database.runtime
        self.parts = parts_of(below)

    async def put(self, key: str, data: bytes, *, durable: bool) -> None:
        await self._below.put(key, data, durable=durable)

    async def put_many(self, blobs: Sequence[tuple[str, bytes]], *, durable: bool) -> None:
        await self._below.put_many(blobs, durable=durable)

    async def put_stream(self, key: str, pieces: AsyncIterator[bytes]) -> Stored:
        return await self._below.put_stream(key, pieces)

    async def stat(self, key: str) -> BlobInfo | None:
        if is_small(key):
            found = await self._ledger.read(small_blobs.sizes, [key])
            if key in found:
                return BlobInfo(key, *found[key])
        return await self._below.stat(key)

    async def get(self, key: str, size: int | None = None) -> bytes:
        data = await self._small(key)
        return await self._below.get(key, size) if data is None else data

    async def get_many(self, keys: Sequence[str]) -> list[bytes | Unread]:
        return await _both(self._ledger, keys, small_blobs.get, lambda data: data, self._below.get_many)

    async def sums(self, keys: Sequence[str], *, content: bool = True) -> list[BlobSum | Unread]:
        below = partial(self._below.sums, content=content)
        if content:
            return await _both(self._ledger, keys, small_blobs.get, _sum, below)
        return await _both(self._ledger, keys, small_blobs.sizes, lambda found: BlobSum(found[0], None), below)

    async def read_range(self, key: str, offset: int, length: int) -> bytes:
        data = await self._small(key)
        return await self._below.read_range(key, offset, length) if data is None else data[offset : offset + length]

    @asynccontextmanager
    async def file(self, key: str) -> AsyncIterator[Path]:
        data = await self._small(key)
        if data is None:
            async with self._below.file(key) as path:
                yield path
            return
        with tempfile.NamedTemporaryFile(prefix="penstock-") as file:
            file.write(data)
            file.flush()
            yield Path(file.name)

    async def delete(self, keys: Sequence[str]) -> None:
        if small := [key for key in keys if is_small(key)]:
            await self._ledger.write(small_blobs.DELETE, small)
        if others := [key for key in keys if not is_small(key)]:
            await self._below.delete(others)

    async def copy_out(self, keys: Sequence[str], folder: Path) -> Sequence[Copied | None]:
        return await self._below.copy_out(keys, folder)

    async def copy_in(self, keys: Sequence[str], folder: Path) -> Sequence[Copied | None]:
        return await self._below.copy_in(keys, folder)

    def submitting(self, since: str) -> AbstractAsyncContextManager[OpenSubmit]:
        return self._below.submitting(since)

    async def submitted_since(self) -> str | None:
        return await self._below.submitted_since()

    async def list(self, prefix: str) -> AsyncIterator[BlobInfo]:
        async for info in self._below.list(prefix):
            yield info
        after, until = (f"{prefix}/", f"{prefix}/{_LAST}") if prefix else ("", _LAST)
        while rows := await self._ledger.read(small_blobs.page, after, until):
            for key, size, added_at in rows:
                yield BlobInfo(key, size, added_at)
            after = rows[-1][0]

    async def _small(self, key: str) -> bytes | None:
        return (await self._ledger.read(small_blobs.get, [key])).get(key) if is_small(key) else None


async def _both(
    ledger: Ledger,
    keys: Sequence[str],
    look: Callable[[Connection, Sequence[str]], dict[str, S]],
    answer: Callable[[S], T],
    below: Callable[[Sequence[str]], Awaitable[list[T | Unread]]],
) -> list[T | Unread]:
    """Answers from the ledger, and from the blobs below for keys that the ledger does not have."""
    small = [key for key in keys if is_small(key)]
    there = await ledger.read(look, small) if small else {}
    others = [key for key in keys if key not in there]
    rest = iter(await below(others) if others else [])
    return [answer(there[key]) if key in there else next(rest) for key in keys]


def _sum(data: bytes) -> BlobSum:
    return BlobSum(len(data), hashlib.sha256(data).hexdigest())
