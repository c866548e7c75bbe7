"""A source of one document whose bytes are stored already, as one blob or as several."""

from collections.abc import AsyncGenerator, Sequence

from penstock.blobs.base import Blobs
from penstock.errors import SourceError
from penstock.sources.base import Found, Known

PIECE = 4 << 20


class StoredSource:
    problems: Sequence[str] = ()
    repeatable = True

    def __init__(self, blobs: Blobs, parts: Sequence[tuple[str, int]], found: Found) -> None:
        """`parts`: the keys and sizes of the blobs, in order."""
        self._blobs = blobs
        self._parts = parts
        self._found = found

    async def discover(self, known: Known) -> AsyncGenerator[Found, None]:
        yield self._found

    async def read(self, found: Found) -> AsyncGenerator[bytes, None]:
        for key, size in self._parts:
            for first in range(0, size, PIECE):
                wanted = min(PIECE, size - first)
                piece = await self._blobs.read_range(key, first, wanted)
                if len(piece) != wanted:
                    raise SourceError(f"blob {key} is shorter than the ledger says")
                yield piece
