"""Files and folders as documents: recursive, in order, without what is hidden or leads out of the tree."""

import fnmatch
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from penstock.errors import UsageError


class Found(NamedTuple):
    source: str
    """The absolute path: the source URI of a file."""
    name: str
    path: Path
    within: Path | None
    """The folder that was walked; None: the file itself was named, and a link to it is followed."""


def find(
    paths: Sequence[Path], include: Sequence[str], exclude: Sequence[str], problems: list[str], skip: Path | None = None
) -> Iterator[Found]:
    """Every file once, however often it is named. What cannot be read is told in `problems`. `skip`: the home."""
    seen: set[str] = set()
    for path in paths:
        if not os.path.lexists(path):
            raise UsageError(f"{printable(path)}: no such file or folder")
        if path.exists() and not path.is_dir() and not path.is_file():
            # A pipe may never end, and a device holds no document.
            problems.append(f"{printable(path)}: not a file or folder (use - for what a pipe brings)")
            continue
        root = path.absolute() if path.is_dir() else None
        found = [path.absolute()] if root is None else _walk(root, include, exclude, problems, skip)
        for file in found:
            source = source_of(file)
            if source not in seen:
                seen.add(source)
                yield Found(source, printable(file.name), file, root)


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
        for name in sorted(files):
            path = Path(folder, name)
            if name.startswith(".") or not _wanted(path.relative_to(root), include, exclude):
                continue
            if path.is_symlink() and not _is_inside(path, inside):
                continue
            if path.is_file():
                yield path


def _is_inside(path: Path, root: str) -> bool:
    target = os.path.realpath(path)
    return target.startswith(root + os.sep) and os.path.exists(target)


def _wanted(path: Path, include: Sequence[str], exclude: Sequence[str]) -> bool:
    if include and not any(_matches(path, pattern) for pattern in include):
        return False
    return not any(_matches(path, pattern) for pattern in exclude)


def _matches(path: Path, pattern: str) -> bool:
    """A pattern is held against the name, the path below the folder, and every folder on the way."""
    text = path.as_posix()
    bare = pattern.rstrip("/")
    return (
        fnmatch.fnmatchcase(path.name, pattern)
        or fnmatch.fnmatchcase(text, pattern)
        or any(fnmatch.fnmatchcase(parent.as_posix(), bare) for parent in path.parents if parent.name)
        or any(fnmatch.fnmatchcase(parent.name, bare) for parent in path.parents if parent.name)
    )


def source_of(path: Path) -> str:
    return printable(path)


def printable(path: Path | str) -> str:
    """A name as text that every database holds: bytes that are not UTF-8 become \\xNN, and then a backslash is
    doubled, so that no two names meet."""
    raw = os.fsencode(path)
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw.replace(b"\\", b"\\\\").decode("utf-8", "backslashreplace")
