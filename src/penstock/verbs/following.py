"""`changes`: follow the changes of an owner's documents, whichever process makes them."""

import re
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any, Literal

import msgspec

from penstock.events.feed import News, Reset
from penstock.ledger.reads.feed import ChangedDocument, Made, Position
from penstock.verbs import arguments
from penstock.verbs.scope import Scope

_ID = re.compile(r"(\d{1,9})-(\d{1,12}\.\d{1,9})-([0-9A-Z]{0,26})")


class Change(msgspec.Struct, frozen=True, omit_defaults=True):
    """A change of a document, or how far it is."""

    event: Literal["changed", "deleted", "progress", "reset"]
    """`changed`: the document as it is now. `progress`: how far a running one is. `reset`: the id to continue after was
    too old, so that changes may be missing: list the documents again."""
    id: str | None = None
    """Continue after this change. A progress has none."""
    document: str | None = None
    collection: str | None = None
    group: str | None = None
    status: str | None = None
    name: str | None = None
    source: str | None = None
    batch: str | None = None
    error: str | None = None
    searchable: bool = False
    stale: bool = False
    retry_count: int = 0
    changed_at: float | None = None
    step: str | None = None
    waiting_on: str | None = None
    pages: int | None = None
    total_pages: int | None = None
    chunks: int | None = None
    total_chunks: int | None = None
    embedded: int | None = None


async def changes(
    scope: Scope,
    *,
    after: str | None = None,
    collection: str | None = None,
    group: str | None = None,
    document: str | None = None,
) -> AsyncIterator[Change]:
    """Follow the changes of documents: `async for change in app.changes(): …`. They come from the ledger, so that it
    does not matter which process makes them. `after` is the id of a change: what happened since then comes first. A
    change carries the document as it is now, may be told twice, and comes within a second. A document is told at most
    four times a second. The iteration ends when the app is stopped or closed."""
    for what, value in (("after", after), ("collection", collection), ("group", group), ("document", document)):
        arguments.maybe(what, value)

    def wanted(one: ChangedDocument | Made) -> bool:
        id_ = one.id if isinstance(one, ChangedDocument) else one.document
        return (
            (collection is None or one.collection == collection)
            and (group is None or one.group == group)
            and (document is None or id_ == document)
        )

    feed = scope.resources.feed
    now = await feed.present()
    # An id that cannot be read is of no known history.
    history, position = (now.history, None) if after is None else _parsed(after)
    async with aclosing(feed.follow(scope.owner, position, history, wanted)) as batches:
        async for batch in batches:
            for one in batch:
                yield _change(one, now.history)


async def present(scope: Scope) -> str:
    """The id of the present end of the feed: continuing after it, nothing is missed that happens from now on."""
    now = await scope.resources.feed.present()
    return _id(Position(now.at), now.history)


def _parsed(after: str) -> tuple[int, Position]:
    found = _ID.fullmatch(after)
    return (int(found[1]), Position(float(found[2]), found[3])) if found else (-1, Position(0.0))


def _id(position: Position, history: int) -> str:
    return f"{history}-{position.at:.6f}-{position.document}"


def _change(one: News, history: int) -> Change:
    if isinstance(one, Reset):
        return Change("reset", _id(one.position, history))
    if isinstance(one, Made):
        fields: dict[str, Any] = msgspec.structs.asdict(one)
        del fields["kind"]
        return Change("progress", **fields)
    given = msgspec.structs.asdict(one)
    deleted, document = given.pop("deleted"), given.pop("id")
    id_ = _id(one.position, history)
    return Change("deleted" if deleted else "changed", id_, document=document, **given)
