"""What Lance leaves out: it never calls fsync. Here is what makes a commit survive a power cut."""

import os
import shutil
from collections.abc import Iterable
from pathlib import Path

FOLDERS = ("data", "_deletions", "_transactions", "_versions")
HINT = "_versions/latest_version_hint.json"

_NEWEST = 2**64 - 1
_MAGIC = b"LANC"
_ZEROES = bytes(512)


def sync(root: Path, names: Iterable[str]) -> None:
    """Fsync these files of a dataset, then the folders that hold them, up to the dataset itself."""
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
    """Fsync a folder and those above it, up to and with the one that holds `top`."""
    for path in (folder, *folder.parents):
        _fsync(path)
        if path == top.parent:
            break


def listing(root: Path, folders: Iterable[str] = FOLDERS) -> set[str]:
    """The files in these folders of a dataset. A file that Lance is still writing has a dot or a # in its name."""
    names: set[str] = set()
    for folder in folders:
        try:
            with os.scandir(root / folder) as entries:
                names.update(f"{folder}/{entry.name}" for entry in entries if _finished(entry.name))
        except FileNotFoundError:
            continue
    return names


def everything(root: Path) -> set[str]:
    """All files of a dataset, those of its text and vector indexes too."""
    try:
        segments = [f"_indices/{name}" for name in os.listdir(root / "_indices")]
    except FileNotFoundError:
        segments = []
    return listing(root, (*FOLDERS, *segments))


def manifest(version: int) -> str:
    return f"_versions/{_NEWEST - version:020d}.manifest"


def drop_torn_manifest(root: Path) -> None:
    """A power cut during a commit can leave its manifest empty or zeroed, and Lance then fails to open the table or
    takes it for an empty one. That commit never returned to anybody, so the one before it is the latest.
    A manifest gets its name only when it is whole: one that is torn belongs to no living process."""
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
    """The same for a longer manifest that Lance cannot read, of which a power cut kept the end but lost a block in its
    middle, which is zeroes then. Whether it went: never the only one, and never one that is damaged in another way, for
    that commit was durable, and to leave it out would hide documents."""
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
    """The versions that were not the latest any more at that moment: no reader that came later holds one of them."""
    made = {
        _NEWEST - int(Path(name).stem): (root / name).stat().st_mtime
        for name in listing(root, ["_versions"])
        if name.endswith(".manifest")
    }
    latest = max((version for version, time in made.items() if time <= moment), default=0)
    return sorted(version for version in made if version < latest)


def remove_table(path: Path, trash: Path) -> None:
    """The table disappears at once by its name; a crash halfway leaves only a folder that nobody reads."""
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
