"""PORT: sources of documents. A source finds documents and reads their bytes. It does not use the ledger."""

from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from enum import Enum
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol, runtime_checkable


class Change(Enum):
    """The result of comparing revisions."""

    NEW = "new"
    CHANGED = "changed"
    UNCHANGED = "unchanged"
    GONE = "gone"


class Found(NamedTuple):
    uri: str
    """The source URI, which identifies the document."""
    name: str
    revision: str = ""
    """An opaque value. A different revision may mean different bytes. An equal revision means the same bytes, as far as
    the source can tell. "" means that the source cannot tell."""
    change: Change = Change.NEW
    place: Any = None
    """What the source needs to read the document. Other code does not use it."""
    metadata: Mapping[str, Any] = MappingProxyType({})
    """Metadata that the source has for the document. What the caller submits takes precedence."""


class Known(Protocol):
    """The documents that were found before."""

    async def revisions(self, uris: Sequence[str]) -> Mapping[str, str]:
        """The revisions of the known documents among these; "" for a known document without a revision."""

    def under(self, prefix: str) -> AsyncIterator[str]:
        """Yield all known URIs that begin with a prefix."""


class Source(Protocol):
    @property
    def problems(self) -> Sequence[str]:
        """What could not be read, as `URI: reason`. Complete when `discover` has ended."""

    @property
    def repeatable(self) -> bool:
        """Whether `read` can be called more than once for a document."""

    def discover(self, known: Known) -> AsyncGenerator[Found, None]:
        """Yield every document once, as it is found, so that millions of documents need little memory. Documents that
        no longer exist come last, and only if there are no problems: what could not be read may still exist."""

    def read(self, found: Found) -> AsyncGenerator[bytes, None]:
        """Yield the bytes in pieces. Raises SourceError if they cannot be read, and SourceChanged, at the end at the
        latest, if the document changed while it was read."""


@runtime_checkable
class Revised(Protocol):
    """A source whose revisions prove that bytes are equal, such as the ETags of a server. Unchanged documents are then
    not read again. Without it, the hash of the bytes decides."""

    def learned(self, found: Found) -> Found:
        """The document as it was read: name and revision belong to the bytes that `read` has yielded to its end."""


@runtime_checkable
class Findable(Protocol):
    """A source that can look at one document by its URI, such as the object of a bucket that a message names."""

    async def find(self, uri: str) -> Found | None:
        """The document as it is now; None if there is none. Raises Away or SourceError."""


@runtime_checkable
class Closable(Protocol):
    """A source that holds connections."""

    async def close(self) -> None: ...


@runtime_checkable
class Local(Protocol):
    """A source of many small local files. Reading several of them in one thread costs less than using the event loop
    for each."""

    def read_now(self, found: Found, most: int) -> bytes | None:
        """The whole document; None if it has more than `most` bytes. This call blocks. Raises as `read`."""


@runtime_checkable
class Peeked(Protocol):
    """A source that can look at a document without reading all of it."""

    def peek(self, found: Found, most: int) -> tuple[bytes, int]:
        """The first `most` bytes, and the size of the document. This call blocks. Raises as `read`."""


class Remembered:
    """Known documents in memory, as a mapping of URIs to revisions."""

    def __init__(self, revisions: Mapping[str, str]) -> None:
        self._revisions = revisions

    async def revisions(self, uris: Sequence[str]) -> Mapping[str, str]:
        return {uri: self._revisions[uri] for uri in uris if uri in self._revisions}

    async def under(self, prefix: str) -> AsyncIterator[str]:
        for uri in self._revisions:
            if uri.startswith(prefix):
                yield uri


NOTHING: Known = Remembered({})
"""No known documents: everything is new."""


def compared(found: Sequence[Found], known: Mapping[str, str]) -> list[Found]:
    """The documents, with `change` set by comparing their revisions."""
    return [one._replace(change=_change(one, known.get(one.uri))) for one in found] if known else list(found)


def _change(found: Found, before: str | None) -> Change:
    if before is None:
        return Change.NEW
    return Change.UNCHANGED if found.revision and found.revision == before else Change.CHANGED
