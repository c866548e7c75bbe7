"""Durability of Lance datasets. Lance never calls fsync; these functions make a commit survive a power failure."""

import os
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

FOLDERS = ("data", "_deletions", "_transactions", "_versions")
HINT = "_versions/latest_version_hint.json"

_NEWEST = 2**64 - 1
_MAGIC = b"LANC"
_ZEROES = bytes(512)


def sync(root: Path, names: Iterable[str]) -> None:
    """Fsync these files of a dataset, then the folders that contain them, up to the folder of the dataset."""
    folders: set[Path] = set()
    for name in names:
        path = root / name
        try:
            _fsync(path)
        except FileNotFoundError:
            continue
        folders.update(path.parents[: len(Path(name).parts)])
    for folder in sorted(folders, reverse=True):
        _fsync(folder)


def sync_folders(folder: Path, top: Path) -> None:
    """Fsync a folder and its parents, up to and including the parent of `top`."""
    for path in (folder, *folder.parents):
        _fsync(path)
        if path == top.parent:
            break


def listing(root: Path, folders: Iterable[str] = FOLDERS) -> set[str]:
    """The files in these folders of a dataset, without files that Lance is still writing: their names begin with a dot
    or contain a #."""
    names: set[str] = set()
    for folder in folders:
        try:
            with os.scandir(root / folder) as entries:
                names.update(f"{folder}/{entry.name}" for entry in entries if _finished(entry.name))
        except FileNotFoundError:
            continue
    return names


def everything(root: Path) -> set[str]:
    """All files of a dataset, including those of its text and vector indexes."""
    try:
        segments = [f"_indices/{name}" for name in os.listdir(root / "_indices")]
    except FileNotFoundError:
        segments = []
    return listing(root, (*FOLDERS, *segments))


def manifest(version: int) -> str:
    return f"_versions/{_NEWEST - version:020d}.manifest"


def drop_torn_manifest(root: Path) -> None:
    """Remove the newest manifests that a power failure left incomplete. After a power failure during a commit, its
    manifest can be empty or contain zeroes. Lance then cannot open the table, or reads it as empty. That commit never
    returned to its caller, so the previous version is the latest. A manifest gets its name only when it is complete, so
    an incomplete one does not belong to a running process."""
    while manifests := sorted(name for name in listing(root, ["_versions"]) if name.endswith(".manifest")):
        newest = root / manifests[0]
        with newest.open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - len(_MAGIC)))
            if file.read() == _MAGIC:
                return
        newest.unlink(missing_ok=True)
        (root / HINT).unlink(missing_ok=True)
        _fsync(root / "_versions")


def drop_zeroed_manifest(root: Path) -> bool:
    """Remove the newest manifest if Lance cannot read it because a power failure lost a block in its middle (the block
    contains zeroes) but kept its end. Returns whether it was removed. The only manifest is never removed, nor one that
    is damaged in another way: that commit was durable, and removing it would hide documents."""
    manifests = sorted(name for name in listing(root, ["_versions"]) if name.endswith(".manifest"))
    if len(manifests) < 2:
        return False
    data = (root / manifests[0]).read_bytes()
    if not any(data.startswith(_ZEROES, start) for start in range(0, len(data), len(_ZEROES))):
        return False
    (root / manifests[0]).unlink(missing_ok=True)
    (root / HINT).unlink(missing_ok=True)
    _fsync(root / "_versions")
    return True


def replaced_before(root: Path, moment: float) -> list[int]:
    """The versions that had been replaced at that moment. Readers that opened the table later do not use them."""
    made = {version: path.stat().st_mtime for version, path in _manifests(root)}
    latest = max((version for version, time in made.items() if time <= moment), default=0)
    return sorted(version for version in made if version < latest)


def versions_before(root: Path, latest: int) -> list[int]:
    return sorted(version for version, _ in _manifests(root) if version < latest)


def _manifests(root: Path) -> Iterator[tuple[int, Path]]:
    for name in listing(root, ["_versions"]):
        if name.endswith(".manifest"):
            yield _NEWEST - int(Path(name).stem), root / name


def remove_table(path: Path, trash: Path) -> None:
    """Rename the table to `trash`, then delete it. After a crash in between, only a folder remains that is never
    read; the next call removes it."""
    for leftover in path.parent.glob(f".{path.name}.*"):
        shutil.rmtree(leftover, ignore_errors=True)
    if path.exists():
        path.rename(trash)
        _fsync(path.parent)
        shutil.rmtree(trash)


def _finished(name: str) -> bool:
    return not name.startswith(".") and "#" not in name


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
