"""Blobs as files in a folder. A blob is written to a temporary file, flushed and renamed. Then its folder is
flushed."""

import asyncio
import errno
import hashlib
import os
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import cached_property, partial
from pathlib import Path
from threading import Lock
from typing import TypeVar

from penstock.blobs.base import FAILPOINTS as FAILPOINTS
from penstock.blobs.base import BlobInfo, BlobSum, Copied, OpenSubmit, Stored, Unread, check_key
from penstock.blobs.copying import copy_many
from penstock.blobs.submits import OpenSubmits
from penstock.errors import BlobMissing, BlobUnreadable, DiskFull, StorageError
from penstock.redaction import file_mode, make_folder
from penstock.runtime import THREAD_POOLS, Runtime, shielded

T = TypeVar("T")

TEMPORARY = ".tmp-"
_UNKNOWN = 1 << 30
"""The size that is assumed for blobs that may be large, and for writes with a flush, which are always slow."""
_READ = 128 << 10
WRITE_BACK = 8 << 20
"""After so many bytes the disk is asked to begin with them."""
_PIECE = 512 << 10
_LIST_BATCH = 1000


class LocalBlobs:
    def __init__(self, root: Path, runtime: Runtime) -> None:
        self._root = root
        self._runtime = runtime
        self._known_folders: set[str] = set()
        self._prefix = str(root) + os.sep
        self._submits = OpenSubmits(root / ".submits", self._make_durably)

    @cached_property
    def _mode(self) -> int:
        return file_mode(self._root)

    async def put(self, key: str, data: bytes, *, durable: bool) -> None:
        size = _UNKNOWN if durable else len(data)
        await self._runtime.run_sized("io", size, self._put_many, [(key, data)], durable)

    async def put_many(self, blobs: Sequence[tuple[str, bytes]], *, durable: bool) -> None:
        await self._runtime.run_blocking("io", self._put_many, blobs, durable)

    async def put_stream(self, key: str, pieces: AsyncIterator[bytes]) -> Stored:
        """Pieces arrive while those before them are hashed and written."""
        blocking = self._runtime.run_blocking
        stream = _Stream(self, self._place(key))
        writing: asyncio.Future[None] | None = None
        try:
            await blocking("io", stream.open)
            async for size, some in _joined(pieces):
                if writing is not None:
                    await writing
                writing = asyncio.ensure_future(self._runtime.run_sized("io", size, stream.write, some))
            if writing is not None:
                await writing
            return await blocking("io", stream.keep)
        except asyncio.CancelledError:
            stream.cancelled = True
            raise
        finally:
            # After a cancellation a thread may still be writing. `close` waits for it.
            if not stream.closed:
                await shielded(blocking("io", stream.close))
            if writing is not None:
                await asyncio.gather(writing, return_exceptions=True)

    async def stat(self, key: str) -> BlobInfo | None:
        place = self._place(key)
        try:
            found = await self._runtime.run_blocking("io", os.stat, place)
        except OSError as error:
            if isinstance(unread := _unread(place, error), BlobMissing):
                return None
            raise unread from error
        return BlobInfo(key, found.st_size, found.st_mtime)

    async def get(self, key: str, size: int | None = None) -> bytes:
        place = self._place(key)
        return await self._runtime.run_sized("io", _UNKNOWN if size is None else size, _readable, _content, place)

    async def get_many(self, keys: Sequence[str]) -> list[bytes | Unread]:
        return await self._side_by_side(keys, lambda key: _attempt(_content, self._place(key)))

    async def sums(self, keys: Sequence[str], *, content: bool = True) -> list[BlobSum | Unread]:
        look = _sum if content else _size
        return await self._side_by_side(keys, lambda key: _attempt(look, self._place(key)))

    async def _side_by_side(self, keys: Sequence[str], ask: Callable[[str], T]) -> list[T]:
        """Call `ask` for all keys, divided between the threads of the pool. One call of the pool for each blob would
        cost more than reading the blob."""
        part = -(-len(keys) // THREAD_POOLS["io"]) or 1
        parts = [keys[start : start + part] for start in range(0, len(keys), part)]
        answers = await asyncio.gather(*(self._runtime.run_blocking("io", lambda p: [*map(ask, p)], p) for p in parts))
        return [answer for some in answers for answer in some]

    async def read_range(self, key: str, offset: int, length: int) -> bytes:
        look = partial(_part, offset=offset, length=length)
        return await self._runtime.run_sized("io", length, _readable, look, self._place(key))

    @asynccontextmanager
    async def file(self, key: str) -> AsyncIterator[Path]:
        place = self._place(key)
        await self._runtime.run_blocking("io", _readable, os.stat, place)
        yield Path(place)

    async def delete(self, keys: Sequence[str]) -> None:
        await self._runtime.run_blocking("io", self._delete, keys)

    async def copy_out(self, keys: Sequence[str], folder: Path) -> Sequence[Copied | None]:
        return await self._copy([(Path(self._place(key)), folder / key) for key in keys])

    async def copy_in(self, keys: Sequence[str], folder: Path) -> Sequence[Copied | None]:
        return await self._copy([(folder / key, Path(self._place(key))) for key in keys])

    async def _copy(self, pairs: Sequence[tuple[Path, Path]]) -> Sequence[Copied | None]:
        return await self._runtime.run_blocking("io", _storable, self._root, lambda: copy_many(pairs))

    def submitting(self, since: str) -> AbstractAsyncContextManager[OpenSubmit]:
        return self._submits.hold(since)

    async def submitted_since(self) -> str | None:
        return await self._runtime.run_blocking("io", _storable, self._root, self._submits.oldest)

    async def list(self, prefix: str) -> AsyncIterator[BlobInfo]:
        walk = self._walk(prefix)
        while batch := await self._runtime.run_blocking("io", _take, walk):
            for info in batch:
                yield info

    def _place(self, key: str) -> str:
        return self._prefix + check_key(key)

    def _put_many(self, blobs: Sequence[tuple[str, bytes]], durable: bool) -> None:
        folders = set()
        for key, data in blobs:
            place = self._place(key)
            folder = os.path.dirname(place)
            self.make_folder(folder, durable)
            folders.add(folder)
            with self.temporary(place) as temporary:
                temporary.write(data)
                temporary.keep(durable)
        if durable:
            for folder in folders:
                _flush_folder(folder)
        self.stored()

    def temporary(self, place: str) -> "_Temporary":
        return _Temporary(place, self._runtime, self._mode)

    def stored(self) -> None:
        if self._runtime.failpoints.armed:
            self._runtime.failpoints.hit("blob.put.after")

    def make_folder(self, name: str, durable: bool) -> None:
        """Create a folder. If `durable`, also flush its parent, because the entry of a new folder is there."""
        if name in self._known_folders:
            return
        folder = Path(name)
        try:
            missing = make_folder(folder, self._root)
        except OSError as error:
            raise storage_error(folder, error) from error
        # A folder that another writer has just created is flushed again, because it may not have been flushed yet.
        for made in missing or [folder] if durable else []:
            _flush_folder(str(made.parent))
        if durable or not missing:
            self._known_folders.add(name)

    def _make_durably(self, folder: Path) -> None:
        for made in make_folder(folder, self._root):
            _flush_folder(str(made.parent))

    def _delete(self, keys: Sequence[str]) -> None:
        for place in map(self._place, keys):
            _storable(Path(place), partial(Path(place).unlink, missing_ok=True))

    def _walk(self, prefix: str) -> Iterator[BlobInfo]:
        folders = [self._place(prefix) if prefix else str(self._root)]
        while folders:
            try:
                entries = [*os.scandir(folders.pop())]
            except OSError:
                continue
            for entry in entries:
                try:
                    if entry.is_dir(follow_symlinks=False):
                        # Folders that begin with a dot belong to no owner: they hold the files of submits in progress.
                        if not entry.name.startswith("."):
                            folders.append(entry.path)
                        continue
                    info = entry.stat()
                except FileNotFoundError:
                    continue
                yield BlobInfo(entry.path.removeprefix(self._prefix), info.st_size, info.st_mtime)


class _Temporary:
    """A temporary file. `keep` renames it to its final name; otherwise it is removed."""

    def __init__(self, place: str, runtime: Runtime, mode: int) -> None:
        self._place = place
        self._mode = mode
        self._runtime = runtime
        self._temporary = f"{place}{TEMPORARY}{runtime.token()}"
        self._kept = False
        self.is_wanted: Callable[[], bool] = lambda: True
        """Asked after the fsync, which may take long."""

    def __enter__(self) -> "_Temporary":
        try:
            self._file = os.open(self._temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, self._mode)
        except OSError as error:
            raise storage_error(Path(self._place), error) from error
        return self

    def write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[os.write(self._file, view) :]

    def start_write_back(self, offset: int, length: int) -> None:
        """Let the disk begin with what was written, so that the flush at the end takes no longer than the rest."""
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(self._file, offset, length, os.POSIX_FADV_DONTNEED)

    def keep(self, durable: bool) -> None:
        if durable:
            os.fsync(self._file)
        if not self.is_wanted():
            return
        if self._runtime.failpoints.armed:
            self._runtime.failpoints.hit("blob.put.before")
        os.rename(self._temporary, self._place)
        self._kept = True

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            os.close(self._file)
            if not self._kept:
                Path(self._temporary).unlink(missing_ok=True)
        except OSError as failed:
            # Some file systems report a failed write only on close.
            error = error or failed
        if isinstance(error, OSError):
            raise storage_error(Path(self._place), error) from error


class _Stream:
    """A durable blob that is written piece by piece. Any thread of the pool may call it, one at a time."""

    def __init__(self, blobs: LocalBlobs, place: str) -> None:
        self._blobs = blobs
        self._place = place
        self._digest, self._size, self._started = hashlib.sha256(), 0, 0
        self._writing = Lock()
        self._temporary: _Temporary | None = None
        self.closed = False
        self.cancelled = False

    def open(self) -> None:
        with self._writing:
            if self.closed:
                return
            self._blobs.make_folder(os.path.dirname(self._place), durable=True)
            self._temporary = self._blobs.temporary(self._place).__enter__()
            self._temporary.is_wanted = lambda: not self.cancelled

    def write(self, pieces: list[bytes]) -> None:
        """Write pieces, and remove them from the list."""
        with self._writing:
            for piece in pieces:
                if self._temporary is None:
                    return
                self._digest.update(piece)
                self._size += len(piece)
                self._call(self._temporary.write, piece)
            pieces.clear()
            if self._temporary is not None and self._size - self._started >= WRITE_BACK:
                self._temporary.start_write_back(self._started, self._size - self._started)
                self._started = self._size

    def keep(self) -> Stored:
        with self._writing:
            if self._temporary is None:
                raise StorageError(f"{self._place} was closed while it was written")
            self._call(self._temporary.keep, True)
            self._end(None)
        _flush_folder(os.path.dirname(self._place))
        self._blobs.stored()
        return Stored(self._digest.hexdigest(), self._size)

    def close(self) -> None:
        """Close the stream, and remove the file unless `keep` was called."""
        with self._writing:
            self._end(None)

    def _call(self, function: Callable[[T], None], argument: T) -> None:
        try:
            function(argument)
        except BaseException as error:
            self._end(error)
            raise

    def _end(self, error: BaseException | None) -> None:
        self.closed = True
        ended, self._temporary = self._temporary, None
        if ended is not None:
            ended.__exit__(None, error, None)


async def _joined(pieces: AsyncIterator[bytes]) -> AsyncIterator[tuple[int, list[bytes]]]:
    """Pieces of about half a megabyte in all, and their size: a thread is asked less often, and nothing is copied."""
    size, held = 0, list[bytes]()
    async for piece in pieces:
        held.append(piece)
        size += len(piece)
        if size >= _PIECE:
            yield size, held
            size, held = 0, []
    if held:
        yield size, held


def _readable(look: Callable[[str], T], place: str) -> T:
    try:
        return look(place)
    except OSError as error:
        raise _unread(place, error) from error


def _attempt(look: Callable[[str], T], place: str) -> T | Unread:
    try:
        return look(place)
    except OSError as error:
        return _unread(place, error)


def _unread(place: str, error: OSError) -> Unread:
    if isinstance(error, FileNotFoundError):
        return BlobMissing(f"{place} is not there")
    return BlobUnreadable(f"{place} cannot be read: {error.strerror or error}")


def _storable(path: Path, work: Callable[[], T]) -> T:
    try:
        return work()
    except OSError as error:
        raise storage_error(Path(error.filename or path), error) from error


def _pieces(place: str) -> Iterator[bytes]:
    # Without a file object: creating one takes twice as long as reading a small file.
    descriptor = os.open(place, os.O_RDONLY | os.O_CLOEXEC)
    try:
        while piece := os.read(descriptor, _READ):
            yield piece
    finally:
        os.close(descriptor)


def _content(place: str) -> bytes:
    return b"".join(_pieces(place))


def _part(place: str, offset: int, length: int) -> bytes:
    with open(place, "rb") as file:
        file.seek(offset)
        return file.read(length)


def _sum(place: str) -> BlobSum:
    hashed, size = hashlib.sha256(), 0
    for piece in _pieces(place):
        hashed.update(piece)
        size += len(piece)
    return BlobSum(size, hashed.hexdigest())


def _size(place: str) -> BlobSum:
    return BlobSum(os.stat(place).st_size, None)


def make_home(folder: Path) -> None:
    """Create a folder and its missing parents durably."""
    try:
        for made in make_folder(folder, folder):
            _flush_folder(str(made.parent))
    except OSError as error:
        raise storage_error(folder, error) from error


def _flush_folder(folder: str) -> None:
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise storage_error(Path(folder), error) from error


def _take(walk: Iterator[BlobInfo]) -> list[BlobInfo]:
    batch = []
    for info in walk:
        batch.append(info)
        if len(batch) == _LIST_BATCH:
            break
    return batch


def storage_error(path: Path, error: OSError) -> StorageError:
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    return (DiskFull if full else StorageError)(storage_sentence(path, error))


def storage_sentence(path: Path, error: OSError) -> str:
    """An error message for a failed write, with what the user can do."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"the disk is full: {path} could not be written. Free some space and try again"
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return f"no permission to write {path}: make the folder writable, or choose another with --home"
    return f"{path} could not be written: {error.strerror or error}"
