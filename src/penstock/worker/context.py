"""What a stage is given: its document, its inputs as streams, its checkpoint and its deadline."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from penstock.artifacts.checkpoint import Checkpoint, Flush
from penstock.artifacts.reader import ArtifactReader
from penstock.artifacts.segments import Codec
from penstock.blobs.base import Blobs
from penstock.errors import BudgetSpent, Cancelled, LeaseLost, Permanent, TornSegment
from penstock.ledger.database.connection import Connection
from penstock.ledger.database.store import Ledger
from penstock.ledger.engine import checkpoints, documents, leasing, work
from penstock.metrics.base import Metrics
from penstock.model.nouns import (
    Artifact,
    ArtifactId,
    Document,
    Generation,
    Json,
    Segment,
    Step,
    StepDefinition,
    Workflow,
)
from penstock.model.usage import Booking
from penstock.net.providers import Providers
from penstock.runtime import Runtime
from penstock.stages.base import Gather, Ports
from penstock.worker.activity import StepActivity
from penstock.worker.bought import BoughtAnswers
from penstock.worker.budget import Budget
from penstock.worker.children import StepChildren, SubmitChildren
from penstock.worker.counters import Counters
from penstock.worker.gathering import Gatherers
from penstock.worker.limits import CallLimits, StepCalls
from penstock.worker.presence import Presence
from penstock.worker.raw_file import RawFile
from penstock.workflows.load import decode


def reader(ledger: Ledger, blobs: Blobs) -> ArtifactReader:
    async def list_segments(artifact: ArtifactId, start: int, count: int) -> list[Segment]:
        return await ledger.read(checkpoints.segments, artifact, start, count)

    return ArtifactReader(blobs, list_segments)


def _do_nothing() -> None:
    pass


@dataclass
class RunState:
    """What a worker knows about a run while it executes it. It is passed from step to step."""

    document: Document
    generation: Generation
    workflow: Workflow
    artifacts: dict[str, Artifact]
    """By step name."""
    segments: dict[int, list[Segment]] = field(default_factory=dict)
    """The segments of artifacts that were made in this process. They need not be read from the ledger."""
    items: dict[int, list[Any]] = field(default_factory=dict)
    """The items of small artifacts that were made in this process. They need not be read back."""

    def newest(self, kind: str, before: int) -> Artifact | None:
        """Return the artifact of the last step of a kind before a position. Search and the command line show this
        one."""
        steps = reversed(self.workflow.steps[:before])
        made = (self.artifacts.get(definition.name) for definition in steps if definition.kind == kind)
        return next((artifact for artifact in made if artifact is not None), None)

    def artifact(self, kind: str, before: int) -> tuple[Artifact, str]:
        """Return the newest artifact among the steps before a position, and its kind. `kind` is a kind or the name of a
        step. Raises `Permanent` if there is none."""
        # The steps of a workflow that a route continues with refer to each other by the names in its own file.
        inner = ".".join((*self.workflow.steps[before].name.split(".")[:-1], kind))
        for definition in reversed(self.workflow.steps[:before]):
            if (kind == definition.kind or definition.name in (kind, inner)) and definition.name in self.artifacts:
                return self.artifacts[definition.name], definition.kind
        # If the artifact is missing because the document was deleted, the lease is lost too, and this error has no
        # effect.
        raise Permanent(
            f"step {self.workflow.steps[before].name!r} needs {kind!r}, but no earlier step of the run in "
            f"workflow {self.workflow.id!r} made it: fix the workflow, then `penstock retry {self.document.id}`",
            reason="missing_input",
        )


def begin(found: documents.Live | None, workflow: Workflow) -> RunState | None:
    """Return the state of a run whose first step was claimed, or None if the document was deleted meanwhile."""
    return None if found is None else RunState(*found, workflow, {})


def load(connection: Connection, steps: Sequence[Step], workflows: dict[str, Workflow]) -> list[RunState | None]:
    """Return the states for newly claimed steps; None for a document that was deleted meanwhile. `workflows` is a cache
    by hash."""
    found = documents.live(connection, [(step.document_id, step.generation_id) for step in steps])
    begun = [step.generation_id for step in steps if step.position > 0]
    made = checkpoints.of_generations(connection, begun) if begun else {}
    states: list[RunState | None] = []
    for step in steps:
        if step.snapshot not in workflows:
            workflows[step.snapshot] = decode(work.snapshot(connection, step.snapshot))
        if step.generation_id not in found:
            states.append(None)
            continue
        document, version = found[step.generation_id]
        states.append(RunState(document, version, workflows[step.snapshot], made.get(step.generation_id, {})))
    return states


SLOT = leasing.SLOT
BATCH = "batch"
"""What a step waits on while its items are gathered for a common call."""
FOLDER = 1000
"""How many artifacts share a folder for their segments: few folders are needed, and none grows too large."""


class Context:
    """The StepContext of one claimed step."""

    joined = False
    """The step has added items to a common call."""
    _bookings: tuple[Booking, ...] = ()

    def __init__(
        self,
        step: Step,
        state: RunState,
        *,
        ledger: Ledger,
        blobs: Blobs,
        ports: Ports,
        runtime: Runtime,
        budget: Budget,
        lease_s: float,
        counters: Counters,
        metrics: Metrics,
        gatherers: Gatherers,
        calls: CallLimits,
        bought: BoughtAnswers,
        submit_children: SubmitChildren | None = None,
    ) -> None:
        self.step = step
        self.state = state
        self.ports = ports
        self.runtime = runtime
        self.stopping = False
        """The worker was told to stop: the step flushes at the end of its batch and is released."""
        self.task: asyncio.Task[Any] | None = None
        """The task that executes the step. The steps of a group share one task."""
        self.lost = False
        """The lease is lost: the step was cancelled, superseded or reaped."""
        self.finishing = False
        """The write that ends the step is in progress. Only its result says whether the lease was still valid."""
        self.ended = False
        self.completed = False
        """The step was completed, and the ledger has recorded it."""
        self.grouped = False
        """The step belongs to a group of steps, which share a task."""
        self.timed_out = False
        """The step exceeded its timeout, and its task was cancelled for that reason."""
        self.on_checkpoint: Callable[[], object] = _do_nothing
        """Called when a checkpoint has reset the failure counters."""
        self.activity = StepActivity(runtime.clock, self.definition.timeout)
        self._ledger = ledger
        self._blobs = blobs
        self._budget = budget
        self._lease_s = lease_s
        self._counters = counters
        self._metrics = metrics
        self._gatherers = gatherers
        self._calls = calls
        self._bought = bought
        self.began = runtime.clock()
        """When the step got its slot."""
        self._counted = 0
        self._checkpoint: Checkpoint[Any] | None = None
        self.opened: checkpoints.Opened | None = None
        """The artifact, if the claim opened it."""
        self._artifact: Artifact | None = None
        self._batch_began = self.began
        self.presence = Presence(self.activity, runtime.clock)
        self.children = None if submit_children is None else StepChildren(self, state.workflow, ledger, submit_children)

    @property
    def document(self) -> Document:
        return self.state.document

    @property
    def generation(self) -> Generation:
        return self.state.generation

    @property
    def definition(self) -> StepDefinition:
        return self.state.workflow.steps[self.step.position]

    @property
    def params(self) -> dict[str, Any]:
        return self.definition.parameters

    @property
    def deadline(self) -> float | None:
        return self._budget.deadline

    @property
    def source(self) -> RawFile:
        return RawFile(self, self._blobs, self._ledger)

    @property
    def has_checkpoint(self) -> bool:
        return self._checkpoint is not None

    @property
    def checkpoint(self) -> Checkpoint[Any]:
        assert self._checkpoint is not None, "this kind of step makes no artifact"
        return self._checkpoint

    @property
    def is_unforgiven(self) -> bool:
        """Whether progress has reset the failure counters of this step so often that it no longer does."""
        return self.step.forgiven >= checkpoints.FORGIVEN

    @property
    def made_progress(self) -> bool:
        """Whether the failure counters were reset since the claim (I7)."""
        return self._checkpoint is not None and self._checkpoint.moved and not self.is_unforgiven

    @property
    def told_to_stop(self) -> bool:
        """Whether the worker or a cancellation of its task stopped the step. An event loop that ends cancels all
        tasks."""
        return self.stopping or (self.task is not None and self.task.cancelling() > 0)

    @property
    def position(self) -> int:
        """The number of items before the cursor, including those of earlier claims. Index rows are not items: the
        cursor counts them."""
        if self._checkpoint is None:
            return 0
        rows: int = self._checkpoint.cursor.get("rows", 0) if self.step.kind == "index" else self._checkpoint.total
        return rows

    def mark_lost(self, phase: str) -> None:
        """Record that the lease is lost. `phase` is one of `PHASES` and says where this was noticed. Later calls have
        no effect."""
        if not self.lost:
            self.lost = True
            self._metrics.incr("lease_lost", phase=phase)

    def raise_if_cancelled(self) -> None:
        if self.lost:
            raise Cancelled(f"the run of {self.document.name!r} was cancelled or taken over")

    @property
    def waiting_on(self) -> str | None:
        return self.activity.waiting_on

    def waiting(self, on: str | None) -> None:
        """Report what the step waits on. A waiting step releases its slot. It requests the slot when the wait is over,
        and holds it again before it reads more input or keeps its next batch."""
        if not isinstance(on, str | None):
            raise TypeError(f"a step waits on something that has a name, not on {type(on).__name__}")
        self.presence.waiting(on)

    async def together(self, gather: Gather, items: Sequence[Any]) -> Any:
        gatherer = self._gatherers.of(gather)
        # A step whose worker died, or that its target refused, makes its own calls: if they are the cause, no other
        # step is affected.
        if gatherer is None or self.step.crashes or self.step.refused:
            return await gather.call(self.ports, self.runtime, self._gatherers.providers, items)
        self.joined = True
        self.presence.delegate(BATCH)
        try:
            return await gatherer.add(items, lambda: self.presence.delegate(None))
        finally:
            self.presence.report_wait(None)

    @property
    def providers(self) -> Providers:
        return self.providers_of("")

    def providers_of(self, scope: str) -> Providers:
        """`scope`: what the keys of answers are about, such as the hash of the document."""
        calls = StepCalls(self._calls, self.presence.delegate)
        return Providers(calls, self._bought.of(self.step.owner, scope), self._budget)

    def book(self, booking: Booking) -> None:
        self._bookings += (booking,)

    def take_bookings(self) -> tuple[Booking, ...]:
        """Return what was booked since the last write of the step, which records it."""
        taken, self._bookings = self._bookings, ()
        return taken

    def progress(self) -> None:
        self.activity.progress()

    def input_meta(self, kind: str) -> Json:
        return self.state.artifact(kind, self.step.position)[0].meta

    async def inputs(self, kind: str, start: int = 0) -> AsyncIterator[list[Any]]:
        artifact, kind = self.state.artifact(kind, self.step.position)
        if not artifact.complete:
            # Another run that shares the artifact, or repair, found a damaged segment: the artifact is incomplete now.
            raise TornSegment(f"{kind} is made again", artifact_id=artifact.id, ordinal=artifact.segments)
        await self._reacquire_slot()
        cached = self.state.items.get(artifact.id)
        if cached is not None and start == 0:
            yield cached
            return
        stored = reader(self._ledger, self._blobs)
        async for items in stored.items(artifact, kind, start, self.state.segments.get(artifact.id)):
            await self._reacquire_slot()
            yield items

    async def _reacquire_slot(self) -> None:
        if waited := await self.presence.reacquire_slot():
            self._batch_began += waited
            self.raise_if_cancelled()

    async def begin(self, artifact: Artifact, codec: Codec[Any], durable: bool = False) -> None:
        """Build this artifact from its cursor on. The keys of its segments contain artifact, epoch and lease token, so
        that no two writers share a key."""
        lease, failed = self.step.lease, self.step.crashes > 0 or self.step.errors > 0
        self._artifact = artifact
        self._checkpoint = Checkpoint(
            artifact=artifact,
            codec=codec,
            prefix=f"{self.step.owner}/segments/{artifact.id // FOLDER}/{artifact.id}-{lease.epoch}-{lease.token}",
            blobs=self._blobs,
            runtime=self.runtime,
            commit=self._commit,
            before_batch=self._before_batch,
            after_batch=self._after_batch,
            eager=failed,
            durable=durable,
            passed=await self._ledger.read(checkpoints.cursors, artifact.id) if failed and artifact.segments else (),
        )
        self._counted = self.position
        self._batch_began = self.runtime.clock()

    async def _commit(self, flush: Flush) -> None:
        assert self._artifact is not None
        took = await self._ledger.write(
            checkpoints.CHECKPOINT,
            checkpoints.Progress(
                self.step,
                self._artifact.id,
                msgspec.json.encode(flush.cursor).decode(),
                flush.items,
                flush.segments,
                self._lease_s,
                self.activity.reaped_in,
                flush.advances,
                self.take_bookings(),
            ),
        )
        if not took:
            self.mark_lost("checkpoint")
            raise LeaseLost(f"step {self.step.lease.step_id} now belongs to another worker")
        if flush.advances and not self.is_unforgiven:
            self.on_checkpoint()

    def count(self) -> None:
        """Count what was made since the last call. It is called after each batch and at the end of the step, because a
        stop during a flush can leave a batch that is stored but not counted."""
        now, position = self.runtime.clock(), self.position
        if position != self._counted:
            self._counters.worked(self.step.kind, position - self._counted, self._batch_began, now)
            self._counters.tallies.made(self.step.owner, self.step.kind, position - self._counted)
        self._batch_began, self._counted = now, position

    async def _before_batch(self) -> None:
        if waited := await self.presence.begin_batch():
            self._batch_began += waited
            self.raise_if_cancelled()

    async def _after_batch(self) -> None:
        """Between two batches: measure the pace, and stop here if necessary. Time spent waiting for the slot counts
        neither as work nor for the pace."""
        self.presence.end_batch()
        self.progress()
        now = self.runtime.clock()
        self._budget.measure(self.step.kind, now - self._batch_began)
        self.count()
        self.raise_if_cancelled()
        if self.stopping or not self._budget.fits(self.step.kind):
            await self.checkpoint.flush()
            raise BudgetSpent("handed over between two batches")
        if waited := await self.presence.yield_slot():
            self._batch_began += waited
            self.raise_if_cancelled()
