"""PORT: blob storage. Keys are separated by slashes and begin with the owner.

No adapter raises an `OSError` or an error of its library. Reading a blob raises `BlobMissing` or `BlobUnreadable`.
A full or read-only disk raises `StorageError`, and an invalid key raises `UsageError`.
"""

import re
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import NamedTuple, Protocol

from penstock.errors import BlobMissing, BlobUnreadable, UsageError

FAILPOINTS = ("blob.put.before", "blob.put.after")
"""Hit by every adapter around the commit of a blob."""

TARGET = "blobs:"
"""The prefix of the names of blob stores as targets. Every step needs its blob store."""

Unread = BlobMissing | BlobUnreadable
"""Why a blob could not be read."""


class BlobInfo(NamedTuple):
    key: str
    size: int
    modified_at: float


class BlobSum(NamedTuple):
    """The size and hash of a blob."""

    size: int
    sha256: str | None
    """None: the content was not requested."""


class Stored(NamedTuple):
    """The hash and size of a blob that was stored from a stream."""

    sha256: str
    size: int


class Copied(NamedTuple):
    sha256: str
    size: int


class PartSum(NamedTuple):
    """A part that someone else sent into the store."""

    number: int
    """From 1 on."""
    etag: str
    """What the store answered."""


class LeftParts(NamedTuple):
    """An upload in parts that is neither complete nor aborted."""

    key: str
    upload: str
    begun_at: float | None


class Parts(Protocol):
    """What a store can do that lets others send a blob in parts, by signed URLs. Raises as the store does."""

    async def begin(self, key: str) -> str:
        """Begin an upload in parts. Return its id."""

    def sign(self, key: str, upload: str, numbers: Sequence[int], expires_s: int) -> list[str]:
        """URLs that take the parts with these numbers by PUT."""

    async def complete(self, key: str, upload: str, parts: Sequence[PartSum]) -> None:
        """Make one blob of the parts. Raises UsageError if the store has other ones, and BlobMissing if it does not
        know the upload: it was completed or aborted before."""

    async def abort(self, key: str, upload: str) -> None:
        """Remove the parts of an upload. One that is not there is ignored."""

    async def left(self, prefix: str) -> list[LeftParts]:
        """The uploads in parts that were not ended, whose keys begin with a prefix."""


def parts_of(blobs: object) -> Parts | None:
    """None: others cannot send blobs into this store."""
    found: Parts | None = getattr(blobs, "parts", None)
    return found


class OpenSubmit(Protocol):
    async def check(self) -> None:
        """Called after rows were committed that name new raw bytes, and before the caller is told. Raises
        `StorageError` if the mark has ended, so that prune may have removed the bytes."""


class Blobs(Protocol):
    async def put(self, key: str, data: bytes, *, durable: bool) -> None:
        """Write a blob atomically. `durable`: it survives a power failure when this returns."""

    async def put_many(self, blobs: Sequence[tuple[str, bytes]], *, durable: bool) -> None:
        """Write several blobs. Durable ones share the flush of their folders."""

    async def put_stream(self, key: str, pieces: AsyncIterator[bytes]) -> Stored:
        """Write a durable blob from pieces of any size, in one pass. If `pieces` raises or the call is cancelled, no
        part of the blob remains. Exceptions of `pieces` are raised unchanged."""

    async def stat(self, key: str) -> BlobInfo | None:
        """Size and modification time of a blob; None if it does not exist."""

    async def get(self, key: str, size: int | None = None) -> bytes:
        """The whole blob. `size`: its expected size, if known."""

    async def get_many(self, keys: Sequence[str]) -> list[bytes | Unread]:
        """Several small blobs. For a blob that cannot be read, the list contains the error."""

    async def sums(self, keys: Sequence[str], *, content: bool = True) -> list[BlobSum | Unread]:
        """Sizes and hashes of several blobs; without `content`, only sizes. For a blob that cannot be read, the list
        contains the error."""

    async def read_range(self, key: str, offset: int, length: int) -> bytes:
        """A part of a blob. It is shorter at the end of the blob, and empty after it."""

    def file(self, key: str) -> AbstractAsyncContextManager[Path]:
        """The blob as a local file, for reading, and only within the context."""

    async def delete(self, keys: Sequence[str]) -> None:
        """Remove blobs. Missing blobs are ignored."""

    async def copy_out(self, keys: Sequence[str], folder: Path) -> Sequence[Copied | None]:
        """Copy each blob to the file `folder/key`, without a flush. Returns the hash and size of each; None for missing
        blobs."""

    async def copy_in(self, keys: Sequence[str], folder: Path) -> Sequence[Copied | None]:
        """Store the files `folder/key` as blobs. Returns as `copy_out`."""

    def submitting(self, since: str) -> "AbstractAsyncContextManager[OpenSubmit]":
        """Mark a submit in progress: within the context, raw bytes with names after `since` may be stored before a row
        names them. The mark of a process that has died ends by itself."""

    async def submitted_since(self) -> str | None:
        """The lowest `since` of all submits in progress, of all running processes; None if there is none."""

    def list(self, prefix: str) -> AsyncIterator[BlobInfo]:
        """Yield all blobs below a prefix, including temporary files, in any order."""


_BAD_KEY = re.compile(r"(^|/)\.{0,2}(/|$)")


def check_key(key: str) -> str:
    """Raises UsageError if a key would lead elsewhere."""
    if _BAD_KEY.search(key):
        raise UsageError(f"{key!r} is not a blob key")
    return key


SENT = "sent"
"""The end of the keys of raw bytes that clients send straight into the store."""


def is_sent_by_others(key: str) -> bool:
    return is_raw(key) and key.endswith(SENT)


def is_raw(key: str) -> bool:
    """Whether a blob has the raw bytes of a document."""
    return key.split("/", 2)[1:2] == ["raw"]
