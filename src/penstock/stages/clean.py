"""clean: turns each page into a clean page, with offsets into the original text."""

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Any, TypeVar

from penstock.artifacts.segments import CLEAN_PAGES
from penstock.extractors import formats
from penstock.model.items import CleanPage, Page
from penstock.model.nouns import Json
from penstock.stages.base import Ports, Stage, StepContext, StepResult
from penstock.stages.cleaning import CLEAN_VERSION, clean_page
from penstock.stages.furniture import BLOCK, FURNITURE_VERSION, Sheet, Span, furniture, sheet

T = TypeVar("T")

BATCH = 16
PIECE = 256 * 1024
"""A batch ends after this many characters even if it has fewer than BATCH pages, so that a stop or a cancel takes
effect soon."""


async def run(ctx: StepContext) -> StepResult:
    done: int = ctx.checkpoint.cursor.get("pages", 0)
    batches = _printed if formats.of(ctx.document.media_type).printed else _plain
    async for cleaned in batches(ctx, done):
        done += len(cleaned)
        await ctx.checkpoint.append(cleaned, {"pages": done}, size=sum(len(page.text) for page in cleaned))
    return StepResult({"pages": done})


async def _plain(ctx: StepContext, start: int) -> AsyncIterator[list[CleanPage]]:
    async for pages in ctx.inputs("extract", start):
        # A step whose worker died should record progress soon.
        for batch in _batches(pages, 1 if ctx.step.crashes else BATCH):
            yield await _run_on_cpu(ctx, batch, _clean, batch)


async def _printed(ctx: StepContext, start: int) -> AsyncIterator[list[CleanPage]]:
    """Yield blocks of clean pages without furniture. The block before `start` is read again, to find lines that
    recur."""
    at = max(start - BLOCK, 0)
    before: list[Sheet] = []
    async for block in _blocks(ctx, at):
        sheets = [s for part in _batches(block, BLOCK) for s in await _run_on_cpu(ctx, part, _sheets, part)]
        if at >= start:
            spans = iter(await _run_on_cpu(ctx, block, furniture, before, sheets))
            cleaned: list[CleanPage] = []
            for part in _batches(block, BLOCK):
                cleaned += await _run_on_cpu(ctx, part, _clean, part, [next(spans) for _ in part])
            yield cleaned
        at += len(block)
        before = sheets


async def _blocks(ctx: StepContext, start: int) -> AsyncIterator[list[Page]]:
    block: list[Page] = []
    async for pages in ctx.inputs("extract", start):
        for page in pages:
            block.append(page)
            if len(block) == BLOCK:
                yield block
                block = []
    if block:
        yield block


def _batches(pages: Sequence[Page], most: int) -> Iterator[list[Page]]:
    """Yield batches of at most `most` pages, fewer if the pages are long."""
    batch: list[Page] = []
    size = 0
    for page in pages:
        batch.append(page)
        size += len(page.text)
        if len(batch) == most or size >= PIECE:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


async def _run_on_cpu(ctx: StepContext, pages: Sequence[Page], function: Callable[..., T], *args: object) -> T:
    ctx.raise_if_cancelled()
    return await ctx.runtime.run_sized("cpu", _size(pages), function, *args)


def _clean(pages: list[Page], removed: Sequence[Sequence[Span]] | None = None) -> list[CleanPage]:
    return [clean_page(page, spans) for page, spans in zip(pages, removed or [()] * len(pages), strict=True)]


def _sheets(pages: list[Page]) -> list[Sheet]:
    return [sheet(page) for page in pages]


def _size(pages: Sequence[Page]) -> int:
    return sum(len(page.text) for page in pages)


def _version(ports: Ports, params: Json, media_type: str | None) -> Any:
    """Without a media type, the version covers everything that this stage may do."""
    if media_type is not None and not formats.of(media_type).printed:
        return CLEAN_VERSION
    return [CLEAN_VERSION, FURNITURE_VERSION, BLOCK]


CLEAN = Stage("clean", run, CLEAN_PAGES, _version)
