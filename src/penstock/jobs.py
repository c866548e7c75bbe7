"""Submit and work until it is done: what `ingest` and `run` are."""

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from penstock.intake import Intake, Item, Order
from penstock.ledger import documents, work
from penstock.ledger.store import Ledger
from penstock.model.nouns import DocumentId, Owner
from penstock.model.states import ENDS, DocumentStatus
from penstock.runtime import Runtime

if TYPE_CHECKING:
    from penstock.worker.pool import Worker

STATUS_BATCH = 2000
PROGRESS_S = 0.25
RUN_PROGRESS_S = 1.0
"""Counting what is left takes longer the more is left."""


class Summary(msgspec.Struct):
    """What became of the documents that a call named (or, for `run`, touched), by their state at its end."""

    submitted: int = 0
    skipped: int = 0
    completed: int = 0
    not_indexable: int = 0
    failed: int = 0
    cancelled: int = 0
    pending: int = 0
    elapsed_s: float = 0.0
    refused: int = 0
    """Files that could not be read: never accepted, told in `problems`."""
    deleted: int = 0
    stale_settings: int = 0
    """Skipped as COMPLETED, but made with other settings than today's."""
    budget_spent: bool = False
    interrupted: bool = False
    problems: list[str] = []


class Progress(msgspec.Struct, frozen=True):
    """A look at a job while it runs."""

    submitting: bool
    found: int
    skipped: int
    total: int
    ended: int
    elapsed_s: float


@dataclass
class Job:
    """The documents a call is about. `named` keeps their last known status; None: not looked at yet."""

    owner: Owner
    ledger: Ledger
    runtime: Runtime
    summary: Summary = field(default_factory=Summary)
    named: dict[DocumentId, DocumentStatus | None] = field(default_factory=dict)
    submitting: bool = False

    def __post_init__(self) -> None:
        self._began = self.runtime.clock()
        self._open: set[DocumentId] = set()

    def add(self, document: DocumentId) -> None:
        self.named[document] = None
        self._open.add(document)

    async def refresh(self) -> None:
        """Ask for those that had not ended when we last looked."""
        unknown = list(self._open)
        for i in range(0, len(unknown), STATUS_BATCH):
            part = unknown[i : i + STATUS_BATCH]
            statuses = await self.ledger.read(partial(documents.statuses, self.owner), part)
            for document in part:
                status = statuses.get(document, DocumentStatus.CANCELLED)
                self.named[document] = status
                if status in ENDS:
                    self._open.discard(document)

    @property
    def ended(self) -> bool:
        return not self.submitting and not self._open

    def progress(self) -> Progress:
        s = self.summary
        return Progress(
            self.submitting,
            s.submitted + s.skipped + s.refused,
            s.skipped,
            len(self.named),
            len(self.named) - len(self._open),
            self.runtime.clock() - self._began,
        )

    def finish(self) -> Summary:
        s = self.summary
        for status in self.named.values():
            match status:
                case DocumentStatus.COMPLETED:
                    s.completed += 1
                case DocumentStatus.NOT_INDEXABLE:
                    s.not_indexable += 1
                case DocumentStatus.FAILED:
                    s.failed += 1
                case DocumentStatus.CANCELLED:
                    s.cancelled += 1
                case _:
                    s.pending += 1
        s.elapsed_s = round(self.runtime.clock() - self._began, 3)
        return s


Report = Callable[[Progress], None]


async def submit(job: Job, intake: Intake, order: Order, items: Iterable[Item], accepted: Callable[[], None]) -> None:
    """Everything is accepted before anything else decides about the job's end. `accepted`: there is work."""
    job.submitting = True
    try:
        async for receipts in intake.submit(order, items):
            fresh = False
            for receipt in receipts:
                answer = receipt.submitted
                if answer is None:
                    job.summary.refused += 1
                    job.summary.problems.append(receipt.problem or receipt.item.source)
                elif answer.outcome == "skipped":
                    job.summary.skipped += 1
                    job.summary.stale_settings += answer.stale_settings
                else:
                    job.summary.submitted += 1
                    job.add(answer.document_id)
                    fresh = True
            if fresh:
                accepted()
    finally:
        job.submitting = False


async def ingest(
    job: Job,
    intake: Intake,
    order: Order,
    items: Iterable[Item],
    start: "Callable[[], Worker] | None",
    report: Report | None,
) -> Summary:
    """Submit, and work alongside until the job's documents have ended. `start` is None where nobody waits."""
    worker: Worker | None = None
    working: asyncio.Task[None] | None = None

    def accepted() -> None:
        nonlocal worker, working
        if start is None:
            return
        if worker is None:
            worker = start()
            working = asyncio.create_task(worker.run(done))
        worker.wake()

    async def done() -> bool:
        await job.refresh()
        return job.ended

    ticker = asyncio.create_task(_tick(job, report)) if report else None
    try:
        await submit(job, intake, order, items, accepted)
        if working is not None and worker is not None:
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
    return _close(job, worker)


async def run(job: Job, worker: "Worker", report: Report | None) -> Summary:
    """Work off what is queued, for every owner, then stop."""

    async def done() -> bool:
        return not (await job.ledger.read(work.left)).anything

    ticker = asyncio.create_task(_tick_run(job, report)) if report else None
    try:
        await worker.run(done)
    finally:
        if ticker is not None:
            ticker.cancel()
    for owner, touched in worker.touched.items():
        part = Job(owner, job.ledger, job.runtime)
        for document in touched:
            part.add(document)
        await part.refresh()
        job.named.update(part.named)
    left = await job.ledger.read(work.left)
    summary = _close(job, worker)
    summary.budget_spent = worker.bench.budget.spent and left.anything
    return summary


def _close(job: Job, worker: "Worker | None") -> Summary:
    summary = job.finish()
    if worker is not None:
        summary.budget_spent = worker.bench.budget.spent and summary.pending > 0
        summary.interrupted = worker.told_to_stop
    return summary


async def _tick_run(job: Job, report: Report) -> Any:
    """`run` names no documents: its progress is how many of the open runs have ended since it began."""
    most = await job.ledger.read(work.open_runs)
    while True:
        left = await job.ledger.read(work.open_runs)
        most = max(most, left)
        report(msgspec.structs.replace(job.progress(), total=most, ended=most - left))
        await job.runtime.sleep(RUN_PROGRESS_S)


async def _tick(job: Job, report: Report) -> Any:
    while True:
        began = job.runtime.clock()
        await job.refresh()
        report(job.progress())
        # With many documents a look takes longer: it may cost a twentieth of the time.
        await job.runtime.sleep(max(PROGRESS_S, 20 * (job.runtime.clock() - began)))
