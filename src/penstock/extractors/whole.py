"""Formats that can only be read whole: a parser process reads the file, the pages come in batches."""

from collections.abc import AsyncGenerator
from typing import Any

import msgspec

from penstock.errors import ParserBreach, Permanent
from penstock.extractors.base import Extracted, Parsers, Source, library
from penstock.extractors.encodings import DETECTOR
from penstock.model.items import Page

BATCH = 16
VERSIONS = {"office": ("office-1",), "html": ("html-1", DETECTOR)}
"""By reader: of its own code, and the libraries that decide what it reads."""


class WholeFileExtractor:
    """Gone on with after an interruption, it reads the file again and leaves out the pages that are there."""

    def __init__(self, parsers: Parsers, reader: str) -> None:
        """`reader`: a name in `VERSIONS`, which the parser processes know."""
        self._parsers = parsers
        self._reader = reader

    @property
    def version(self) -> str:
        version, *libraries = VERSIONS[self._reader]
        return "/".join((version, *map(library, libraries)))

    async def extract(
        self, source: Source, media_type: str, params: dict[str, Any], cursor: dict[str, Any]
    ) -> AsyncGenerator[Extracted, None]:
        done = int(cursor.get("pages", 0))
        if cursor and done == cursor["of"]:
            return
        async with source.file() as path:
            try:
                data = await self._parsers.call(self._reader, {"media_type": media_type}, source=source, document=path)
            except ParserBreach as breach:
                # A crash may have been chance; what was too slow or too large is so again.
                if breach.reason == "parser_crash":
                    raise
                raise Permanent(str(breach), reason=breach.reason) from breach
        pages = msgspec.msgpack.decode(data, type=list[Page])
        for begin in range(done, len(pages), BATCH):
            batch = pages[begin : begin + BATCH]
            yield Extracted(batch, {"pages": begin + len(batch), "of": len(pages)})
