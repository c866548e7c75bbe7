"""A source of one document: bytes, or an open stream such as standard input."""

import io
from collections.abc import AsyncGenerator, Sequence
from typing import BinaryIO

from penstock.errors import SourceError
from penstock.runtime import Runtime
from penstock.sources.base import Found, Known, compared

PIECE = 1 << 20


class StreamSource:
    """Reads the stream once, to its end, and does not close it."""

    problems: Sequence[str] = ()
    repeatable = False

    def __init__(self, uri: str, name: str, data: bytes | BinaryIO, runtime: Runtime) -> None:
        self.found = Found(uri, name)
        self._stream: BinaryIO | None = io.BytesIO(data) if isinstance(data, bytes) else data
        self._runtime = runtime

    async def discover(self, known: Known) -> AsyncGenerator[Found, None]:
        for found in compared([self.found], await known.revisions([self.found.uri])):
            yield found

    async def read(self, found: Found) -> AsyncGenerator[bytes, None]:
        stream, self._stream = self._stream, None
        if stream is None:
            raise SourceError("a stream can be read only once")
        try:
            while piece := await self._runtime.run_blocking("io", stream.read, PIECE):
                yield piece
        except OSError as error:
            raise SourceError(error.strerror or str(error)) from error
