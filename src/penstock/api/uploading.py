"""Uploads: from the body of a request to a receipt. When a caller sees a receipt, its document is durable (I1)."""

from collections.abc import AsyncIterator

import msgspec

from penstock.api.bodies import head_of, joined
from penstock.api.callers import Access
from penstock.api.problems import Problem
from penstock.intake_items import Receipt
from penstock.verbs import receipts
from penstock.verbs.accepting import SMALL, Named, Order, accept_stream


async def admit(access: Access, one: Named | None = None, collection: str = "", size: int | None = None) -> None:
    """Before the body of an upload is read: raise IntakePaused, or QuotaExceeded if this document does not fit. The
    transaction that accepts it checks the quota again."""
    admissions = access.scope.resources.admissions
    if one is None:
        await admissions.check(access.owner)
    else:
        await admissions.check_one(access.owner, collection, one.source, size or 0)


async def take(access: Access, order: Order, one: Named, pieces: AsyncIterator[bytes]) -> Receipt:
    """Accept one document. A small one is gathered with others that arrive now; a large one streams to the blobs."""
    head, is_all = await head_of(pieces, SMALL)
    if is_all:
        return await access.service.gatherer.accept(access.scope, order, one, head)
    return await accept_stream(access.scope, order, one, joined(head, pieces))


def refused(receipt: Receipt) -> Problem:
    """The problem of a document that was not accepted."""
    problem = receipt.problem or "the document was not accepted"
    if "the disk is full" in problem:
        return Problem("disk_full", "the disk is full: what was accepted is kept")
    if "more than its quota of" in problem:
        return Problem("quota_exceeded", problem.removeprefix(f"{receipt.source}: "))
    if "is the source of another document" in problem:
        return Problem("conflict", problem.removeprefix(f"{receipt.source}: "))
    return Problem("invalid", problem.removeprefix(f"{receipt.source}: "))


def shown(receipt: Receipt) -> dict[str, object]:
    """A receipt as callers see it."""
    found: dict[str, object] = msgspec.to_builtins(receipts.shown(receipt))
    return found


def status_of(receipt: Receipt) -> int:
    return 201 if receipt.outcome in ("submitted", "held") else 200
