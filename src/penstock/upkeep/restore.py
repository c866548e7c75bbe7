"""Restore a backup into its original home or another one. All parts are first written beside their final place and
verified. Then the index is replaced, and last the ledger, with one rename (on PostgreSQL, one transaction).

A file in the home marks a restore in progress. Until it is complete, opening the home fails with the advice to repeat
the restore."""

import asyncio
import os
import shutil
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import msgspec

from penstock.blobs.base import Blobs, Copied
from penstock.blobs.copying import copy, flush_one, hash_file, link, make_private
from penstock.blobs.local import make_home, storage_sentence
from penstock.errors import LedgerDamaged, StorageError, UsageError
from penstock.indexes import highest
from penstock.ledger.database.commit_counter import CommitCounter
from penstock.ledger.database.database import Database
from penstock.ledger.database.histories import Seen
from penstock.ledger.upkeep.backup_tables import Copy, Named, begin_again, copy_in, single_file
from penstock.redaction import tighten
from penstock.upkeep.backup import BATCH, BLOBS, LISTED, CopyProgress, Manifest, ReportProgress, is_there, read_manifest
from penstock.upkeep.restore_marker import UNDER_WAY

T = TypeVar("T")


class Places(msgspec.Struct, frozen=True):
    """The targets of a restore."""

    home: Path
    database: Database
    blobs: Blobs
    blobs_path: Path
    index_path: Path


class Restored(msgspec.Struct, frozen=True):
    documents: int
    blobs: int
    bytes: int
    tables: int
    damaged: list[str]
    """Blobs that are missing or damaged in the backup."""


def is_empty(places: Places) -> bool:
    """Whether the home is empty, apart from the remains of an interrupted restore."""
    if (places.home / UNDER_WAY).exists():
        return True
    folders = [places.blobs_path, places.index_path]
    if places.database.dialect == "sqlite" and places.database.path.exists():
        return False
    return not any(folder.exists() and any(folder.iterdir()) for folder in folders)


class Restore:
    def __init__(self, folder: Path, places: Places, report: ReportProgress | None) -> None:
        self._folder = folder
        self._places = places
        self._runtime = places.database.runtime
        self._report = report or (lambda progress: None)
        self._blobs = self._bytes = 0
        self._damaged: list[str] = []

    async def run(self, refuse_in_use: Callable[[], Awaitable[None]]) -> Restored:
        """Restore the backup. The caller has verified that the home may be replaced and that no worker runs there;
        `refuse_in_use` raises if one has started meanwhile."""
        manifest = await self._blocking(self._manifest)
        await self._blocking(self._begin)
        ledger, index = self._places.home / "ledger.restoring", beside(self._places.index_path)
        await self._blocking(self._lay_index, manifest, index)
        await self._copy_blobs(self._folder / manifest.ledger)
        await self._blocking(self._lay_ledger, manifest, ledger)
        await self._blocking(os.sync)
        await refuse_in_use()
        await self._blocking(self._exchange, ledger, index)
        return Restored(manifest.documents, self._blobs, self._bytes, manifest.tables, self._damaged[:LISTED])

    def _manifest(self) -> Manifest:
        manifest = read_manifest(self._folder)
        if manifest is None:
            raise UsageError(f"{self._folder} contains no complete backup")
        try:
            if hash_file(self._folder / manifest.ledger).sha256 != manifest.ledger_sha256:
                raise StorageError(f"the ledger of the backup in {self._folder} is damaged: use another backup")
        except FileNotFoundError as error:
            raise StorageError(f"the backup in {self._folder} has no ledger: use another backup") from error
        return manifest

    def _begin(self) -> None:
        make_home(self._places.home)
        tighten([self._places.home])
        (self._places.home / UNDER_WAY).touch(mode=0o600)
        flush_one(self._places.home)

    def _lay_index(self, manifest: Manifest, target: Path) -> None:
        """Copy the files of the index tables. Damaged tables are omitted: `check --repair` rebuilds them."""
        shutil.rmtree(target, ignore_errors=True)
        make_private(target)
        broken: set[Path] = set()
        for name, wanted in manifest.index_files.items():
            table = target.joinpath(*Path(name).parts[:3])
            try:
                got = copy(self._folder / manifest.index / name, target / name)
            except FileNotFoundError:
                got = None
            if got != (wanted.sha256, wanted.size):
                broken.add(table)
        for table in broken:
            shutil.rmtree(table)

    async def _copy_blobs(self, ledger: Path) -> None:
        copied = await self._blocking(Copy, ledger)
        try:
            _, total = await self._blocking(copied.count)
            batches = copied.blobs(BATCH)
            while batch := await self._blocking(next, batches, None):
                await self._some(batch)
                self._report(CopyProgress(self._blobs, total, self._bytes))
        finally:
            copied.close()

    async def _some(self, blobs: Sequence[Named]) -> None:
        """Copy blobs. Files that exist with the same bytes are kept: the backup's copy may be damaged."""
        root = self._places.blobs_path
        there = await self._blocking(lambda: [is_there(root / one.key, one, trusted=False) for one in blobs])
        wanted = [one for one, known in zip(blobs, there, strict=True) if not known]
        half = (len(wanted) + 1) // 2
        parts = [part for part in (wanted[:half], wanted[half:]) if part]
        copies = await asyncio.gather(
            *(self._places.blobs.copy_in([one.key for one in part], self._folder / BLOBS) for part in parts)
        )
        for one, got in zip(wanted, [got for part in copies for got in part], strict=True):
            if got != Copied(one.sha256, one.size):
                self._damaged.append(one.key)
        self._blobs += len(blobs)
        self._bytes += sum(one.size for one in blobs)

    def _lay_ledger(self, manifest: Manifest, target: Path) -> None:
        for name in (target.name, f"{target.name}-wal", f"{target.name}-shm"):
            target.with_name(name).unlink(missing_ok=True)
        copy(self._folder / manifest.ledger, target)
        position = 0
        if self._places.database.dialect == "sqlite":
            position = CommitCounter(self._places.database.path).read()
        begin_again(target, Seen(highest.read(self._places.index_path), position), self._runtime)

    def _exchange(self, ledger: Path, index: Path) -> None:
        places = self._places
        old = beside(places.index_path, "replaced")
        shutil.rmtree(old, ignore_errors=True)
        if places.index_path.exists():
            places.index_path.rename(old)
        make_private(places.index_path.parent)
        index.rename(places.index_path)
        flush_one(places.index_path.parent)
        if places.database.dialect == "sqlite":
            self._replace_ledger(ledger)
        else:
            copy_in(ledger, places.database)
            ledger.unlink()
        (places.home / UNDER_WAY).unlink()
        flush_one(places.home)
        shutil.rmtree(old, ignore_errors=True)

    def _replace_ledger(self, ledger: Path) -> None:
        """Replace the ledger, and keep the old one beside it under another name."""
        path = self._places.database.path
        if path.exists():
            with suppress(LedgerDamaged):
                single_file(path)
            kept = path.with_name(f"{path.name}.replaced")
            kept.unlink(missing_ok=True)
            link(path, kept)
        # SQLite would use the WAL of the old ledger for the new one.
        for name in (f"{path.name}-wal", f"{path.name}-shm"):
            path.with_name(name).unlink(missing_ok=True)
        make_private(path.parent)
        if ledger.stat().st_dev != path.parent.stat().st_dev:
            copy(ledger, path.with_name(ledger.name))
            ledger.unlink()
            ledger = path.with_name(ledger.name)
            flush_one(ledger)
        ledger.replace(path)
        flush_one(path.parent)

    async def _blocking(self, function: Callable[..., T], *arguments: object) -> T:
        def call() -> T:
            try:
                return function(*arguments)
            except OSError as error:
                raise StorageError(storage_sentence(Path(error.filename or self._places.home), error)) from error

        return await self._runtime.run_blocking("io", call)


def beside(path: Path, state: str = UNDER_WAY) -> Path:
    return path.with_name(f"{path.name}.{state}")
