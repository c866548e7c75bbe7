"""Offers: a caller sends only the hashes of its documents, and learns of which ones the bytes are needed."""

from collections.abc import Sequence
from functools import partial

from penstock.errors import UsageError
from penstock.intake import Intake
from penstock.intake_items import Read, SubmitItem
from penstock.ledger.engine import forgotten, runs
from penstock.sources.upload import BytesSource
from penstock.upkeep.drop import finish_drops_of
from penstock.verbs.accepting import Named, Order, order_spec
from penstock.verbs.querying import fitted
from penstock.verbs.receipts import Outcome, UploadReceipt, shown
from penstock.verbs.scope import Scope, chosen_collection


class Offered(Named, frozen=True, kw_only=True):
    """One document that a caller has."""

    sha256: str
    size: int


async def offer(
    scope: Scope, order: Order, documents: Sequence[Offered], *, dry_run: bool = False
) -> list[UploadReceipt]:
    """Submit documents whose bytes are stored already, as an upload of the same bytes would do. The others are
    `needed`. With `dry_run`, nothing is written; a document with other bytes than the known one is `needed` with its
    id."""
    if len({one.source for one in documents}) < len(documents):
        raise UsageError("documents: a source is named twice")
    where = chosen_collection(scope, order.collection)
    away = await scope.ledger.read(partial(forgotten.sources, scope.owner), where)
    kept = [one for one in documents if one.source not in away]
    found = (await (_compared if dry_run else _submitted)(scope, where, order, kept)) if kept else {}
    return [found[one.source] if one.source in found else _without(one, "forgotten") for one in documents]


async def _compared(scope: Scope, where: str, order: Order, documents: Sequence[Offered]) -> dict[str, UploadReceipt]:
    look = partial(runs.known, scope.owner)
    there = await scope.ledger.read(look, where, [one.source for one in documents])
    found: dict[str, UploadReceipt] = {}
    for one in documents:
        known = there.get(one.source)
        if known is None:
            found[one.source] = _without(one, "needed")
            continue
        outcome: Outcome = "unchanged" if known.sha256 == one.sha256 and not known.raw_lost else "needed"
        found[one.source] = UploadReceipt(known.id, one.source, one.name, outcome, known.status, one.size)
    return found


async def _submitted(scope: Scope, where: str, order: Order, documents: Sequence[Offered]) -> dict[str, UploadReceipt]:
    scope.ledger.database.refuse_read_only()
    await finish_drops_of(scope.ledger, scope.owner, where)
    spec = await fitted(scope, order_spec(scope, order))
    reads = [Read(_item(one), one.sha256, one.size) for one in documents]
    answers = await Intake(scope.ledger, scope.blobs, scope.runtime).offer(spec, reads)
    return {
        one.source: _without(one, "needed") if answer.needs_bytes else shown(read.receipt(answer))
        for one, read, answer in zip(documents, reads, answers, strict=True)
    }


def _item(one: Offered) -> SubmitItem:
    source = BytesSource(one.source, one.name, b"")
    return SubmitItem(source, source.found, None, one.metadata)


def _without(one: Offered, outcome: Outcome) -> UploadReceipt:
    return UploadReceipt(None, one.source, one.name, outcome, None, one.size)
