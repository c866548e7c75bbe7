"""Copies of files: hashed on the way, under their names only when they are whole, flushed by whoever asked for them."""

import hashlib
import os
from collections.abc import Iterable
from pathlib import Path

from penstock.blobs.base import Copied
from penstock.redaction import file_mode, make_folder

_PIECE = 1 << 20
FEW = 1000
"""So many files are flushed one by one; more of them all at once, with whatever else waits to be written."""


def copy(source: Path, target: Path) -> Copied:
    """FileNotFoundError: there is no such source."""
    with source.open("rb") as file:
        make_private(target.parent)
        temporary = target.with_name(f"{target.name}.partial")
        digest, size = hashlib.sha256(), 0
        flags = os.O_CREAT | os.O_TRUNC | os.O_WRONLY | os.O_CLOEXEC
        with open(os.open(temporary, flags, file_mode(target.parent)), "wb") as out:
            while piece := file.read(_PIECE):
                digest.update(piece)
                size += out.write(piece)
    temporary.replace(target)
    return Copied(digest.hexdigest(), size)


def hash_file(path: Path) -> Copied:
    with path.open("rb") as file:
        return Copied(hashlib.file_digest(file, "sha256").hexdigest(), file.tell())


def make_private(folder: Path) -> None:
    """With those above it that are new: for nobody else, unless it is shared."""
    make_folder(folder, Path(folder.anchor))


def link(source: Path, target: Path) -> Copied | None:
    """The same file under a second name; what was copied, where the file system has no such thing."""
    make_private(target.parent)
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
