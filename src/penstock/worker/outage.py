"""What a worker does when its storage fails: it waits, tests the storage repeatedly, and continues when it works
again."""

import os
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from penstock.errors import LedgerAway, StorageError
from penstock.runtime import Runtime

FIRST_S, LONGEST_S = 1.0, 30.0
"""The wait before the first test, and the longest one. The wait doubles each time, unless steps were done in
between."""
SLICE_S = 0.25
"""How often a wait checks for a stop."""
PROBE_BYTES = 1 << 20
PROBE = ".tmp-probe"


class Outage:
    """Waits for storage that fails. One object serves all outages of a worker."""

    def __init__(
        self,
        runtime: Runtime,
        folders: Sequence[Path],
        is_there: Callable[[], Awaitable[bool]],
        report: Callable[[str], None],
        stopping: Callable[[], bool],
    ) -> None:
        """`folders` are those of ledger, blobs and index. `is_there` returns whether the database answers. `report`
        shows a message to the user."""
        self._runtime = runtime
        self._folders = folders
        self._is_there = is_there
        self._report = report
        self._stopping = stopping
        self._wait_s = FIRST_S
        self._told = False
        self._told_over = False

    async def outlast(self, error: StorageError, *, worked: bool) -> bool:
        """Wait until the storage can be used again. Return False if the worker was told to stop before. `worked` means
        that steps were done since the last outage, so this is a new one. For an outage that continues, the user has
        read the message already and is told only that it is not over."""
        if worked:
            self._wait_s, self._told, self._told_over = FIRST_S, False, False
        first, self._told = not self._told, True
        away = isinstance(error, LedgerAway)
        if first:
            self._report(f"{str(error).rstrip('.')}. Waiting for it; what is done is kept.")
        elif self._told_over:
            # The folders accept the test file, but the write still fails: correct the last message.
            message = str(error).rstrip(".")
            self._report(f"It still fails: {message}. It is tried again every {LONGEST_S:g} s or sooner.")
            self._told_over = False
        while True:
            await self._sleep(FIRST_S if away else self._wait_s)
            if self._stopping():
                return False
            if not away:
                self._wait_s = min(2 * self._wait_s, LONGEST_S)
            if await self._is_over(away):
                break
        if first:
            self._report("The database is back." if away else "It can be written again: going on.")
            self._told_over = not away
        return True

    async def _is_over(self, away: bool) -> bool:
        if away:
            return await self._is_there()
        return await self._runtime.run_blocking("io", self._can_write)

    def _can_write(self) -> bool:
        return all(_is_writable(folder) for folder in self._folders if folder.exists())

    async def _sleep(self, seconds: float) -> None:
        until = self._runtime.clock() + seconds
        while not self._stopping() and (left := until - self._runtime.clock()) > 0:
            await self._runtime.sleep(min(left, SLICE_S))


def _is_writable(folder: Path) -> bool:
    """Whether a file of PROBE_BYTES can be written to the folder."""
    place = folder / f"{PROBE}-{os.getpid()}"
    try:
        descriptor = os.open(place, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o600)
        try:
            # Unlink it now, so that a killed process leaves no file behind.
            place.unlink(missing_ok=True)
            left = memoryview(bytes(PROBE_BYTES))
            while left:
                left = left[os.write(descriptor, left) :]
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError:
        return False
    return True
