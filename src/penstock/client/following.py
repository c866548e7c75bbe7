"""The documents of an ingest, from their receipts to their ends. The change feed tells most; a list of the newest
documents tells the rest: documents inside others, and what happened while the feed was cut off."""

import asyncio
from collections import Counter, OrderedDict
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from penstock.client.connection import Connection, segment
from penstock.client.documents import paged
from penstock.client.errors import NotThere
from penstock.client.events import ChangeStream
from penstock.model.states import ENDS, DocumentStatus
from penstock.verbs.views import DocumentDetails, DocumentView
from penstock.worker.counters import DocumentInProgress

if TYPE_CHECKING:
    from penstock.verbs.following import Change

SEEN = 10_000
"""Changes that are kept because the receipt of their document may not have arrived yet."""
SWEEP_S = 15.0
AT_ONCE = 8
INSIDE = "!/"
_STAGES = (
    ("embed", "embedded", "total_chunks"),
    ("chunk", "chunks", "total_chunks"),
    ("extract", "pages", "total_pages"),
)


class Followed:
    """Documents, and how far they are."""

    def __init__(self, connection: Connection, collection: str | None) -> None:
        self._connection = connection
        self._stream = ChangeStream(connection, None, {"collection": collection})
        self._collection = collection
        self._mark = ""
        self.status: dict[str, str] = {}
        self.open: set[str] = set()
        self.counts: Counter[str] = Counter()
        self.made: dict[str, tuple[int, int]] = {}
        """The pages and chunks of documents."""
        self.children = 0
        self.opened = asyncio.Event()
        """The feed is open: what happens from now on is told."""
        self.news = asyncio.Event()
        self.is_due = False
        """Changes may be missing."""
        self._sources: set[str] = set()
        self._names: dict[str, str] = {}
        """The names of those that have not ended."""
        self._seen: OrderedDict[str, Change] = OrderedDict()
        self._running: dict[str, Change] = {}

    async def begin(self) -> None:
        """Remember the newest document: those inside ours are newer."""
        answer = await self._connection.json("GET", "documents", query={"limit": 1})
        newest = self._connection.restored(answer.get("documents", []), list[DocumentView])
        self._mark = newest[0].id if newest else ""

    def add(self, document: str, source: str, name: str) -> None:
        self._names[document] = name
        if document in self.status:
            # It runs again.
            self._set(document, DocumentStatus.PENDING)
            return
        self._sources.add(source)
        self._set(document, DocumentStatus.PENDING)
        if (seen := self._seen.pop(document, None)) is not None:
            self._learn(seen)

    def _set(self, document: str, status: str) -> None:
        before = self.status.get(document)
        if before is not None:
            self.counts[before] -= 1
        self.status[document] = status
        self.counts[status] += 1
        if status in ENDS:
            self.open.discard(document)
            self._running.pop(document, None)
            self._names.pop(document, None)
        else:
            self.open.add(document)

    async def follow(self) -> None:
        """Take in changes until cancelled."""
        async with aclosing(self._stream.changes()) as changes:
            async for change in changes:
                self.opened.set()
                if change is not None:
                    self._hear(change)
                    self.news.set()

    def _hear(self, change: "Change") -> None:
        if change.event == "reset":
            self.is_due = True
        elif change.document is None:
            return
        elif change.event == "progress":
            if change.document in self.open:
                self._running[change.document] = change
        elif change.document in self.status:
            self._learn(change)
        elif self._is_inside(change.source or ""):
            self.children += 1
            self.add(change.document, change.source or "", change.name or "")
            self._learn(change)
        else:
            self._seen[change.document] = change
            if len(self._seen) > SEEN:
                self._seen.popitem(last=False)
                self.is_due = True

    def _is_inside(self, source: str) -> bool:
        """Whether a source is inside one of ours, as in `mails.zip!/letter.txt`."""
        place = source.rfind(INSIDE)
        while place > 0:
            if source[:place] in self._sources:
                return True
            place = source.rfind(INSIDE, 0, place)
        return False

    def _learn(self, change: "Change") -> None:
        assert change.document is not None
        status = DocumentStatus.CANCELLED if change.event == "deleted" else change.status or DocumentStatus.PENDING
        self._set(change.document, status)
        if status == DocumentStatus.COMPLETED:
            self.made[change.document] = (change.pages or 0, change.chunks or 0)
        before = self._running.get(change.document)
        if before is None and change.document in self.open:
            self._running[change.document] = change

    async def sweep(self) -> None:
        """Ask the server about the documents that are newer than the beginning, and about ours that have not ended."""
        self.is_due = False
        inside: list[DocumentView] = []
        looked: set[str] = set()
        query = {"collection": self._collection, "limit": 500}
        async with aclosing(paged(self._connection, "documents", "documents", DocumentView, query)) as found:
            async for view in found:
                if view.id <= self._mark:
                    break
                looked.add(view.id)
                if view.id in self.status:
                    self._look(view)
                elif view.parent is not None:
                    inside.append(view)
        # The newest come first, so that what is inside a document comes before it.
        for view in reversed(inside):
            if view.parent in self.status:
                self.children += 1
                self.add(view.id, view.source, view.name)
                self._look(view)
        old = [document for document in self.open if document not in looked]
        for i in range(0, len(old), AT_ONCE):
            await asyncio.gather(*(self._ask(document) for document in old[i : i + AT_ONCE]))

    async def _ask(self, document: str) -> None:
        try:
            self._look(await self._connection.json("GET", f"documents/{segment(document)}", DocumentDetails))
        except NotThere:
            self._set(document, DocumentStatus.CANCELLED)

    def _look(self, view: DocumentView) -> None:
        self._set(view.id, view.status)
        if view.status == DocumentStatus.COMPLETED:
            self.made[view.id] = (view.pages or 0, view.chunks or 0)

    def in_hand(self) -> list[DocumentInProgress]:
        """The documents that a worker of the server holds."""
        running = [change for change in self._running.values() if change.step is not None]
        return [_in_progress(change, self._names.get(change.document or "", "")) for change in running]

    def waiting(self) -> dict[str, int]:
        return dict(Counter(one.waiting_on for one in self._running.values() if one.waiting_on))

    def total(self) -> dict[str, int]:
        """The pages and chunks of the documents that have ended or run."""
        pages, chunks = (sum(one[i] for one in self.made.values()) for i in (0, 1))
        running: Any = self._running.values()
        return {
            "pages": pages + sum(one.pages or 0 for one in running),
            "chunks": chunks + sum(one.chunks or 0 for one in running),
        }


def _in_progress(change: "Change", name: str) -> DocumentInProgress:
    kind, done, of = next(
        ((kind, n, getattr(change, of)) for kind, field, of in _STAGES if (n := getattr(change, field))),
        (change.step or "", 0, None),
    )
    return DocumentInProgress(name, kind, done, of, change.waiting_on, source=change.document or "")
