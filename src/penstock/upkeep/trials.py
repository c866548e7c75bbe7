"""The folders of trials, below `trials` in the home. A trial has its own ledger and its own index, so that nothing of
it can be seen elsewhere. The process that uses a trial locks it; a trial that no process locks is a leftover."""

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from penstock.errors import StorageError, UsageError

FOLDER, KEPT = "trials", "kept"


class Trials:
    def __init__(self, home: Path) -> None:
        self._folder = home / FOLDER

    @contextmanager
    def hold(self, key: str) -> Iterator[Path]:
        """Lock a trial and return its folder. Raises UsageError if another process uses it."""
        try:
            descriptor = self._lock(key)
        except OSError as error:
            raise StorageError(f"{self._folder} could not be written: {error.strerror or error}") from error
        if descriptor is None:
            raise UsageError("another eval builds the same trial now: wait until it has ended")
        try:
            os.utime(self._lock_file(key))
            yield self._folder / key
        finally:
            os.close(descriptor)

    def remove(self, key: str) -> bool:
        """Remove a trial, unless a process uses it."""
        descriptor = self._lock(key)
        if descriptor is None:
            return False
        try:
            shutil.rmtree(self._folder / key, ignore_errors=True)
            self._lock_file(key).unlink(missing_ok=True)
            return True
        finally:
            os.close(descriptor)

    def keep(self, key: str) -> None:
        """Keep a trial for later evaluations, until a prune removes it."""
        (self._folder / key / KEPT).touch()

    def leftovers(self, before: float | None = None) -> list[str]:
        """The trials that no process uses: those that were not kept, or with `before` all that were last used before
        this time."""
        found = []
        for path in sorted(self._folder.glob("*.lock")):
            key = path.stem
            descriptor = self._lock(key)
            if descriptor is None:
                continue
            try:
                kept = (self._folder / key / KEPT).exists()
                if os.fstat(descriptor).st_mtime < before if before is not None else not kept:
                    found.append(key)
            finally:
                os.close(descriptor)
        return found

    def _lock_file(self, key: str) -> Path:
        return self._folder / f"{key}.lock"

    def _lock(self, key: str) -> int | None:
        """Create and lock the file of a trial; None if another process has locked it."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        while True:
            descriptor = os.open(self._lock_file(key), os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(descriptor)
                return None
            if os.fstat(descriptor).st_nlink:
                return descriptor
            # Another process has removed the trial in between.
            os.close(descriptor)
