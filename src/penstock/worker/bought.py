"""Answers of paid calls: kept durably by content before anything else happens, and never bought again."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence

from penstock.artifacts.fingerprints import fingerprint
from penstock.artifacts.segments import digest
from penstock.blobs.base import Blobs
from penstock.ledger.database.store import Ledger
from penstock.ledger.engine import answers
from penstock.metrics.base import Metrics
from penstock.model.nouns import Owner
from penstock.runtime import Runtime
from penstock.worker.paid import PaidWork


class BoughtAnswers:
    """The bought answers of all owners, for one worker."""

    def __init__(self, ledger: Ledger, blobs: Blobs, runtime: Runtime, metrics: Metrics, paid: PaidWork) -> None:
        self._starting = asyncio.Lock()
        """One operation is begun at a time: a kill loses at most one that was begun and not stored."""
        self._ledger = ledger
        self._blobs = blobs
        self._runtime = runtime
        self._metrics = metrics
        self._paid = paid

    async def find(self, owner: Owner, keys: Sequence[str]) -> dict[str, bytes]:
        """Return the answers that were bought, by key. One that cannot be read is not there."""
        places = await self._ledger.read(lambda connection: answers.find(owner, connection, keys))
        found: dict[str, bytes] = {}
        by_segment: dict[int, list[answers.Place]] = {}
        for place in places:
            by_segment.setdefault(place.segment, []).append(place)
        for some in by_segment.values():
            [data] = await self._blobs.get_many([some[0].key])
            if isinstance(data, bytes) and len(data) == some[0].segment_size and digest(data) == some[0].sha256:
                found |= {place.digest: data[place.position : place.position + place.size] for place in some}
        if stale := tuple({place.segment for place in places if place.stale}):
            await self._ledger.write(answers.TOUCH, stale)
        if found:
            self._metrics.incr("answer_reused", len(found))
        return found

    async def keep(self, owner: Owner, bought: Mapping[str, bytes]) -> None:
        """Store answers durably. They are kept whatever happened to the step meanwhile."""
        if not bought:
            return
        data = b"".join(bought.values())
        name = self._runtime.ulid()
        key = f"{owner}/bought/{name[:7]}/{name}"
        await self._blobs.put(key, data, durable=True)
        sizes = tuple((one, len(answer)) for one, answer in bought.items())
        await self._ledger.write(answers.KEEP, answers.Bought(owner, key, digest(data), len(data), sizes))
        self._metrics.incr("answer_bought", len(bought))

    async def start(self, owner: Owner, key: str, begin: Callable[[], Awaitable[str]]) -> str:
        """Begin an operation and store its id durably. If one was begun before, return that one."""
        if (before := await self.operation(owner, key)) is not None:
            return before

        async def begin_and_store() -> str:
            async with self._starting:
                # A step that was cancelled may have begun it meanwhile.
                if (known := await self.operation(owner, key)) is not None:
                    return known
                operation = await begin()
                await self._ledger.write(answers.START, answers.Started(owner, key, operation))
                return operation

        return await self._paid.finish(begin_and_store)

    async def operation(self, owner: Owner, key: str) -> str | None:
        return await self._ledger.read(lambda connection: answers.operation(owner, connection, key))

    async def forget(self, owner: Owner, keys: Sequence[str]) -> None:
        gone = await self._ledger.write(answers.FORGET, answers.Forget(owner, tuple(keys)))
        if gone:
            await self._blobs.delete(gone)


class OwnAnswers:
    """The bought answers of one owner, see `Answers`. `scope`: what the keys of the caller are about, such as the hash
    of a document."""

    def __init__(self, bought: BoughtAnswers, owner: Owner, scope: str) -> None:
        self._bought = bought
        self._owner = owner
        self._scope = scope

    def _digest(self, key: str) -> str:
        return fingerprint(self._scope, key)

    async def find(self, keys: Sequence[str]) -> dict[str, bytes]:
        digests = {self._digest(key): key for key in keys}
        found = await self._bought.find(self._owner, list(digests))
        return {digests[digest]: answer for digest, answer in found.items()}

    async def keep(self, bought: Mapping[str, bytes]) -> None:
        await self._bought.keep(self._owner, {self._digest(key): answer for key, answer in bought.items()})

    async def start(self, key: str, begin: Callable[[], Awaitable[str]]) -> str:
        return await self._bought.start(self._owner, self._digest(key), begin)

    async def forget(self, keys: Sequence[str]) -> None:
        await self._bought.forget(self._owner, [self._digest(key) for key in keys])
