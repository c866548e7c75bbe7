"""Files and folders as a source: recursive and sorted, without hidden files and without links that lead out of the
folder."""

import errno
import io
import os
import stat
from collections.abc import AsyncGenerator, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from penstock.errors import SourceChanged, SourceError, UsageError
from penstock.runtime import Runtime
from penstock.sources import sidecars
from penstock.sources.base import Change, Found, Known, compared
from penstock.sources.patterns import is_wanted

PIECE = 1 << 20
TRIES = 3
"""How often a small file is read if it changes each time."""
_BATCH = 256


class _Place(NamedTuple):
    path: Path
    within: Path | None
    """The folder that was searched; None: the caller named the file itself, and a link is followed."""


class FolderSource:
    """Finds and reads files. The URI of a file is its absolute path."""

    repeatable = True

    def __init__(
        self,
        paths: Sequence[Path],
        runtime: Runtime,
        *,
        include: Sequence[str] = (),
        exclude: Sequence[str] = (),
        skip: Path | None = None,
    ) -> None:
        """`skip`: a folder to ignore, such as the home."""
        self._paths = paths
        self._runtime = runtime
        self._include, self._exclude, self._skip = include, exclude, skip
        self.problems: list[str] = []

    async def discover(self, known: Known) -> AsyncGenerator[Found, None]:
        seen: set[str] = set()
        files = self._find(seen)
        while batch := await self._runtime.run_blocking("io", _take, files):
            for found in compared(batch, await known.revisions([one.uri for one in batch])):
                yield found
        if self.problems:
            return
        for path in self._paths:
            if path.is_dir():
                async for uri in known.under(source_of(path.absolute()).rstrip("/") + "/"):
                    # A file that a pattern excludes still exists.
                    if uri not in seen and not os.path.exists(uri):
                        seen.add(uri)
                        yield Found(uri, os.path.basename(uri), change=Change.GONE)

    def _find(self, seen: set[str]) -> Iterator[Found]:
        """Yield every file once, even if it is named several times."""
        for path in self._paths:
            if not os.path.lexists(path):
                raise UsageError(f"{printable(path)}: no such file or folder")
            if path.exists() and not path.is_dir() and not path.is_file():
                # A pipe may never end, and a device is not a document.
                self.problems.append(f"{printable(path)}: not a file or folder (use - for what a pipe brings)")
                continue
            root = path.absolute() if path.is_dir() else None
            files = _named(path.absolute()) if root is None else self._files(root)
            for file in files:
                uri = source_of(file)
                if uri not in seen:
                    seen.add(uri)
                    try:
                        metadata = _sidecar(file, root)
                    except SourceError as error:
                        self.problems.append(str(error))
                        continue
                    yield Found(uri, printable(file.name), _revision(file), place=_Place(file, root), metadata=metadata)

    def _files(self, root: Path) -> Iterator[Path]:
        return _walk(root, self._include, self._exclude, self.problems, self._skip)

    async def read(self, found: Found) -> AsyncGenerator[bytes, None]:
        try:
            with await self._runtime.run_blocking("io", _open, found.place) as file:
                before, size = os.fstat(file.fileno()), 0
                while piece := await self._runtime.run_blocking("io", file.read, PIECE):
                    size += len(piece)
                    if size > before.st_size:
                        # The file may grow without end.
                        raise SourceChanged(CHANGING)
                    yield piece
                if not _same(before, os.fstat(file.fileno())):
                    raise SourceChanged(CHANGING)
        except OSError as error:
            raise SourceError(error.strerror or str(error)) from error

    def read_now(self, found: Found, most: int) -> bytes | None:
        try:
            return _steady(found.place, most)
        except OSError as error:
            raise SourceError(error.strerror or str(error)) from error

    def peek(self, found: Found, most: int) -> tuple[bytes, int]:
        try:
            with _open(found.place) as file:
                return file.read(most), os.fstat(file.fileno()).st_size
        except OSError as error:
            raise SourceError(error.strerror or str(error)) from error


def open_found(found: Found) -> BinaryIO:
    """Open a file that `discover` has found. Raises SourceError."""
    try:
        return _open(found.place)
    except OSError as error:
        raise SourceError(error.strerror or str(error)) from error


CHANGING = "it keeps changing while it is read: try again when its writer is done"


def _take(files: Iterator[Found]) -> list[Found]:
    return list(islice(files, _BATCH))


def _revision(path: Path) -> str:
    """Size, modification time, device, inode, and time of the last status change, which users cannot set. An equal
    revision does not prove that the bytes are equal: two writes within one clock tick can give equal values."""
    try:
        found = path.stat()
    except OSError:
        return ""
    return f"{found.st_size}-{found.st_mtime_ns}-{found.st_dev}.{found.st_ino}-{found.st_ctime_ns}"


def _walk(
    root: Path, include: Sequence[str], exclude: Sequence[str], problems: list[str], skip: Path | None
) -> Iterator[Path]:
    inside = os.path.realpath(root)

    def vanished(error: OSError) -> None:
        problems.append(f"{printable(error.filename)}: {error.strerror}")

    for folder, folders, files in os.walk(root, onerror=vanished):
        folders[:] = sorted(
            name for name in folders if not name.startswith(".") and (skip is None or Path(folder, name) != skip)
        )
        names = set(files)
        for name in sorted(files):
            path = Path(folder, name)
            if sidecars.subject(name) in names:
                continue
            if name.startswith(".") or not is_wanted(path.relative_to(root), include, exclude):
                continue
            if path.is_symlink() and not _is_inside(path, inside):
                continue
            if path.is_file():
                yield path


def _named(path: Path) -> list[Path]:
    """A file that the caller names, unless it is the sidecar of another file."""
    subject = sidecars.subject(path.name)
    return [] if subject is not None and path.with_name(subject).is_file() else [path]


def _sidecar(file: Path, root: Path | None) -> dict[str, Any]:
    """The metadata in the sidecar of a file; empty if it has none. Raises SourceError that names the sidecar."""
    for suffix in sidecars.SUFFIXES:
        path = file.with_name(file.name + suffix)
        if not os.path.lexists(path):
            continue
        try:
            data = _steady(_Place(path, root), sidecars.LARGEST)
            if data is None:
                raise SourceError(f"it has more than {sidecars.LARGEST:,} bytes")
            return sidecars.parse(data, path.name)
        except (OSError, SourceError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            raise SourceError(f"{printable(path)}: {reason}; {printable(file.name)} was not submitted") from error
    return {}


def _is_inside(path: Path, root: str) -> bool:
    target = os.path.realpath(path)
    return target.startswith(root + os.sep) and os.path.exists(target)


def source_of(path: Path) -> str:
    return printable(path)


def printable(path: Path | str) -> str:
    """A path as text that every database can store. If it is not UTF-8, invalid bytes become \\xNN and backslashes are
    doubled, so that different paths stay different."""
    raw = os.fsencode(path)
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw.replace(b"\\", b"\\\\").decode("utf-8", "backslashreplace")


def _open(place: _Place) -> io.BufferedReader:
    """Open the path if it is a regular file now. It may have been replaced since it was found: opening a pipe could
    block forever, and a link could lead out of the folder. Raises OSError."""
    try:
        file = _open_regular(place.path, os.O_NOFOLLOW if place.within is not None else 0)
    except OSError as error:
        if place.within is None or error.errno != errno.ELOOP:
            raise
        file = _open_regular(place.path, 0)
        if not _is_within(file, place.path, place.within):
            file.close()
            raise OSError(errno.ELOOP, "it is a link that leads out of the folder") from error
    return file


def _open_regular(path: Path, flags: int) -> io.BufferedReader:
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC | flags)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "not a file")
        return open(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def _is_within(file: BinaryIO, path: Path, folder: Path) -> bool:
    """Whether the open file is the present target of the link, and the target is below the folder."""
    target = os.path.realpath(path)
    there, opened = os.lstat(target), os.fstat(file.fileno())
    same = (there.st_dev, there.st_ino) == (opened.st_dev, opened.st_ino)
    return same and target.startswith(os.path.realpath(folder) + os.sep)


def _steady(place: _Place, most: int) -> bytes | None:
    """The bytes of a small file, read while it did not change; None if it has more than `most` bytes. Raises
    SourceChanged if it changes on every try."""
    for _ in range(TRIES):
        with _open(place) as file:
            before = os.fstat(file.fileno())
            if before.st_size > most:
                return None
            data = file.read(most + 1)
            after = os.fstat(file.fileno())
        if _same(before, after) and len(data) == after.st_size:
            return data
        if len(data) > most:
            return None
    raise SourceChanged(CHANGING)


def _same(before: os.stat_result, after: os.stat_result) -> bool:
    return (before.st_size, before.st_mtime_ns) == (after.st_size, after.st_mtime_ns)
