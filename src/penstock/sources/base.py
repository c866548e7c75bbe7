"""PORT: where documents come from. A source finds them and reads their bytes; it knows nothing of the ledger."""

from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from enum import Enum
from typing import Any, NamedTuple, Protocol, runtime_checkable


class Change(Enum):
    """What a source can tell from revisions alone."""

    NEW = "new"
    CHANGED = "changed"
    UNCHANGED = "unchanged"
    GONE = "gone"


class Found(NamedTuple):
    uri: str
    """By this the document is known."""
    name: str
    revision: str = ""
    """Opaque. Another revision may be other bytes. An equal one is the same bytes as far as the source can tell; ""
    means that the source cannot tell."""
    change: Change = Change.NEW
    place: Any = None
    """What the source needs to read it; of no meaning to anybody else."""


class Known(Protocol):
    """What was found before."""

    async def revisions(self, uris: Sequence[str]) -> Mapping[str, str]:
        """The revision of each of these that is known; "" for one that is known without a revision."""

    def under(self, prefix: str) -> AsyncIterator[str]:
        """All known URIs that begin with a prefix."""


class Source(Protocol):
    @property
    def problems(self) -> Sequence[str]:
        """What could not be found out, as `URI: why`; complete when `discover` has ended."""

    @property
    def repeatable(self) -> bool:
        """Whether `read` can be called again for the same document."""

    def discover(self, known: Known) -> AsyncGenerator[Found, None]:
        """Every document once, as it is found: a source of millions is never held in memory. Those that are gone come
        last, and only if there are no problems: what could not be read proves nothing."""

    def read(self, found: Found) -> AsyncGenerator[bytes, None]:
        """The bytes in pieces. SourceError: they cannot be read. SourceChanged, at the end at the latest: these were
        not the bytes of one moment."""


@runtime_checkable
class Local(Protocol):
    """A source of many small files on this machine: reading them in a thread, one after the other, costs less than a
    turn of the event loop for each."""

    def read_now(self, found: Found, most: int) -> bytes | None:
        """The whole document, if it has at most so many bytes, else None; it blocks. Errors are those of `read`."""


class Remembered:
    """URIs and their revisions in memory."""

    def __init__(self, revisions: Mapping[str, str]) -> None:
        self._revisions = revisions

    async def revisions(self, uris: Sequence[str]) -> Mapping[str, str]:
        return {uri: self._revisions[uri] for uri in uris if uri in self._revisions}

    async def under(self, prefix: str) -> AsyncIterator[str]:
        for uri in self._revisions:
            if uri.startswith(prefix):
                yield uri


NOTHING: Known = Remembered({})
"""Everything is new, and nothing is gone."""


def compared(found: Sequence[Found], known: Mapping[str, str]) -> list[Found]:
    """What was found, with what its revision says about it."""
    return [one._replace(change=_change(one, known.get(one.uri))) for one in found] if known else list(found)


def _change(found: Found, before: str | None) -> Change:
    if before is None:
        return Change.NEW
    return Change.UNCHANGED if found.revision and found.revision == before else Change.CHANGED
