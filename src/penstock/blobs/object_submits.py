"""Submits in progress, as objects in the bucket: so every process that uses the bucket knows them.

A submit creates `.submits/SINCE` before it stores the first raw bytes, and removes it at its end. While it stores bytes
it also renews `.submits/SINCE.alive`. If both are older than a day by the clock of the store, the process is taken for
dead, and `oldest` removes the mark. A mark is created once and never again. So a submit that was taken for dead by
mistake notices it: it looks for its mark after its rows are committed, and before the caller is told."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

from penstock.blobs.base import is_raw
from penstock.blobs.object_errors import Errors
from penstock.errors import BlobMissing, PenstockError, StorageError
from penstock.runtime import Runtime, shielded

if TYPE_CHECKING:
    from penstock.net.buckets import Store

SUBMITS = ".submits/"
_ALIVE = ".alive"
_CLOCK = ".clock"
RENEWED_S = 3600.0
DEAD_S = 86_400.0


class ObjectSubmits:
    def __init__(self, store: "Store", folder: str, errors: Errors, runtime: Runtime) -> None:
        self._store = store
        self._folder = folder + SUBMITS
        self._errors = errors
        self._runtime = runtime
        self._open: set[_Mark] = set()

    @asynccontextmanager
    async def hold(self, since: str) -> "AsyncIterator[_Mark]":
        mark = _Mark(self, since)
        self._open.add(mark)
        try:
            yield mark
        finally:
            self._open.discard(mark)
            # What is left is removed when it is a day old.
            with suppress(PenstockError):
                await shielded(mark.remove())

    async def before(self, *keys: str) -> None:
        """Called before blobs are stored. A submit that stores no raw bytes here needs no mark."""
        if self._open and any(map(is_raw, keys)):
            for mark in tuple(self._open):
                await mark.keep()

    async def oldest(self) -> str | None:
        """The first name of a submit in progress; None if there is none. Removes the marks of dead processes."""
        seen: dict[str, float] = {}
        marks: set[str] = set()
        pages = aiter(self._store.list(self._folder.rstrip("/")))
        while True:
            with self._errors:
                page = await anext(pages, None)
            if page is None:
                break
            for found in page:
                name = found["path"].removeprefix(self._folder)
                if name == _CLOCK:
                    continue
                since = name.removesuffix(_ALIVE)
                seen[since] = max(seen.get(since, 0.0), found["last_modified"].timestamp())
                if name == since:
                    marks.add(since)
        if not seen:
            return None
        before = await self._now() - DEAD_S
        for since in sorted(seen):
            if seen[since] < before:
                # The mark first: without it, what renews it counts for nothing.
                await self.delete(since)
                await self.delete(since + _ALIVE)
        return min((since for since in marks if seen[since] >= before), default=None)

    async def _now(self) -> float:
        """The time by the clock of the store: clocks of other machines may be wrong."""
        await self.put(_CLOCK)
        return await self.modified_at(_CLOCK)

    async def put(self, name: str) -> None:
        with self._errors:
            await self._store.put_async(self._folder + name, b"", use_multipart=False)

    async def modified_at(self, name: str) -> float:
        with self._errors:
            return (await self._store.head_async(self._folder + name))["last_modified"].timestamp()

    async def delete(self, name: str) -> None:
        with suppress(BlobMissing), self._errors:
            await self._store.delete_async(self._folder + name)

    def clock(self) -> float:
        return self._runtime.clock()


class _Mark:
    def __init__(self, submits: ObjectSubmits, since: str) -> None:
        self._submits = submits
        self._since = since
        self._renewed: float | None = None
        """None: there is no mark yet."""

    async def keep(self) -> None:
        now = self._submits.clock()
        if self._renewed is None:
            await self._submits.put(self._since)
        elif now - self._renewed < RENEWED_S:
            return
        else:
            await self._submits.put(self._since + _ALIVE)
        self._renewed = now

    async def check(self) -> None:
        if self._renewed is None:
            return
        try:
            await self._submits.modified_at(self._since)
        except BlobMissing:
            raise StorageError(
                "this submit took so long that it was taken for dead, and its bytes may have been removed: submit the "
                "same files again"
            ) from None

    async def remove(self) -> None:
        if self._renewed is not None:
            await self._submits.delete(self._since)
            await self._submits.delete(self._since + _ALIVE)
