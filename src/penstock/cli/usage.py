"""`usage`: what was bought from providers."""

from typing import TYPE_CHECKING

import click

from penstock.cli.call import Call, body
from penstock.cli.output import Answer, table, visible

if TYPE_CHECKING:
    from penstock.verbs.usage import Sum, Usage

HEAD = ["DAY", "OWNER", "MODEL", "TOKENS", "COST", "SAVED BY CACHE", "SAVED BY RESUME"]


@click.command()
@click.option("--days", metavar="N", type=click.IntRange(1, 100_000), help="Only the last N days, in UTC.")
@click.option("--all-owners", is_flag=True, help="The usage of all owners.")
@body
async def usage(call: Call, days: int | None, all_owners: bool) -> Answer:
    """Show what was bought from providers, by model and day, and what was saved.

    Texts that were embedded before are not bought again. Searches are included. Set `prices` if a cost is unknown.
    """
    import msgspec

    async with call.app() as app:
        found = await (app.usage_of_all(days=days) if all_owners else call.scoped(app).usage(days=days))
    rows = [[one.day, one.owner, visible(one.model), *amounts(one)] for one in found.days]
    lines = table([HEAD, *rows, ["total", "", "", *amounts(found.total)]]) if rows else ["nothing was bought"]
    unknown = found.total.bought.unpriced_tokens + found.total.queries.unpriced_tokens
    hints = [f"The price of {unknown:,} tokens is unknown: set `prices` in penstock.yaml."] if unknown else []
    return Answer(msgspec.to_builtins(found), "\n".join(lines), hints=hints)


def amounts(found: "Usage") -> list[str]:
    bought = [found.bought, found.queries]
    cells = [f"{sum(one.tokens for one in bought):,}", dollars(sum(one.cost for one in bought))]
    return [*cells, _saved(found.saved_by_cache), _saved(found.saved_by_resume)]


def _saved(found: "Sum") -> str:
    return f"{found.tokens:,} ({dollars(found.cost)})" if found.tokens else "0"


def dollars(cost: float) -> str:
    return f"${cost:,.2f}" if cost >= 1 or not cost else f"${cost:.6f}".rstrip("0")


def line(found: "Usage") -> str | None:
    """One line about money, or None if there is nothing to say."""
    bought = found.bought.tokens + found.queries.tokens
    saved = [
        f"{one.tokens:,} saved by {how}"
        for how, one in (("cache", found.saved_by_cache), ("resume", found.saved_by_resume))
        if one.tokens
    ]
    if not bought and not saved:
        return None
    cost = found.bought.cost + found.queries.cost
    price = "" if found.bought.unpriced_tokens and not cost else f" for {dollars(cost)}"
    return ", ".join([f"{bought:,} tokens bought{price}", *saved])
