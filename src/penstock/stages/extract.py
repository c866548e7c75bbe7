"""extract: raw bytes become pages with structure."""

from contextlib import aclosing
from typing import Any

from penstock.artifacts.segments import PAGES
from penstock.model.nouns import Json
from penstock.stages.base import Ports, Stage, StepContext, StepResult


async def run(ctx: StepContext) -> StepResult:
    media_type = ctx.document.media_type or "text/plain"
    extractor = ctx.ports.extractors[media_type]
    checkpoint = ctx.checkpoint
    source = ctx.source
    if not checkpoint.cursor:
        await source.verify()
    async with aclosing(extractor.extract(source, media_type, ctx.params, dict(checkpoint.cursor))) as batches:
        async for batch in batches:
            size = sum(len(page.text) for page in batch.pages)
            await checkpoint.append(batch.pages, batch.cursor, size=size, keep=batch.keep)
    return StepResult({"pages": checkpoint.total})


def _version(ports: Ports, params: Json, media_type: str | None) -> Any:
    extractor = ports.extractors.get(media_type or "text/plain")
    return extractor.version if extractor else None


EXTRACT = Stage("extract", run, PAGES, _version)
