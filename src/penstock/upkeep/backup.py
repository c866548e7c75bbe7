"""Backup: copy a consistent state of ledger, blobs and index into a folder, while other processes work.

The ledger is copied first. Then the index is copied: it contains all rows that are searchable in that copy, because
nothing is purged meanwhile. Then the blobs, which are not removed meanwhile. The manifest is written last and names the
other files; until then the folder contains the previous backup, or none. Files that the folder already contains are not
copied again."""

import asyncio
import os
import shutil
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec

from penstock.blobs.base import Copied
from penstock.blobs.copying import copy, flush, flush_one, hash_file, link, same_size
from penstock.blobs.local import make_home, storage_sentence
from penstock.errors import StorageError, UsageError
from penstock.indexes.base import TableId, maintained
from penstock.ledger.database import versions
from penstock.ledger.database.migrations import LATEST
from penstock.ledger.upkeep.backup_tables import Copy, Named, copy_out
from penstock.redaction import tighten
from penstock.upkeep.report import Stores

T = TypeVar("T")

FORMAT = 1
MANIFEST = "manifest.json"
PARTIAL = "partial"
"""A file that exists while a backup runs, or after one was interrupted. Then the sizes of files prove nothing."""
BLOBS = "blobs"
TRIES = 3
LISTED = 100
BATCH = 250
_NAMED_ONCE = ("data/", "_indices/")
"""Files of a table whose names are never reused."""


class FileEntry(msgspec.Struct, frozen=True):
    sha256: str
    size: int


class Manifest(msgspec.Struct, frozen=True):
    """The content of a backup. Its blobs are those that its ledger names, with their hashes."""

    format: int
    schema: int
    """The schema version of its ledger."""
    created_at: float
    ledger: str
    ledger_sha256: str
    index: str
    index_files: dict[str, FileEntry]
    tables: int
    documents: int
    blobs: int
    bytes: int
    damaged: list[str]
    """Blobs that were missing or damaged when the backup was made, at most a hundred."""
    born: float = 0.0
    """When the ledger was created. It identifies the ledger that this is a backup of."""


class BackupReport(msgspec.Struct, frozen=True):
    folder: str
    documents: int
    tables: int
    blobs: int
    bytes: int
    copied: int
    """Number of blobs that were not in the folder yet."""
    copied_bytes: int
    damaged: list[str]
    elapsed_s: float


class CopyProgress(msgspec.Struct, frozen=True):
    """The progress of a backup or restore."""

    blobs: int
    total: int
    bytes: int


ReportProgress = Callable[[CopyProgress], None]


def read_manifest(folder: Path) -> Manifest | None:
    """The manifest of a folder; None if it contains no complete backup."""
    try:
        found = msgspec.json.decode((folder / MANIFEST).read_bytes(), type=Manifest)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (msgspec.MsgspecError, OSError) as error:
        raise UsageError(f"{folder / MANIFEST} is not the manifest of a backup: {error}") from error
    if found.format > FORMAT:
        raise UsageError(f"the backup in {folder} was made by a newer Penstock: upgrade this one")
    return found


class Backup:
    def __init__(self, stores: Stores, folder: Path, report: ReportProgress | None) -> None:
        self._stores = stores
        self._runtime = stores.ledger.database.runtime
        self._folder = folder
        self._report = report or (lambda progress: None)
        self._damaged: list[str] = []
        self._new: list[Path] = []
        self._blobs = self._bytes = self._copied = self._copied_bytes = 0

    async def run(self, verify: Callable[[], Awaitable[None]]) -> BackupReport:
        """Make the backup. `verify` raises if the lock that prevents removal of data was lost meanwhile."""
        began, now = self._runtime.clock(), self._runtime.now()
        stamp = self._runtime.ulid()
        born = await self._stores.ledger.read(versions.born)
        before = await self._begin(born)
        ledger = self._folder / f"ledger-{stamp}.db"
        await self._blocking(copy_out, self._stores.ledger.database, ledger)
        files, tables = await self._index(f"index-{stamp}", before)
        documents = await self._copy_blobs(ledger, trusted=before is not None)
        await verify()
        self._new += [ledger, *(self._folder / f"index-{stamp}" / name for name in files)]
        await self._blocking(flush, self._folder, self._new)
        manifest = Manifest(
            format=FORMAT,
            schema=LATEST,
            created_at=now,
            ledger=ledger.name,
            ledger_sha256=(await self._blocking(hash_file, ledger)).sha256,
            index=f"index-{stamp}",
            index_files=files,
            tables=tables,
            documents=documents,
            blobs=self._blobs,
            bytes=self._bytes,
            damaged=self._damaged[:LISTED],
            born=born,
        )
        await self._blocking(self._finish, manifest)
        return BackupReport(
            folder=str(self._folder),
            documents=documents,
            tables=tables,
            blobs=self._blobs,
            bytes=self._bytes,
            copied=self._copied,
            copied_bytes=self._copied_bytes,
            damaged=manifest.damaged,
            elapsed_s=round(self._runtime.clock() - began, 3),
        )

    async def _begin(self, born: float) -> Manifest | None:
        """Prepare the folder, and return the previous backup whose files can be reused. Raises UsageError for a folder
        with other content, or with the backup of another ledger."""

        def begin() -> Manifest | None:
            if self._folder.exists() and not self._folder.is_dir():
                raise UsageError(f"{self._folder} is not a folder")
            make_home(self._folder)
            tighten([self._folder])
            before = read_manifest(self._folder)
            given_up = (self._folder / PARTIAL).exists()
            if before is None and not given_up and any(self._folder.iterdir()):
                raise UsageError(f"{self._folder} is not empty and not a backup: use an empty folder or a backup")
            if before is not None and before.born != born:
                raise UsageError(f"{self._folder} contains the backup of another ledger: use another folder")
            (self._folder / PARTIAL).touch(mode=0o600)
            flush_one(self._folder)
            return None if given_up else before

        return await self._blocking(begin)

    async def _index(self, name: str, before: Manifest | None) -> tuple[dict[str, FileEntry], int]:
        found: dict[str, FileEntry] = {}
        tables = await self._stores.index.tables()
        for table in tables:
            found |= await self._table(name, table, before)
        return found, len(tables)

    async def _table(self, name: str, info: TableId, before: Manifest | None) -> dict[str, FileEntry]:
        """If a version is cleaned away while it is copied, the latest one is copied instead. A server backs up its
        tables itself; `check --repair` makes again what is missing after a restore."""
        for _ in range(TRIES):
            table = maintained(await self._stores.index.open(info))
            if table is None:
                return {}
            async with table.reading():
                there = await table.files()
                if there is None:
                    return {}
                place = f"{info.owner}/{info.collection}/{there.root.name}"
                try:
                    return {
                        f"{place}/{one}": await self._blocking(
                            self._table_file, there.root / one, name, f"{place}/{one}", before
                        )
                        for one in there.names
                    }
                except FileNotFoundError:
                    await self._blocking(shutil.rmtree, self._folder / name / place, True)
        raise StorageError(f"the index {info.owner}/{info.collection} kept changing while it was copied")

    def _table_file(self, source: Path, index: str, name: str, before: Manifest | None) -> FileEntry:
        target = self._folder / index / name
        known = before.index_files.get(name) if before is not None else None
        if before is not None and known is not None and any(f".lance/{part}" in name for part in _NAMED_ONCE):
            kept = self._folder / before.index / name
            if same_size(source, known.size) and same_size(kept, known.size):
                link(kept, target)
                return known
        copied = copy(source, target)
        return FileEntry(copied.sha256, copied.size)

    async def _copy_blobs(self, ledger: Path, *, trusted: bool) -> int:
        copied = await self._blocking(Copy, ledger)
        try:
            documents, total = await self._blocking(copied.count)
            batches = copied.blobs(BATCH)
            while batch := await self._blocking(next, batches, None):
                await asyncio.gather(*(self._some(part, trusted) for part in _halves(batch)))
                self._report(CopyProgress(self._blobs, total, self._bytes))
        finally:
            copied.close()
        return documents

    async def _some(self, blobs: Sequence[Named], trusted: bool) -> None:
        folder = self._folder / BLOBS
        there = await self._blocking(lambda: [is_there(folder / one.key, one, trusted) for one in blobs])
        wanted = [one for one, known in zip(blobs, there, strict=True) if not known]
        copies = await self._stores.blobs.copy_out([one.key for one in wanted], folder)
        for one, got in zip(wanted, copies, strict=True):
            if got is not None:
                self._copied += 1
                self._copied_bytes += got.size
                self._new.append(folder / one.key)
            if got != Copied(one.sha256, one.size):
                self._damaged.append(one.key)
        self._blobs += len(blobs)
        self._bytes += sum(one.size for one in blobs)

    def _finish(self, manifest: Manifest) -> None:
        """Write the manifest. With its rename the new backup is valid; then files that it does not name are removed."""
        temporary = self._folder / f"{MANIFEST}.partial"
        temporary.write_bytes(msgspec.json.format(msgspec.json.encode(manifest)))
        temporary.chmod(0o600)
        flush_one(temporary)
        temporary.replace(self._folder / MANIFEST)
        flush_one(self._folder)
        for path in self._folder.iterdir():
            if path.name.startswith("index-") and path.name != manifest.index:
                shutil.rmtree(path)
            elif path.name.startswith("ledger-") and path.name != manifest.ledger:
                path.unlink()
        copied = Copy(self._folder / manifest.ledger)
        try:
            for batch in _batches(_files(self._folder / BLOBS)):
                for key in {*batch} - copied.named(batch):
                    (self._folder / BLOBS / key).unlink()
        finally:
            copied.close()
        (self._folder / PARTIAL).unlink()

    async def _blocking(self, function: Callable[..., T], *arguments: object) -> T:
        def call() -> T:
            try:
                return function(*arguments)
            except FileNotFoundError:
                raise
            except OSError as error:
                raise StorageError(storage_sentence(Path(error.filename or self._folder), error)) from error

        return await self._runtime.run_blocking("io", call)


def is_there(path: Path, blob: Named, trusted: bool) -> bool:
    """Whether the file holds the blob: compared by size if `trusted` (it was flushed before), else by hash."""
    if not same_size(path, blob.size):
        return False
    return trusted or hash_file(path).sha256 == blob.sha256


def _halves(batch: Sequence[Named]) -> Iterable[Sequence[Named]]:
    half = (len(batch) + 1) // 2
    return filter(None, (batch[:half], batch[half:]))


def _files(root: Path) -> Iterator[str]:
    for folder, _, names in os.walk(root):
        for name in names:
            yield Path(folder, name).relative_to(root).as_posix()


def _batches(names: Iterator[str]) -> Iterator[list[str]]:
    batch: list[str] = []
    for name in names:
        batch.append(name)
        if len(batch) == BATCH:
            yield batch
            batch = []
    if batch:
        yield batch
