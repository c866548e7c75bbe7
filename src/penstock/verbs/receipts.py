"""Receipts as callers of the service see them."""

from typing import Literal

import msgspec

from penstock.intake_items import Receipt

Outcome = Literal["created", "updated", "held", "resumed", "unchanged", "refused", "needed", "forgotten"]

OUTCOMES: dict[str, Outcome] = {
    "submitted": "created",
    "changed": "updated",
    "held": "held",
    "updated": "updated",
    "resumed": "resumed",
    "skipped": "unchanged",
}


class UploadReceipt(msgspec.Struct, frozen=True):
    """What became of an upload. With an id, the document survives a power failure."""

    id: str | None
    """None: the document was refused, or its bytes are needed."""
    source: str
    name: str
    outcome: Outcome
    """`created`: a new document. `updated`: a known one has a new version or other metadata. `resumed`: its unfinished
    work continues. `unchanged`: nothing to do. `held`: it waits until it is started. `needed`: only its hash was sent,
    and the server does not have these bytes. `forgotten`: only its hash was sent, and it stays away
    because of `penstock delete --forget`. `refused`: `problem` says why."""
    status: str | None
    size: int = 0
    problem: str | None = None


def shown(receipt: Receipt) -> UploadReceipt:
    outcome = OUTCOMES.get(receipt.outcome, "refused")
    return UploadReceipt(
        receipt.id, receipt.source, receipt.name, outcome, receipt.status, receipt.size, receipt.problem
    )
