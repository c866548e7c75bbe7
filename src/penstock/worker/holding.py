"""The lock of an index table, for vacuum and for user code. Index steps, purges and repairs take the same lock."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import msgspec

from penstock.errors import LeaseLost, LockHeld
from penstock.ledger.database.store import Ledger
from penstock.ledger.engine import locks
from penstock.model.nouns import Token
from penstock.runtime import shielded
from penstock.worker.heartbeat import Heartbeat

POLL_S = 0.1
WANTED_S = 1.0
"""For this long after each attempt to take the lock, no step may take it first. A process that dies while it waits
blocks steps no longer than this."""
REAP_EVERY = 20


class HeldLock:
    """A lock that is held. The heartbeat thread extends it, however long the block takes."""

    def __init__(self, ledger: Ledger, key: str, token: Token, heartbeat: Heartbeat) -> None:
        self.key = key
        self.token = token
        self.given_back = False
        """Another write has already released the lock."""
        self._ledger = ledger
        self._heartbeat = heartbeat

    @property
    def lost(self) -> bool:
        """Whether the lock is known to be lost. A loss is noticed with the next heartbeat: after half a second, or a
        quarter of a shorter lease."""
        return self.token in self._heartbeat.lost_locks

    def raise_if_lost(self) -> None:
        """Raise `LeaseLost` if the lock was broken, or if this process stood still for longer than its lease."""
        if self.lost:
            raise lost(self.key)

    async def verify(self) -> None:
        """Raise `LeaseLost` if the ledger no longer records this lock. Call it right before a commit to the index."""
        if not await self._ledger.read(locks.held, self.key, self.token):
            raise lost(self.key)


def lost(key: str) -> LeaseLost:
    return LeaseLost(f"the lock {key} was lost: another process may have written meanwhile (`penstock lock list`)")


@asynccontextmanager
async def hold(
    ledger: Ledger,
    heartbeat: Heartbeat,
    key: str,
    lease_s: float,
    max_wait: float | None,
    reap: Callable[[], Awaitable[int]],
    purpose: str = "hold",
) -> AsyncIterator[HeldLock]:
    """Hold the lock during a block. Raises `LockHeld` if it is not free within `max_wait`, and `LeaseLost` at the end
    of the block if it was lost."""
    token = Token(ledger.database.runtime.token())
    await _acquire(ledger, locks.Acquire(key, token, heartbeat.worker, purpose, lease_s), max_wait, reap)
    held = HeldLock(ledger, key, token, heartbeat)
    heartbeat.locks[key] = token
    try:
        yield held
    finally:
        del heartbeat.locks[key]
        kept = held.given_back or await shielded(ledger.write(locks.RELEASE, (key, token)))
    if not kept:
        raise lost(key)


async def _acquire(
    ledger: Ledger, request: locks.Acquire, max_wait: float | None, reap: Callable[[], Awaitable[int]]
) -> None:
    runtime = ledger.database.runtime
    began, looks = runtime.clock(), 0
    while True:
        left = None if max_wait is None else began + max_wait - runtime.clock()
        last = left is not None and left <= 0
        wanted_s = WANTED_S if not last else -WANTED_S if looks else 0.0
        if await ledger.write(locks.ACQUIRE, msgspec.structs.replace(request, wanted_s=wanted_s)):
            return
        if last:
            raise LockHeld(
                f"the lock {request.key} is held by another process: wait longer; `penstock lock list` shows the holder"
            )
        looks += 1
        if looks % REAP_EVERY == 0:
            await reap()
        await runtime.sleep(POLL_S if left is None else min(POLL_S, left))
