"""Sources of one document whose bytes a caller sends."""

from collections.abc import AsyncGenerator, AsyncIterator, Sequence

from penstock.errors import SourceError
from penstock.sources.base import Found, Known


class BytesSource:
    """A small document, in memory."""

    problems: Sequence[str] = ()
    repeatable = True

    def __init__(self, uri: str, name: str, data: bytes) -> None:
        self.found = Found(uri, name)
        self._data = data

    async def discover(self, known: Known) -> AsyncGenerator[Found, None]:
        yield self.found

    def read_now(self, found: Found, most: int) -> bytes | None:
        return self._data if len(self._data) <= most else None

    async def read(self, found: Found) -> AsyncGenerator[bytes, None]:
        yield self._data


class PiecesSource:
    """A document that arrives in pieces. If they end with an error, the document is refused, and `error` is kept."""

    problems: Sequence[str] = ()
    repeatable = False

    def __init__(self, uri: str, name: str, pieces: AsyncIterator[bytes]) -> None:
        self.found = Found(uri, name)
        self._pieces: AsyncIterator[bytes] | None = pieces
        self.error: Exception | None = None

    async def discover(self, known: Known) -> AsyncGenerator[Found, None]:
        yield self.found

    async def read(self, found: Found) -> AsyncGenerator[bytes, None]:
        pieces, self._pieces = self._pieces, None
        if pieces is None:
            raise SourceError("what a caller sends can be read only once")
        try:
            async for piece in pieces:
                yield piece
        except Exception as error:
            self.error = error
            raise SourceError("the upload did not arrive whole") from error
