"""Read artifacts segment by segment, and verify the hash of each."""

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from penstock.artifacts.segments import CODECS, digest
from penstock.blobs.base import Blobs
from penstock.errors import BlobMissing, TornSegment
from penstock.model.nouns import Artifact, ArtifactId, Segment

SEGMENT_PAGE = 100

ListSegments = Callable[[ArtifactId, int, int], Awaitable[list[Segment]]]


class ArtifactReader:
    def __init__(self, blobs: Blobs, list_segments: ListSegments) -> None:
        """`list_segments(artifact, start, count)` reads the rows of segments from the ledger."""
        self._blobs = blobs
        self._list = list_segments

    async def items(
        self, artifact: Artifact, kind: str, start: int = 0, known: list[Segment] | None = None
    ) -> AsyncIterator[list[Any]]:
        """The items from number `start` on, one segment at a time. `known`: the segments, if the caller has them."""
        async for segment in self._segments(artifact, known):
            if segment.first + segment.items <= start:
                continue
            items = CODECS[kind].decode(await self._fetch(artifact, segment))
            skip = max(0, start - segment.first)
            yield [items[0][skip:]] if skip and kind == "embed" else items[skip:]

    async def _segments(self, artifact: Artifact, known: list[Segment] | None) -> AsyncIterator[Segment]:
        if known is not None:
            for segment in known:
                yield segment
            return
        start = 0
        while start < artifact.segments:
            page = await self._list(artifact.id, start, SEGMENT_PAGE)
            if not page or page[0].ordinal != start:
                raise TornSegment(f"segment {start} has no row", artifact_id=artifact.id, ordinal=start)
            for segment in page:
                yield segment
            start += len(page)

    async def _fetch(self, artifact: Artifact, segment: Segment) -> bytes:
        try:
            data = segment.data
            if data is None:
                data = await self._blobs.get(segment.key, segment.size)
        except BlobMissing:
            data = b""
        if digest(data) != segment.sha256:
            raise TornSegment(
                f"segment {segment.key} is torn or missing", artifact_id=artifact.id, ordinal=segment.ordinal
            )
        return data
