"""PORT: where bytes are kept. Keys are slash-separated and begin with the owner.

No adapter lets an `OSError` or an error of its library out. A call raises `BlobMissing` or `BlobUnreadable` for a blob
that is to be read, `StorageError` where a disk is full or may not be written, and `UsageError` for a key that is none.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from pathlib import Path
from typing import NamedTuple, Protocol

from penstock.errors import BlobMissing, BlobUnreadable

Unread = BlobMissing | BlobUnreadable
"""Why a blob could not be read."""


class BlobInfo(NamedTuple):
    key: str
    size: int
    modified_at: float


class BlobSum(NamedTuple):
    """What a blob is, by a look at it."""

    size: int
    sha256: str | None
    """None: its content was not asked for."""


class Stored(NamedTuple):
    """What a stream has brought."""

    sha256: str
    size: int


class Copied(NamedTuple):
    sha256: str
    size: int


class Blobs(Protocol):
    async def put(self, key: str, data: bytes, *, durable: bool) -> None:
        """Write a blob whole or not at all. `durable`: it survives a power cut once this returns."""

    async def put_many(self, blobs: Sequence[tuple[str, bytes]], *, durable: bool) -> None:
        """Write several; durable ones share the flushing of their folders."""

    async def put_stream(self, key: str, pieces: AsyncIterator[bytes]) -> Stored:
        """Write a durable blob from pieces of any size, in one pass. What `pieces` raises is passed on, and nothing of
        the blob is left; nothing is left either if the call is cancelled."""

    async def stat(self, key: str) -> BlobInfo | None:
        """Size and time of a blob; None: there is none."""

    async def get(self, key: str, size: int | None = None) -> bytes:
        """The whole blob. `size`: how large it should be, if that is known."""

    async def get_many(self, keys: Sequence[str]) -> list[bytes | Unread]:
        """Several small blobs at once; for one that cannot be read, the error."""

    async def sums(self, keys: Sequence[str], *, content: bool = True) -> list[BlobSum | Unread]:
        """Sizes and hashes of several blobs; for one that cannot be read, the error. Without `content` only sizes."""

    async def read_range(self, key: str, offset: int, length: int) -> bytes:
        """A part of a blob; shorter at its end, empty past it."""

    def file(self, key: str) -> AbstractAsyncContextManager[Path]:
        """The blob as a file on this machine, to be read only, and only within the context."""

    async def delete(self, keys: Sequence[str]) -> None:
        """Remove blobs; those that are not there are no error."""

    async def copy_out(self, keys: Sequence[str], folder: Path) -> Sequence[Copied | None]:
        """Each as the file `folder/key`, not flushed: what was copied, or None where there is none."""

    async def copy_in(self, keys: Sequence[str], folder: Path) -> Sequence[Copied | None]:
        """The same the other way: blobs of these files."""

    def submitting(self, since: str) -> AbstractContextManager[None]:
        """Within it, blobs whose names come after `since` may be stored before a row names them. It ends with the
        process at the latest."""

    async def submitted_since(self) -> str | None:
        """The first of these, of all processes that live."""

    def list(self, prefix: str) -> AsyncIterator[BlobInfo]:
        """All blobs below a prefix, temporary files included, in no order."""
