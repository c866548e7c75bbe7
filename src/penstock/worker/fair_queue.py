"""A queue that shares time equally between owners, and prefers short documents within an owner."""

from collections import deque
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from itertools import count
from typing import Generic, NamedTuple, TypeVar

T = TypeVar("T")

LONG_EVERY = 4
"""One in this many items of an owner is taken from its oldest document, however many short ones wait."""
REMEMBERED = 4096
"""How many documents are remembered before old ones that do not wait are removed."""


class FlowKey(NamedTuple):
    """The owner and document that an item of the queue belongs to."""

    owner: str
    document: Hashable


@dataclass
class _Document:
    came: int
    used_s: float = 0.0


class FairQueue(Generic[T]):
    """A queue that shares time. The next item comes from the owner that has used the least time. A new owner starts at
    the current minimum and gets no credit for earlier time (start-time fair queueing). The caller reports the time that
    each item took with `used`."""

    def __init__(self, quick_s: float) -> None:
        """A document that has used at most `quick_s` seconds is short. Short documents come before other documents of
        the same owner."""
        self._quick_s = quick_s
        self._waiting: dict[str, dict[FlowKey, deque[T]]] = {}
        self._documents: dict[FlowKey, _Document] = {}
        self._used_s: dict[str, float] = {}
        """Virtual seconds used, by owner."""
        self._served: dict[str, int] = {}
        self._virtual_time = 0.0
        """The virtual time of the owner that was served last. No owner starts below it."""
        self._counter = count()

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def __iter__(self) -> Iterator[T]:
        return (item for flows in self._waiting.values() for items in flows.values() for item in items)

    def waits(self, flow: FlowKey) -> bool:
        return flow in self._waiting.get(flow.owner, {})

    @property
    def is_quick(self) -> bool:
        """Whether an item of a short document is waiting."""
        return any(self._documents[flow].used_s <= self._quick_s for flows in self._waiting.values() for flow in flows)

    def add(self, flow: FlowKey, item: T, *, again: bool = False) -> None:
        """Add an item. `again` means that the item was already taken and was returned for a reason outside it: it is
        placed before the other items of its document."""
        self._document(flow)
        self._used_s[flow.owner] = max(self._used_s.get(flow.owner, 0.0), self._virtual_time)
        items = self._waiting.setdefault(flow.owner, {}).setdefault(flow, deque())
        (items.appendleft if again else items.append)(item)

    def remove(self, flow: FlowKey, item: T) -> None:
        """Remove the item if it is waiting."""
        items = self._waiting.get(flow.owner, {}).get(flow)
        if items is not None and item in items:
            items.remove(item)
            self._remove_if_empty(flow)

    def pop(self) -> T:
        owner = min(self._waiting, key=lambda owner: self._used_s[owner])
        self._virtual_time = max(self._virtual_time, self._used_s[owner])
        flow = self._next_of(owner)
        item = self._waiting[owner][flow].popleft()
        self._remove_if_empty(flow)
        return item

    def used(self, flow: FlowKey, seconds: float) -> None:
        self._document(flow).used_s += seconds
        self._used_s[flow.owner] = max(self._used_s.get(flow.owner, 0.0), self._virtual_time) + seconds

    def _next_of(self, owner: str) -> FlowKey:
        flows = self._waiting[owner]
        self._served[owner] = taken = self._served.get(owner, 0) + 1
        quick = [flow for flow in flows if self._documents[flow].used_s <= self._quick_s]
        return min(flows if taken % LONG_EVERY == 0 else quick or flows, key=lambda flow: self._documents[flow].came)

    def _document(self, flow: FlowKey) -> _Document:
        found = self._documents.get(flow)
        if found is None:
            if len(self._documents) >= REMEMBERED:
                self._forget()
            found = self._documents[flow] = _Document(next(self._counter))
        return found

    def _forget(self) -> None:
        """Remove the oldest documents that do not wait, at most half of REMEMBERED, and owners that do not wait and are
        not above the current minimum. An owner that returns starts at that minimum."""
        waiting = {flow for flows in self._waiting.values() for flow in flows}
        old = [flow for flow in self._documents if flow not in waiting][: REMEMBERED // 2]
        for flow in old:
            del self._documents[flow]
        for owner in [
            owner
            for owner, used_s in self._used_s.items()
            if owner not in self._waiting and used_s <= self._virtual_time
        ]:
            del self._used_s[owner]
            self._served.pop(owner, None)

    def _remove_if_empty(self, flow: FlowKey) -> None:
        flows = self._waiting[flow.owner]
        if not flows[flow]:
            del flows[flow]
        if not flows:
            del self._waiting[flow.owner]
