"""Slots: permissions to run a stage, shared fairly. A step releases its slot while it waits for something else. Between
two batches, a step that has held its slot for QUANTUM_S lets waiting requests go first."""

import asyncio
from collections import deque
from collections.abc import Callable

from penstock.worker.fair_queue import FairQueue, FlowKey

QUICK_S = 1.0
"""A document that has used at most this many seconds comes before other documents of its owner."""
MOMENT_S = 0.001
QUANTUM_S = 0.5
"""How long a step may hold its slot while others wait."""

SlotRequest = asyncio.Future[None]
"""A request for a slot. It is done when the slot is granted."""


class Slots:
    def __init__(self, size: int, clock: Callable[[], float]) -> None:
        self.size = size
        self._clock = clock
        self._free = size
        self._first_requests: deque[SlotRequest] = deque()
        self._requests: FairQueue[SlotRequest] = FairQueue(QUICK_S)

    @property
    def is_full(self) -> bool:
        return self._free == 0

    async def acquire(self, flow: FlowKey | None) -> None:
        """Wait for a slot. If `flow` is None, the request comes before all others."""
        if self._free:
            self._free -= 1
            return
        request = self.request(flow)
        try:
            await request
        except asyncio.CancelledError:
            self.withdraw(flow, request)
            raise

    def request(self, flow: FlowKey | None) -> SlotRequest:
        """Request a slot without waiting. A caller that no longer wants the slot calls `withdraw`."""
        request: SlotRequest = asyncio.get_running_loop().create_future()
        if self._free:
            self._free -= 1
            request.set_result(None)
        elif flow is None:
            self._first_requests.append(request)
        else:
            self._requests.add(flow, request)
        return request

    def withdraw(self, flow: FlowKey | None, request: SlotRequest) -> None:
        """Withdraw a request, or release the slot if it was granted already."""
        if request.done() and not request.cancelled():
            self.release()
            return
        request.cancel()
        if flow is not None:
            self._requests.remove(flow, request)

    def release(self) -> None:
        """Release the slot, which goes to the next request."""
        request = self._next()
        if request is None:
            self._free += 1
        else:
            request.set_result(None)

    async def hold(self, flow: FlowKey) -> "SlotHold":
        """Wait for a slot and return a hold on it. The caller calls `end`."""
        await self.acquire(flow)
        return SlotHold(self, flow, self._clock)

    def used(self, flow: FlowKey, seconds: float) -> None:
        # While nothing waits, short times are not counted, because every step of every small document calls this.
        if seconds >= MOMENT_S or self._requests:
            self._requests.used(flow, seconds)

    @property
    def is_wanted(self) -> bool:
        return bool(self._first_requests or self._requests)

    def _next(self) -> SlotRequest | None:
        while self._first_requests:
            request = self._first_requests.popleft()
            if not request.done():
                return request
        while self._requests:
            request = self._requests.pop()
            if not request.done():
                return request
        return None


class SlotHold:
    """The slot of one step, which the step may release and reacquire until `end`."""

    def __init__(self, slots: Slots, flow: FlowKey, clock: Callable[[], float]) -> None:
        """The caller holds the slot already."""
        self._slots = slots
        self._flow = flow
        self._clock = clock
        self._since: float | None = clock()
        """When the slot was taken; None while it is not held."""
        self._request: SlotRequest | None = None
        """The request for the slot, from `request` until `reacquire` takes it. It may have been granted."""
        self._ended = False

    @property
    def is_released(self) -> bool:
        """Whether the slot is not held and the hold has not ended."""
        return self._since is None and not self._ended

    @property
    def should_yield(self) -> bool:
        """Whether other requests wait and the slot was held for QUANTUM_S."""
        return self._since is not None and self._slots.is_wanted and self._clock() - self._since >= QUANTUM_S

    def end(self) -> None:
        self._ended = True
        self.release()

    def release(self) -> None:
        """Release the slot, or withdraw the request for it."""
        if self._since is not None:
            self._count()
            self._slots.release()
        elif self._request is not None:
            request, self._request = self._request, None
            self._slots.withdraw(self._flow, request)

    def request(self) -> None:
        """Request the slot again without waiting for it."""
        if self.is_released and self._request is None:
            self._request = self._slots.request(self._flow)

    async def reacquire(self) -> None:
        """Wait until the slot is held again. If several tasks of one step call this, the step still gets only one
        slot."""
        while self.is_released:
            self.request()
            request = self._request
            assert request is not None
            if not request.done():
                try:
                    await asyncio.wait([request])
                except asyncio.CancelledError:
                    self.release()
                    raise
            if self._request is request:
                self._request = None
                self._since = self._clock()

    async def yield_slot(self) -> None:
        """Release the slot to the next request and wait for another one. If the next request is that of this step, it
        keeps the slot."""
        if self._since is None:
            return
        self._count()
        self.request()
        self._slots.release()
        await self.reacquire()

    def _count(self) -> None:
        assert self._since is not None
        self._slots.used(self._flow, self._clock() - self._since)
        self._since = None
