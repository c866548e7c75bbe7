"""Files in a `multipart/form-data` body, one after the other as they arrive. Nothing is spooled."""

from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

from multipart import (
    MultipartError,
    ParserLimitReached,
    PushMultipartParser,
    parse_options_header,
)

from penstock.api.problems import Problem

MOST_FILES = 1_000
LARGEST_HEADER = 4 << 10


def boundary_of(content_type: str) -> str:
    kind, options = parse_options_header(content_type)
    boundary = options.get("boundary", "")
    if kind != "multipart/form-data" or not 0 < len(boundary) <= 200 or not boundary.isascii():
        raise Problem("bad_request", "multipart/form-data needs a boundary")
    return str(boundary)


class Part:
    """One part. Its body must be read, or skipped, before the next part."""

    def __init__(self, segment: Any, events: AsyncGenerator[Any, None]) -> None:
        self.name = segment.name or ""
        self.filename = segment.filename
        self._events = events
        self._over = False

    async def body(self) -> AsyncIterator[bytes]:
        while not self._over:
            event = await anext(self._events)
            if event is None:
                self._over = True
                return
            yield bytes(event)

    async def skip(self) -> None:
        async for _ in self.body():
            pass


async def parts(pieces: AsyncIterator[bytes], boundary: str) -> AsyncGenerator[Part, None]:
    """Yield the parts. Raise Problem if the body is no multipart, or ends too early."""
    events = _events(pieces, boundary)
    async for event in events:
        part = Part(event, events)
        yield part
        await part.skip()


async def _events(pieces: AsyncIterator[bytes], boundary: str) -> AsyncGenerator[Any, None]:
    # Each file may have a part with its metadata before it.
    try:
        parser = PushMultipartParser(
            boundary, max_header_size=LARGEST_HEADER, max_segment_count=2 * MOST_FILES, strict=False
        )
        async for piece in pieces:
            for event in parser.parse(piece):
                yield event
        parser.close()
    except ParserLimitReached as error:
        raise Problem("too_large", f"the multipart body has too many parts, or too long headers: {error}") from None
    except (MultipartError, UnicodeError) as error:
        raise Problem("bad_request", f"the multipart body cannot be read: {error}") from None
