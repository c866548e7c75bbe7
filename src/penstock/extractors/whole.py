"""Formats that can only be read as a whole file: a parser process reads the file, and the pages are returned in
batches."""

from collections.abc import AsyncGenerator, Mapping
from typing import Any

import msgspec

from penstock.errors import ParserBreach, Permanent
from penstock.extractors.base import Extracted, FileContent, Parsers, Raw
from penstock.extractors.formats import Format, Named, Office, Parts

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

    async def extract(
        self, raw: Raw, media_type: str, params: dict[str, Any], cursor: dict[str, Any]
    ) -> AsyncGenerator[Extracted, None]:
        done = int(cursor.get("pages", 0))
        if cursor and done == cursor["of"]:
            return
        async with raw.file() as path:
            try:
                arguments = {"media_type": media_type, **self._arguments}
                data = await self._parsers.call(self._reader, arguments, source=raw, document=path)
            except ParserBreach as breach:
                # A crash may not happen again. A file that was too slow or too large would be so again.
                if breach.reason == "parser_crash":
                    raise
                raise Permanent(str(breach), reason=breach.reason) from breach
        content = msgspec.msgpack.decode(data, type=FileContent)
        pages = content.pages
        for begin in range(done, len(pages), BATCH):
            batch = pages[begin : begin + BATCH]
            yield Extracted(batch, {"pages": begin + len(batch), "of": len(pages)}, metadata=content.metadata)
