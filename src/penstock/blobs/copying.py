"""Copies of files: hashed on the way, under their names only when they are whole, flushed by whoever asked for them."""

import hashlib
import os
from collections.abc import Iterable
from pathlib import Path

from penstock.blobs.base import Copied

_PIECE = 1 << 20
FEW = 1000
"""So many files are flushed one by one; more of them all at once, with whatever else waits to be written."""
PRIVATE = 0o600


def copy(source: Path, target: Path) -> Copied:
    """FileNotFoundError: there is no such source."""
    with source.open("rb") as file:
        make_folder(target.parent)
        temporary = target.with_name(f"{target.name}.partial")
        digest, size = hashlib.sha256(), 0
        with open(os.open(temporary, os.O_CREAT | os.O_TRUNC | os.O_WRONLY | os.O_CLOEXEC, PRIVATE), "wb") as out:
            while piece := file.read(_PIECE):
                digest.update(piece)
                size += out.write(piece)
    temporary.replace(target)
    return Copied(digest.hexdigest(), size)


def hash_file(path: Path) -> Copied:
    with path.open("rb") as file:
        return Copied(hashlib.file_digest(file, "sha256").hexdigest(), file.tell())


def make_folder(path: Path) -> None:
    """For nobody else, and so are those above it that are new."""
    if not path.exists():
        make_folder(path.parent)
        path.mkdir(mode=0o700, exist_ok=True)


def link(source: Path, target: Path) -> Copied | None:
    """The same file under a second name; what was copied, where the file system has no such thing."""
    make_folder(target.parent)
    try:
        os.link(source, target)
    except OSError:
        return copy(source, target)
    return None


def copy_many(pairs: Iterable[tuple[Path, Path]]) -> list[Copied | None]:
    """None where there is no source."""
    copied: list[Copied | None] = []
    for source, target in pairs:
        try:
            copied.append(copy(source, target))
        except FileNotFoundError:
            copied.append(None)
    return copied


def flush(root: Path, files: Iterable[Path]) -> None:
    """These files below a folder, and the folders that name them. On Linux `sync` waits."""
    chosen = list(files)
    if len(chosen) > FEW:
        os.sync()
        return
    folders = {folder for path in chosen for folder in path.parents if folder.is_relative_to(root)}
    for path in (*chosen, *sorted(folders, reverse=True), root, root.parent):
        flush_one(path)


def flush_one(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def same_size(path: Path, size: int) -> bool:
    try:
        return path.stat().st_size == size
    except FileNotFoundError:
        return False
