"""Uploads: a small document in one request, a large one by tus, which goes on where it was cut off."""

import base64
import hashlib
import json
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import msgspec

from penstock.client.connection import Connection, Patience
from penstock.client.errors import Conflict, InvalidRequest, NotThere, ServerFailed
from penstock.errors import Away, SourceChanged, SourceError, UsageError
from penstock.runtime import Runtime
from penstock.verbs.receipts import UploadReceipt

LARGE = 8 << 20
"""Larger documents are uploaded by tus."""
PIECE = 256 << 10
ACCEPT_S = 600.0
"""How long the server may take to accept a large document after its last byte."""
CHANGING_TRIES = 3
CHANGED = "it keeps changing while it is uploaded: try again when its writer is done"
TUS = {"Tus-Resumable": "1.0.0"}
FRESH_TRIES = 1_000
OnProgress = Callable[[int, int], None]
"""Called with the bytes that were sent, and their number in all."""


class Order(msgspec.Struct, frozen=True):
    """What is to be done with a document."""

    source: str
    name: str
    metadata: dict[str, Any] = {}
    collection: str | None = None
    workflow: str | None = None
    params: str | None = None
    priority: int = 0
    batch: str | None = None
    retry: bool = False
    hold: bool = False

    @property
    def query(self) -> dict[str, Any]:
        """What all documents of a request share, as parameters."""
        return {
            "collection": self.collection, "workflow": self.workflow, "params": self.params,
            "priority": self.priority or None, "batch": self.batch, "retry": self.retry or None,
            "hold": self.hold or None,
        }  # fmt: skip


class Bytes:
    """A document in memory."""

    def __init__(self, data: bytes | bytearray | memoryview) -> None:
        self._data = memoryview(data).cast("B")
        self.size = len(self._data)

    async def hash(self, runtime: Runtime) -> bytes:
        return await runtime.run_sized("io", self.size, lambda: hashlib.sha256(self._data).digest())

    def changed(self) -> bool:
        return False

    async def pieces(self, runtime: Runtime, start: int = 0) -> AsyncIterator[bytes]:
        for place in range(start, self.size, PIECE):
            yield bytes(self._data[place : place + PIECE])


class _State(NamedTuple):
    size: int
    modified: int


class File:
    """An open file that can be read again. It must not change: a hash of other bytes helps nobody."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._before = self._state()
        self.size = self._before.size

    def _state(self) -> _State:
        found = os.fstat(self._file.fileno())
        return _State(found.st_size, found.st_mtime_ns)

    def changed(self) -> bool:
        return self._state() != self._before

    async def hash(self, runtime: Runtime) -> bytes:
        digest = hashlib.sha256()
        async for piece in self.pieces(runtime):
            await runtime.run_sized("io", len(piece), digest.update, piece)
        return digest.digest()

    async def pieces(self, runtime: Runtime, start: int = 0) -> AsyncIterator[bytes]:
        """Yield the bytes from a place on. Raise SourceChanged if they are not those of the beginning any more."""
        place = start
        while place < self.size:
            piece = await runtime.run_blocking("io", self._read, place, min(PIECE, self.size - place))
            if not piece or self.changed():
                raise SourceChanged(CHANGED)
            place += len(piece)
            yield piece
        if self.changed():
            raise SourceChanged(CHANGED)

    def _read(self, place: int, count: int) -> bytes:
        try:
            return os.pread(self._file.fileno(), count, place)
        except OSError as error:
            raise SourceError(error.strerror or str(error)) from error


Content = Bytes | File


async def upload_file(
    connection: Connection, path: Path, order: Order, on_progress: OnProgress | None = None
) -> UploadReceipt:
    for attempt in range(CHANGING_TRIES):
        try:
            with await connection.runtime.run_blocking("io", _open, path) as file:
                return await upload(connection, File(file), order, on_progress)
        except SourceChanged:
            if attempt + 1 == CHANGING_TRIES:
                raise
    raise AssertionError


def _open(path: Path) -> BinaryIO:
    try:
        if not path.is_file():
            raise UsageError(f"{path}: no such file")
        return path.open("rb")
    except OSError as error:
        raise SourceError(f"{path}: {error.strerror or error}") from error


async def upload(
    connection: Connection,
    content: Content,
    order: Order,
    on_progress: OnProgress | None = None,
    digest: bytes | None = None,
) -> UploadReceipt:
    """Upload a document. The receipt comes when it is durable. `digest`: its SHA-256, if it is known."""
    digest = digest or await content.hash(connection.runtime)
    if content.size > LARGE:
        # Tus cannot say `retry`, and bytes that the server has need not be sent.
        if order.retry and (known := await _offered(connection, content, order, digest)) is not None:
            return known
        return await _Resumable(connection, content, order, digest, on_progress).run()
    return await _put(connection, content, order, digest, on_progress)


async def _offered(connection: Connection, content: Content, order: Order, digest: bytes) -> UploadReceipt | None:
    """Submit a document by its hash. None: the server needs its bytes."""
    one = {
        "source": order.source, "name": order.name, "sha256": digest.hex(), "size": content.size,
        "metadata": order.metadata,
    }  # fmt: skip
    answer = await connection.json("POST", "documents/offer", query=order.query, data={"documents": [one]})
    found = connection.restored(answer.get("receipts"), list[UploadReceipt])
    return next((receipt for receipt in found if receipt.outcome not in ("needed", "forgotten")), None)


async def _put(
    connection: Connection, content: Content, order: Order, digest: bytes, on_progress: OnProgress | None
) -> UploadReceipt:
    query = {**order.query, "source": order.source, "name": order.name, "metadata": order.metadata or None}
    found: UploadReceipt = await connection.json(
        "PUT", "documents", UploadReceipt, query=query,
        content=lambda: _told(content.pieces(connection.runtime), 0, content.size, on_progress),
        headers={
            "Content-Length": str(content.size),
            "Content-Digest": f"sha-256=:{base64.b64encode(digest).decode()}:",
        },
    )  # fmt: skip
    return found


async def _told(
    pieces: AsyncIterator[bytes], start: int, size: int, on_progress: OnProgress | None
) -> AsyncIterator[bytes]:
    place = start
    async for piece in pieces:
        yield piece
        place += len(piece)
        if on_progress is not None:
            on_progress(place, size)


class _Resumable:
    """An upload by tus. Its creation has a key that is made of the document and its bytes, so that the server names
    the same upload again when this process has died and another one begins anew."""

    def __init__(
        self, connection: Connection, content: Content, order: Order, digest: bytes, on_progress: OnProgress | None
    ) -> None:
        self._connection = connection
        self._content = content
        self._order = order
        self._digest = digest
        self._on_progress = on_progress
        self._generation = 0

    async def run(self) -> UploadReceipt:
        while True:
            place, offset = await self._begin()
            try:
                return await self._send(place, offset)
            except NotThere:
                # It has expired, or was deleted.
                self._generation += 1
                if self._generation > FRESH_TRIES:
                    raise

    async def _begin(self) -> tuple[str, int]:
        """Create the upload, or find the one that an earlier process has left. Return its path and its offset."""
        while True:
            headers = {
                **TUS,
                "Upload-Length": str(self._content.size),
                "Upload-Metadata": self._described(),
                "Idempotency-Key": self._key(),
            }
            made = await self._connection.request("POST", "uploads", headers=headers)
            place = made.headers.get("location", "")
            if not place.startswith("/"):
                raise ServerFailed(f"the server names no place for the upload of {self._order.name}")
            if "idempotency-replayed" not in made.headers:
                return place, 0
            try:
                offset, document = await self._look(place)
                if document is None:
                    return place, offset
            except NotThere:
                pass
            # That one has ended. The document may have changed since.
            self._generation += 1
            if self._generation > FRESH_TRIES:
                raise Conflict(f"{self._order.name} was uploaded too often on one day")

    async def _send(self, place: str, offset: int) -> UploadReceipt:
        patience = self._connection.patience()
        while True:
            self._tell(offset)
            try:
                await self._append(place, offset)
                break
            except (Away, Conflict) as error:
                # A conflict: the server has received another number of bytes, or still holds the connection that was
                # cut off.
                await patience.wait(error, getattr(error, "retry_after", None))
            before, (offset, document) = offset, await self._look(place, patience)
            if document is not None:
                break
            if offset > before:
                patience.restart()
        self._tell(self._content.size)
        answer = await self._connection.json("GET", place, patience=patience)
        if answer.get("receipt") is None:
            raise ServerFailed(f"the server has not accepted the upload of {self._order.name}")
        return self._connection.restored(answer["receipt"], UploadReceipt)

    async def _append(self, place: str, offset: int) -> None:
        pieces = self._content.pieces(self._connection.runtime, offset)
        headers = {
            **TUS,
            "Content-Type": "application/offset+octet-stream",
            "Upload-Offset": str(offset),
            "Content-Length": str(self._content.size - offset),
        }
        async with self._connection.stream(
            "PATCH", place, headers=headers, wait_s=ACCEPT_S,
            content=lambda: _told(pieces, offset, self._content.size, self._on_progress),
        ):  # fmt: skip
            return

    async def _look(self, place: str, patience: Patience | None = None) -> tuple[int, str | None]:
        found = await self._connection.request("HEAD", place, headers=TUS, patience=patience)
        return int(found.headers.get("upload-offset", "0")), found.headers.get("penstock-document")

    def _tell(self, place: int) -> None:
        if self._on_progress is not None:
            self._on_progress(place, self._content.size)

    def _key(self) -> str:
        parts = [msgspec.to_builtins(self._order), self._digest.hex(), self._content.size, self._generation]
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()

    def _described(self) -> str:
        order = self._order
        given = {
            "filename": order.name, "source": order.source, "collection": order.collection,
            "metadata": json.dumps(order.metadata) if order.metadata else None, "workflow": order.workflow,
            "params": order.params, "batch": order.batch, "hold": "true" if order.hold else None,
            "priority": str(order.priority) if order.priority else None,
        }  # fmt: skip
        return ",".join(
            f"{name} {base64.b64encode(value.encode('utf-8', 'replace')).decode()}"
            for name, value in given.items()
            if value is not None
        )


async def upload_json(
    connection: Connection, given: dict[str, Any], order: Order, wait_s: float = 0.0
) -> UploadReceipt:
    """Submit a text, or a web address that the server fetches."""
    answer = await connection.json("POST", "documents", query=order.query, data=given, wait_s=wait_s)
    try:
        [receipt] = answer["receipts"]
    except (KeyError, TypeError, ValueError):
        raise ServerFailed("the server has sent no receipt") from None
    found = connection.restored(receipt, UploadReceipt)
    if found.id is None:
        raise InvalidRequest(found.problem or f"{found.name} was refused")
    return found
