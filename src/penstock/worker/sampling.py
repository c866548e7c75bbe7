"""Counts what the steps of each owner do, and writes it into the ledger every ten seconds, for the plots."""

from penstock.errors import PenstockError
from penstock.ledger.database.store import Ledger
from penstock.ledger.engine import samples
from penstock.ledger.engine.samples import DOCUMENT, QueueSample, Sampled, StepSample
from penstock.model.nouns import Owner
from penstock.runtime import Runtime

EVERY_S = 10.0
SHARE = 100
"""Looking at the queues takes at most this part of the time: they may be long."""


class Tally:
    """What steps of one kind did since the last sample."""

    def __init__(self) -> None:
        self.completed = self.failed = self.items = 0
        self.seconds = self.slowest = 0.0

    def sample(self, owner: Owner, kind: str) -> StepSample:
        return StepSample(owner, kind, self.completed, self.failed, self.items, self.seconds, self.slowest)


class Tallies:
    """What was done since the last sample, by owner and kind."""

    def __init__(self) -> None:
        self._tallies: dict[tuple[Owner, str], Tally] = {}

    def _of(self, owner: Owner, kind: str) -> Tally:
        return self._tallies.setdefault((owner, kind), Tally())

    def made(self, owner: Owner, kind: str, items: int) -> None:
        self._of(owner, kind).items += items

    def completed(self, owner: Owner, kind: str, seconds: float) -> None:
        tally = self._of(owner, kind)
        tally.completed += 1
        tally.seconds += seconds
        tally.slowest = max(tally.slowest, seconds)

    def failed(self, owner: Owner, kind: str) -> None:
        self._of(owner, kind).failed += 1

    def ended(self, owner: Owner, *, failed: bool) -> None:
        tally = self._of(owner, DOCUMENT)
        tally.failed += failed
        tally.completed += not failed

    def take(self) -> tuple[StepSample, ...]:
        taken, self._tallies = self._tallies, {}
        return tuple(tally.sample(owner, kind) for (owner, kind), tally in taken.items())


class Sampler:
    def __init__(self, ledger: Ledger, runtime: Runtime, tallies: Tallies) -> None:
        self._ledger = ledger
        self._runtime = runtime
        self._tallies = tallies
        self._next = runtime.clock() + EVERY_S
        self._known: dict[Owner, QueueSample] = {}

    async def sample(self) -> None:
        """Write a sample if it is time."""
        if self._runtime.clock() >= self._next:
            await self.write()

    async def write(self) -> None:
        """Write what has changed. If the ledger does not take it, it is lost: no document depends on it."""
        began = self._runtime.clock()
        try:
            queues = await self._ledger.read(samples.standing)
            changed = tuple(one for one in queues if one != self._known.get(one.owner, _empty(one.owner)))
            steps = self._tallies.take()
            if steps or changed:
                await self._ledger.write(samples.KEEP_SAMPLES, Sampled(self._runtime.now(), steps, changed))
            self._known |= {one.owner: one for one in changed}
        except PenstockError:
            pass
        now = self._runtime.clock()
        self._next = now + max(EVERY_S, SHARE * (now - began))


def _empty(owner: Owner) -> QueueSample:
    return QueueSample(owner, 0, 0, 0, 0)
