"""The files of an ingest: found, opened and hashed."""

import os
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import msgspec

from penstock.client.uploads import File, Order
from penstock.errors import SourceChanged
from penstock.runtime import Runtime
from penstock.sources.base import NOTHING, Found
from penstock.sources.folder import FolderSource, open_found
from penstock.verbs import arguments
from penstock.verbs.manifests import Manifest


class Given(msgspec.Struct, frozen=True):
    """What is to be ingested."""

    paths: Sequence[Path | str]
    include: Sequence[str] = ()
    exclude: Sequence[str] = ()
    metadata: Mapping[str, Any] = {}
    manifest: Manifest | None = None
    data: BinaryIO | None = None
    """One document more, as an open file."""
    name: str | None = None
    source: str | None = None
    again: bool = False
    """Also files that were deleted with `forget`."""


class Hashed(NamedTuple):
    found: Found
    order: Order
    digest: bytes
    size: int


class Files:
    """The files that are given."""

    def __init__(self, given: Given, order: Order, runtime: Runtime) -> None:
        self._given = given
        self._order = order
        self._runtime = runtime
        self.problems: list[str] = []
        """What cannot be read, as `SOURCE: why`. It is complete when all files were yielded."""

    async def found(self) -> AsyncGenerator[Found, None]:
        given = self._given
        folders = [path for path in given.paths if isinstance(path, Path)]
        if folders:
            source = FolderSource(folders, self._runtime, include=given.include, exclude=given.exclude)
            async with aclosing(source.discover(NOTHING)) as found:
                async for one in found:
                    if given.manifest is not None and one.uri == given.manifest.uri:
                        continue
                    if arguments.is_long(one.uri):
                        self.problems.append(f"{one.uri}: the path is longer than {arguments.TEXT_LIMIT:,} bytes")
                        continue
                    yield one
            self.problems += source.problems
        if given.data is not None:
            name = given.name or ""
            yield Found(given.source or name, name, place=given.data)
        if given.manifest is not None:
            self.problems += given.manifest.problems

    def open(self, found: Found) -> BinaryIO:
        """Open a file anew. Raises SourceError."""
        data = self._given.data
        if data is not None and found.place is data:
            return open(os.dup(data.fileno()), "rb")
        return open_found(found)

    async def hashed(self, found: Found) -> Hashed:
        """Read a file. Raises SourceError. The digest is empty if the file changed meanwhile."""
        with await self._runtime.run_blocking("io", self.open, found) as file:
            content = File(file)
            try:
                digest = await content.hash(self._runtime)
            except SourceChanged:
                digest = b""
        listed = {} if self._given.manifest is None else self._given.manifest.metadata.get(found.uri, {})
        metadata = {**found.metadata, **listed, **self._given.metadata}
        order = msgspec.structs.replace(self._order, source=found.uri, name=found.name, metadata=metadata)
        return Hashed(found, order, digest, content.size)
