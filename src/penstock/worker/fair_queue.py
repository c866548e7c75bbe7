"""Whose turn it is: shares by owner, and within an owner quick documents before long ones."""

from collections import deque
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from itertools import count
from typing import Generic, NamedTuple, TypeVar

T = TypeVar("T")

LONG_EVERY = 4
"""Every so many turns of an owner one goes to the document that came first, however many quick ones wait."""
REMEMBERED = 4096
"""Documents and owners that are known beyond those that wait."""


class FlowKey(NamedTuple):
    """What a turn is for."""

    owner: str
    document: Hashable


@dataclass
class _Document:
    came: int
    used_s: float = 0.0


class FairQueue(Generic[T]):
    """A queue that shares time. The owner that has had the least goes first; one who comes new starts at the front, not
    with a claim on what others had before (start-time fair queueing). Whoever had a turn says how long it took."""

    def __init__(self, quick_s: float) -> None:
        """`quick_s`: a document that has had no more than this goes before those of its owner that had."""
        self._quick_s = quick_s
        self._waiting: dict[str, dict[FlowKey, deque[T]]] = {}
        self._documents: dict[FlowKey, _Document] = {}
        self._had: dict[str, float] = {}
        """By owner: virtual seconds."""
        self._taken: dict[str, int] = {}
        self._front = 0.0
        """What the owner had who was last served: nobody starts before it."""
        self._clock = count()

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def __iter__(self) -> Iterator[T]:
        return (item for flows in self._waiting.values() for items in flows.values() for item in items)

    def waits(self, flow: FlowKey) -> bool:
        return flow in self._waiting.get(flow.owner, {})

    @property
    def is_quick(self) -> bool:
        """Whether something waits that has not had much."""
        return any(self._documents[flow].used_s <= self._quick_s for flows in self._waiting.values() for flow in flows)

    def add(self, flow: FlowKey, item: T, *, again: bool = False) -> None:
        """`again`: it had its turn, and was sent back through no fault of its own; it goes before what it waited
        before."""
        self._know(flow)
        self._had[flow.owner] = max(self._had.get(flow.owner, 0.0), self._front)
        items = self._waiting.setdefault(flow.owner, {}).setdefault(flow, deque())
        (items.appendleft if again else items.append)(item)

    def remove(self, flow: FlowKey, item: T) -> None:
        """It waits no more, if it did."""
        items = self._waiting.get(flow.owner, {}).get(flow)
        if items is not None and item in items:
            items.remove(item)
            self._tidy(flow)

    def pop(self) -> T:
        owner = min(self._waiting, key=lambda owner: self._had[owner])
        self._front = max(self._front, self._had[owner])
        flow = self._next_of(owner)
        item = self._waiting[owner][flow].popleft()
        self._tidy(flow)
        return item

    def used(self, flow: FlowKey, seconds: float) -> None:
        self._know(flow).used_s += seconds
        self._had[flow.owner] = max(self._had.get(flow.owner, 0.0), self._front) + seconds

    def _next_of(self, owner: str) -> FlowKey:
        flows = self._waiting[owner]
        self._taken[owner] = taken = self._taken.get(owner, 0) + 1
        quick = [flow for flow in flows if self._documents[flow].used_s <= self._quick_s]
        return min(flows if taken % LONG_EVERY == 0 else quick or flows, key=lambda flow: self._documents[flow].came)

    def _know(self, flow: FlowKey) -> _Document:
        found = self._documents.get(flow)
        if found is None:
            if len(self._documents) >= REMEMBERED:
                self._forget()
            found = self._documents[flow] = _Document(next(self._clock))
        return found

    def _forget(self) -> None:
        """The older half of what does not wait; an owner who comes again starts at the front."""
        waiting = {flow for flows in self._waiting.values() for flow in flows}
        old = [flow for flow in self._documents if flow not in waiting][: REMEMBERED // 2]
        for flow in old:
            del self._documents[flow]
        for owner in [owner for owner, had in self._had.items() if owner not in self._waiting and had <= self._front]:
            del self._had[owner]
            self._taken.pop(owner, None)

    def _tidy(self, flow: FlowKey) -> None:
        flows = self._waiting[flow.owner]
        if not flows[flow]:
            del flows[flow]
        if not flows:
            del self._waiting[flow.owner]
