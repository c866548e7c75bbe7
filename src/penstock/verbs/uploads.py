"""Resumable uploads: bytes come in any number of calls and are kept as they come. The document is accepted as soon as
the last byte is durable.

Each part is a durable blob before the ledger counts it. A process that dies between the last byte and the document
leaves a whole upload: the next look at it accepts the document, and so does `finish_uploads`.
"""

import asyncio
import hashlib
import logging
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any

import msgspec

from penstock.blobs.base import is_raw, parts_of
from penstock.errors import (
    BlobMissing,
    ChecksumDiffers,
    IntakePaused,
    LeaseLost,
    LockHeld,
    NotFound,
    QuotaExceeded,
    TooMuch,
    UsageError,
    WrongOffset,
)
from penstock.intake_items import Receipt, StoredRaw, SubmitItem
from penstock.ledger.engine import uploads
from penstock.ledger.engine.uploads import OPEN, Part, Upload
from penstock.ledger.upkeep import audit
from penstock.sources.base import Found
from penstock.verbs import arguments
from penstock.verbs.accepting import Order, accept
from penstock.verbs.ingest import run_spec
from penstock.verbs.scope import Scope
from penstock.verbs.stored_source import StoredSource

PART = 4 << 20
"""So many bytes are made durable at once: what a kill costs a client, at most."""
LEASE_S = 3.0
LIFE_S = 86_400.0
"""How long an upload that nobody continues is kept."""
MOST = 1 << 44
MOST_BYTES = 1 << 40
TUS = "tus"
CHECKSUMS = ("sha256", "sha1", "md5")
SWEEP = 20


class PlannedParts(msgspec.Struct, frozen=True):
    """An upload in parts straight into the bucket."""

    key: str
    upload: str
    """Its id there."""
    part_size: int


class Request(msgspec.Struct, frozen=True):
    """What the document of an upload is to be."""

    name: str
    source: str
    collection: str
    metadata: dict[str, Any] = {}
    workflow: str | None = None
    params: str | None = None
    priority: int = 0
    batch: str | None = None
    hold: bool = False
    sha256: str | None = None
    """The expected hash of the bytes."""
    client: dict[str, str] = {}
    """What the client wants to get back with the upload."""
    parts: PlannedParts | None = None
    """Where the client sends the bytes, if not here."""


class UploadView(msgspec.Struct, frozen=True):
    id: str
    kind: str
    state: str
    """`OPEN`, `ACCEPTED` or `REFUSED`."""
    size: int
    received: int
    """So many bytes are durable."""
    request: Request
    document: str | None
    receipt: Receipt | None
    created_at: float
    expires_at: float


async def create_upload(
    scope: Scope,
    size: int,
    *,
    name: str,
    source: str | None = None,
    collection: str | None = None,
    metadata: dict[str, Any] | None = None,
    workflow: str | None = None,
    params: str | None = None,
    priority: int = 0,
    batch: str | None = None,
    hold: bool = False,
    sha256: str | None = None,
    client: dict[str, str] | None = None,
    most_bytes: int = MOST_BYTES,
) -> UploadView:
    """Begin an upload of `size` bytes. `most_bytes` is the largest sum of the owner's unfinished uploads; `TooMuch` is
    raised above it."""
    request = request_of(
        scope, size, name, source, collection, metadata, workflow, params, priority, batch, hold, sha256, client
    )
    made = await begin(scope, TUS, scope.runtime.ulid(), size, request, most_bytes)
    return await upload(scope, made.id) if made.is_whole else view_of(made)


def request_of(
    scope: Scope,
    size: int,
    name: str,
    source: str | None,
    collection: str | None,
    metadata: dict[str, Any] | None,
    workflow: str | None,
    params: str | None,
    priority: int,
    batch: str | None,
    hold: bool,
    sha256: str | None,
    client: dict[str, str] | None = None,
) -> Request:
    """Validate what the document of an upload is to be."""
    scope.ledger.database.refuse_read_only()
    arguments.number("size", size, 0, MOST)
    if not arguments.text("name", name):
        raise UsageError("name: it is empty")
    if arguments.maybe("sha256", sha256) is not None and not re.fullmatch("[0-9a-f]{64}", sha256 or ""):
        raise UsageError(f"sha256 {ascii(sha256)[:80]}: expected 64 hexadecimal digits in lower case")
    spec = run_spec(scope, collection, workflow, params, priority, batch, False, None, hold)
    return Request(
        name, arguments.maybe("source", source) or name, spec.collection, arguments.metadata(metadata),
        workflow, params, priority, batch, bool(hold), sha256, _texts("client", client),
    )  # fmt: skip


async def begin(
    scope: Scope, kind: str, upload_id: str, size: int, request: Request, most_bytes: int = MOST_BYTES
) -> Upload:
    """Add the row of an upload. Raises TooMuch."""
    arguments.number("most_bytes", most_bytes, 0)
    text = msgspec.json.encode(request).decode()
    creation = uploads.Creation(upload_id, scope.owner, kind, size, text, LIFE_S, most_bytes)
    made = await scope.ledger.write(uploads.CREATE_UPLOAD, creation)
    if made is None:
        raise TooMuch(f"the unfinished uploads of {scope.owner} would have more than {most_bytes:,} bytes")
    return made


def _texts(what: str, given: object) -> dict[str, str]:
    """The texts that are kept for the client. Raises UsageError for anything else."""
    if given is None:
        return {}
    if not isinstance(given, dict):
        raise UsageError(f"{what}: expected texts by name")
    return {arguments.text(what, name): arguments.text(what, value) for name, value in given.items()}


def _is_checksum(given: object) -> bool:
    if not isinstance(given, tuple) or len(given) != 2:
        return False
    return isinstance(given[0], str) and given[0] in CHECKSUMS and isinstance(given[1], bytes)


async def upload(scope: Scope, upload_id: str) -> UploadView:
    """Return an upload. If it is whole and its document is not accepted yet, because a process died, accept it now."""
    found = await found_upload(scope, upload_id)
    if found.state == OPEN and found.is_whole:
        with suppress(LockHeld):
            async with held(scope, upload_id) as hold:
                found = await accepted(scope, hold)
    return view_of(found)


async def append_upload(
    scope: Scope,
    upload_id: str,
    offset: int,
    pieces: AsyncIterator[bytes],
    *,
    checksum: tuple[str, bytes] | None = None,
) -> UploadView:
    """Add bytes at an offset, which must be what was received so far. What came is kept if the pieces end with an
    error. With `checksum` (the name of a hash, and the hash of all pieces), nothing is kept unless it is right. The
    last byte brings the document. Raises LockHeld if another call adds to the upload."""
    if checksum is not None and not _is_checksum(checksum):
        raise UsageError(f"checksum {ascii(checksum)[:80]}: expected the hash after one of {', '.join(CHECKSUMS)}")
    await found_upload(scope, upload_id)
    async with held(scope, upload_id) as hold:
        if hold.upload.kind != TUS:
            raise UsageError("the bytes of this upload go to the bucket")
        if offset != hold.upload.received:
            raise WrongOffset(f"the upload has received {hold.upload.received} bytes, not {offset}")
        if not hold.upload.is_whole:
            await _receive(scope, hold, pieces, checksum)
        if hold.upload.is_whole and hold.upload.state == OPEN:
            return view_of(await accepted(scope, hold))
        return view_of(hold.upload)


async def delete_upload(scope: Scope, upload_id: str) -> None:
    """End an upload and remove its bytes. Its document, if there is one, stays."""
    await found_upload(scope, upload_id)
    async with held(scope, upload_id) as hold:
        await remove(scope, hold, whole=True)
        planned, parts = msgspec.json.decode(hold.upload.request, type=Request).parts, parts_of(scope.blobs)
        if planned is not None and parts is not None and hold.upload.state == OPEN:
            await parts.abort(planned.key, planned.upload)


async def finish_uploads(scope: Scope) -> int:
    """Accept the documents of whole uploads, of all owners, that a process left when it died. Return how many."""
    done = 0
    for owner, upload_id in await scope.ledger.read(uploads.whole, SWEEP):
        one = Scope(scope.resources, owner)
        with suppress(LockHeld, NotFound, LeaseLost, IntakePaused, QuotaExceeded):
            async with held(one, upload_id) as hold:
                if hold.upload.state == OPEN:
                    done += (await accepted(one, hold)).state != OPEN
    return done


class Hold:
    """The lock of an upload, with the upload as it is now."""

    def __init__(self, scope: Scope, upload: Upload, token: str) -> None:
        self.scope = scope
        self.upload = upload
        self.token = token
        self.renewing: asyncio.Task[None] | None = None

    def request(self) -> uploads.Hold:
        return uploads.Hold(self.scope.owner, self.upload.id, self.token, LEASE_S)

    def update(self, now: Upload | None) -> None:
        if now is None:
            raise LeaseLost(f"another process has taken over the upload {self.upload.id}")
        self.upload = now

    async def renew(self) -> None:
        while True:
            await self.scope.runtime.sleep(LEASE_S / 3)
            if await self.scope.ledger.write(uploads.HOLD_UPLOAD, self.request()) is None:
                return


@asynccontextmanager
async def held(scope: Scope, upload_id: str) -> AsyncIterator[Hold]:
    """Hold the lock of an upload. That of a process that died is taken when its lease is over."""
    token = scope.runtime.token()
    found = await scope.ledger.write(uploads.HOLD_UPLOAD, uploads.Hold(scope.owner, upload_id, token, LEASE_S))
    if found is None:
        await found_upload(scope, upload_id)
        raise LockHeld(f"another request adds to the upload {upload_id}: wait {LEASE_S:.0f} seconds at most")
    hold = Hold(scope, found, token)
    renewing = asyncio.create_task(hold.renew())
    try:
        yield hold
    finally:
        renewing.cancel()
        await asyncio.gather(renewing, return_exceptions=True)
        await asyncio.shield(scope.ledger.write(uploads.LET_UPLOAD_GO, hold.request()))


async def found_upload(scope: Scope, upload_id: str) -> Upload:
    arguments.text("upload", upload_id)
    found = await scope.ledger.read(partial(uploads.get, scope.owner), upload_id)
    if found is None:
        raise NotFound(f"no upload {upload_id!r}: it may have expired")
    return found


async def _receive(scope: Scope, hold: Hold, pieces: AsyncIterator[bytes], checksum: tuple[str, bytes] | None) -> None:
    """Store the pieces as parts. Without a checksum, each part counts as soon as it is durable."""
    hashed = hashlib.new(checksum[0], usedforsecurity=False) if checksum is not None else None
    held: list[Part] = []
    place, buffer = hold.upload.received, bytearray()

    async def flush() -> None:
        nonlocal place
        if not buffer:
            return
        data = bytes(buffer)
        buffer.clear()
        key = f"{scope.owner}/uploads/{hold.upload.id}/{place}-{scope.runtime.token()}"
        await scope.blobs.put(key, data, durable=True)
        held.append(Part(place, len(data), key))
        place += len(data)
        if hashed is None:
            await _count(scope, hold, held)

    try:
        try:
            async for piece in pieces:
                if place + len(buffer) + len(piece) > hold.upload.size:
                    raise UsageError(f"there are more bytes than the {hold.upload.size} of the upload")
                if hashed is not None:
                    await scope.runtime.run_sized("io", len(piece), hashed.update, piece)
                view = memoryview(piece)
                while view:
                    room = PART - len(buffer)
                    buffer += view[:room]
                    view = view[room:]
                    if len(buffer) == PART:
                        await flush()
        except Exception:
            if hashed is None:
                await flush()
            raise
        await flush()
        if checksum is not None and hashed is not None:
            if hashed.digest() != checksum[1]:
                raise ChecksumDiffers(f"the {checksum[0]} of the bytes is not that of the header: send them again")
            await _count(scope, hold, held)
    finally:
        if held:
            # Not counted: the checksum is wrong, or the lock was lost.
            await asyncio.shield(scope.blobs.delete([part.key for part in held]))


async def _count(scope: Scope, hold: Hold, held: list[Part]) -> None:
    if held:
        added = uploads.Added(scope.owner, hold.upload.id, hold.token, tuple(held), LEASE_S, LIFE_S)
        hold.update(await scope.ledger.write(uploads.ADD_PARTS, added))
        held.clear()


async def accepted(scope: Scope, hold: Hold) -> Upload:
    """Submit the bytes as a document. The key of the submit belongs to the upload: however often a process dies here,
    it is one document."""
    parts = await scope.ledger.read(partial(uploads.parts, scope.owner), hold.upload.id)
    request = msgspec.json.decode(hold.upload.request, type=Request)
    return await ended(scope, hold, await _submitted(scope, hold.upload.id, request, parts))


async def ended(scope: Scope, hold: Hold, receipt: Receipt) -> Upload:
    """End an upload with its receipt."""
    answer = msgspec.json.encode(receipt).decode()
    end = uploads.Ended(scope.owner, hold.upload.id, hold.token, receipt.id, answer)
    hold.update(await scope.ledger.write(uploads.END_UPLOAD, end))
    await remove(scope, hold, whole=False)
    return hold.upload


async def _submitted(scope: Scope, upload_id: str, request: Request, parts: Sequence[Part]) -> Receipt:
    order = Order(
        request.collection, request.workflow, request.params, request.priority, request.batch, hold=request.hold
    )
    found = Found(request.source, request.name)
    source = StoredSource(scope.blobs, [(part.key, part.size) for part in parts], found)
    stored = None
    if request.parts is not None:
        # The object in the bucket becomes that of the document: it is read once, for its hash.
        [read] = await scope.blobs.sums([request.parts.key])
        if isinstance(read, Exception):
            raise read
        if request.sha256 not in (None, read.sha256):
            return Receipt(
                None, request.source, request.name, "refused", None, read.size,
                f"{request.source}: the SHA-256 of the bytes is {read.sha256}, and not the one that was announced",
            )  # fmt: skip
        stored = StoredRaw(request.parts.key, read.sha256 or "", read.size)
    item = SubmitItem(source, found, f"upload:{upload_id}", dict(request.metadata), stored=stored)
    return (await accept(scope, order, [item]))[found.uri]


async def remove(scope: Scope, hold: Hold, *, whole: bool) -> None:
    """The rows first: a crash leaves blobs that nothing names, which prune removes."""
    gone = uploads.Removed(scope.owner, hold.upload.id, hold.token, whole)
    keys = await scope.ledger.write(uploads.REMOVE_UPLOAD, gone)
    if any(is_raw(key) for key in keys):
        # The object of an upload into the bucket may be that of a document by now.
        named = await scope.ledger.read(audit.named, keys)
        keys = [key for key in keys if key not in named]
    if keys:
        with suppress(BlobMissing):
            await scope.blobs.delete(keys)


def view_of(found: Upload) -> UploadView:
    receipt = None if found.answer is None else msgspec.json.decode(found.answer, type=Receipt)
    request = msgspec.json.decode(found.request, type=Request)
    return UploadView(
        found.id, found.kind, found.state, found.size, found.received, request, found.document_id, receipt,
        found.created_at, found.expires_at,
    )  # fmt: skip


async def sweep_uploads(scope: Scope) -> None:
    """Finish uploads regularly until cancelled."""
    while True:
        await scope.runtime.sleep(LEASE_S)
        try:
            await finish_uploads(scope)
        except Exception as error:
            # Tried again; the client sees the error when it asks.
            logging.getLogger("penstock").warning("an upload could not be finished: %s", error)
