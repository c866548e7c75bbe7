"""File notifications: what the operating system says about changes below folders. They may be lost: the queue of the
kernel overflows, a folder is replaced, or a network file system sends none. So a file notification only means that it
is worth to look now, and nobody relies on it."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from penstock.runtime import Runtime

GATHER_MS, QUIET_MS = 1_000, 100
"""Changes are gathered until there were none for the second time, but no longer than for the first."""
WAKE_MS = 1_000


class FolderEvents:
    def __init__(self, runtime: Runtime, skip: Path | None = None) -> None:
        """`skip`: a folder to ignore, such as the home, to which Penstock itself writes all the time."""
        self.changed = asyncio.Event()
        self.problem: str | None = None
        """Why there are none."""
        self._runtime = runtime
        self._skip = skip
        self._task: asyncio.Task[None] | None = None
        self._stop = asyncio.Event()

    async def follow(self, folders: Sequence[Path]) -> None:
        """Follow these folders from now on, instead of those before."""
        await self.close()
        self.problem = None
        if folders:
            self._stop = asyncio.Event()
            self._task = asyncio.create_task(self._follow([folder.absolute() for folder in folders], self._stop))

    async def close(self) -> None:
        self._stop.set()
        if self._task is not None:
            task, self._task = self._task, None
            await asyncio.gather(task, return_exceptions=True)

    async def _follow(self, folders: Sequence[Path], stop: asyncio.Event) -> None:
        from watchfiles import awatch

        def matters(change: object, path: str) -> bool:
            return any(self._matters(Path(path), folder) for folder in folders)

        try:
            async for _ in awatch(
                *folders,
                watch_filter=matters,
                debounce=GATHER_MS,
                step=QUIET_MS,
                rust_timeout=WAKE_MS,
                stop_event=stop,
                ignore_permission_denied=True,
            ):
                self.changed.set()
        except Exception as error:
            # No such folder any more, or no more watches allowed by the system.
            self.problem = str(error)

    def _matters(self, path: Path, folder: Path) -> bool:
        if self._skip is not None and path.is_relative_to(self._skip):
            return False
        with suppress(ValueError):
            return not any(part.startswith(".") for part in path.relative_to(folder).parts)
        return False
