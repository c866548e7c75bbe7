"""`ingest` and `submit`: files, folders and streams become documents of the owner."""

import io
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

from penstock.errors import UsageError
from penstock.extractors.formats import PARSED
from penstock.intake import Intake, Item, Order, Receipt, refusal
from penstock.ledger.engine import deletions, documents, runs
from penstock.model.nouns import DocumentId
from penstock.sources.folder import find, printable
from penstock.verbs import arguments, jobs
from penstock.verbs.documents import change
from penstock.verbs.jobs import Job, OnReceipt, Report, Summary
from penstock.verbs.scope import Scope, chosen_collection
from penstock.verbs.working import start_worker


async def ingest(
    scope: Scope,
    paths: Sequence[str | Path] = (),
    *,
    data: bytes | BinaryIO | None = None,
    name: str | None = None,
    source: str | None = None,
    key: str | None = None,
    metadata: dict[str, Any] | None = None,
    collection: str | None = None,
    workflow: str | None = None,
    params: str | None = None,
    priority: int = 0,
    batch: str | None = None,
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
    prune: bool = False,
    retry: bool = False,
    password: str | None = None,
    wait: bool = True,
    budget_s: float | None = None,
    report: Report | None = None,
    on_receipt: OnReceipt | None = None,
) -> Summary:
    """Submit files, folders or `data`, then work until they are done (unless `wait` is False). `data` needs a `name`;
    its `source`, by which it is known, is the name if none is given. `report` is told the progress, `on_receipt` what
    became of each document's submit."""
    began = scope.runtime.clock()
    arguments.seconds("budget_s", budget_s)
    given = _Given(
        scope, arguments.paths(paths), include, exclude, data, name, source, key, arguments.metadata(metadata)
    )
    order = _order(scope, collection, workflow, params, priority, batch, retry, password)
    job = Job(scope.owner, scope.ledger, scope.runtime)

    def items() -> Iterator[Item]:
        yield from given.items(work=wait)
        job.summary.problems += given.problems
        job.summary.refused += len(given.problems)
        if on_receipt is not None:
            for problem in given.problems:
                on_receipt(refusal(problem))

    start = (lambda: start_worker(scope.resources, budget_s, began)) if wait else None
    intake = Intake(scope.ledger, scope.blobs, scope.runtime)
    summary = await jobs.ingest(job, intake, order, items(), start, report, on_receipt)
    if prune and not scope.resources.stopping:
        summary.deleted = await _prune(scope, order.collection, given, summary)
    return summary


async def submit(
    scope: Scope,
    paths: Sequence[str | Path] = (),
    *,
    data: bytes | BinaryIO | None = None,
    name: str | None = None,
    source: str | None = None,
    key: str | None = None,
    metadata: dict[str, Any] | None = None,
    collection: str | None = None,
    workflow: str | None = None,
    params: str | None = None,
    priority: int = 0,
    batch: str | None = None,
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
    retry: bool = False,
    password: str | None = None,
) -> AsyncIterator[Receipt]:
    """Submit files, folders or `data` as `ingest` does, and leave the work to workers: `async for receipt in
    app.submit(…)`. One receipt for each document, given once it is durable, in batches of up to 256. If the iteration
    ends early, later files are not submitted."""
    given = _Given(
        scope, arguments.paths(paths), include, exclude, data, name, source, key, arguments.metadata(metadata)
    )
    order = _order(scope, collection, workflow, params, priority, batch, retry, password)
    intake = Intake(scope.ledger, scope.blobs, scope.runtime)
    began = False
    try:
        async with aclosing(intake.submit(order, given.items(work=False))) as batches:
            async for receipts in batches:
                began = True
                for receipt in receipts:
                    yield receipt
    except GeneratorExit:
        if began:
            await intake.seal(order)
        raise
    for problem in given.problems:
        yield refusal(problem)


def _order(
    scope: Scope,
    collection: str | None,
    workflow: str | None,
    params: str | None,
    priority: int,
    batch: str | None,
    retry: bool,
    password: str | None,
) -> Order:
    arguments.number("priority", priority, -arguments.PRIORITY, arguments.PRIORITY)
    arguments.maybe("batch", batch)
    arguments.maybe("password", password)
    where, orders = chosen_collection(scope, collection), scope.resources.orders
    asked = orders.asked(where, workflow, params)
    return orders.start(scope.owner, where, asked, priority=priority, batch=batch, retry=retry, password=password)


@dataclass
class _Given:
    """What a call names: files and folders, or one document by its bytes."""

    scope: Scope
    roots: Sequence[Path]
    include: Sequence[str]
    exclude: Sequence[str]
    data: bytes | BinaryIO | None
    name: str | None
    source: str | None
    key: str | None
    metadata: dict[str, Any]
    problems: list[str] = field(default_factory=list)
    """What could not be read; complete once all items were taken."""
    found: set[str] = field(default_factory=set)
    """The sources of the files."""

    def __post_init__(self) -> None:
        arguments.maybe("name", self.name)
        arguments.maybe("key", self.key)
        if arguments.maybe("source", self.source) is not None and self.data is None:
            raise UsageError("source names what comes as `data`: files are known by their paths")

    def items(self, *, work: bool) -> Iterator[Item]:
        """`work`: this call also processes the documents, so parser processes are started early."""
        given = 0
        if self.data is not None:
            given += 1
            yield self._streamed(self.data)
        resources = self.scope.resources
        skip = self.scope.config.home_path
        for file in find(self.roots, self.include, self.exclude, self.problems, skip=skip):
            given += 1
            if self.key is not None and given > 1:
                raise UsageError(f"the idempotency key {self.key!r} can name one document, and there are several")
            if resources.stopping:
                break
            if arguments.is_long(file.source):
                self.problems.append(f"{file.source}: the path is longer than {arguments.TEXT_LIMIT:,} bytes")
                continue
            self.found.add(file.source)
            if work and file.name.lower().endswith(PARSED):
                resources.parsers.start()
            yield Item(file.source, file.name, path=file.path, within=file.within, key=self.key, metadata=self.metadata)

    def _streamed(self, data: bytes | BinaryIO) -> Item:
        if not (isinstance(data, bytes) or hasattr(data, "read")):
            raise UsageError("data: expected bytes, or a stream of bytes")
        if not self.name:
            raise UsageError("standard input needs a name: --name notes.txt")
        stream = io.BytesIO(data) if isinstance(data, bytes) else data
        return Item(self.source or self.name, self.name, stream=stream, key=self.key, metadata=self.metadata)


async def _prune(scope: Scope, collection: str, given: _Given, summary: Summary) -> int:
    """Delete documents whose file is gone from these folders. A folder that could not be read proves nothing."""
    if summary.problems:
        summary.problems.append("--prune was left out, because not everything could be read")
        return 0
    gone: list[DocumentId] = []
    for root in given.roots:
        if root.is_dir():
            prefix = printable(root.absolute()).rstrip("/") + "/"
            known = await scope.ledger.read(partial(documents.under, scope.owner), collection, prefix)
            gone += [d for d, source in known if source not in given.found and not Path(source).exists()]
    return len(await change(scope, deletions.DELETE, runs.Selected(scope.owner, tuple(dict.fromkeys(gone)))))
