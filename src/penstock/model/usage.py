"""What was bought from providers, and what was saved."""

from typing import Literal

import msgspec

from penstock.model.nouns import Owner, RunId

UsageKind = Literal["bought", "query", "cached", "resumed"]
"""`bought`: vectors of documents. `query`: vectors of searches. `cached`: found among the answers that were bought
before. `resumed`: behind the checkpoint of an interrupted step."""
KINDS: tuple[UsageKind, ...] = ("bought", "query", "cached", "resumed")
NANO = 10**9


class Amount(msgspec.Struct, frozen=True):
    texts: int = 0
    characters: int = 0
    tokens: int = 0
    cost: int = 0
    """Billionths of a US dollar."""
    unpriced: int = 0
    """Tokens whose price is not known. They are not part of the cost."""

    def __add__(self, other: "Amount") -> "Amount":
        return Amount(
            self.texts + other.texts,
            self.characters + other.characters,
            self.tokens + other.tokens,
            self.cost + other.cost,
            self.unpriced + other.unpriced,
        )

    @property
    def dollars(self) -> float:
        return self.cost / NANO


def cost(tokens: int, price: float | None) -> int:
    """The cost of tokens, in billionths of a US dollar; `price`: US dollars per million tokens, None: unknown."""
    return 0 if price is None else round(tokens * price * (NANO // 10**6))


def amount(texts: int, characters: int, tokens: int, price: float | None) -> Amount:
    return Amount(texts, characters, tokens, cost(tokens, price), tokens if price is None else 0)


class Booking(msgspec.Struct, frozen=True):
    """An amount for an owner, and for a run if it was for one."""

    owner: Owner
    model: str
    """The fingerprint of the model."""
    kind: UsageKind
    amount: Amount
    run: RunId | None = None
