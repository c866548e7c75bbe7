"""`quota`: what an owner may have, and what it has."""

from typing import TYPE_CHECKING

import click

from penstock.cli.call import Call, InOrder, body
from penstock.cli.output import Answer, as_data, bytes_size, table

if TYPE_CHECKING:
    from penstock.verbs.quotas import QuotaView


@click.group(cls=InOrder, no_args_is_help=False)
def quota() -> None:
    """Quota of an owner (--owner): show, set, clear."""


@quota.command()
@body
async def show(call: Call) -> Answer:
    """Show the quota of an owner, and how much of it is used."""
    async with call.scope() as scope:
        found = await scope.quota()
    return _answer(found)


@quota.command("set")
@click.option("--documents", metavar="N", type=click.IntRange(-1), help="Maximum number of documents; -1: no limit.")
@click.option("--megabytes", metavar="N", type=click.IntRange(-1),
              help="Maximum total size of the raw bytes; -1: no limit.")  # fmt: skip
@click.option("--requests-per-s", metavar="N", type=float, help="Maximum number of requests per second.")
@body
async def set_quota(call: Call, documents: int | None, megabytes: int | None, requests_per_s: float | None) -> Answer:
    """Give an owner limits of its own.

    They replace all that were set before. What is not given is as in the settings. Documents that are there stay.
    """
    async with call.scope(new=True) as scope:
        found = await scope.set_quota(documents=documents, megabytes=megabytes, requests_per_s=requests_per_s)
    return _answer(found)


@quota.command()
@body
async def clear(call: Call) -> Answer:
    """Remove the limits of an owner's own: those of the settings hold again."""
    async with call.scope() as scope:
        found = await scope.set_quota()
    return _answer(found)


def _answer(found: "QuotaView") -> Answer:
    rows = [
        ("", "USED", "LIMIT"),
        ("documents", f"{found.used_documents:,}", _limit(found.documents)),
        ("raw bytes", bytes_size(found.used_bytes), "none" if found.megabytes is None else f"{found.megabytes:,} MB"),
        ("requests per second", "", f"{found.requests_per_s:g}"),
    ]
    return Answer(as_data(found), "\n".join(table(rows)))


def _limit(limit: int | None) -> str:
    return "none" if limit is None else f"{limit:,}"
