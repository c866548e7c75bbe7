"""Work that was paid for is finished, also if its step is cancelled meanwhile."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

T = TypeVar("T")

GRACE_S = 8.0
"""How long a worker that stops waits for the answers of calls that were made already. Its steps are released before.
Many supervisors kill a process ten seconds after the signal to stop."""


class PaidWork:
    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    async def finish(self, work: Callable[[], Awaitable[T]]) -> T:
        """Do this to its end. If the caller is cancelled, it continues in the background."""

        async def do() -> T:
            return await work()

        task = asyncio.create_task(do())
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return await asyncio.shield(task)

    def _done(self, task: "asyncio.Task[Any]") -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            # An error of a call that nobody waits for any more is not reported as a traceback.
            task.exception()

    async def close(self) -> None:
        """Wait a moment for what was begun, then give it up."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=GRACE_S)
        left = list(self._tasks)
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
