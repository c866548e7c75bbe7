"""Submit: bytes → blob → document → run and its first step. When it returns, the document survives a power cut (I1)."""

import asyncio
import errno
import hashlib
import io
import os
import stat
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Iterator, Sequence
from contextlib import aclosing, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Literal

import msgspec
from msgspec.structs import replace

from penstock.blobs.base import Blobs
from penstock.errors import SourceError, UsageError
from penstock.ledger.database.store import Ledger
from penstock.ledger.engine import groups, runs, submissions, submits
from penstock.ledger.engine.groups import GroupStart
from penstock.ledger.engine.locks import own_key
from penstock.ledger.engine.runs import Known
from penstock.ledger.engine.submissions import NewDocument, Submission
from penstock.ledger.engine.submits import Submitted
from penstock.model.nouns import DocumentId, Owner, RunId, Workflow
from penstock.model.states import DocumentStatus
from penstock.runtime import Runtime
from penstock.workflows.load import encode

BATCH = 256
SMALL = 1 << 20
"""Files up to this size are read whole and stored in batches; larger ones are streamed one by one."""
PIECE = 1 << 20
CHANGING_TRIES = 3


@dataclass(frozen=True)
class Order:
    """What is the same for all documents of one call."""

    owner: Owner
    collection: str
    workflow: Workflow
    settings: str
    priority: int = 0
    batch: str | None = None
    retry: bool = False
    password: str | None = None
    group: GroupStart | None = None
    """What is started belongs to it."""


@dataclass(frozen=True)
class Item:
    """One thing to submit: a file, or a stream that is read once."""

    source: str
    name: str
    path: Path | None = None
    within: Path | None = None
    """The folder that it was found in, and that no link may lead out of; None: the caller named the file itself."""
    stream: BinaryIO | None = None
    """Read to its end, and left open."""
    key: str | None = None
    metadata: dict[str, Any] = field(default_factory=dict)


class Receipt(msgspec.Struct, frozen=True):
    """What became of one document of a submit. When it is given, an accepted document survives a power failure."""

    id: DocumentId | None
    """None: the document was refused."""
    source: str
    name: str
    outcome: Literal["submitted", "changed", "resumed", "skipped", "refused"]
    """`submitted`: a new document. `changed`: a known one gets a new version. `resumed`: unfinished work continues.
    `skipped`: nothing to do. `refused`: it could not be read, and was not accepted."""
    status: DocumentStatus | None
    """The document's status after the submit."""
    size: int = 0
    problem: str | None = None
    """Why the document was refused."""
    stale_settings: bool = False
    """Skipped as COMPLETED, but made with other settings than the present ones."""


def refusal(problem: str) -> Receipt:
    """For a file that could not even be opened: `problem` is `SOURCE: why`."""
    source = problem.rpartition(": ")[0]
    return Receipt(None, source, os.path.basename(source), "refused", None, problem=problem)


@dataclass
class _Read:
    """The bytes of an item, in memory or stored already."""

    item: Item
    sha256: str = ""
    size: int = 0
    data: bytes | None = None
    raw_key: str | None = None
    problem: str | None = None
    id: DocumentId | None = None
    """What the document is called if it is new."""

    def receipt(self, answer: Submitted | None) -> Receipt:
        if answer is None or self.problem is not None:
            problem = self.problem or self.item.source
            return Receipt(None, self.item.source, self.item.name, "refused", None, self.size, problem)
        changed = answer.outcome == "submitted" and answer.document_id != self.id
        return Receipt(
            answer.document_id,
            self.item.source,
            self.item.name,
            "changed" if changed else answer.outcome,
            DocumentStatus(answer.status),
            self.size,
            stale_settings=answer.stale_settings,
        )


class Intake:
    def __init__(self, ledger: Ledger, blobs: Blobs, runtime: Runtime) -> None:
        self._ledger = ledger
        self._blobs = blobs
        self._runtime = runtime
        self._sealed = False

    async def submit(self, order: Order, items: Iterable[Item]) -> AsyncGenerator[list[Receipt], None]:
        """Batch by batch: each is durable when it is yielded. While one is written, the next is being read. Until the
        end prune knows of it, and leaves alone what is stored and has no row yet."""
        with self._blobs.submitting(self._runtime.ulid()):
            async for receipts in self._submit(order, items):
                yield receipts

    async def _submit(self, order: Order, items: Iterable[Item]) -> AsyncIterator[list[Receipt]]:
        ahead: asyncio.Task[list[_Read]] | None = None
        batches = _batches(items)
        following = next(batches, None)
        while following is not None or ahead is not None:
            reads = await ahead if ahead is not None else None
            ahead = None
            if following is not None:
                ahead = asyncio.create_task(self._read_batch(order, following))
                following = next(batches, None)
            if reads is not None:
                yield await self._accept(order, reads, last=ahead is None)
        await self.seal(order)

    async def seal(self, order: Order) -> None:
        """The group is complete: it ends when its last run does."""
        if order.group is not None and not self._sealed:
            await self._ledger.write(groups.SEAL, order.group.id)
            self._sealed = True

    async def _read_batch(self, order: Order, items: Sequence[Item]) -> list[_Read]:
        there = await self._ledger.read(
            lambda c: runs.known(order.owner, c, order.collection, [item.source for item in items])
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
        for read in reads:
            if read.problem is None and read.data is None and not read.sha256:
                await self._stream(order, read, there.get(read.item.source))
        return reads

    def _read_small(self, items: Sequence[Item], there: dict[str, Known]) -> list[_Read]:
        """Read small files whole; leave large ones for streaming. An unchanged file's bytes are let go at once."""
        reads = []
        for item in items:
            read = _Read(item)
            reads.append(read)
            if item.path is None:
                continue
            try:
                data = _steady(item)
            except OSError as error:
                read.problem = _problem(item, error)
                continue
            if data is None:
                continue
            read.sha256, read.size = hashlib.sha256(data).hexdigest(), len(data)
            known = there.get(item.source)
            if known is None or known.raw_lost or known.sha256 != read.sha256:
                read.data = data
        return reads

    async def _stream(self, order: Order, read: _Read, known: Known | None) -> None:
        """Hash and store in one pass. A file that the ledger knows is hashed first: it may not have changed."""
        item = read.item
        try:
            if item.path is not None and known is not None:
                read.sha256, read.size = await self._runtime.run_blocking("io", _hash, item)
                if read.sha256 == known.sha256 and not known.raw_lost:
                    return
            key = raw_key(order.owner, self._runtime)
            for attempt in range(CHANGING_TRIES):
                with nullcontext(item.stream) if item.stream is not None else _open(item) as stream:
                    before = os.fstat(stream.fileno()) if item.path is not None else None
                    async with aclosing(self._pieces(stream)) as pieces:
                        read.sha256, read.size = await self._blobs.put_stream(key, pieces)
                    after = os.fstat(stream.fileno()) if item.path is not None else None
                if before is None or after is None or _same(before, after):
                    read.raw_key = key
                    return
                if attempt + 1 == CHANGING_TRIES:
                    read.problem = _changing(item)
            await self._blobs.delete([key])
        except SourceError as error:
            read.problem = f"{item.source}: {error}"
        except OSError as error:
            read.problem = _problem(item, error)

    async def _pieces(self, stream: BinaryIO) -> AsyncGenerator[bytes, None]:
        try:
            while piece := await self._runtime.run_blocking("io", stream.read, PIECE):
                yield piece
        except OSError as error:
            raise SourceError(error.strerror or str(error)) from error

    async def _accept(self, order: Order, reads: list[_Read], last: bool) -> list[Receipt]:
        """First the bytes, then the rows that name them; the largest first: they take longest."""
        reads.sort(key=lambda read: -read.size)
        pending = [(raw_key(order.owner, self._runtime), read) for read in reads if read.data is not None]
        if pending:
            half = (len(pending) + 1) // 2
            await asyncio.gather(
                *(
                    self._blobs.put_many([(key, read.data or b"") for key, read in part], durable=True)
                    for part in (pending[:half], pending[half:])
                    if part
                )
            )
        for key, read in pending:
            read.raw_key, read.data = key, None
        good = _unique([read for read in reads if read.problem is None])
        answers = await self._enter(order, good, seal=last)
        for read, answer in zip(good, answers, strict=True):
            if answer.needs_bytes:
                # Between our look and our write somebody changed what the ledger holds: read it again, store it.
                await self._stream(order, read, None)
        again = [read for read, answer in zip(good, answers, strict=True) if answer.needs_bytes and read.raw_key]
        fresh = dict(zip((read.item.source for read in again), await self._enter(order, again), strict=True))
        by_source = {read.item.source: answer for read, answer in zip(good, answers, strict=True)} | fresh
        return [read.receipt(by_source.get(read.item.source)) for read in reads]

    async def _enter(self, order: Order, reads: Sequence[_Read], seal: bool = False) -> list[Submitted]:
        """`seal`: the group of what is started is complete with these, unless some have to come again."""
        if not reads:
            return []
        ids = self._runtime.ulids(2 * len(reads))
        for i, read in enumerate(reads):
            read.id = DocumentId(ids[2 * i])
        documents = tuple(
            NewDocument(
                DocumentId(ids[2 * i]), RunId(ids[2 * i + 1]), read.item.source, read.item.name, read.sha256, read.size,
                read.raw_key, read.item.metadata, read.item.key,
            )
            for i, read in enumerate(reads)
        )  # fmt: skip
        answers = await self._ledger.write(submits.SUBMIT, submission(order, documents, seal))
        self._sealed = seal and not any(answer.needs_bytes for answer in answers)
        return answers


def submission(order: Order, documents: tuple[NewDocument, ...], seal: bool = False) -> Submission:
    snapshot, body = encode(order.workflow)
    first = order.workflow.steps[0]
    key = own_key(order.owner, order.collection, first.resource_key)
    return Submission(
        order.owner,
        order.collection,
        documents,
        snapshot,
        body,
        order.settings,
        submissions.FirstStep(first.name, first.kind, first.pool, key),
        order.priority,
        order.batch,
        order.retry,
        order.password,
        replace(order.group, seal=True) if order.group is not None and seal else order.group,
    )


def raw_key(owner: Owner, runtime: Runtime) -> str:
    """Keys of one half minute share a folder, so that a batch flushes one folder."""
    ulid = runtime.ulid()
    return f"{owner}/raw/{ulid[:7]}/{ulid}"


def _batches(items: Iterable[Item]) -> Iterator[list[Item]]:
    batch: list[Item] = []
    for item in items:
        batch.append(item)
        if len(batch) == BATCH:
            yield batch
            batch = []
    if batch:
        yield batch


def _unique(reads: list[_Read]) -> list[_Read]:
    """One submission names a source once: the last reading of it counts."""
    return list({read.item.source: read for read in reads}.values())


def _open(item: Item) -> io.BufferedReader:
    """A regular file, whatever was there when it was found: a pipe that was put in its place would never open, a link
    would lead elsewhere."""
    if item.path is None:
        raise UsageError("a stream can be read only once")
    try:
        file = _open_regular(item.path, os.O_NOFOLLOW if item.within is not None else 0)
    except OSError as error:
        if item.within is None or error.errno != errno.ELOOP:
            raise
        file = _open_regular(item.path, 0)
        if not _is_within(file, item.path, item.within):
            file.close()
            raise OSError(errno.ELOOP, "it is a link that leads out of the folder") from error
    return file


def _open_regular(path: Path, flags: int) -> io.BufferedReader:
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC | flags)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "not a file")
        return open(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def _is_within(file: BinaryIO, path: Path, folder: Path) -> bool:
    """Whether what was opened is what the link leads to now, and that is below the folder."""
    target = os.path.realpath(path)
    there, opened = os.lstat(target), os.fstat(file.fileno())
    same = (there.st_dev, there.st_ino) == (opened.st_dev, opened.st_ino)
    return same and target.startswith(os.path.realpath(folder) + os.sep)


def _steady(item: Item) -> bytes | None:
    """A small file's bytes, read while it did not change; None if it is large."""
    for _ in range(CHANGING_TRIES):
        with _open(item) as file:
            before = os.fstat(file.fileno())
            if before.st_size > SMALL:
                return None
            data = file.read(SMALL + 1)
            after = os.fstat(file.fileno())
        if _same(before, after) and len(data) == after.st_size:
            return data
        if len(data) > SMALL:
            return None
    raise OSError(0, "it keeps changing while it is read: try again when its writer is done")


def _same(before: os.stat_result, after: os.stat_result) -> bool:
    return (before.st_size, before.st_mtime_ns) == (after.st_size, after.st_mtime_ns)


def _hash(item: Item) -> tuple[str, int]:
    with _open(item) as file:
        return hashlib.file_digest(file, "sha256").hexdigest(), file.tell()


def _changing(item: Item) -> str:
    return f"{item.source}: it keeps changing while it is read: try again when its writer is done"


def _problem(item: Item, error: OSError) -> str:
    return f"{item.source}: {error.strerror or error}"


def from_bytes(source: str, name: str, data: bytes, **extra: Any) -> Item:
    return Item(source, name, stream=io.BytesIO(data), **extra)
