"""chunk: turns clean pages into chunks. The windows depend only on the input, so that an interruption changes nothing
(I12)."""

from collections.abc import AsyncIterator
from typing import Any

import msgspec

from penstock.artifacts.segments import CHUNKS
from penstock.errors import ConfigError, Permanent
from penstock.extractors.base import library
from penstock.model.items import CleanPage
from penstock.model.nouns import Json
from penstock.model.states import DocumentStatus
from penstock.stages.base import Ports, Stage, StepContext, StepResult
from penstock.stages.chunking import CHUNK_VERSION, ChunkSettings, Window
from penstock.stages.splitting import SPLITTER

WINDOW = 16


async def run(ctx: StepContext) -> StepResult:
    settings = _settings(ctx.params)
    media_type = ctx.document.media_type or "text/plain"
    checkpoint = ctx.checkpoint
    pages: int = checkpoint.cursor.get("pages", 0)
    chunks: int = checkpoint.cursor.get("chunks", 0)
    at: int | None = checkpoint.cursor.get("at", 0)
    async for group in _windows(ctx, pages):
        window = Window(group, settings, media_type)
        size = sum(len(page.text) for page in group)
        while at is not None:
            made, at = await ctx.runtime.run_sized("cpu", size, window.take, at, chunks, ctx.runtime.clock)
            chunks += len(made)
            cursor = {"pages": pages, "chunks": chunks, "at": at}
            if at is None:
                pages += len(group)
                cursor = {"pages": pages, "chunks": chunks}
            await checkpoint.append(made, cursor, size=sum(len(chunk.text) for chunk in made))
        at = 0
    return StepResult({"chunks": chunks})


async def _windows(ctx: StepContext, start: int) -> AsyncIterator[list[CleanPage]]:
    """Yield windows of WINDOW pages, counted from the first page of the document."""
    window: list[CleanPage] = []
    async for pages in ctx.inputs("clean", start):
        for page in pages:
            window.append(page)
            if len(window) == WINDOW:
                yield window
                window = []
    if window:
        yield window


def _settings(params: dict[str, object]) -> ChunkSettings:
    try:
        return msgspec.convert(params, ChunkSettings)
    except (msgspec.ValidationError, ConfigError) as error:
        raise Permanent(f"the chunk settings are wrong: {error}", reason="bad_settings") from error


def _ends(meta: Json) -> DocumentStatus | None:
    return DocumentStatus.NOT_INDEXABLE if meta.get("chunks") == 0 else None


def _version(ports: Ports, params: Json, media_type: str | None) -> Any:
    return [CHUNK_VERSION, library(SPLITTER), media_type, WINDOW]


CHUNK = Stage("chunk", run, CHUNKS, _version, _ends)
