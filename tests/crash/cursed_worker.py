"""A worker in which the document named cursed.txt takes the whole process down."""

import asyncio
import dataclasses
import os
import signal
import sys

from penstock.app import open_app
from penstock.stages import registry
from penstock.stages.base import StepContext, StepResult
from penstock.stages.clean import CLEAN


async def deadly(ctx: StepContext) -> StepResult:
    if ctx.document.name == "cursed.txt":
        await ctx.runtime.sleep(0.05)
        os.kill(os.getpid(), signal.SIGKILL)
    return await CLEAN.run(ctx)


async def main(folder: str, home: str) -> None:
    registry.STAGES["clean"] = dataclasses.replace(CLEAN, run=deadly)
    async with open_app(home=home, embedder="fake") as app:
        await app.ingest([folder])


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
