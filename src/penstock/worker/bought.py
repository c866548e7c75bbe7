"""Answers of paid calls: kept durably by content before anything else happens, and never bought again."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from penstock.artifacts.fingerprints import fingerprint
from penstock.artifacts.segments import digest
from penstock.blobs.base import Blobs
from penstock.errors import Away, Refused, StorageError
from penstock.ledger.database.store import Ledger
from penstock.ledger.engine import answers
from penstock.metrics.base import Metrics
from penstock.model.nouns import Owner
from penstock.model.usage import Booking
from penstock.net.providers import FoundAnswer, Paid
from penstock.runtime import Runtime
from penstock.worker.paid import PaidWork


@dataclass
class _Held:
    """A key that is being bought. It is held by the step, and by the call, which may outlive the step."""

    settled: "asyncio.Future[None]"
    holders: int = 0


@dataclass
class _Bought:
    owner: Owner
    answers: Mapping[str, Paid]
    usage: Sequence[Booking]


class BoughtAnswers:
    """The bought answers of all owners, for one worker."""

    def __init__(
        self,
        ledger: Ledger,
        blobs: Blobs,
        runtime: Runtime,
        metrics: Metrics,
        paid: PaidWork,
        *,
        shared: bool = False,
    ) -> None:
        """`shared`: all owners share the vectors that were bought."""
        self._starting = asyncio.Lock()
        """One operation is begun at a time: a kill loses at most one that was begun and not stored."""
        self._ledger = ledger
        self._blobs = blobs
        self._runtime = runtime
        self._metrics = metrics
        self._paid = paid
        self._shared = shared
        self._unstored: list[_Bought] = []
        """Answers that are paid for and could not be stored, because the disk was full or the blob store away."""
        self._storing = asyncio.Lock()
        self._buying: dict[tuple[Owner, str], _Held] = {}
        """The keys that steps buy at this moment."""

    def of(self, owner: Owner, scope: str = "") -> "OwnAnswers":
        """The answers of an owner. `scope`: what the keys of the caller are about, such as the hash of a document.
        Without one, they are vectors of texts."""
        return OwnAnswers(self, place_of(owner, shared=self._shared and not scope), scope)

    async def find(self, owner: Owner, keys: Sequence[str]) -> dict[str, FoundAnswer]:
        """Return the answers that were bought, by key. One that cannot be read is not there. Fails while there are
        answers that cannot be stored, so that no more are bought."""
        await self._store_rest()
        places = await self._ledger.read(lambda connection: answers.find(owner, connection, keys))
        found: dict[str, FoundAnswer] = {}
        by_segment: dict[int, list[answers.Place]] = {}
        for place in places:
            by_segment.setdefault(place.segment, []).append(place)
        for some in by_segment.values():
            [data] = await self._blobs.get_many([some[0].key])
            if isinstance(data, bytes) and len(data) == some[0].segment_size and digest(data) == some[0].sha256:
                found |= {
                    place.digest: FoundAnswer(data[place.position : place.position + place.size], place.tokens)
                    for place in some
                }
        if stale := tuple({place.segment for place in places if place.stale}):
            await self._ledger.write(answers.TOUCH, stale)
        if found:
            self._metrics.incr("answer_reused", len(found))
        return found

    async def keep(self, owner: Owner, bought: Mapping[str, Paid], usage: Sequence[Booking] = ()) -> None:
        """Store answers durably. They are kept whatever happened to the step meanwhile. If the blob store is
        away, they are stored before anything else is bought by this worker."""
        if not bought:
            return
        one = _Bought(owner, bought, usage)
        try:
            await self._store(one)
        except (Away, OSError, StorageError) as error:
            if not isinstance(error, Refused):
                self._unstored.append(one)
            raise

    async def _store_rest(self) -> None:
        """Store what could not be stored before."""
        while self._unstored:
            async with self._storing:
                if self._unstored:
                    await self._store(self._unstored[0])
                    del self._unstored[0]

    async def _store(self, one: "_Bought") -> None:
        data = b"".join(paid.data for paid in one.answers.values())
        ulid = self._runtime.ulid()
        key = f"{one.owner}/bought/{ulid[:7]}/{ulid}"
        await self._blobs.put(key, data, durable=True)
        sizes = tuple(answers.Answer(name, len(paid.data), paid.tokens) for name, paid in one.answers.items())
        row = answers.Bought(one.owner, key, digest(data), len(data), sizes, tuple(one.usage))
        await self._ledger.write(answers.KEEP, row)
        self._metrics.incr("answer_bought", len(one.answers))

    def reserve(self, owner: Owner, digest: str) -> bool:
        """Whether no other step of this worker buys it."""
        if (owner, digest) in self._buying:
            return False
        self.hold(owner, digest)
        return True

    def hold(self, owner: Owner, digest: str) -> None:
        held = self._buying.setdefault((owner, digest), _Held(asyncio.get_running_loop().create_future()))
        held.holders += 1

    def free(self, owner: Owner, digest: str) -> None:
        held = self._buying[owner, digest]
        held.holders -= 1
        if not held.holders:
            del self._buying[owner, digest]
            held.settled.set_result(None)

    async def settled(self, owner: Owner, digests: Sequence[str]) -> None:
        waiting = [self._buying[owner, digest].settled for digest in digests if (owner, digest) in self._buying]
        if waiting:
            await asyncio.wait(waiting)

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


def place_of(owner: Owner, *, shared: bool) -> Owner:
    """Whose bought vectors an owner uses."""
    return answers.SHARED if shared else owner


async def stored_keys(ledger: Ledger, place: Owner, keys: Sequence[str]) -> set[str]:
    """Which of these keys of embeddings have an answer. Nothing is marked as used."""
    digests = {fingerprint("", key): key for key in keys}
    found = await ledger.read(lambda connection: answers.find(place, connection, list(digests)))
    return {digests[one.digest] for one in found}


class OwnAnswers:
    """The bought answers of one owner, see `Answers`. `scope`: what the keys of the caller are about, such as the hash
    of a document."""

    def __init__(self, bought: BoughtAnswers, owner: Owner, scope: str) -> None:
        self._bought = bought
        self._owner = owner
        self._scope = scope

    @property
    def place(self) -> str:
        return self._owner

    def _digest(self, key: str) -> str:
        return fingerprint(self._scope, key)

    async def find(self, keys: Sequence[str]) -> dict[str, bytes]:
        return {key: answer.data for key, answer in (await self.look(keys)).items()}

    async def look(self, keys: Sequence[str]) -> dict[str, FoundAnswer]:
        digests = {self._digest(key): key for key in keys}
        found = await self._bought.find(self._owner, list(digests))
        return {digests[digest]: answer for digest, answer in found.items()}

    async def keep(self, bought: Mapping[str, bytes]) -> None:
        await self.pay({key: Paid(answer, 0) for key, answer in bought.items()}, ())

    async def pay(self, bought: Mapping[str, Paid], usage: Sequence[Booking]) -> None:
        await self._bought.keep(self._owner, {self._digest(key): paid for key, paid in bought.items()}, usage)

    def reserve(self, keys: Sequence[str]) -> tuple[list[str], list[str]]:
        mine = [key for key in keys if self._bought.reserve(self._owner, self._digest(key))]
        return mine, [key for key in keys if key not in set(mine)]

    @contextmanager
    def held(self, keys: Sequence[str]) -> Iterator[None]:
        for key in keys:
            self._bought.hold(self._owner, self._digest(key))
        try:
            yield
        finally:
            self.free(keys)

    def free(self, keys: Sequence[str]) -> None:
        for key in keys:
            self._bought.free(self._owner, self._digest(key))

    async def settled(self, keys: Sequence[str]) -> None:
        await self._bought.settled(self._owner, [self._digest(key) for key in keys])

    async def start(self, key: str, begin: Callable[[], Awaitable[str]]) -> str:
        return await self._bought.start(self._owner, self._digest(key), begin)

    async def forget(self, keys: Sequence[str]) -> None:
        await self._bought.forget(self._owner, [self._digest(key) for key in keys])
