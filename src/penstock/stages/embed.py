"""embed: turns each chunk into a vector."""

from collections.abc import Iterator, Sequence
from functools import cache
from typing import NamedTuple

from penstock.artifacts.segments import VECTORS
from penstock.embedders.base import Embedder
from penstock.errors import Permanent
from penstock.model.items import Chunk, Vectors
from penstock.model.nouns import Json
from penstock.model.usage import Booking, amount
from penstock.net.providers import ProvidersOf
from penstock.runtime import Runtime
from penstock.stages import buying
from penstock.stages.base import Gather, Limits, Ports, Stage, StepContext, StepResult
from penstock.stages.buying import Batch, Text, answered

BATCH = 256
PIECE = 256 * 1024
"""A batch ends after this many characters even if it is not full, so that a stop or a cancel takes effect soon."""
SMALL_BATCH = 16
"""The batch for a step whose worker died, so that it records progress before another crash, if it is not the cause."""
OTHERS = "batch"
"""What a step waits on while another one buys the same texts."""


async def run(ctx: StepContext) -> StepResult:
    checkpoint = ctx.checkpoint
    embedder = ctx.ports.embedder_for(ctx.params)
    model = embedder.model
    done: int = checkpoint.cursor.get("chunks", 0)
    tokens: int = checkpoint.cursor.get("tokens", 0)
    if done and model.paid:
        saved = amount(done, 0, tokens, model.price)
        ctx.book(Booking(ctx.step.owner, model.fingerprint, "resumed", saved, ctx.step.run_id))
    batch = min(SMALL_BATCH if ctx.step.crashes else BATCH, model.max_texts)
    async for chunks in ctx.inputs("chunk", done):
        for texts in _batches(chunks, batch, model.max_tokens):
            made = await _vectors(ctx, embedder, texts)
            vectors, done, tokens = made.vectors, done + len(texts), tokens + made.tokens
            cursor = {"chunks": done, "tokens": tokens} if model.paid else {"chunks": done}
            await checkpoint.append([vectors], cursor, count=len(texts), size=vectors.nbytes, keep=model.paid)
    counted = {"tokens": tokens} if model.paid else {}
    return StepResult(
        {"chunks": done, "dimensions": model.dimensions, "embedder_fingerprint": model.fingerprint, **counted}
    )


def reused(ctx: StepContext, meta: Json) -> None:
    """Book what a step saves whose artifact exists already."""
    model = ctx.ports.embedder_for(ctx.params).model
    chunks, tokens = meta.get("chunks"), meta.get("tokens")
    if model.paid and isinstance(chunks, int) and isinstance(tokens, int):
        saved = amount(chunks, 0, tokens, model.price)
        ctx.book(Booking(ctx.step.owner, model.fingerprint, "cached", saved, ctx.step.run_id))


class _Made(NamedTuple):
    vectors: Vectors
    tokens: int


async def _vectors(ctx: StepContext, embedder: Embedder, texts: Sequence[str]) -> _Made:
    """The vectors of texts. Those that were bought before are not bought again, and those that another step buys at
    this moment are not bought twice."""
    model, owner, run_id = embedder.model, ctx.step.owner, ctx.step.run_id
    gather = _gather(ctx.params.get("embedder"))
    if not model.paid:
        return _Made(await ctx.together(gather, [Text(owner, text) for text in texts]), 0)
    import numpy as np

    answers = ctx.providers.answers
    keys = [buying.key(model, text) for text in texts]
    wanted = dict(zip(keys, texts, strict=True))
    made: dict[str, buying.Made] = {}
    while missing := [key for key in wanted if key not in made]:
        made |= buying.stored(await answers.look(missing), model)
        mine, others = answers.reserve([key for key in missing if key not in made])
        try:
            if mine:
                bought: Batch = await ctx.together(gather, [Text(owner, wanted[key], run_id) for key in mine])
                made |= _accepted(mine, bought)
        finally:
            answers.free(mine)
        if others:
            ctx.waiting(OTHERS)
            await answers.settled(others)
            ctx.waiting(None)
    saved = list(keys)
    for key in wanted:
        if made[key].is_new:
            saved.remove(key)
    if saved:
        counts = (len(saved), sum(len(wanted[key]) for key in saved), sum(made[key].tokens for key in saved))
        ctx.book(Booking(owner, model.fingerprint, "cached", amount(*counts, model.price), run_id))
    vectors = np.stack([made[key].vector for key in keys]).astype(np.float32, copy=False)
    return _Made(vectors, sum(made[key].tokens for key in keys))


def _accepted(keys: Sequence[str], bought: Batch) -> dict[str, buying.Made]:
    """The vectors by key. Raises Permanent if the provider refuses one of the texts."""
    made = {}
    for key, one in zip(keys, bought.made, strict=True):
        if isinstance(one, Permanent):
            raise one
        made[key] = one
    return made


async def _embed(embedder: Embedder, runtime: Runtime, providers: ProvidersOf, items: Sequence[Text]) -> Vectors:
    """Embed texts that cost nothing."""
    if not embedder.model.remote:
        return await answered(runtime, lambda: embedder.embed_documents([item.text for item in items]))
    # A text that several documents share is sent once.
    rows = {text: row for row, text in enumerate(dict.fromkeys(item.text for item in items))}
    tokens = sum(map(buying.estimated_tokens, rows))
    calls = providers(items[0].owner).calls
    vectors = await buying.limited(
        calls,
        embedder,
        lambda: answered(runtime, lambda: embedder.embed_documents(list(rows))),
        tokens=tokens,
        paid=False,
    )
    # An answer with a wrong number of vectors is passed on: the caller counts them.
    return vectors[[rows[item.text] for item in items]] if len(vectors) == len(rows) else vectors


@cache
def _gather(name: str | None) -> Gather:
    """The calls of one embedder: the one of the settings, or that of a collection."""

    def embedder(ports: Ports) -> Embedder:
        return ports.embedder_for({} if name is None else {"embedder": name})

    async def call(ports: Ports, runtime: Runtime, providers: ProvidersOf, items: Sequence[Text]) -> Vectors | Batch:
        made = embedder(ports)
        return await (buying.buy if made.model.paid else _embed)(made, runtime, providers, items)

    def limits(ports: Ports) -> Limits | None:
        model = embedder(ports).model
        return Limits(model.max_texts, model.max_tokens) if model.remote else None

    return Gather(call, lambda item: most_tokens(item.text), limits)


def most_tokens(text: str) -> int:
    """More tokens than texts of this length usually have. A call that has more all the same is refused, and
    divided."""
    return 1 + len(text.encode(errors="surrogatepass")) // 2


def _batches(chunks: Sequence[Chunk], most: int, limit: int | None) -> Iterator[list[str]]:
    """Yield batches of texts that stay within the limits of one call."""
    texts: list[str] = []
    size = tokens = 0
    for chunk in chunks:
        more = most_tokens(chunk.text)
        if texts and limit is not None and tokens + more > limit:
            yield texts
            texts, size, tokens = [], 0, 0
        texts.append(chunk.text)
        size, tokens = size + len(chunk.text), tokens + more
        if len(texts) == most or size >= PIECE:
            yield texts
            texts, size, tokens = [], 0, 0
    if texts:
        yield texts


FAILPOINTS = ("provider.answer.before", "provider.answer.after")

EMBED = Stage(
    "embed",
    run,
    VECTORS,
    lambda ports, params, media_type: ports.embedder_for(params).model.fingerprint,
    paid=lambda ports, params, media_type: ports.embedder_for(params).model.paid,
    target=lambda ports, params: ports.embedder_for(params).target,
    gathers=True,
    separate=frozenset({"embedder"}),
    check=lambda ports, params, runtime: ports.embedder_for(params).embed_documents(["test"]),
    warm_up=lambda ports, runtime: ports.embedder.warm_up(),
    reused=reused,
)
