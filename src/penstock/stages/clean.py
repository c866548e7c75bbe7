"""clean: pages become clean pages, one for one, with offsets that lead back."""

from penstock.artifacts.segments import CLEAN_PAGES
from penstock.model.items import CleanPage, Page
from penstock.stages.base import Stage, StepContext, StepResult
from penstock.stages.cleaning import CLEAN_VERSION, clean_page

BATCH = 16


async def run(ctx: StepContext) -> StepResult:
    checkpoint = ctx.checkpoint
    done: int = checkpoint.cursor.get("pages", 0)
    async for pages in ctx.inputs("extract", done):
        for i in range(0, len(pages), BATCH):
            batch = pages[i : i + BATCH]
            cleaned = await ctx.runtime.run_sized("cpu", sum(len(p.text) for p in batch), _clean, batch)
            done += len(cleaned)
            await checkpoint.append(cleaned, {"pages": done}, size=sum(len(page.text) for page in cleaned))
    return StepResult({"pages": done})


def _clean(pages: list[Page]) -> list[CleanPage]:
    return [clean_page(page) for page in pages]


CLEAN = Stage("clean", run, CLEAN_PAGES, lambda ports, params, media_type: CLEAN_VERSION)
