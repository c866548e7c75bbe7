"""A source that can be stopped while it waits for a server, so that Ctrl-C does not wait for a slow download."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from typing import TypeVar

from penstock.errors import SourceError
from penstock.sources.base import Closable, Found, Known, Local, Revised, Source

T = TypeVar("T")


def stoppable(source: Source, stopped: asyncio.Event) -> Source:
    """The same source. When `stopped` is set, `discover` ends and `read` raises SourceError. A local source is not
    changed: it never waits for long."""
    if isinstance(source, Local):
        return source
    return _StoppableRevised(source, stopped) if isinstance(source, Revised) else _Stoppable(source, stopped)


class _Stoppable:
    def __init__(self, source: Source, stopped: asyncio.Event) -> None:
        self._source = source
        self._stopped = stopped

    @property
    def problems(self) -> Sequence[str]:
        return self._source.problems

    @property
    def repeatable(self) -> bool:
        return self._source.repeatable

    async def discover(self, known: Known) -> AsyncGenerator[Found, None]:
        async with aclosing(self._source.discover(known)) as discovered:
            async for found in _until(discovered, self._stopped):
                yield found

    async def read(self, found: Found) -> AsyncGenerator[bytes, None]:
        async with aclosing(self._source.read(found)) as pieces:
            async for piece in _until(pieces, self._stopped):
                yield piece
        if self._stopped.is_set():
            raise SourceError("interrupted while it was read: it was not accepted")

    async def close(self) -> None:
        if isinstance(self._source, Closable):
            await self._source.close()


class _StoppableRevised(_Stoppable):
    def learned(self, found: Found) -> Found:
        assert isinstance(self._source, Revised)
        return self._source.learned(found)


async def _until(items: AsyncGenerator[T, None], stopped: asyncio.Event) -> AsyncIterator[T]:
    """Yield the items until `stopped` is set."""
    ending = asyncio.create_task(stopped.wait())
    try:
        while True:
            following = asyncio.ensure_future(anext(items, None))
            try:
                await asyncio.wait({following, ending}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                if not following.done():
                    following.cancel()
                    await asyncio.gather(following, return_exceptions=True)
            item = None if following.cancelled() or ending.done() else following.result()
            if item is None:
                return
            yield item
    finally:
        ending.cancel()
