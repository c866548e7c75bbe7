"""`usage`: what was bought from providers, and what was saved."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial

import msgspec

from penstock.embedders.base import outline
from penstock.errors import UsageError
from penstock.ledger.database.store import Ledger
from penstock.ledger.engine import usage as booked
from penstock.ledger.engine.usage import DayUsage
from penstock.model.usage import Amount, UsageKind
from penstock.runtime import Runtime
from penstock.verbs import arguments
from penstock.verbs.resources import Resources
from penstock.verbs.scope import Scope

LONGEST_DAYS = 100_000
MOST_DOLLARS = 10**9


class Sum(msgspec.Struct, frozen=True):
    texts: int = 0
    tokens: int = 0
    cost: float = 0.0
    """US dollars, at the prices of the time of each call."""
    unpriced_tokens: int = 0
    """Tokens without a known price, which are not part of the cost."""


class Usage(msgspec.Struct, frozen=True):
    """What was bought, and what was not bought again."""

    bought: Sum
    queries: Sum
    """Bought for searches."""
    saved_by_cache: Sum
    """Texts whose vectors had been bought before."""
    saved_by_resume: Sum
    """Texts behind the checkpoints of interrupted steps."""


class UsageRow(Usage, frozen=True):
    owner: str
    model: str
    """The fingerprint of the model."""
    day: str
    """In UTC."""


class UsageReport(msgspec.Struct, frozen=True):
    days: list[UsageRow]
    """Newest first."""
    total: Usage


async def usage(scope: Scope, *, days: int | None = None) -> UsageReport:
    """Return what this owner bought and saved, by model and day, of the last `days` days (None: of all days)."""
    first = _first(scope.runtime, days)
    return report(await scope.ledger.read(partial(booked.by_day, scope.owner), first))


async def usage_of_all(ledger: Ledger, runtime: Runtime, days: int | None) -> UsageReport:
    """Return what all owners bought and saved."""
    return report(await ledger.read(booked.by_owner, _first(runtime, days)))


def _first(runtime: Runtime, days: int | None) -> str:
    if days is None:
        return ""
    days = arguments.number("days", days, least=1, most=LONGEST_DAYS)
    return (datetime.fromtimestamp(runtime.now(), UTC).date() - timedelta(days=days - 1)).isoformat()


def check_max_cost(resources: Resources, dollars: float | None) -> None:
    """Raise UsageError if a limit of the cost makes no sense, or cannot be kept because a price is not known."""
    if dollars is None:
        return
    if not 0 <= arguments.amount("max_cost", dollars) <= MOST_DOLLARS:
        raise UsageError(f"max_cost {dollars!r}: use an amount of US dollars")
    ports, config = resources.ports, resources.config
    for collection in (config.collection, *config.collections):
        model = outline(ports.embedder_for(config.embed_parameters(collection)))
        if model.paid and model.price is None:
            raise UsageError(
                f"a limit of the cost needs the price of {model.name}: set it under `prices` in penstock.yaml, in US "
                "dollars per million tokens"
            )


def report(found: Sequence[DayUsage]) -> UsageReport:
    rows: dict[tuple[str, str, str], dict[UsageKind, Amount]] = {}
    whole: dict[UsageKind, Amount] = {}
    for one in found:
        rows.setdefault((one.owner, one.model, one.day), {})[one.kind] = one.amount
        whole[one.kind] = whole.get(one.kind, Amount()) + one.amount
    days = [
        UsageRow(**_sums(amounts), owner=owner, model=model, day=day) for (owner, model, day), amounts in rows.items()
    ]
    return UsageReport(days, summed(whole))


def summed(amounts: Mapping[UsageKind, Amount]) -> Usage:
    return Usage(**_sums(amounts))


def _sums(amounts: Mapping[UsageKind, Amount]) -> dict[str, Sum]:
    kinds: dict[str, UsageKind] = {
        "bought": "bought", "queries": "query", "saved_by_cache": "cached", "saved_by_resume": "resumed"
    }  # fmt: skip
    return {name: _sum(amounts.get(kind, Amount())) for name, kind in kinds.items()}


def _sum(amount: Amount) -> Sum:
    return Sum(amount.texts, amount.tokens, amount.dollars, amount.unpriced)
