"""embed: turns each chunk into a vector."""

import hashlib
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from penstock.artifacts.segments import VECTORS
from penstock.embedders.base import Model, Remote
from penstock.errors import Transient
from penstock.model.items import Chunk, Vectors
from penstock.net.providers import ProvidersOf
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
            vectors = await _vectors(ctx, texts)
            done += len(texts)
            await checkpoint.append([vectors], {"chunks": done}, count=len(texts), size=vectors.nbytes, keep=model.paid)
    return StepResult({"chunks": done, "dimensions": model.dimensions, "embedder_fingerprint": model.fingerprint})


class Text(NamedTuple):
    """A text to embed, and who pays for it."""

    owner: str
    text: str


async def _vectors(ctx: StepContext, texts: Sequence[str]) -> Vectors:
    """The vectors of texts. Those that were bought before are not bought again."""
    model, owner = ctx.ports.embedder.model, ctx.step.owner
    if not model.paid:
        vectors: Vectors = await ctx.together(GATHER, [Text(owner, text) for text in texts])
        return vectors
    import numpy as np

    keys = [_key(model, text) for text in texts]
    found = await ctx.providers.answers.find(list(dict.fromkeys(keys)))
    rows = {key: np.frombuffer(data, dtype="<f4") for key, data in found.items() if len(data) == 4 * model.dimensions}
    missing = {key: text for key, text in zip(keys, texts, strict=True) if key not in rows}
    if missing:
        bought = await ctx.together(GATHER, [Text(owner, text) for text in missing.values()])
        rows |= dict(zip(missing, bought, strict=True))
    return np.stack([rows[key] for key in keys]).astype(np.float32, copy=False)


def _key(model: Model, text: str) -> str:
    return f"{model.fingerprint} {hashlib.sha256(text.encode(errors='surrogatepass')).hexdigest()}"


async def _embed(ports: Ports, runtime: Runtime, providers: ProvidersOf, items: Sequence[Text]) -> Vectors:
    model = ports.embedder.model
    if not model.remote and not model.paid:
        return await _answer(ports, runtime, [item.text for item in items])
    # A text that several documents share is sent once.
    rows = {item: row for row, item in enumerate(dict.fromkeys(items))}
    texts = [item.text for item in rows]

    async def call() -> Vectors:
        vectors = await _answer(ports, runtime, texts)
        if model.paid:
            await _keep(model, providers, list(rows), vectors)
        return vectors

    calls, embedder = providers(items[0].owner).calls, ports.embedder
    tokens = sum(map(estimated_tokens, texts))
    vectors = await calls.call(embedder.target, call, tokens=tokens, paid=model.paid)
    if isinstance(embedder, Remote) and embedder.stated is not None:
        await calls.stated(embedder.target, **embedder.stated._asdict())
    # An answer with a wrong number of vectors is passed on: the caller counts them.
    return vectors[[rows[item] for item in items]] if len(vectors) == len(texts) else vectors


async def _keep(model: Model, providers: ProvidersOf, items: Sequence[Text], vectors: Vectors) -> None:
    """Store the vectors that were bought, before anything else happens. Raises Transient if they are not what was asked
    for."""
    import numpy as np

    if vectors.shape != (len(items), model.dimensions) or not np.isfinite(vectors).all():
        raise Transient(
            f"the embedder sent {vectors.shape} numbers for {len(items)} texts of {model.dimensions} dimensions, or "
            "some that are no numbers",
            reason="bad_answer",
        )
    bought: dict[str, dict[str, bytes]] = {}
    for item, vector in zip(items, vectors.astype("<f4", copy=False), strict=True):
        bought.setdefault(item.owner, {})[_key(model, item.text)] = vector.tobytes()
    for owner, answers in bought.items():
        await providers(owner).answers.keep(answers)


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


GATHER = Gather(_embed, lambda item: len(item.text), _limits)


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
    paid=lambda ports, params, media_type: ports.embedder.model.paid,
    target=lambda ports, params: ports.embedder.target,
    check=lambda ports, runtime: ports.embedder.embed_documents(["test"]),
    warm_up=lambda ports, runtime: ports.embedder.warm_up(),
)
