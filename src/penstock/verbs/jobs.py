"""Jobs: `ingest` submits documents and processes them, `run` processes the queue."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from penstock.intake import Intake, RunSpec
from penstock.intake_items import Receipt, SubmitItem
from penstock.ledger.database.connection import Connection
from penstock.ledger.database.store import Ledger
from penstock.ledger.engine import children, documents, forgotten, outbox, work
from penstock.model.nouns import DocumentId, Owner
from penstock.model.states import ENDS, TEXTLESS, DocumentStatus
from penstock.model.usage import NANO
from penstock.runtime import Runtime
from penstock.verbs.summary import STATUS_BATCH, explain
from penstock.verbs.summary import FailureNote as FailureNote
from penstock.verbs.summary import Summary as Summary
from penstock.worker.counters import MADE, DocumentInProgress, left_s, to_come

if TYPE_CHECKING:
    from penstock.worker.pool import Worker

PROGRESS_S = 0.25
RUN_LOOK_S = 1.0
"""Interval between two counts of the open runs. Counting takes longer when there are more of them."""


class Progress(msgspec.Struct, frozen=True):
    """The progress of a job at one moment."""

    submitting: bool
    found: int
    skipped: int
    total: int
    ended: int
    elapsed_s: float
    failed: int = 0
    made: dict[str, int] = {}
    """Items that this call made so far: {"pages", "chunks", "embedded", "indexed"}."""
    to_come: dict[str, int] = {}
    """The estimated number of items still to be made, where it can be estimated."""
    left_s: float | None = None
    """The estimated time left."""
    waiting: dict[str, int] = {}
    """The number of steps by what they wait on."""
    in_hand: tuple[DocumentInProgress, ...] = ()
    """Documents with a running step, the longest running first."""


@dataclass
class Job:
    """The documents of a call. `named` maps each to its last known status; None means that it was not read yet."""

    owner: Owner
    ledger: Ledger
    runtime: Runtime
    summary: Summary = field(default_factory=Summary)
    named: dict[DocumentId, DocumentStatus | None] = field(default_factory=dict)
    submitting: bool = False

    worker: "Worker | None" = None

    def __post_init__(self) -> None:
        self._began = self.runtime.clock()
        self._open: set[DocumentId] = set()
        self._ended: list[DocumentId] = []
        """Documents whose children are not known yet."""
        self._failed = 0
        self._size = 0

    def add(self, document: DocumentId, size: int = 0) -> None:
        self.named[document] = None
        self._size += size
        self._open.add(document)

    async def refresh(self) -> None:
        """Read the statuses of documents that had not ended at the last refresh, unless our own worker has reported
        them. Documents that were found inside ended ones belong to the job too."""
        await self._read_statuses()
        while self._ended:
            ended, self._ended = self._ended[:STATUS_BATCH], self._ended[STATUS_BATCH:]
            await self.add_children(children.worked_on, ended)
            if not self._ended:
                await self._read_statuses()

    async def add_children(self, which: "WhichChildren", parents: list[DocumentId]) -> bool:
        """Add children of documents to the job. Returns whether there are any."""
        found = await self.ledger.read(partial(which, self.owner), parents)
        for child, size in found:
            if child not in self.named:
                self.summary.children += 1
                self.add(child, size)
        return bool(found)

    async def _read_statuses(self) -> None:
        self._hear()
        unknown = list(self._open)
        for i in range(0, len(unknown), STATUS_BATCH):
            part = unknown[i : i + STATUS_BATCH]
            statuses = await self.ledger.read(partial(documents.statuses, self.owner), part)
            for document in part:
                self._learn(document, statuses.get(document, DocumentStatus.CANCELLED))

    def _hear(self) -> None:
        if self.worker is None:
            return
        news = self.worker.services.record.counters.news
        for document, status in news:
            if document in self._open:
                self._learn(document, status)
        news.clear()

    def _learn(self, document: DocumentId, status: DocumentStatus) -> None:
        self.named[document] = status
        if status in ENDS:
            self._open.discard(document)
            self._ended.append(document)
            self._failed += status == DocumentStatus.FAILED

    @property
    def ended(self) -> bool:
        return not self.submitting and not self._open and not self._ended

    def progress(self, **known: int) -> Progress:
        """Return the progress. `known` replaces fields that the caller has counted."""
        self._hear()
        s = self.summary
        looked = Progress(
            self.submitting,
            s.submitted + s.skipped + s.refused,
            s.skipped,
            len(self.named),
            len(self.named) - len(self._open),
            self.runtime.clock() - self._began,
            self._failed,
        )
        progress = msgspec.structs.replace(looked, **known)
        if self.worker is None:
            return progress
        counters, hands = self.worker.services.record.counters, self.worker.in_hand()
        more = to_come(counters, hands, progress.total, progress.ended, self._size or None)
        return msgspec.structs.replace(
            progress,
            made=counters.named(),
            to_come=more,
            left_s=None if self.submitting else left_s(counters, more, self.runtime.clock()),
            waiting=dict(Counter(hand.waiting_on for hand in hands if hand.waiting_on)),
            in_hand=tuple(hands),
        )

    def finish(self) -> Summary:
        s = self.summary
        for status in self.named.values():
            match status:
                case DocumentStatus.COMPLETED:
                    s.completed += 1
                case DocumentStatus.NOT_INDEXABLE:
                    s.not_indexable += 1
                case DocumentStatus.UNSUPPORTED:
                    s.unsupported += 1
                case DocumentStatus.FAILED:
                    s.failed += 1
                case DocumentStatus.CANCELLED:
                    s.cancelled += 1
                case _:
                    s.pending += 1
        s.elapsed_s = round(self.runtime.clock() - self._began, 3)
        return s


WhichChildren = Callable[[Owner, Connection, list[DocumentId]], list[tuple[DocumentId, int]]]
Report = Callable[[Progress], None]
OnReceipt = Callable[[Receipt], None]

WORK = ("submitted", "changed", "resumed")
"""Outcomes of a submit that queue a run."""
AGAIN = (DocumentStatus.FAILED, DocumentStatus.CANCELLED, *TEXTLESS)


async def submit(
    job: Job,
    intake: Intake,
    spec: RunSpec,
    items: AsyncIterator[SubmitItem],
    accepted: Callable[[], None],
    on_receipt: OnReceipt | None,
) -> None:
    """Submit all items. The job cannot end before this returns. `accepted` is called when there is work to do."""
    job.submitting = True
    try:
        async with aclosing(intake.submit(spec, items)) as batches:
            async for receipts in batches:
                job.summary.brought_back += await _brought_back(job, spec, receipts)
                for receipt in receipts:
                    _count(job, spec, receipt)
                    if on_receipt is not None:
                        on_receipt(receipt)
                done = [r.id for r in receipts if r.id is not None and r.outcome in ("skipped", "updated")]
                # An earlier call may have been interrupted before it finished what is inside them.
                unfinished = bool(done) and await job.add_children(children.unfinished, done)
                if unfinished or any(receipt.outcome in WORK for receipt in receipts):
                    accepted()
    finally:
        job.submitting = False


async def _brought_back(job: Job, spec: RunSpec, receipts: Sequence[Receipt]) -> int:
    """Count the new documents of sources whose document was deleted before."""
    new = [receipt.source for receipt in receipts if receipt.outcome == "submitted"]
    if not new:
        return 0
    return len(await job.ledger.read(partial(forgotten.deleted, job.owner), spec.collection, new))


def _count(job: Job, spec: RunSpec, receipt: Receipt) -> None:
    summary = job.summary
    if receipt.id is None:
        summary.refused += 1
        summary.problems.append(receipt.problem or receipt.source)
    elif receipt.outcome in ("skipped", "updated"):
        summary.skipped += 1
        summary.failed_before += receipt.status in AGAIN
        summary.stale_settings += receipt.stale_settings
    elif receipt.outcome == "held":
        summary.held += 1
    else:
        summary.submitted += 1
        if receipt.outcome != "resumed" and spec.group is not None:
            summary.group = spec.group.id
        job.add(receipt.id, receipt.size)


async def ingest(
    job: Job,
    intake: Intake,
    spec: RunSpec,
    items: AsyncIterator[SubmitItem],
    start: "Callable[[], Worker] | None",
    report: Report | None,
    on_receipt: OnReceipt | None = None,
) -> Summary:
    """Submit, and process the queue meanwhile, until the documents of the job have ended. `start` is None if the caller
    does not wait."""
    worker: Worker | None = None
    working: asyncio.Task[None] | None = None

    def accepted() -> None:
        nonlocal worker, working
        if start is None:
            return
        if worker is None:
            worker = job.worker = start()
            worker.more_expected = lambda: job.submitting
            working = asyncio.create_task(worker.run(done))
        worker.wake()

    async def done() -> bool:
        await job.refresh()
        return job.ended

    ticker = asyncio.create_task(_tick(job, report)) if report else None
    try:
        await submit(job, intake, spec, items, accepted, on_receipt)
        job.summary.disk_full = intake.lacked_space
        if working is not None and worker is not None and intake.is_full:
            worker.stop()
            await asyncio.gather(working, return_exceptions=True)
        elif working is not None and worker is not None:
            worker.wake()
            await working
    except BaseException:
        if working is not None and worker is not None:
            worker.stop()
            await asyncio.gather(working, return_exceptions=True)
        raise
    finally:
        if ticker is not None:
            ticker.cancel()
    await job.refresh()
    if report:
        report(job.progress())
    return await _close(job, {job.owner: job.named})


async def run(job: Job, worker: "Worker", report: Report | None) -> Summary:
    """Process the queue, for all owners, then stop."""

    async def done() -> bool:
        return not (await job.ledger.read(work.left)).steps

    job.worker = worker
    ticker = asyncio.create_task(_tick_run(job, report)) if report else None
    try:
        await worker.run(done)
    finally:
        if ticker is not None:
            ticker.cancel()
    named: Named = {}
    for owner, touched in worker.touched.items():
        part = Job(owner, job.ledger, job.runtime)
        for document in touched:
            part.add(document)
        await part.refresh()
        job.named.update(part.named)
        named[owner] = part.named
    left = await job.ledger.read(work.left)
    summary = await _close(job, named)
    summary.budget_spent = worker.services.budget.spent and left.anything
    summary.left = await job.ledger.read(work.open_runs) if left.anything else 0
    return summary


async def _close(job: Job, named: "Named") -> Summary:
    summary, worker = job.finish(), job.worker
    summary.made = worker.services.record.counters.named() if worker else dict.fromkeys(MADE.values(), 0)
    if worker is not None:
        budget = worker.services.budget
        summary.cost, summary.cost_spent = budget.cost / NANO, budget.cost_spent
        if budget.spent:
            summary.budget_spent = summary.pending > 0 or (await job.ledger.read(outbox.waiting)).due
        summary.interrupted = worker.told_to_stop and not summary.disk_full
    if summary.pending and not summary.left:
        summary.left = await job.ledger.read(work.open_runs)
    if summary.failed or summary.not_indexable or summary.unsupported:
        for owner, statuses in named.items():
            await explain(owner, job.ledger, statuses, summary)
    return summary


Named = dict[Owner, dict[DocumentId, DocumentStatus | None]]


async def _tick_run(job: Job, report: Report) -> None:
    """Report the progress of `run`. It has no list of documents: its progress is the number of open runs that have
    ended since it started."""
    most = left = 0

    async def look() -> None:
        nonlocal most, left
        left = await job.ledger.read(work.open_runs)
        most = max(most, left)

    def progress() -> Progress:
        assert job.worker is not None
        failed = job.worker.services.record.counters.ended[DocumentStatus.FAILED]
        return job.progress(total=most, ended=most - left, failed=failed)

    await _report(job, look, RUN_LOOK_S, lambda: report(progress()))


async def _tick(job: Job, report: Report) -> None:
    await _report(job, job.refresh, PROGRESS_S, lambda: report(job.progress()))


async def _report(job: Job, look: Callable[[], Awaitable[None]], every_s: float, report: Callable[[], None]) -> None:
    """Report often what this process knows. Read the ledger only as often as that is cheap."""
    clock = job.runtime.clock
    due = clock()
    while True:
        began = clock()
        if began >= due:
            await look()
            # Reading takes longer with many documents. Limit it to a twentieth of the time.
            due = began + max(every_s, 20 * (clock() - began))
        report()
        await job.runtime.sleep(PROGRESS_S)
