"""Formats that are read as a whole file: a parser process reads the file, and the pages are returned in batches."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Any

import msgspec

from penstock.errors import ParserBreach, Permanent, StepError
from penstock.extractors.bad_parts import is_of_a_part
from penstock.extractors.base import Extracted, FileContent, Parsers, Raw
from penstock.extractors.formats import Format, Named, Office, Parts
from penstock.extractors.numbered import NUMBERED, PARTS, read_parts

BATCH = 16


def make(row: Format, parts: Parts) -> "WholeFileExtractor":
    unpacked = [parts.office_megabytes, parts.unpacked_ratio] if isinstance(row.sign, Office | Named) else None
    return WholeFileExtractor(parts.parsers, row, unpacked)


class WholeFileExtractor:
    """After an interruption it reads the whole file again and skips the pages that are already stored."""

    paid = False

    def __init__(self, parsers: Parsers, row: Format, unpacked: list[int] | None = None) -> None:
        """`unpacked`: the limits of a zip file, for its reader."""
        if row.reader is None:
            raise ValueError(f"{row.media_type} has no reader for parser processes")
        self._parsers = parsers
        self._reader = row.reader.name
        self._version = row.whole_version
        self._arguments = {} if unpacked is None else {"unpacked": unpacked}

    def version(self, media_type: str, params: Mapping[str, Any]) -> str:
        return self._version

    async def _whole(
        self, call: Callable[[], Awaitable[FileContent]], media_type: str, done: int
    ) -> FileContent | None:
        """The content of the file; None if its parts must be read one by one."""
        try:
            return await call()
        except StepError as error:
            # With pages of a whole file before it, a part has no number of its own. It was read before, and will be.
            if is_of_a_part(error) and media_type in NUMBERED and not done:
                return None
            # A crash may not happen again. A file that was too slow or too large would be so again.
            if not isinstance(error, ParserBreach) or error.reason == "parser_crash":
                raise
            raise Permanent(str(error), reason=error.reason) from error

    async def extract(
        self, raw: Raw, media_type: str, params: dict[str, Any], cursor: dict[str, Any]
    ) -> AsyncGenerator[Extracted, None]:
        done = int(cursor.get("pages", 0))
        if "of" in cursor and done == cursor["of"]:
            return
        async with raw.file() as path:

            async def call(**span: Sequence[int]) -> FileContent:
                arguments = {"media_type": media_type, **self._arguments, **span}
                data = await self._parsers.call(self._reader, arguments, source=raw, document=path)
                return msgspec.msgpack.decode(data, type=FileContent)

            content = None if PARTS in cursor else await self._whole(call, media_type, done)
            if content is None:
                async with aclosing(read_parts(lambda *span: call(span=span), cursor)) as batches:
                    async for batch_of_parts in batches:
                        yield batch_of_parts
                return
        pages = content.pages
        for begin in range(done, len(pages), BATCH):
            batch = pages[begin : begin + BATCH]
            yield Extracted(batch, {"pages": begin + len(batch), "of": len(pages)}, metadata=content.metadata)
