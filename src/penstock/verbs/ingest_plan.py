"""What an ingest would do, without doing it."""

import hashlib
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from functools import partial
from typing import Literal, NamedTuple

import msgspec

from penstock.errors import SourceError
from penstock.extractors import formats, media
from penstock.intake_items import SubmitItem
from penstock.ledger.engine import runs
from penstock.ledger.engine.runs import Known
from penstock.sources.base import Change, Peeked
from penstock.verbs.scope import Scope

BATCH = 256
HEAD = 8192

State = Literal["new", "changed", "unchanged"]


class TypePlan(msgspec.Struct):
    """The files of one type."""

    new: int = 0
    changed: int = 0
    unchanged: int = 0
    bytes: int = 0
    """The size of the new and changed ones."""
    supported: bool = True


class IngestPlan(msgspec.Struct, frozen=True):
    """What an ingest would do."""

    new: int
    changed: int
    unchanged: int
    unsupported: int
    """New and changed files of formats that are not read. They are counted in `new` and `changed` too."""
    bytes: int
    """The size of the new and changed files."""
    types: dict[str, TypePlan]
    """By media type."""
    forgotten: int = 0
    """Files that stay away, because they were deleted with `forget`."""
    problems: list[str] = []
    """Files that cannot be read."""


class Looked(NamedTuple):
    state: State
    size: int
    media_type: str


def _ignore(item: SubmitItem, looked: Looked) -> None:
    pass


async def make_plan(
    scope: Scope,
    collection: str,
    items: AsyncGenerator[SubmitItem, None],
    on_item: Callable[[SubmitItem, Looked], None] = _ignore,
) -> IngestPlan:
    types: dict[str, TypePlan] = {}
    problems: list[str] = []
    batch: list[SubmitItem] = []

    async def look() -> None:
        uris = [item.uri for item in batch]
        there = await scope.ledger.read(partial(runs.known, scope.owner), collection, uris)
        for item in batch:
            try:
                looked = await _look(scope, item, there.get(item.uri))
                _count(types, looked, scope)
                on_item(item, looked)
            except SourceError as error:
                problems.append(f"{item.uri}: {error}")
        batch.clear()

    async with aclosing(items):
        async for item in items:
            batch.append(item)
            if len(batch) == BATCH:
                await look()
    await look()
    found = list(types.values())
    return IngestPlan(
        sum(one.new for one in found),
        sum(one.changed for one in found),
        sum(one.unchanged for one in found),
        sum(one.new + one.changed for one in found if not one.supported),
        sum(one.bytes for one in found),
        dict(sorted(types.items(), key=lambda one: -(one[1].new + one[1].changed))),
        problems=problems,
    )


async def _look(scope: Scope, item: SubmitItem, known: Known | None) -> Looked:
    if known is None and isinstance(item.source, Peeked):
        head, size = await scope.runtime.run_blocking("io", item.source.peek, item.found, HEAD)
        return Looked("new", size, media.detect(head, item.name))
    if known is not None and item.found.change is Change.UNCHANGED:
        return Looked("unchanged", known.size, known.media_type or media.BINARY)
    digest, size, head = hashlib.sha256(), 0, b""
    async with aclosing(item.source.read(item.found)) as pieces:
        async for piece in pieces:
            head = head or piece[:HEAD]
            size += len(piece)
            digest.update(piece)
    state: State = "new"
    if known is not None:
        state = "unchanged" if known.sha256 == digest.hexdigest() else "changed"
    return Looked(state, size, media.detect(head, item.name))


def _count(types: dict[str, TypePlan], one: Looked, scope: Scope) -> None:
    plan = types.get(one.media_type)
    if plan is None:
        readable = one.media_type == media.EMPTY or one.media_type in scope.ports.extractors
        plan = types[one.media_type] = TypePlan(supported=readable)
    setattr(plan, one.state, getattr(plan, one.state) + 1)
    plan.bytes += one.size if one.state != "unchanged" else 0


def label(media_type: str) -> str:
    """The name of a type for people."""
    return "empty" if media_type == media.EMPTY else formats.of(media_type).label or media_type
