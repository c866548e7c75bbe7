"""Measure the real worker with five no-op steps per document, compared with plain SQL on the same database."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import TypeVar

import msgspec

from penstock.bench.bare import Wait, bare_listener, claim_rate, insert_rate
from penstock.bench.place import Place, open_place
from penstock.blobs.local import LocalBlobs
from penstock.embedders.fake import FakeEmbedder
from penstock.indexes.lance import LanceIndex
from penstock.ledger.database.database import Database
from penstock.ledger.database.liveness import AdvisoryLiveness, FileLiveness, Liveness
from penstock.ledger.database.statements import DialectName
from penstock.ledger.database.store import Ledger
from penstock.ledger.engine import submits, work
from penstock.ledger.engine.groups import GroupStart
from penstock.ledger.engine.submissions import FirstStep, NewDocument, Submission
from penstock.metrics.registry import Registry
from penstock.model.nouns import DocumentId, Owner, RunId, StepDefinition, WorkerId, Workflow
from penstock.runtime import Runtime
from penstock.stages.base import Ports, Stage, StepContext, StepResult
from penstock.verbs.working import IN_HAND
from penstock.worker.budget import Budget
from penstock.worker.pool import Worker
from penstock.worker.retry import RetryPolicy
from penstock.worker.services import WorkerServices
from penstock.workflows.load import encode

T = TypeVar("T")

STEPS = 5
CONCURRENCY = 10
"""Number of steps that a worker executes concurrently, and of plain claimers per worker."""
PROBES = 25
WARM_UP = 20
"""Number of documents processed before the measurement, to load libraries, statements and connections."""
REST_S = 0.1
"""A worker is idle for this time, up to twice as long, before the next document arrives."""
BATCH = 256


class Figures(msgspec.Struct, frozen=True):
    submit_docs_per_s: float
    submit_bare_docs_per_s: float
    """The same rows, inserted in batches by plain SQL."""
    submit_ratio: float
    drain_steps_per_s: float
    bare_claim_steps_per_s: float
    ratio: float
    """The ratio of the two values above."""
    latency_p50_ms: float
    """From the call of submit to the start of the first step on an idle worker."""
    latency_p99_ms: float
    latency_bare_p50_ms: float
    """From the call of an insert to the end of the claim by an idle listener."""
    latency_ratio: float
    latency_spread: float
    """The ratio of the 99th percentile to the median."""
    transactions_per_step: float
    missed: tuple[str, ...] = ()
    """The names of the results that miss their target."""


class Target(msgspec.Struct, frozen=True):
    least: float | None = None
    most: float | None = None

    def __str__(self) -> str:
        return f"≥ {self.least:g}" if self.least is not None else f"≤ {self.most:g}"

    def is_reached(self, figure: float) -> bool:
        return (self.least is None or figure >= self.least) and (self.most is None or figure <= self.most)


def targets(dialect: DialectName) -> dict[str, Target]:
    """The targets. SQLite has one writer, so grouped commits gain more there."""
    return {
        "submit_ratio": Target(least=0.3),
        "ratio": Target(least=1.2 if dialect == "postgres" else 2.5),
        "latency_ratio": Target(most=2.0),
        "latency_spread": Target(most=6.0),
        "transactions_per_step": Target(most=1.3),
    }


async def measure(
    url: str, runtime: Runtime, *, documents: int = 500, workers: int = 1, probes: int = PROBES
) -> Figures:
    """Run the benchmark in a temporary place on this database."""
    async with open_place(url, runtime) as place:
        bare = await claim_rate(place, runtime, documents, STEPS, CONCURRENCY * workers)
        async with AsyncExitStack() as stack:
            crew = await _crew(place, runtime, workers, stack)
            await crew.submit(WARM_UP)
            await crew.drain()
            began = runtime.clock()
            await crew.submit(documents)
            submitted = runtime.clock()
            commits = crew.commits
            done = await crew.drain()
            drained = runtime.clock()
            assert done == documents * STEPS, done
            commits = crew.commits - commits
            inserted = await insert_rate(place, runtime, documents, BATCH)
            listener = await bare_listener(place, runtime, stack)
            waits, bare_waits = await crew.latencies(min(probes, documents), listener)
    rate, submits = done / (drained - submitted), documents / (submitted - began)
    middle, bare_middle = percentile(waits, 50), percentile(bare_waits, 50)
    found = Figures(
        submit_docs_per_s=round(submits, 1),
        submit_bare_docs_per_s=round(inserted, 1),
        submit_ratio=round(submits / inserted, 3),
        drain_steps_per_s=round(rate, 1),
        bare_claim_steps_per_s=round(bare, 1),
        ratio=round(rate / bare, 3),
        latency_p50_ms=round(1000 * middle, 2),
        latency_p99_ms=round(1000 * percentile(waits, 99), 2),
        latency_bare_p50_ms=round(1000 * bare_middle, 2),
        latency_ratio=round(middle / bare_middle, 2),
        latency_spread=round(percentile(waits, 99) / middle, 2),
        transactions_per_step=round(commits / done, 3),
    )
    wanted = targets(Database(url, runtime).dialect)
    missed = tuple(name for name, target in wanted.items() if not target.is_reached(getattr(found, name)))
    return msgspec.structs.replace(found, missed=missed)


async def _to_its_end(work: Awaitable[T], stop: Callable[[], object] = lambda: None) -> T:
    """Await the work. If this task is cancelled, stop the work and wait for its end, so that no connection stays
    open."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        stop()
        await asyncio.wait([task])
        raise


def percentile(values: Sequence[float], percent: int) -> float:
    """The percentile by nearest rank."""
    return sorted(values)[max(0, -(-len(values) * percent // 100) - 1)]


async def _crew(place: Place, runtime: Runtime, workers: int, stack: AsyncExitStack) -> "BenchWorkers":
    """Workers, each with its own ledger as in separate processes, and a client."""
    ledgers = []
    for _ in range(workers + 1):
        ledger = Ledger(Database(place.url, runtime))
        stack.push_async_callback(ledger.close)
        await _to_its_end(ledger.open())
        ledgers.append(ledger)
    workflow = Workflow("noop", "noop", tuple(StepDefinition(f"s{i}", "noop") for i in range(STEPS)))
    return BenchWorkers(place, runtime, ledgers[0], ledgers[1:], encode(workflow))


@dataclass
class BenchWorkers:
    place: Place
    runtime: Runtime
    client: Ledger
    ledgers: Sequence[Ledger]
    workflow: tuple[str, str]
    """The hash and the JSON of the workflow."""
    begun: dict[DocumentId, float] = field(default_factory=dict)
    _count: int = 0

    @property
    def commits(self) -> int:
        return sum(ledger.commits for ledger in self.ledgers)

    async def submit(self, count: int) -> list[DocumentId]:
        snapshot, body = self.workflow
        ids = self.runtime.ulids(2 * count)
        named = [(DocumentId(ids[2 * i]), RunId(ids[2 * i + 1]), self._count + i) for i in range(count)]
        self._count += count
        group = self.runtime.ulid()
        for start in range(0, count, BATCH):
            batch = tuple(
                NewDocument(document, run, f"/{n}", str(n), f"{n:064}", 0, f"k{n}", {})
                for document, run, n in named[start : start + BATCH]
            )
            first = FirstStep("s0", "noop")
            seal = start + BATCH >= count
            order = Submission(
                Owner("bench"),
                "default",
                batch,
                snapshot,
                body,
                "s",
                first,
                group=GroupStart(group, "noop", None, seal),
            )
            await self.client.write(submits.SUBMIT, order)
        return [document for document, _, _ in named]

    async def drain(self) -> int:
        """Process the queue, and return the number of executed steps."""

        async def empty() -> bool:
            return not (await self.client.read(work.left)).anything

        return await self._work(empty)

    async def latencies(self, count: int, bare: Wait) -> tuple[list[float], list[float]]:
        """Latencies of single documents and, alternating with them, of plain rows."""
        waits: list[float] = []
        bare_waits: list[float] = []
        ended = False

        async def over() -> bool:
            return ended

        working = asyncio.create_task(self._work(over))
        try:
            for _ in range(count):
                await self.runtime.sleep(REST_S * (1 + self.runtime.random()))
                began = self.runtime.clock()
                [document] = await self.submit(1)
                while document not in self.begun and not working.done():
                    await self.runtime.sleep(0.001)
                waits.append(self.begun[document] - began)
                await self.runtime.sleep(REST_S * (1 + self.runtime.random()))
                bare_waits.append(await bare())
        finally:
            ended = True
            await working
        return waits, bare_waits

    async def _work(self, done: Callable[[], Awaitable[bool]]) -> int:
        workers = [self._worker(ledger) for ledger in self.ledgers]

        def stop() -> None:
            for worker in workers:
                worker.stop()

        await _to_its_end(asyncio.gather(*(worker.run(done) for worker in workers)), stop)
        return sum(worker.steps_done for worker in workers)

    async def _noop(self, ctx: StepContext) -> StepResult:
        self.begun.setdefault(ctx.document.id, self.runtime.clock())
        return StepResult()

    def _worker(self, ledger: Ledger) -> Worker:
        runtime, folder = self.runtime, self.place.folder
        bench = WorkerServices(
            ledger=ledger,
            blobs=LocalBlobs(folder / "blobs", runtime),
            ports=Ports({}, FakeEmbedder(), lambda store: LanceIndex(folder / "index", runtime)),
            runtime=runtime,
            stages={"noop": Stage("noop", self._noop)},
            worker=WorkerId(runtime.ulid()),
            lease_s=15.0,
            policy=RetryPolicy(),
            budget=Budget(runtime, None, {}),
            slots=CONCURRENCY,
            metrics=Registry(),
        )
        liveness: Liveness = AdvisoryLiveness() if self.place.schema is not None else FileLiveness(folder / "workers")
        return Worker(bench, liveness, slots=IN_HAND * CONCURRENCY)
