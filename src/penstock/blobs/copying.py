"""Copy and hash files. A copy gets its name when it is complete. The caller flushes the copies."""

import hashlib
import os
from collections.abc import Iterable
from pathlib import Path

from penstock.blobs.base import Copied
from penstock.redaction import file_mode, make_folder

_PIECE = 1 << 20
FEW = 1000
"""Up to this number, files are flushed one by one. For more files, all file systems are flushed."""


def copy(source: Path, target: Path) -> Copied:
    """Copy a file. Raises FileNotFoundError if there is no source."""
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
    """Create a folder and its missing parents, accessible only to their owner unless they are shared."""
    make_folder(folder, Path(folder.anchor))


def link(source: Path, target: Path) -> Copied | None:
    """Create a hard link and return None. If the file system does not support this, copy the file and return its hash
    and size."""
    make_private(target.parent)
    try:
        os.link(source, target)
    except OSError:
        return copy(source, target)
    return None


def copy_many(pairs: Iterable[tuple[Path, Path]]) -> list[Copied | None]:
    """Copy several files. The result is None for each missing source."""
    copied: list[Copied | None] = []
    for source, target in pairs:
        try:
            copied.append(copy(source, target))
        except FileNotFoundError:
            copied.append(None)
    return copied


def flush(root: Path, files: Iterable[Path]) -> None:
    """Flush these files below a folder, and the folders that contain them. On Linux, `sync` waits for the disk."""
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
