"""clean: pages become clean pages, one for one, with offsets that lead back."""

from collections.abc import AsyncIterator
from typing import Any

from penstock.artifacts.segments import CLEAN_PAGES
from penstock.extractors.media import PDF
from penstock.model.items import CleanPage, Page
from penstock.model.nouns import Json
from penstock.stages.base import Ports, Stage, StepContext, StepResult
from penstock.stages.cleaning import CLEAN_VERSION, clean_page
from penstock.stages.furniture import BLOCK, FURNITURE_VERSION, Sheet, furniture, sheet

BATCH = 16


async def run(ctx: StepContext) -> StepResult:
    done: int = ctx.checkpoint.cursor.get("pages", 0)
    batches = _printed if ctx.document.media_type == PDF else _plain
    async for cleaned in batches(ctx, done):
        done += len(cleaned)
        await ctx.checkpoint.append(cleaned, {"pages": done}, size=sum(len(page.text) for page in cleaned))
    return StepResult({"pages": done})


async def _plain(ctx: StepContext, start: int) -> AsyncIterator[list[CleanPage]]:
    async for pages in ctx.inputs("extract", start):
        # A step whose worker died shows progress soon.
        count = 1 if ctx.step.crashes else BATCH
        for i in range(0, len(pages), count):
            batch = pages[i : i + count]
            yield await ctx.runtime.run_sized("cpu", _size(batch), _clean, batch)


async def _printed(ctx: StepContext, start: int) -> AsyncIterator[list[CleanPage]]:
    """Blocks of pages, without their furniture. The block before `start` is read again: it tells what recurs."""
    at = max(start - BLOCK, 0)
    before: list[Sheet] = []
    async for block in _blocks(ctx, at):
        size = _size(block)
        sheets = await ctx.runtime.run_sized("cpu", size, _sheets, block)
        if at >= start:
            yield await ctx.runtime.run_sized("cpu", size, _clean_printed, block, before, sheets)
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


def _clean(pages: list[Page]) -> list[CleanPage]:
    return [clean_page(page) for page in pages]


def _sheets(pages: list[Page]) -> list[Sheet]:
    return [sheet(page) for page in pages]


def _clean_printed(pages: list[Page], before: list[Sheet], sheets: list[Sheet]) -> list[CleanPage]:
    return [clean_page(page, spans) for page, spans in zip(pages, furniture(before, sheets), strict=True)]


def _size(pages: list[Page]) -> int:
    return sum(len(page.text) for page in pages)


def _version(ports: Ports, params: Json, media_type: str | None) -> Any:
    """Without a media type, of all that clean may do."""
    return CLEAN_VERSION if media_type not in (PDF, None) else [CLEAN_VERSION, FURNITURE_VERSION, BLOCK]


CLEAN = Stage("clean", run, CLEAN_PAGES, _version)
