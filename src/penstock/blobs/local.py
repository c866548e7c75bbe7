"""Blobs in a folder: written beside their place, flushed, renamed, and the folder flushed too."""

import errno
import hashlib
import os
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

from penstock.blobs.base import BlobInfo
from penstock.errors import StorageError, UsageError
from penstock.runtime import Runtime

FAILPOINTS = ("blob.put.before", "blob.put.after")
TEMPORARY = ".tmp-"
_PIECE = 1 << 20
_LIST_BATCH = 1000


class LocalBlobs:
    def __init__(self, root: Path, runtime: Runtime) -> None:
        self._root = root
        self._runtime = runtime
        self._known_folders: set[Path] = set()

    async def put(self, key: str, data: bytes, *, durable: bool) -> None:
        await self._runtime.run_blocking("io", self._put_many, [(key, data)], durable)

    async def put_many(self, blobs: Sequence[tuple[str, bytes]], *, durable: bool) -> None:
        await self._runtime.run_blocking("io", self._put_many, blobs, durable)

    async def put_stream(self, key: str, source: BinaryIO) -> tuple[str, int]:
        return await self._runtime.run_blocking("io", self._put_stream, key, source)

    async def get(self, key: str) -> bytes:
        return await self._runtime.run_blocking("io", self._path(key).read_bytes)

    async def read_range(self, key: str, offset: int, length: int) -> bytes:
        return await self._runtime.run_blocking("io", self._read_range, key, offset, length)

    async def delete(self, keys: Sequence[str]) -> None:
        await self._runtime.run_blocking("io", self._delete, keys)

    async def list(self, prefix: str) -> AsyncIterator[BlobInfo]:
        walk = self._walk(prefix)
        while batch := await self._runtime.run_blocking("io", _take, walk):
            for info in batch:
                yield info

    def _path(self, key: str) -> Path:
        parts = key.split("/")
        if any(part in ("", ".", "..") for part in parts):
            raise UsageError(f"{key!r} is not a blob key")
        return self._root.joinpath(*parts)

    def _put_many(self, blobs: Sequence[tuple[str, bytes]], durable: bool) -> None:
        folders = set()
        for key, data in blobs:
            path = self._path(key)
            self._make_folder(path.parent, durable)
            folders.add(path.parent)
            with _Temporary(path, self._runtime) as temporary:
                temporary.file.write(data)
                temporary.keep(durable)
        if durable:
            for folder in folders:
                _flush_folder(folder)
        if self._runtime.failpoints.armed:
            self._runtime.failpoints.hit("blob.put.after")

    def _put_stream(self, key: str, source: BinaryIO) -> tuple[str, int]:
        path = self._path(key)
        self._make_folder(path.parent, durable=True)
        digest, size = hashlib.sha256(), 0
        with _Temporary(path, self._runtime) as temporary:
            while piece := source.read(_PIECE):
                digest.update(piece)
                size += len(piece)
                temporary.file.write(piece)
            temporary.keep(durable=True)
        _flush_folder(path.parent)
        if self._runtime.failpoints.armed:
            self._runtime.failpoints.hit("blob.put.after")
        return digest.hexdigest(), size

    def _make_folder(self, folder: Path, durable: bool) -> None:
        """A new folder is only as durable as its entry in the one above."""
        if folder in self._known_folders:
            return
        missing = [folder, *folder.parents]
        missing = missing[: next(i for i, f in enumerate(missing) if f.exists())]
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StorageError(storage_sentence(folder, error)) from error
        if durable:
            for made in missing:
                _flush_folder(made.parent)
            self._known_folders.add(folder)

    def _read_range(self, key: str, offset: int, length: int) -> bytes:
        with self._path(key).open("rb") as file:
            file.seek(offset)
            return file.read(length)

    def _delete(self, keys: Sequence[str]) -> None:
        for key in keys:
            self._path(key).unlink(missing_ok=True)

    def _walk(self, prefix: str) -> Iterator[BlobInfo]:
        base = self._path(prefix) if prefix else self._root
        for folder, _, names in os.walk(base):
            for name in names:
                path = Path(folder, name)
                try:
                    info = path.stat()
                except FileNotFoundError:
                    continue
                yield BlobInfo(path.relative_to(self._root).as_posix(), info.st_size, info.st_mtime)


class _Temporary:
    """A file that becomes visible under its name by `keep`, or not at all."""

    def __init__(self, path: Path, runtime: Runtime) -> None:
        self._path = path
        self._runtime = runtime
        self._temporary = path.with_name(f"{path.name}{TEMPORARY}{runtime.token()}")
        self._kept = False

    def __enter__(self) -> "_Temporary":
        try:
            self.file = self._temporary.open("wb")
        except OSError as error:
            raise StorageError(storage_sentence(self._path, error)) from error
        return self

    def keep(self, durable: bool) -> None:
        self.file.flush()
        if durable:
            os.fsync(self.file.fileno())
        if self._runtime.failpoints.armed:
            self._runtime.failpoints.hit("blob.put.before")
        self._temporary.rename(self._path)
        self._kept = True

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            self.file.close()
        except OSError as closing:
            error = error or closing
        if not self._kept:
            self._temporary.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise StorageError(storage_sentence(self._path, error)) from error


def _flush_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _take(walk: Iterator[BlobInfo]) -> list[BlobInfo]:
    batch = []
    for info in walk:
        batch.append(info)
        if len(batch) == _LIST_BATCH:
            break
    return batch


def storage_sentence(path: Path, error: OSError) -> str:
    """What the disk said, as a sentence that a person can act on."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"the disk is full: {path} could not be written. Free some space and run the same command again"
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return f"no permission to write {path}: make the folder writable, or choose another with --home"
    return f"{path} could not be written: {error.strerror or error}"
