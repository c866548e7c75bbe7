"""Buy vectors: each text once, with its answer stored and its cost booked before anything else happens."""

import hashlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from penstock.embedders.base import Answered, Embedder, Model, Remote
from penstock.errors import Permanent, Transient
from penstock.model.items import Vector, Vectors
from penstock.model.nouns import Owner, RunId
from penstock.model.usage import Amount, Booking, amount
from penstock.net.providers import Calls, FoundAnswer, Paid, ProvidersOf
from penstock.runtime import Runtime

_T = TypeVar("_T")


class Text(NamedTuple):
    """A text to embed, and who pays for it."""

    owner: Owner
    text: str
    run: RunId | None = None


class Made(NamedTuple):
    vector: Vector
    tokens: int
    is_new: bool = False
    """It was bought by this call, and for this text."""


@dataclass(frozen=True)
class Batch:
    """The answer of a call, one entry for each text: its vector, or why the provider refuses it."""

    made: Sequence[Made | Permanent]

    def __len__(self) -> int:
        return len(self.made)

    def __getitem__(self, part: slice) -> "Batch":
        return Batch(self.made[part])


def stored(found: Mapping[str, FoundAnswer], model: Model) -> dict[str, Made]:
    """The answers that are vectors of this model."""
    import numpy as np

    size = 4 * model.dimensions
    return {
        key: Made(np.frombuffer(answer.data, dtype="<f4"), answer.tokens)
        for key, answer in found.items()
        if len(answer.data) == size
    }


def key(model: Model, text: str) -> str:
    return f"{model.fingerprint} {hashlib.sha256(text.encode(errors='surrogatepass')).hexdigest()}"


def estimated_tokens(text: str) -> int:
    """About how many tokens a text has."""
    return 1 + len(text) // 4


Place = tuple[str, str]
"""Whose answers (those of an owner, or those that all owners share), and the key."""


async def buy(embedder: Embedder, runtime: Runtime, providers: ProvidersOf, texts: Sequence[Text]) -> Batch:
    """Buy the vectors of texts that are not stored yet. If the provider refuses the call, its halves are bought, each
    as a call of its own: what is answered for one half is stored before the other is asked for."""
    try:
        return await _buy_together(embedder, runtime, providers, texts)
    except Permanent as error:
        if len(texts) == 1:
            return Batch([error])
    half = len(texts) // 2
    halves = [await buy(embedder, runtime, providers, part) for part in (texts[:half], texts[half:])]
    return Batch([one for batch in halves for one in batch.made])


async def _buy_together(embedder: Embedder, runtime: Runtime, providers: ProvidersOf, texts: Sequence[Text]) -> Batch:
    model = embedder.model
    places = [(providers(one.owner).answers.place, key(model, one.text)) for one in texts]
    # A text that several documents share is sent once; the first of them pays.
    wanted: dict[Place, Text] = {}
    for place, text in zip(places, texts, strict=True):
        wanted.setdefault(place, text)
    made: dict[Place, Made] = {}

    async def call() -> None:
        # Another process may have bought some of them while this call waited for its turn.
        made.update(await _found(model, providers, wanted))
        left = {place: text for place, text in wanted.items() if place not in made}
        if left:
            with ExitStack() as holding:
                for (_, one), text in left.items():
                    holding.enter_context(providers(text.owner).answers.held([one]))
                made.update(await _buy(embedder, runtime, providers, left))

    tokens = sum(estimated_tokens(text.text) for text in wanted.values())
    await limited(providers(texts[0].owner).calls, embedder, call, tokens=tokens, paid=True)
    return Batch(_in_order(places, made))


def _in_order(places: Sequence[Place], made: dict[Place, Made]) -> list[Made]:
    ordered = []
    for place in places:
        ordered.append(made[place])
        made[place] = made[place]._replace(is_new=False)
    return ordered


async def _found(model: Model, providers: ProvidersOf, wanted: Mapping[Place, Text]) -> dict[Place, Made]:
    found: dict[Place, Made] = {}
    for whose in {place for place, _ in wanted}:
        some = {key: text for (place, key), text in wanted.items() if place == whose}
        answers = providers(next(iter(some.values())).owner).answers
        there = stored(await answers.look(list(some)), model)
        found.update(((whose, key), one) for key, one in there.items())
    return found


async def _buy(
    embedder: Embedder, runtime: Runtime, providers: ProvidersOf, wanted: Mapping[Place, Text]
) -> dict[Place, Made]:
    model, payers = embedder.model, list(wanted.values())
    purse = providers(payers[0].owner).purse
    sizes = [estimated_tokens(text.text) for text in payers]
    reserved = purse.reserve(sum(sizes), model.price)
    tokens = 0
    try:
        answer = await answered(runtime, lambda: _counted(embedder, [text.text for text in payers]))
        tokens = sum(sizes) if answer.tokens is None else answer.tokens
    except Transient:
        # An answer that is of no use.
        tokens = sum(sizes)
        raise
    finally:
        # What was answered is paid for.
        purse.settle(reserved, sum(sizes), tokens, model.price)
    vectors, shares = _checked(model, len(payers), answer.vectors), _shares(tokens, sizes)
    made = {place: Made(vector, share, True) for place, vector, share in zip(wanted, vectors, shares, strict=True)}
    for whose in {place for place, _ in wanted}:
        some = {key: one for (place, key), one in made.items() if place == whose}
        paid = {key: Paid(one.vector.tobytes(), one.tokens) for key, one in some.items()}
        bookings = _bookings(model, [(wanted[whose, key], one.tokens) for key, one in some.items()])
        await providers(wanted[whose, next(iter(some))].owner).answers.pay(paid, bookings)
    return made


def _shares(total: int, sizes: Sequence[int]) -> list[int]:
    """Divide tokens among texts in proportion to their sizes. The sum is exact."""
    whole, before, shares = sum(sizes), 0, []
    given = 0
    for size in sizes:
        before += size
        upto = total * before // whole
        shares.append(upto - given)
        given = upto
    return shares


def _bookings(model: Model, paid: Sequence[tuple[Text, int]]) -> tuple[Booking, ...]:
    sums: dict[tuple[Owner, RunId | None], Amount] = {}
    for text, tokens in paid:
        payer = (text.owner, text.run)
        sums[payer] = sums.get(payer, Amount()) + Amount(1, len(text.text), tokens)
    return tuple(
        Booking(owner, model.fingerprint, "bought", amount(s.texts, s.characters, s.tokens, model.price), run)
        for (owner, run), s in sums.items()
    )


def _checked(model: Model, count: int, vectors: Vectors) -> Vectors:
    """Raise Transient if the vectors are not what was asked for."""
    import numpy as np

    if vectors.shape != (count, model.dimensions) or not np.isfinite(vectors).all():
        raise Transient(
            f"the embedder sent {vectors.shape} numbers for {count} texts of {model.dimensions} dimensions, or some "
            "that are no numbers",
            reason="bad_answer",
        )
    checked: Vectors = vectors.astype("<f4", copy=False)
    return checked


async def limited(
    calls: Calls, embedder: Embedder, call: Callable[[], Awaitable[_T]], *, tokens: int, paid: bool
) -> _T:
    """Call within the limits of the target, and record those that its answer states, also if it refuses."""
    try:
        return await calls.call(embedder.target, call, tokens=tokens, paid=paid)
    finally:
        if isinstance(embedder, Remote) and embedder.stated is not None:
            await calls.stated(embedder.target, **embedder.stated._asdict())


async def answered(runtime: Runtime, call: Callable[[], Awaitable[_T]]) -> _T:
    """The answer of a provider, between two failpoints."""
    failpoints = runtime.failpoints
    if failpoints.armed:
        failpoints.hit("provider.answer.before")
    answer = await call()
    if failpoints.armed:
        failpoints.hit("provider.answer.after")
    return answer


async def _counted(embedder: Embedder, texts: Sequence[str]) -> Answered:
    if isinstance(embedder, Remote):
        return await embedder.embed_counted(texts)
    return Answered(await embedder.embed_documents(texts), None)
