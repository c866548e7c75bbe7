"""embed: chunks become vectors, one for one."""

from collections.abc import Iterator, Sequence

from penstock.artifacts.segments import VECTORS
from penstock.model.items import Chunk
from penstock.stages.base import Stage, StepContext, StepResult

BATCH = 256
PIECE = 256 * 1024
"""Letters after which a batch ends before it is full: a stop or a cancel should be heard soon."""
SMALL_BATCH = 16
"""For a step whose worker died: it shows progress before the next accident, if it is not the cause of it."""


async def run(ctx: StepContext) -> StepResult:
    checkpoint = ctx.checkpoint
    embedder = ctx.ports.embedder
    failpoints = ctx.runtime.failpoints
    done: int = checkpoint.cursor.get("chunks", 0)
    batch = min(SMALL_BATCH if ctx.step.crashes else BATCH, embedder.model.max_texts)
    async for chunks in ctx.inputs("chunk", done):
        for texts in _batches(chunks, batch, embedder.model.max_tokens):
            if failpoints.armed:
                failpoints.hit("provider.answer.before")
            vectors = await embedder.embed_documents(texts)
            if failpoints.armed:
                failpoints.hit("provider.answer.after")
            done += len(texts)
            await checkpoint.append(
                [vectors], {"chunks": done}, count=len(texts), size=vectors.nbytes, keep=embedder.model.paid
            )
    return StepResult({"chunks": done, "dimensions": embedder.model.dimensions})


def _batches(chunks: Sequence[Chunk], most: int, most_tokens: int | None) -> Iterator[list[str]]:
    """A letter counts as a token: more than there are, so that a call stays within the limit of its model."""
    texts: list[str] = []
    size = 0
    for chunk in chunks:
        if texts and most_tokens is not None and size + len(chunk.text) > most_tokens:
            yield texts
            texts, size = [], 0
        texts.append(chunk.text)
        size += len(chunk.text)
        if len(texts) == most or size >= PIECE:
            yield texts
            texts, size = [], 0
    if texts:
        yield texts


FAILPOINTS = ("provider.answer.before", "provider.answer.after")

EMBED = Stage(
    "embed",
    run,
    VECTORS,
    lambda ports, params, media_type: ports.embedder.model.fingerprint,
    paid=lambda ports, media_type: ports.embedder.model.paid,
)
