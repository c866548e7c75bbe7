"""Submit: store the bytes as a blob, then insert the document, its run and its first step. When a submit returns, the
document survives a power failure (I1)."""

import asyncio
import hashlib
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass
from functools import partial

from msgspec.structs import replace

from penstock.blobs.base import Blobs, Stored
from penstock.blobs.small import is_small, small_key, small_limit
from penstock.errors import DiskFull, LeaseLost, QuotaExceeded, SourceChanged, SourceError
from penstock.intake_items import Read, Receipt, SubmitItem, in_batches, joined, unique
from penstock.ledger.database.store import Ledger
from penstock.ledger.engine import groups, revisions, runs, submissions, submits
from penstock.ledger.engine.admission import Quota
from penstock.ledger.engine.children import Parent
from penstock.ledger.engine.groups import GroupStart
from penstock.ledger.engine.locks import own_key
from penstock.ledger.engine.runs import Known
from penstock.ledger.engine.submissions import NewDocument, Submission
from penstock.ledger.engine.submits import Submitted
from penstock.ledger.upkeep import audit
from penstock.model.nouns import DocumentId, Owner, RunId, Workflow
from penstock.runtime import Runtime
from penstock.sources.base import Change, Local
from penstock.workflows.load import encode

SMALL = 1 << 20
"""Files up to this size are read into memory and stored in batches; larger ones are streamed one by one."""
REMOTE_READS = 8
"""So many of them are fetched at once."""
CHANGING_TRIES = 3
GROUP = 16
"""When the disk becomes full, the rest of a batch is accepted in groups of this size, then one by one."""
LARGE_REFUSED = 16
"""After so many large files in a row that did not fit on the disk, no more of them are tried."""
OVER_QUOTA = 16
"""After so many documents in a row that exceeded the quota, no more new ones are tried."""
FULL = "not accepted, because the disk is full"


@dataclass(frozen=True)
class RunSpec:
    """The settings that all documents of one call share."""

    owner: Owner
    collection: str
    workflow: Workflow
    settings: str
    priority: int = 0
    batch: str | None = None
    retry: bool = False
    password: str | None = None
    group: GroupStart | None = None
    """The group of the runs that are started."""
    parent: Parent | None = None
    """The document that contains the documents."""
    held: bool = False
    """The runs wait until a user starts them."""


class Intake:
    def __init__(
        self,
        ledger: Ledger,
        blobs: Blobs,
        runtime: Runtime,
        small: int | None = None,
        gate: Callable[[], Awaitable[Quota]] | None = None,
    ) -> None:
        """`small`: the size up to which raw bytes are kept in the ledger. Default: that of the blobs. `gate` is called
        before each batch is read. It returns the quota, and raises an error if nothing may be accepted now."""
        self._ledger = ledger
        self._blobs = blobs
        self._runtime = runtime
        self._small = small_limit(blobs) if small is None else small
        self._gate = gate
        self._quota = Quota()
        self._over_quota = 0
        """Documents in a row that were refused because of the quota."""
        self._over_quota_said = ""
        self._sealed = False
        self.is_full = False
        """The disk became full: nothing more is accepted."""
        self.lacked_space = False
        """A file was refused because the disk is full. Smaller ones may have been accepted."""
        self._large_refused = 0

    async def submit(self, spec: RunSpec, items: AsyncIterator[SubmitItem]) -> AsyncGenerator[list[Receipt], None]:
        """Submit the items in batches. Each batch is durable when it is yielded. While one is written, the next is
        read. Prune does not remove bytes without a row while the submit is in progress."""
        async with (
            self._blobs.submitting(self._runtime.ulid()) as mark,
            aclosing(self._submit(spec, items)) as batches,
        ):
            async for receipts in batches:
                await mark.check()
                yield receipts

    async def _submit(self, spec: RunSpec, items: AsyncIterator[SubmitItem]) -> AsyncGenerator[list[Receipt], None]:
        ahead: asyncio.Task[list[Read]] | None = None
        try:
            async with aclosing(in_batches(items)) as batches:
                following = await anext(batches, None)
                while following is not None or ahead is not None:
                    reads = await ahead if ahead is not None else None
                    ahead = None
                    if following is not None and self.is_full:
                        yield [_refused(Read(item)) for item in following]
                        following = await anext(batches, None)
                    elif following is not None:
                        ahead = asyncio.create_task(self._read_batch(spec, following))
                        following = await anext(batches, None)
                    if reads is not None:
                        yield await self._accept(spec, reads, last=ahead is None)
        finally:
            # What is being read will not be accepted: nothing of it is stored after the end of the submit.
            if ahead is not None:
                ahead.cancel()
                await asyncio.gather(ahead, return_exceptions=True)
        await self.seal(spec)

    async def offer(self, spec: RunSpec, reads: Sequence[Read]) -> list[Submitted]:
        """Submit documents by their hashes alone. `needs_bytes` of an answer says that the ledger does not have these
        bytes, and that nothing was submitted."""
        answers = await self._enter(spec, reads)
        await self.seal(spec)
        return answers

    async def seal(self, spec: RunSpec) -> None:
        """Close the group to new runs: it ends when its last run ends."""
        if spec.group is not None and not self._sealed:
            # On a full disk it is left to a worker.
            with suppress(DiskFull):
                await self._ledger.write(groups.SEAL, spec.group.id)
                self._sealed = True

    async def _read_batch(self, spec: RunSpec, items: Sequence[SubmitItem]) -> list[Read]:
        if self._gate is not None:
            self._quota = await self._gate()
        there = await self._ledger.read(
            lambda c: runs.known(spec.owner, c, spec.collection, [item.uri for item in items])
        )
        half = (len(items) + 1) // 2
        parts = await asyncio.gather(
            *(
                self._runtime.run_blocking("io", self._read_small, part, there)
                for part in (items[:half], items[half:])
                if part
            )
        )
        reads = [read for part in parts for read in part]
        rest = [read for read in reads if read.problem is None and read.data is None and not read.sha256]
        for read in rest:
            if not read.item.remote:
                await self._stream(spec, read, there.get(read.item.uri))
        await self._fetch(spec, [read for read in rest if read.item.remote], there)
        return reads

    async def _fetch(self, spec: RunSpec, reads: Sequence[Read], there: dict[str, Known]) -> None:
        """Stream documents from elsewhere, several at once."""
        places = asyncio.Semaphore(REMOTE_READS)

        async def fetch(read: Read) -> None:
            async with places:
                await self._stream(spec, read, there.get(read.item.uri))

        tasks = [asyncio.create_task(fetch(read)) for read in reads]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _read_small(self, items: Sequence[SubmitItem], there: dict[str, Known]) -> list[Read]:
        """Read small files into memory, and skip large ones, which are streamed. Bytes of unchanged files are not
        kept."""
        reads = []
        for item in items:
            read = Read(item)
            reads.append(read)
            if not isinstance(item.source, Local):
                continue
            try:
                data = item.source.read_now(item.found, SMALL)
            except SourceError as error:
                read.problem = f"{item.uri}: {error}"
                continue
            if data is None:
                continue
            read.sha256, read.size = hashlib.sha256(data).hexdigest(), len(data)
            known = there.get(item.uri)
            if known is None or known.raw_lost or known.sha256 != read.sha256:
                read.data = data
        return reads

    async def _stream(self, spec: RunSpec, read: Read, known: Known | None) -> None:
        """Hash and store in one pass. A document that the ledger knows is hashed first: it may not have changed. If
        reading is expensive, its bytes are stored anyway, and removed if they are known."""
        item = read.item
        whole = known is not None and not known.raw_lost
        if item.stored is not None:
            read.sha256, read.size = item.stored.sha256, item.stored.size
            same = known is not None and whole and known.sha256 == read.sha256
            read.raw_key = None if same else item.stored.key
            return
        try:
            if self._large_refused >= LARGE_REFUSED and not whole:
                raise DiskFull(FULL)
            if known is not None and whole and item.found.change is Change.UNCHANGED:
                read.sha256, read.size = known.sha256, known.size
                return
            if known is not None and item.source.repeatable and not item.remote:
                read.sha256, read.size = await self._steadily(item, self._hash)
                if whole and read.sha256 == known.sha256:
                    return
            read.sha256, read.size = await self._steadily(item, partial(self._keep, spec, read))
            self._large_refused = 0
            read.learn()
            if (
                known is not None
                and whole
                and (item.remote or not item.source.repeatable)
                and read.sha256 == known.sha256
            ):
                await self._drop(read)
        except SourceError as error:
            read.problem = f"{item.uri}: {error}"
        except DiskFull:
            # Only this one is refused: smaller ones may fit.
            read.problem, self.lacked_space = f"{item.uri}: {FULL}", True
            self._large_refused += 1

    async def _drop(self, read: Read) -> None:
        """Remove the bytes that were just stored: the document has them already."""
        if read.raw_key is not None and read.data is None:
            await self._blobs.delete([read.raw_key])
        read.raw_key = read.data = None

    async def _keep(self, spec: RunSpec, read: Read, pieces: AsyncIterator[bytes]) -> Stored:
        """Store the bytes. Those of a small document are kept until its rows are written."""
        head = b""
        async for piece in pieces:
            head += piece
            if len(head) > self._small:
                break
        else:
            read.raw_key, read.data = small_key(spec.owner, self._runtime.ulid()), head
            return Stored(hashlib.sha256(head).hexdigest(), len(head))
        key = raw_key(spec.owner, self._runtime)
        stored = await self._blobs.put_stream(key, joined(head, pieces))
        read.raw_key = key
        return stored

    async def _steadily(self, item: SubmitItem, take: Callable[[AsyncIterator[bytes]], Awaitable[Stored]]) -> Stored:
        """Return the result of `take` for the bytes of the document. If they change while they are read, read them
        again."""
        for attempt in range(CHANGING_TRIES):
            try:
                async with aclosing(item.source.read(item.found)) as pieces:
                    return await take(pieces)
            except SourceChanged:
                if attempt + 1 == CHANGING_TRIES or not item.source.repeatable:
                    raise
        raise AssertionError

    async def _hash(self, pieces: AsyncIterator[bytes]) -> Stored:
        digest, size = hashlib.sha256(), 0
        async for piece in pieces:
            await self._runtime.run_sized("io", len(piece), digest.update, piece)
            size += len(piece)
        return Stored(digest.hexdigest(), size)

    async def _accept(self, spec: RunSpec, reads: list[Read], last: bool) -> list[Receipt]:
        """Accept a batch. If it exceeds the quota, accept its halves, and refuse the documents that do not fit, without
        leaving any bytes of them."""
        new = [read for read in reads if not read.is_known]
        if self._over_quota >= OVER_QUOTA and new:
            known = [read for read in reads if read.is_known]
            return await self._accept_within_quota(spec, known, last) + await self._refuse(new, self._over_quota_said)
        try:
            return await self._accept_within_quota(spec, reads, last)
        except QuotaExceeded as error:
            if len(reads) == 1:
                self._over_quota += 1
                self._over_quota_said = str(error)
                return await self._refuse(reads, str(error))
        half = len(reads) // 2
        return await self._accept(spec, reads[:half], False) + await self._accept(spec, reads[half:], last)

    async def _refuse(self, reads: Sequence[Read], why: str) -> list[Receipt]:
        await self._take_back(reads)
        for read in reads:
            read.problem = f"{read.item.uri}: {why}"
        return [read.receipt(None) for read in reads]

    async def _accept_within_quota(self, spec: RunSpec, reads: list[Read], last: bool) -> list[Receipt]:
        """Accept a batch. Large files come first, because they take longest. If the disk becomes full, accept small
        groups, the smallest files first, and the files of a group that does not fit one by one. Refuse the rest,
        without leaving any bytes of it."""
        reads.sort(key=lambda read: -read.size)
        if not self.is_full:
            try:
                return await self._accept_group(spec, reads, last)
            except DiskFull:
                await self._take_back([read for read in reads if read.data is not None])
        known, new = [read for read in reads if read.is_known], [read for read in reads if not read.is_known]
        # What is stored already needs no more than its rows.
        new.sort(key=lambda read: (read.raw_key is None, read.size))
        receipts: list[Receipt] = []
        left = deque((known, *(new[i : i + GROUP] for i in range(0, len(new), GROUP))))
        while left:
            group = left.popleft()
            if group is known or not self.is_full:
                try:
                    receipts += await self._accept_group(spec, group, False)
                    continue
                except DiskFull:
                    self.is_full = self.lacked_space = len(group) == 1 or group is known
            await self._take_back(group)
            if self.is_full:
                receipts += map(_refused, group)
            else:
                left.extendleft([read] for read in reversed(group))
        return receipts

    async def _take_back(self, reads: Sequence[Read]) -> None:
        """Remove stored bytes that no row names."""
        keys = [read.raw_key for read in reads if read.raw_key is not None and not is_small(read.raw_key)]
        if keys:
            named = await self._ledger.read(audit.named, keys)
            await self._blobs.delete([key for key in keys if key not in named])
        for read in reads:
            read.raw_key = None if read.raw_key in keys else read.raw_key

    async def _accept_group(self, spec: RunSpec, reads: list[Read], last: bool) -> list[Receipt]:
        """Store the bytes, then insert the rows that name them. The rows of small files bring their bytes with them."""
        for read in reads:
            if read.data is not None and read.raw_key is None and len(read.data) <= self._small:
                read.raw_key = small_key(spec.owner, self._runtime.ulid())
        pending = [
            (raw_key(spec.owner, self._runtime), read)
            for read in reads
            if read.data is not None and read.raw_key is None
        ]
        held = [read.data for _, read in pending]
        try:
            await self._store(pending)
            good = unique([read for read in reads if read.problem is None])
            answers = await self._enter(spec, good, seal=last)
        except DiskFull:
            for (_, read), data in zip(pending, held, strict=True):
                read.data = data
            raise
        for read, answer in zip(good, answers, strict=True):
            if answer.needs_bytes:
                # Another process changed the document between read and write: read the file again and store it.
                await self._stream(spec, read, None)
        again = [read for read, answer in zip(good, answers, strict=True) if answer.needs_bytes and read.raw_key]
        fresh = dict(zip((read.item.uri for read in again), await self._enter(spec, again), strict=True))
        by_source = {read.item.uri: answer for read, answer in zip(good, answers, strict=True)} | fresh
        await self._revise(spec, good, by_source)
        return [read.receipt(by_source.get(read.item.uri)) for read in reads]

    async def _store(self, pending: Sequence[tuple[str, Read]]) -> None:
        blobs = [(key, read.data or b"") for key, read in pending]
        half = (len(blobs) + 1) // 2
        parts = [part for part in (blobs[:half], blobs[half:]) if part]
        for key, read in pending:
            read.raw_key, read.data = key, None
        # Both halves have ended before an error is raised: what they stored can be taken back.
        done = await asyncio.gather(*(self._blobs.put_many(p, durable=True) for p in parts), return_exceptions=True)
        for error in done:
            if isinstance(error, BaseException):
                raise error

    async def _revise(self, spec: RunSpec, reads: Sequence[Read], answers: Mapping[str, Submitted]) -> None:
        """Store the revisions of bytes that were read, so that the next submit need not read them."""
        new = tuple(
            revisions.NewRevision(answer.document_id, read.sha256, read.revision)
            for read in reads
            if read.revision and not (answer := answers[read.item.uri]).needs_bytes
        )
        if new:
            await self._ledger.write(revisions.REVISE, revisions.Revised(spec.owner, new))

    async def _enter(self, spec: RunSpec, reads: Sequence[Read], seal: bool = False) -> list[Submitted]:
        """Insert the rows. `seal`: close the group to new runs, unless some documents must be submitted again."""
        if not reads:
            return []
        ids = self._runtime.ulids(2 * len(reads))
        for i, read in enumerate(reads):
            read.id = DocumentId(ids[2 * i])
        documents = tuple(
            NewDocument(
                DocumentId(ids[2 * i]), RunId(ids[2 * i + 1]), read.item.uri, read.name, read.sha256, read.size,
                read.raw_key, read.item.metadata, read.item.key, read.data,
            )
            for i, read in enumerate(reads)
        )  # fmt: skip
        answers = await self._ledger.write(submits.SUBMIT, submission(spec, documents, seal, self._quota))
        if not answers:
            raise LeaseLost(f"the step that found {reads[0].item.uri} now belongs to another worker")
        self._over_quota = 0
        self._sealed = seal and not any(answer.needs_bytes for answer in answers)
        return answers


def _refused(read: Read) -> Receipt:
    read.problem = read.problem or f"{read.item.uri}: {FULL}"
    return read.receipt(None)


def submission(
    spec: RunSpec, documents: tuple[NewDocument, ...], seal: bool = False, quota: Quota = Quota()
) -> Submission:
    snapshot, body = encode(spec.workflow)
    first = spec.workflow.steps[0]
    key = own_key(spec.owner, spec.collection, first.resource_key)
    return Submission(
        spec.owner,
        spec.collection,
        documents,
        snapshot,
        body,
        spec.settings,
        submissions.FirstStep(first.name, first.kind, first.pool, key),
        spec.priority,
        spec.batch,
        spec.retry,
        spec.password,
        replace(spec.group, seal=True) if spec.group is not None and seal else spec.group,
        spec.parent,
        spec.held,
        quota,
    )


def raw_key(owner: Owner, runtime: Runtime) -> str:
    """Return a new key for raw bytes. Keys of the same half minute share a folder, so that a batch flushes only one
    folder."""
    ulid = runtime.ulid()
    return f"{owner}/raw/{ulid[:7]}/{ulid}"
