"""The change feed: what changes of an owner's documents, whichever process changes it.

One reader in a process asks the ledger for all streams of an owner. PostgreSQL commits out of order, so each look
begins a little before the last change that was seen (`OVERLAP_S`), or at the oldest transaction that may still commit.
A stream first reads what it missed from the ledger, and then gets what the reader finds. A stream that is read too
slowly reads from the ledger again: nothing is lost, and nothing piles up.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import suppress

import msgspec

from penstock.ledger.database.store import Ledger
from penstock.ledger.reads import feed
from penstock.ledger.reads.feed import ChangedDocument, Made, Position, Present
from penstock.model.nouns import Owner
from penstock.runtime import Runtime

OVERLAP_S = 2.0
POLL_S = 0.25
"""A document is told at most once in this time."""
AGAIN_S = 2.0
"""The pause after a look that failed."""
PAGE = 500
HELD = 5_000
"""The number of documents that wait for a slow stream. It reads from the ledger again if there are more."""
LONGEST_S = 86_400.0
"""Older positions cannot be resumed: rows of deleted documents may be gone by then."""
PATIENCE_S = 60.0
"""A transaction that is older than this no longer holds the feed back."""


class Reset(msgspec.Struct, frozen=True):
    """The position is too old, or of another history: read everything again, then follow from here."""

    position: Position


News = ChangedDocument | Made | Reset


class Stream:
    """What waits for one reader: at most one message for each document, the newest."""

    def __init__(self, wanted: Callable[[ChangedDocument | Made], bool]) -> None:
        self._wanted = wanted
        self.waiting: dict[str, ChangedDocument | Made] = {}
        self.behind = False
        """There was more than it can hold."""
        self.news = asyncio.Event()
        self._told: dict[str, float] = {}
        """The changes of the last seconds, which a second look finds again."""

    def take(self, found: Iterable[ChangedDocument | Made]) -> None:
        for one in found:
            if self.behind or not self._wanted(one):
                continue
            if isinstance(one, Made):
                if not isinstance(self.waiting.get(one.document), ChangedDocument):
                    self.waiting[one.document] = one
                continue
            self.waiting.pop(one.id, None)
            self.waiting[one.id] = one
            if len(self.waiting) > HELD:
                self.waiting.clear()
                self.behind = True
        if self.waiting or self.behind:
            self.news.set()

    def fresh(self, found: Iterable[ChangedDocument]) -> list[ChangedDocument]:
        """Those that were not told yet."""
        return [one for one in found if self._wanted(one) and self._told.get(one.id) != one.changed_at]

    def told(self, found: Iterable[ChangedDocument | Made]) -> None:
        for one in found:
            if isinstance(one, ChangedDocument):
                self._told.pop(one.id, None)
                self._told[one.id] = one.changed_at
        while len(self._told) > HELD:
            del self._told[next(iter(self._told))]


class Feed:
    """The streams of a process."""

    def __init__(self, ledger: Ledger, runtime: Runtime, horizon_s: float = LONGEST_S) -> None:
        self._ledger = ledger
        self._runtime = runtime
        self._horizon_s = min(horizon_s, LONGEST_S)
        self._readers: dict[Owner, _Reader] = {}
        self.looks = 0
        """How often the ledger was asked for news."""
        self.closed = False

    @property
    def streams(self) -> int:
        return sum(len(reader.streams) for reader in self._readers.values())

    async def present(self) -> Present:
        return await self._ledger.read(feed.present)

    async def follow(
        self, owner: Owner, after: Position | None, history: int, wanted: Callable[[ChangedDocument | Made], bool]
    ) -> AsyncGenerator[list[News], None]:
        """Yield what changed after a position (None: from now on), in batches; `history` is that of the position. A
        change may be told twice. Ends when the feed is closed."""
        if self.closed:
            return
        stream = Stream(wanted)
        reader = self._join(owner, stream)
        try:
            now = await self.present()
            if after is None:
                after = Position(now.at)
            elif history != now.history or not now.at - self._horizon_s <= after.at <= now.at + OVERLAP_S:
                after = Position(now.at)
                yield [Reset(after)]
            stream.behind = True
            while not self.closed:
                if stream.behind:
                    stream.behind = False
                    async for page in self._missed(owner, after):
                        told = stream.fresh(page)
                        if told:
                            yield list(told)
                            stream.told(told)
                        after = max(after, page[-1].position)
                    continue
                if not stream.waiting:
                    stream.news.clear()
                    await stream.news.wait()
                    continue
                batch, stream.waiting = list(stream.waiting.values()), {}
                changes = stream.fresh(one for one in batch if isinstance(one, ChangedDocument))
                out: list[News] = [*changes, *(one for one in batch if isinstance(one, Made))]
                if out:
                    yield out
                    stream.told(changes)
                after = max([after, *(one.position for one in changes)])
        finally:
            reader.leave(stream)
            if not reader.streams:
                self._readers.pop(owner, None)

    async def _missed(self, owner: Owner, after: Position) -> AsyncGenerator[list[ChangedDocument], None]:
        place = Position(after.at - OVERLAP_S)
        while not self.closed:
            page = await self._ledger.read(_changed(owner, place))
            if page:
                yield page
                place = page[-1].position
            if len(page) < PAGE:
                return

    def _join(self, owner: Owner, stream: Stream) -> "_Reader":
        if owner not in self._readers:
            self._readers[owner] = _Reader(self, owner, self._ledger, self._runtime)
        self._readers[owner].streams.add(stream)
        return self._readers[owner]

    def close(self) -> None:
        """End all streams."""
        self.closed = True
        for reader in self._readers.values():
            for stream in reader.streams:
                stream.news.set()

    async def end(self) -> None:
        self.close()
        for reader in list(self._readers.values()):
            await reader.end()


def _changed(owner: Owner, place: Position) -> "Callable[..., list[ChangedDocument]]":
    return lambda connection: feed.changed(owner, connection, place, PAGE)


class _Reader:
    """Asks the ledger for the changes of one owner, as long as there are streams."""

    def __init__(self, whole: Feed, owner: Owner, ledger: Ledger, runtime: Runtime) -> None:
        self._whole = whole
        self._owner = owner
        self._ledger = ledger
        self._runtime = runtime
        self.streams: set[Stream] = set()
        self._seen: dict[str, float] = {}
        """The changes since the beginning of the next look."""
        self._made: dict[str, Made] = {}
        self._task = asyncio.create_task(self._read())

    def leave(self, stream: Stream) -> None:
        self.streams.discard(stream)
        if not self.streams:
            self._task.cancel()

    async def end(self) -> None:
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task

    async def _read(self) -> None:
        mark: float | None = None
        while not self._whole.closed:
            try:
                if mark is None:
                    mark = (await self._whole.present()).at
                mark = await self._look(mark)
                rest = POLL_S
            except Exception as error:
                # The streams would wait for ever if this ended.
                logging.getLogger("penstock").warning("the change feed could not be read: %s", error)
                rest = AGAIN_S
            await self._runtime.sleep(rest)

    async def _look(self, mark: float) -> float:
        """Tell the streams what is new, and return the time of the last change that was seen."""
        self._whole.looks += 1
        oldest = await self._ledger.read(feed.oldest_writer)
        begin = mark - OVERLAP_S
        if oldest is not None:
            begin = max(min(begin, oldest), mark - PATIENCE_S)
        place, told = Position(begin), set[str]()
        while True:
            page = await self._ledger.read(_changed(self._owner, place))
            new = [one for one in page if self._seen.get(one.id) != one.changed_at]
            for one in new:
                self._seen[one.id] = one.changed_at
                told.add(one.id)
            self._tell(new)
            if page:
                place = page[-1].position
            if len(page) < PAGE:
                break
        mark = max(mark, place.at)
        await self._progress(told)
        self._seen = {document: at for document, at in self._seen.items() if at > mark - PATIENCE_S}
        return mark

    async def _progress(self, told: set[str]) -> None:
        made = {one.document: one for one in await self._ledger.read(lambda c: feed.running(self._owner, c))}
        # A document whose change was told just now follows in the next look, so that nobody gets more than one message.
        self._tell(one for one in made.values() if one.document not in told and self._made.get(one.document) != one)
        held = {document: one for document, one in self._made.items() if document in told and document in made}
        self._made = held | {document: one for document, one in made.items() if document not in told}

    def _tell(self, found: Iterable[ChangedDocument | Made]) -> None:
        every = list(found)
        if every:
            for stream in self.streams:
                stream.take(every)
