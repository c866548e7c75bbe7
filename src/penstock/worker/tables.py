"""Index tables that fail: whether the table or a document causes an error, and what the worker logs about it."""

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from penstock import user_code
from penstock.errors import Away, LeaseLost, PenstockError, Permanent, StepError, StorageError, TableFailed
from penstock.indexes.base import Fence, Index, IndexRows, IndexTable, TableId, maintained
from penstock.runtime import Runtime

T = TypeVar("T")

LONGEST_S = 86_400.0
"""The longest wait that a server may request."""
SAY_AGAIN_S, REMIND_S = 60.0, 3600.0
"""How long the same message is not repeated: for a thing that fails and works in turn, and for one that fails all the
time."""
_CHANCE = re.compile(r"\.tmp\w+|[\w-]*\d[\w-]*")
"""Numbers and random names in a message. Messages that differ only in these count as the same."""
logger = logging.getLogger("penstock.worker")


class GuardedTable:
    """The operations that a worker needs of a table. An error of the table or of its disk is raised as `TableFailed`.
    Errors of the rows, and those that `fence` raises, are not changed."""

    def __init__(self, table: IndexTable) -> None:
        self._table = table
        self._maintained = maintained(table)

    async def put(self, rows: Sequence[IndexRows], fence: Fence, *, fresh: bool) -> None:
        await self._call(lambda checked: self._table.put(rows, checked, fresh=fresh), fence)

    async def optimize(self, fence: Fence) -> None:
        if self._maintained is not None:
            await self._call(self._maintained.optimize, fence)

    async def refresh(self, fence: Fence, rows: int) -> None:
        """Update the text indexes if at least this many rows are outside them, and remove old versions."""
        if self._maintained is not None:
            kept = self._maintained
            await self._call(lambda checked: kept.optimize(checked, text_rows=rows), fence)
            await self._call(kept.clean, fence)

    async def compact(self, fence: Fence) -> None:
        if self._maintained is not None:
            await self._call(self._maintained.compact, fence)

    async def _call(self, action: Callable[[Fence], Awaitable[None]], fence: Fence) -> None:
        refused: list[BaseException] = []

        async def checked() -> None:
            try:
                await fence()
            except BaseException as error:
                refused.append(error)
                raise

        try:
            await action(checked)
        except (StepError, LeaseLost, asyncio.CancelledError):
            raise
        except BaseException as error:
            if error in refused:
                raise
            if isinstance(error, OSError | StorageError | Away) or not await self._is_readable():
                raise failed(error) from error
            raise

    async def _is_readable(self) -> bool:
        try:
            await self._table.count()
        except asyncio.CancelledError:
            raise
        except BaseException:
            return False
        return True


async def opened(index: Index, table: TableId, dimensions: int) -> GuardedTable:
    """Open the table, or create it. Almost every error is raised as `TableFailed`, because no document was read yet."""
    try:
        return GuardedTable(await index.open(table) or await index.create(table, dimensions))
    except (asyncio.CancelledError, LeaseLost, Permanent):
        raise
    except BaseException as error:
        raise failed(error) from error


def failed(error: BaseException) -> TableFailed:
    said = str(error) if isinstance(error, PenstockError) else user_code.sentence(error)
    return TableFailed(
        f"the index table cannot be used: {said}",
        target=user_code.named(error, "target"),
        retry_after=user_code.retry_after(error, LONGEST_S),
    )


class Notices:
    """Logs a failure when it changes, and not for each step that waits."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._said: dict[str, tuple[str, float]] = {}
        self._failing: dict[str, bool] = {}
        """What failed when it was last tried, and whether that was logged."""

    def fails(self, what: str, error: BaseException, then: str) -> None:
        """Log that `what` failed. `then` says what that means for the work."""
        now = self._runtime.clock()
        text, at = self._said.get(what, ("", 0.0))
        patience = REMIND_S if what in self._failing else SAY_AGAIN_S
        sentence = user_code.sentence(error)
        gist = _CHANCE.sub("", sentence)
        if gist != text or now - at > patience:
            self._said[what] = (gist, now)
            self._failing[what] = True
            logger.warning("%s: %s. %s; it will be tried again.", what, sentence.rstrip("."), then)
        self._failing.setdefault(what, False)

    def works(self, what: str) -> None:
        if self._failing.pop(what, False):
            logger.warning("%s: it works again.", what)
