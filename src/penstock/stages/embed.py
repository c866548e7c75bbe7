"""embed: turns each chunk into a vector."""

from collections.abc import Iterator, Sequence

from penstock.artifacts.segments import VECTORS
from penstock.embedders.base import Remote
from penstock.model.items import Chunk, Vectors
from penstock.net.providers import Providers
from penstock.runtime import Runtime
from penstock.stages.base import Gather, Limits, Ports, Stage, StepContext, StepResult

BATCH = 256
PIECE = 256 * 1024
"""A batch ends after this many characters even if it is not full, so that a stop or a cancel takes effect soon."""
SMALL_BATCH = 16
"""The batch for a step whose worker died, so that it records progress before another crash, if it is not the cause."""


async def run(ctx: StepContext) -> StepResult:
    checkpoint = ctx.checkpoint
    model = ctx.ports.embedder.model
    done: int = checkpoint.cursor.get("chunks", 0)
    batch = min(SMALL_BATCH if ctx.step.crashes else BATCH, model.max_texts)
    async for chunks in ctx.inputs("chunk", done):
        for texts in _batches(chunks, batch, model.max_tokens):
            vectors = await ctx.together(GATHER, texts)
            done += len(texts)
            await checkpoint.append([vectors], {"chunks": done}, count=len(texts), size=vectors.nbytes, keep=model.paid)
    return StepResult({"chunks": done, "dimensions": model.dimensions, "embedder_fingerprint": model.fingerprint})


async def _embed(ports: Ports, runtime: Runtime, providers: Providers, texts: Sequence[str]) -> Vectors:
    if not ports.embedder.model.remote:
        return await _answer(ports, runtime, texts)
    embedder, tokens = ports.embedder, sum(map(estimated_tokens, texts))
    vectors = await providers.calls.call(embedder.target, lambda: _answer(ports, runtime, texts), tokens=tokens)
    if isinstance(embedder, Remote) and embedder.stated is not None:
        await providers.calls.stated(embedder.target, **embedder.stated._asdict())
    return vectors


async def _answer(ports: Ports, runtime: Runtime, texts: Sequence[str]) -> Vectors:
    failpoints = runtime.failpoints
    if failpoints.armed:
        failpoints.hit("provider.answer.before")
    vectors = await ports.embedder.embed_documents(texts)
    if failpoints.armed:
        failpoints.hit("provider.answer.after")
    return vectors


def estimated_tokens(text: str) -> int:
    """About how many tokens a text has, for limits of tokens a minute."""
    return 1 + len(text) // 4


def _limits(ports: Ports) -> Limits | None:
    model = ports.embedder.model
    return Limits(model.max_texts, model.max_tokens) if model.remote else None


GATHER = Gather(_embed, len, _limits)


def _batches(chunks: Sequence[Chunk], most: int, most_tokens: int | None) -> Iterator[list[str]]:
    """Yield batches of texts. A character counts as one token: that is more than the real number, so a call stays
    within the limit of its model."""
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
    target=lambda ports, params: ports.embedder.target,
)
