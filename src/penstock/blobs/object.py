"""Blobs as objects in a bucket: `s3://BUCKET/PREFIX`, `gs://…` and `az://…`.

A blob is durable when the store has acknowledged it. Every key is written by one writer only (it contains a ULID, or
the token of a lease), and the ledger decides what counts: no put needs a condition.

The library repeats failed requests for `http.patience_s` seconds. After that, `Away` with the name of the bucket as its
target is raised, and all steps wait until the store answers again."""

import asyncio
import builtins
import hashlib
import os
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from penstock.blobs.base import TARGET, BlobInfo, BlobSum, Copied, OpenSubmit, Stored, Unread, check_key
from penstock.blobs.cache import FileCache
from penstock.blobs.copying import copy
from penstock.blobs.object_errors import Cut, Errors
from penstock.blobs.object_submits import SUBMITS, ObjectSubmits
from penstock.blobs.object_upload import Upload
from penstock.blobs.s3_parts import S3Parts
from penstock.config_http import HttpConfig
from penstock.errors import BlobMissing, BlobUnreadable, StorageError
from penstock.net.buckets import open_store, parse
from penstock.net.s3_requests import place_of
from penstock.runtime import Runtime

if TYPE_CHECKING:
    from obstore import GetResult, ObjectMeta

T = TypeVar("T")
U = TypeVar("U")

AT_ONCE = 16
"""Requests of one call that are in flight at once."""
PAGE = 1_000
"""Keys of one page of a listing, and of one delete."""
PIECE = 1 << 20
CUT_TRIES = 5
"""How often the body of an answer is asked for again after its connection was cut."""


class ObjectBlobs:
    def __init__(
        self,
        scheme: str,
        rest: str,
        runtime: Runtime,
        config: HttpConfig,
        environment: Mapping[str, str],
        *,
        cache: Path,
        cache_megabytes: int,
    ) -> None:
        """`rest`: `BUCKET/PREFIX`. `cache`: the folder for copies that parser processes read."""
        bucket, prefix = parse(scheme, rest, environment)
        folder = prefix.rstrip("/")
        self._folder = f"{folder}/" if folder else ""
        self._errors = Errors(bucket, f"{TARGET}{bucket!r}/{folder}".rstrip("/"))
        self._runtime = runtime
        self._store = open_store(bucket, environment, config, retries=True)
        self._cache = FileCache(cache, cache_megabytes << 20, runtime)
        self._submits = ObjectSubmits(self._store, self._folder, self._errors, runtime)
        place = place_of(bucket.name, environment) if scheme == "s3" else None
        self.parts = None if place is None else S3Parts(place, self._folder, self._errors, runtime)
        """None: only for s3, and only with a key in the environment."""

    async def put(self, key: str, data: bytes, *, durable: bool) -> None:
        await self.put_many([(key, data)], durable=durable)

    async def put_many(self, blobs: Sequence[tuple[str, bytes]], *, durable: bool) -> None:
        await self._submits.before(*(key for key, _ in blobs))
        await self._each(blobs, lambda blob: self._put(*blob))

    async def _put(self, key: str, data: bytes) -> None:
        path = self._path(key)
        self._hit("blob.put.before")
        with self._errors:
            await self._store.put_async(path, data, use_multipart=False)
        self._hit("blob.put.after")

    async def put_stream(self, key: str, pieces: AsyncIterator[bytes]) -> Stored:
        path = self._path(key)
        await self._submits.before(key)
        stored = await Upload(self._store, path, self._errors, self._runtime).run(pieces)
        self._hit("blob.put.after")
        return stored

    async def stat(self, key: str) -> BlobInfo | None:
        found = await self._head(key)
        return None if found is None else BlobInfo(key, found["size"], found["last_modified"].timestamp())

    async def _head(self, key: str) -> "ObjectMeta | None":
        path = self._path(key)
        try:
            with self._errors:
                return await self._store.head_async(path)
        except BlobMissing:
            return None

    async def get(self, key: str, size: int | None = None) -> bytes:
        path = self._path(key)

        async def read() -> bytes:
            with self._errors:
                answer = await self._store.get_async(path)
                data = bytes(await answer.bytes_async())
            self._check_whole(key, answer, len(data))
            return data

        return await self._patiently(read)

    async def get_many(self, keys: Sequence[str]) -> builtins.list[bytes | Unread]:
        return await self._each(keys, lambda key: _answer(self.get(key)))

    async def sums(self, keys: Sequence[str], *, content: bool = True) -> builtins.list[BlobSum | Unread]:
        return await self._each(keys, lambda key: _answer(self._sum(key) if content else self._size(key)))

    async def _size(self, key: str) -> BlobSum:
        found = await self._head(key)
        if found is None:
            raise BlobMissing(f"{key} is not there")
        return BlobSum(found["size"], None)

    async def _sum(self, key: str) -> BlobSum:
        async def read() -> BlobSum:
            hashed, size = hashlib.sha256(), 0
            async with aclosing(self._stream(key)) as pieces:
                async for piece in pieces:
                    await self._runtime.run_sized("io", len(piece), hashed.update, piece)
                    size += len(piece)
            return BlobSum(size, hashed.hexdigest())

        return await self._patiently(read)

    async def read_range(self, key: str, offset: int, length: int) -> bytes:
        path = self._path(key)
        if length <= 0:
            await self._size(key)
            return b""

        async def read() -> bytes:
            with self._errors:
                return bytes(await self._store.get_range_async(path, start=offset, length=length))

        try:
            return await self._patiently(read)
        except StorageError:
            # The stores answer with different errors to a range after the end.
            if offset >= (await self._size(key)).size:
                return b""
            raise

    @asynccontextmanager
    async def file(self, key: str) -> AsyncIterator[Path]:
        self._path(key)
        async with self._cache.file(key, lambda: self._stream(key)) as path:
            yield path

    async def delete(self, keys: Sequence[str]) -> None:
        paths = [self._path(key) for key in keys]
        await self._cache.forget(keys)
        for start in range(0, len(paths), PAGE):
            await self._delete(paths[start : start + PAGE])

    async def _delete(self, paths: Sequence[str]) -> None:
        try:
            with self._errors:
                await self._store.delete_async([*paths])
        except BlobMissing:
            # Some stores report a missing object, and may not have reached the others.
            if len(paths) > 1:
                await self._each(paths, lambda path: self._delete([path]))

    async def copy_out(self, keys: Sequence[str], folder: Path) -> Sequence[Copied | None]:
        return await self._each(keys, lambda key: self._copy_out(key, folder / key))

    async def _copy_out(self, key: str, target: Path) -> Copied | None:
        try:
            async with self.file(key) as path:
                return await self._runtime.run_blocking("io", copy, path, target)
        except BlobMissing:
            return None

    async def copy_in(self, keys: Sequence[str], folder: Path) -> Sequence[Copied | None]:
        return await self._each(keys, lambda key: self._copy_in(key, folder / key))

    async def _copy_in(self, key: str, source: Path) -> Copied | None:
        try:
            file = os.open(source, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return None

        async def pieces() -> AsyncIterator[bytes]:
            while piece := await self._runtime.run_blocking("io", os.read, file, PIECE):
                yield piece

        try:
            return Copied(*await self.put_stream(key, pieces()))
        finally:
            os.close(file)

    def submitting(self, since: str) -> AbstractAsyncContextManager[OpenSubmit]:
        return self._submits.hold(since)

    async def submitted_since(self) -> str | None:
        return await self._submits.oldest()

    async def list(self, prefix: str) -> AsyncIterator[BlobInfo]:
        path = (self._path(prefix) if prefix else self._folder).rstrip("/")
        pages = aiter(self._store.list(path or None, chunk_size=PAGE))
        while True:
            with self._errors:
                page = await anext(pages, None)
            if page is None:
                return
            for found in page:
                key = found["path"].removeprefix(self._folder)
                if not key.startswith(SUBMITS):
                    yield BlobInfo(key, found["size"], found["last_modified"].timestamp())

    def _path(self, key: str) -> str:
        return self._folder + check_key(key)

    def _hit(self, failpoint: str) -> None:
        if self._runtime.failpoints.armed:
            self._runtime.failpoints.hit(failpoint)

    async def _stream(self, key: str) -> AsyncGenerator[bytes, None]:
        """The bytes of a blob in pieces. Raises Away if the connection is cut."""
        path, size = self._path(key), 0
        with self._errors:
            answer = await self._store.get_async(path)
        pieces = aiter(answer.stream(min_chunk_size=PIECE))
        while True:
            with self._errors:
                piece = await anext(pieces, None)
            if piece is None:
                break
            size += len(piece)
            yield bytes(piece)
        self._check_whole(key, answer, size)

    def _check_whole(self, key: str, answer: "GetResult", size: int) -> None:
        if size != answer.meta["size"]:
            raise Cut(f"{key}: the connection was cut", target=self._errors.target)

    async def _patiently(self, read: Callable[[], Awaitable[T]]) -> T:
        """The library does not repeat a request after the first bytes of its answer: repeat it here."""
        for _ in range(CUT_TRIES):
            try:
                return await read()
            except Cut:
                await self._runtime.sleep(self._runtime.random())
        return await read()

    async def _each(self, items: Sequence[T], call: Callable[[T], Awaitable[U]]) -> builtins.list[U]:
        """Call for all items, some at once. All have ended when this returns or raises."""
        free = asyncio.Semaphore(AT_ONCE)

        async def one(item: T) -> U:
            async with free:
                return await call(item)

        tasks = [asyncio.create_task(one(item)) for item in items]
        try:
            return await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def _answer(read: Awaitable[T]) -> T | Unread:
    try:
        return await read
    except (BlobMissing, BlobUnreadable) as error:
        return error
