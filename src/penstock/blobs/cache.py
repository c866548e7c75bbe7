"""Local copies of blobs, for parser processes, which read files. The cache is bounded, and several processes share it.

Whoever uses a copy holds a shared lock on it. Copies that nobody uses are removed, those that were not used for longest
first. A copy is written under a temporary name, which its writer locks: a temporary file without a lock was left by a
process that has died. The kernel releases the locks of a killed process."""

import asyncio
import fcntl
import hashlib
import os
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence
from contextlib import aclosing, asynccontextmanager, contextmanager, suppress
from pathlib import Path
from threading import Lock
from typing import NamedTuple

from penstock.blobs.local import storage_error
from penstock.redaction import file_mode, make_folder
from penstock.runtime import Runtime, shielded

_TEMPORARY = ".tmp-"
UNUSED_S = 86_400.0
"""Copies that were not used for so long are removed, because their blobs may have been deleted elsewhere."""


class FileCache:
    def __init__(self, folder: Path, limit: int, runtime: Runtime) -> None:
        """`limit`: the size in bytes up to which copies that nobody uses are kept."""
        self._folder = folder
        self._limit = limit
        self._runtime = runtime
        self._fetching: dict[str, asyncio.Lock] = {}

    @asynccontextmanager
    async def file(self, key: str, read: Callable[[], AsyncGenerator[bytes, None]]) -> AsyncIterator[Path]:
        """The blob as a file, and only within the context. `read` streams its bytes if there is no copy."""
        path = self._path(key)
        held: int | None = None
        while held is None:
            async with self._fetching.setdefault(key, asyncio.Lock()):
                held = _hold(path)
                if held is None:
                    held = await self._fetch(path, read)
        self._fetching.pop(key, None)
        try:
            yield path
        finally:
            await shielded(self._runtime.run_blocking("io", self._release, held))

    async def _fetch(self, path: Path, read: Callable[[], AsyncGenerator[bytes, None]]) -> int | None:
        """Store a copy, unless another process has stored it meanwhile, and lock it; None if it was removed at once."""
        blocking = self._runtime.run_blocking
        writer, held = _Writer(path, self._runtime.token()), None
        try:
            async with aclosing(read()) as pieces:
                async for piece in pieces:
                    await blocking("io", writer.write, piece)
            await blocking("io", writer.keep)
            # The lock of the writer keeps it until here.
            held = _hold(path)
        finally:
            try:
                # After a cancellation a thread may still be writing. `close` waits for it.
                await shielded(blocking("io", writer.close))
            except BaseException:
                if held is not None:
                    os.close(held)
                raise
        return held

    async def forget(self, keys: Sequence[str]) -> None:
        """Remove the copies of these blobs that nobody uses."""
        if self._folder.exists():
            paths = [str(self._path(key)) for key in keys]
            await self._runtime.run_blocking("io", lambda: [_remove_unused(path) for path in paths])

    def _path(self, key: str) -> Path:
        return self._folder / hashlib.sha256(key.encode()).hexdigest()

    def _release(self, descriptor: int) -> None:
        os.close(descriptor)
        self._shrink()

    def _shrink(self) -> None:
        """Remove files of dead processes, and copies that exceed the limit."""
        copies: list[_Copy] = []
        with suppress(FileNotFoundError), os.scandir(self._folder) as entries:
            for entry in entries:
                if _TEMPORARY in entry.name:
                    _remove_unused(entry.path)
                    continue
                with suppress(FileNotFoundError):
                    found = entry.stat()
                    copies.append(_Copy(found.st_mtime, found.st_size, entry.path))
        size = sum(copy.size for copy in copies)
        before = self._runtime.now() - UNUSED_S
        for copy in sorted(copies):
            if size <= self._limit and copy.used_at > before:
                return
            if _remove_unused(copy.path):
                size -= copy.size


class _Writer:
    """Writes a copy. Any thread may call it, one at a time."""

    def __init__(self, path: Path, token: str) -> None:
        self._path = path
        self._temporary = path.with_name(f"{path.name}{_TEMPORARY}{token}")
        self._writing = Lock()
        self._closed = False
        with self._storing():
            make_folder(path.parent, Path(path.anchor))
            flags = os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC
            self._descriptor = os.open(self._temporary, flags, file_mode(path.parent))
            fcntl.flock(self._descriptor, fcntl.LOCK_EX)

    def write(self, data: bytes) -> None:
        with self._storing():
            view = memoryview(data)
            while view and not self._closed:
                view = view[os.write(self._descriptor, view) :]

    def keep(self) -> None:
        with self._storing():
            if self._closed:
                return
            # A power failure must not leave a copy that is shorter than its blob.
            os.fsync(self._descriptor)
            fcntl.flock(self._descriptor, fcntl.LOCK_SH)
            # Not a rename: that would replace a copy that is in use, and its lock. If another process has removed the
            # temporary file before it was locked, the caller tries again.
            with suppress(FileExistsError, FileNotFoundError):
                os.link(self._temporary, self._path)

    def close(self) -> None:
        with self._storing():
            if not self._closed:
                self._closed = True
                try:
                    self._temporary.unlink(missing_ok=True)
                finally:
                    os.close(self._descriptor)

    @contextmanager
    def _storing(self) -> Iterator[None]:
        with self._writing:
            try:
                yield
            except OSError as error:
                raise storage_error(self._path, error) from error


class _Copy(NamedTuple):
    used_at: float
    size: int
    path: str


def _hold(path: Path) -> int | None:
    """Lock a copy for reading; None if there is none."""
    while True:
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        with suppress(FileNotFoundError):
            if os.path.samestat(os.stat(path), os.fstat(descriptor)):
                os.utime(descriptor)
                return descriptor
        # It was removed between the two calls.
        os.close(descriptor)


def _remove_unused(path: str) -> bool:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.unlink(path)
        return True
    except OSError:
        return False
    finally:
        os.close(descriptor)
