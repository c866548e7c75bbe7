"""Documents whose bytes a caller sends: one at a time, or several gathered into one submit."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import msgspec

from penstock.blobs.small import upload_limit
from penstock.errors import PenstockError, StorageError, UsageError
from penstock.intake import Intake, RunSpec
from penstock.intake_items import Receipt, SubmitItem
from penstock.ledger.engine import forgotten
from penstock.sources.upload import BytesSource, PiecesSource
from penstock.upkeep.drop import finish_drops_of
from penstock.verbs import arguments
from penstock.verbs.admissions import gate_of
from penstock.verbs.ingest import run_spec
from penstock.verbs.querying import fitted
from penstock.verbs.scope import Scope, chosen_collection

SMALL = 1 << 20
"""Uploads up to this size are gathered."""
GATHER_S = 0.005
GATHERED = 256
"""Maximum number of uploads in one submit."""
AT_ONCE = 2
"""Number of submits of one caller and order that are under way at the same time."""


class Order(msgspec.Struct, frozen=True):
    """What all documents of an upload share."""

    collection: str
    workflow: str | None = None
    params: str | None = None
    priority: int = 0
    batch: str | None = None
    retry: bool = False
    hold: bool = False
    chunk: tuple[int, int] | None = None
    """The size and the overlap of chunks in tokens, if the caller chooses them."""


class Named(msgspec.Struct, frozen=True):
    """One document that a caller sends, without its bytes."""

    source: str
    name: str
    metadata: dict[str, Any] = {}


def named(source: str | None, name: str | None, metadata: object = None) -> Named:
    """Validate the source URI, name and metadata of an upload. Without a source URI, it is the name."""
    chosen = arguments.text("source", source if source is not None else name)
    shown = arguments.text("name", name if name is not None else chosen.rstrip("/").rpartition("/")[2] or chosen)
    if not chosen or not shown:
        raise UsageError("an upload needs a source or a name")
    return Named(chosen, shown, arguments.metadata(metadata))


def checked(scope: Scope, order: Order) -> Order:
    """Validate an order before any bytes are read."""
    order_spec(scope, order)
    return order


def order_spec(scope: Scope, order: Order) -> RunSpec:
    values = None
    if order.chunk is not None:
        values = {"chunk": {"unit": "tokens", "size": order.chunk[0], "overlap": order.chunk[1]}}
    return run_spec(
        scope,
        order.collection,
        order.workflow,
        order.params,
        order.priority,
        order.batch,
        order.retry,
        None,
        order.hold,
        values,
    )


async def accept(scope: Scope, order: Order, items: Sequence[SubmitItem]) -> dict[str, Receipt]:
    """Submit documents, whose sources differ. Return the receipt of each by its source URI."""
    scope.ledger.database.refuse_read_only()
    where, spec = chosen_collection(scope, order.collection), order_spec(scope, order)
    await finish_drops_of(scope.ledger, scope.owner, where)
    spec = await fitted(scope, spec)
    away = await scope.ledger.read(partial(forgotten.sources, scope.owner), where)
    for item in items:
        if item.uri in away:
            # Whoever sends a document wants it, even if it was to stay away from ingests of a folder.
            await scope.ledger.write(forgotten.REMEMBER, (scope.owner, where, item.uri))
    receipts: dict[str, Receipt] = {}
    intake = Intake(scope.ledger, scope.blobs, scope.runtime, upload_limit(scope.blobs), gate_of(scope))
    async with aclosing(intake.submit(spec, _each(items))) as batches:
        async for batch in batches:
            receipts.update((receipt.source, receipt) for receipt in batch)
    return receipts


async def accept_stream(scope: Scope, order: Order, one: Named, pieces: AsyncIterator[bytes]) -> Receipt:
    """Submit a document that arrives in pieces, with flat memory. Raise the error that the pieces ended with."""
    source = PiecesSource(one.source, one.name, pieces)
    receipts = await accept(scope, order, [SubmitItem(source, source.found, None, one.metadata)])
    if source.error is not None:
        raise source.error
    return receipts[one.source]


async def _each(items: Sequence[SubmitItem]) -> AsyncIterator[SubmitItem]:
    for item in items:
        yield item


@dataclass
class _Waiting:
    scope: Scope
    items: list[SubmitItem] = field(default_factory=list)
    sources: set[str] = field(default_factory=set)
    futures: list["asyncio.Future[Receipt]"] = field(default_factory=list)
    full: asyncio.Event = field(default_factory=asyncio.Event)


Key = tuple[str, str, Order]


class Gatherer:
    """Submits small documents that arrive at the same time together: one flush of their folder and one commit."""

    def __init__(self) -> None:
        self._waiting: dict[Key, _Waiting] = {}
        self._places: dict[Key, asyncio.Semaphore] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def accept(self, scope: Scope, order: Order, one: Named, data: bytes) -> Receipt:
        """Return when the document is durable."""
        key = (scope.owner, scope.actor, order)
        waiting = self._waiting.get(key)
        if waiting is None or waiting.full.is_set() or one.source in waiting.sources:
            if waiting is not None:
                waiting.full.set()
            waiting = self._waiting[key] = _Waiting(scope)
            task = asyncio.create_task(self._submit(key, waiting))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        future: asyncio.Future[Receipt] = asyncio.get_running_loop().create_future()
        source = BytesSource(one.source, one.name, data)
        waiting.items.append(SubmitItem(source, source.found, None, one.metadata))
        waiting.sources.add(one.source)
        waiting.futures.append(future)
        if len(waiting.items) >= GATHERED:
            waiting.full.set()
        return await future

    async def close(self) -> None:
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _submit(self, key: Key, waiting: _Waiting) -> None:
        places = self._places.setdefault(key, asyncio.Semaphore(AT_ONCE))
        try:
            await waiting.scope.runtime.wait(waiting.full, GATHER_S)
            async with places:
                # From here on, others gather in another one.
                waiting.full.set()
                if self._waiting.get(key) is waiting:
                    del self._waiting[key]
                await self._accept(key[2], waiting)
        except Exception as error:
            for future in waiting.futures:
                if not future.done():
                    future.set_exception(error)
        except BaseException:
            for future in waiting.futures:
                future.cancel()
            raise
        finally:
            if key not in self._waiting and not places.locked():
                self._places.pop(key, None)

    async def _accept(self, order: Order, waiting: _Waiting) -> None:
        try:
            receipts = await accept(waiting.scope, order, waiting.items)
        except StorageError:
            raise
        except PenstockError:
            if len(waiting.items) == 1:
                raise
            # One of them is to blame, and the others must not suffer.
            for item, future in zip(waiting.items, waiting.futures, strict=True):
                try:
                    receipts = await accept(waiting.scope, order, [item])
                except PenstockError as error:
                    _settle(future, error)
                else:
                    _settle(future, receipts[item.uri])
            return
        for item, future in zip(waiting.items, waiting.futures, strict=True):
            _settle(future, receipts[item.uri])


def _settle(future: "asyncio.Future[Receipt]", result: Receipt | Exception) -> None:
    """Unless the caller has gone."""
    if future.done():
        return
    if isinstance(result, Exception):
        future.set_exception(result)
    else:
        future.set_result(result)
