"""embed: chunks become vectors, one for one."""

from penstock.artifacts.segments import VECTORS
from penstock.stages.base import Stage, StepContext, StepResult

BATCH = 256
SMALL_BATCH = 16
"""For a step whose worker died: it shows progress before the next accident, if it is not the cause of it."""


async def run(ctx: StepContext) -> StepResult:
    checkpoint = ctx.checkpoint
    embedder = ctx.ports.embedder
    failpoints = ctx.runtime.failpoints
    done: int = checkpoint.cursor.get("chunks", 0)
    batch = SMALL_BATCH if ctx.step.crashes else BATCH
    async for chunks in ctx.inputs("chunk", done):
        for i in range(0, len(chunks), batch):
            texts = [chunk.text for chunk in chunks[i : i + batch]]
            if failpoints.armed:
                failpoints.hit("provider.answer.before")
            vectors = await embedder.embed(texts)
            if failpoints.armed:
                failpoints.hit("provider.answer.after")
            done += len(texts)
            await checkpoint.append([vectors], {"chunks": done}, count=len(texts), size=vectors.nbytes)
    return StepResult({"chunks": done, "dimensions": embedder.dimensions})


FAILPOINTS = ("provider.answer.before", "provider.answer.after")

EMBED = Stage("embed", run, VECTORS, lambda ports, params, media_type: ports.embedder.fingerprint)
