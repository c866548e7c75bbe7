"""The files of a version of a Lance dataset, and their checksum. The functions block and run on the read pool."""

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from penstock.errors import StorageError
from penstock.indexes import lance_files as files

READ = 4 << 20


def names(root: Path, dataset: Any) -> list[str]:
    """The names of the manifest and of all files that it refers to: data, deletions, index segments."""
    found = {files.manifest(dataset.version)}
    for fragment in dataset.get_fragments():
        part = fragment.metadata
        found.update(f"data/{file.path}" for file in part.files)
        if part.deletion_file is not None:
            found.add(part.deletion_file.path(part.id))
    folders = [f"_indices/{segment.uuid}" for index in dataset.describe_indices() for segment in index.segments]
    return sorted(found | files.listing(root, folders))


def size(root: Path, of: Iterable[str]) -> int:
    """The total size of these files. Files that no longer exist are ignored."""
    total = 0
    for name in of:
        try:
            total += (root / name).stat().st_size
        except FileNotFoundError:
            continue
    return total


class Checksum:
    """SHA-256 of the names, sizes and bytes of files. Files are added one by one with `take`."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._hash = hashlib.sha256()

    def take(self, name: str) -> None:
        path = self._root / name
        try:
            with path.open("rb") as file:
                self._hash.update(f"{name}\0{path.stat().st_size}\0".encode())
                while piece := file.read(READ):
                    self._hash.update(piece)
        except FileNotFoundError as error:
            raise StorageError(f"{path} is missing") from error

    def hexdigest(self) -> str:
        return self._hash.hexdigest()
