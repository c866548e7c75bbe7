"""What all steps of a worker share: the ledger, the ports, the slots, and the record of what happened."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field

from penstock.blobs.base import Blobs
from penstock.config_providers import TargetConfig
from penstock.errors import LeaseLost
from penstock.ledger.database.store import Ledger
from penstock.ledger.engine import leasing
from penstock.metrics.base import NULL_METRICS, Metrics
from penstock.model.nouns import Owner, Step, StepDefinition, WorkerId
from penstock.net.providers import Providers
from penstock.runtime import Runtime
from penstock.stages.base import GroupedStage, Ports, Stage
from penstock.stages.custom import custom
from penstock.worker.bought import BoughtAnswers
from penstock.worker.broadcast import Broadcast
from penstock.worker.budget import Budget
from penstock.worker.children import SubmitChildren
from penstock.worker.context import Context, RunState
from penstock.worker.fair_queue import FlowKey
from penstock.worker.gathering import Gatherers
from penstock.worker.limits import CallLimits
from penstock.worker.paid import PaidWork
from penstock.worker.pools import REST, pool_of
from penstock.worker.recorder import StepRecorder
from penstock.worker.retry import RetryPolicy
from penstock.worker.sampling import Sampler
from penstock.worker.slots import SlotHold, Slots
from penstock.worker.tables import Notices
from penstock.worker.targets import Targets

EXTRACT = "extract"
SLOT = leasing.SLOT


@dataclass
class WorkerServices:
    """What all steps of a worker share."""

    ledger: Ledger
    blobs: Blobs
    ports: Ports
    runtime: Runtime
    stages: Mapping[str, Stage]
    worker: WorkerId
    lease_s: float
    policy: RetryPolicy
    budget: Budget
    slots: int
    """How many stages of `extract` steps run at the same time, and how many of all other kinds. A step whose completion
    is being written does not occupy a slot."""
    broadcast: Broadcast = field(default_factory=Broadcast)
    pools: Mapping[str, int] | None = None
    """Sizes of typed pools by queue. None means one pool for all queues."""
    metrics: Metrics = NULL_METRICS
    limits: Mapping[str, TargetConfig] = field(default_factory=dict)
    """The limits of providers in the settings."""
    company: int = 0
    """Additional places for small documents that wait for others to make common calls to a provider."""
    gather_s: float = 0.0
    """How long a step may wait for others to make common calls."""
    share_bought: bool = False
    """Whether all owners share the vectors that were bought."""
    grouped: Mapping[str, GroupedStage] = field(default_factory=dict)
    """The stages whose steps are executed in groups, by kind."""
    drops_small: Callable[[str], bool] = lambda collection: False
    """Whether the artifacts of small documents of a collection are dropped when they are searchable."""
    submit_children: SubmitChildren | None = None
    """Submits documents that are found inside others. None: they are ignored, as in a trial, which has them already."""

    def __post_init__(self) -> None:
        self.record = StepRecorder(self.broadcast, self.runtime, self.metrics)
        self.sampler = Sampler(self.ledger, self.runtime, self.record.counters.tallies)
        # Steps of `extract` wait for parser processes most of the time and must not block other steps.
        self._sizes = self.pools or {EXTRACT: self.slots, REST: self.slots}
        self._slots = {name: Slots(size, self.runtime.clock) for name, size in self._sizes.items()}
        self.paid_work = PaidWork()
        self.calls = CallLimits(
            self.ledger, self.runtime, self.worker, self.metrics, self.limits, self.paid_work,
            lambda error: self.fail(error),
        )  # fmt: skip
        self.bought = BoughtAnswers(
            self.ledger, self.blobs, self.runtime, self.metrics, self.paid_work, shared=self.share_bought
        )
        self.gatherers = Gatherers(self.ports, self.runtime, self.slots, self._providers_of, self.gather_s)
        self.backed_off = asyncio.Event()
        """A step was scheduled for another attempt."""
        self._one_suspect = asyncio.Lock()
        self.warm = asyncio.Event()
        """Set when models and libraries are loaded."""
        self.notices = Notices(self.runtime)
        self.targets = Targets(
            self.ledger, self.runtime, self.worker, self.notices, self.metrics, self._target, self._check
        )
        self.fail: Callable[[BaseException], None] = lambda error: None
        """Called when the ledger or the blob store fails: no step caused that, and the worker has to stop."""

    def _providers_of(self, owner: str) -> Providers:
        return Providers(self.calls, self.bought.of(Owner(owner)), self.budget)

    def stage(self, definition: StepDefinition) -> Stage | None:
        """Return the stage that executes a step: the built-in one of its kind, or the user's function."""
        if definition.method is None:
            return self.stages.get(definition.kind)
        return custom(definition)

    def _target(self, definition: StepDefinition) -> str | None:
        kind = definition.kind
        stage = (self.stages.get(kind) or self.grouped.get(kind)) if definition.method is None else None
        return None if stage is None else stage.target(self.ports, definition.parameters)

    def _check(self, definition: StepDefinition) -> Awaitable[object] | None:
        stage = self.stages.get(definition.kind) if definition.method is None else None
        if stage is None or stage.check is None:
            return None
        return stage.check(self.ports, definition.parameters, self.runtime)

    @asynccontextmanager
    async def slot(self, ctx: Context) -> AsyncIterator[None]:
        """Hold a slot during the block. A suspect holds all slots of the worker."""
        if not is_suspect(ctx.step):
            slots = self._slots_of(ctx.step)
            if slots.is_full:
                ctx.waiting(SLOT)
            hold = ctx.presence.hold = await slots.hold(FlowKey(ctx.step.owner, ctx.step.document_id))
            try:
                if ctx.waiting_on is not None:
                    ctx.waiting(None)
                ctx.began = self.runtime.clock()
                self.targets.gate(ctx)
                yield
            finally:
                hold.end()
            return
        async with self.all_slots(ctx) as others:
            await self.run_exclusively(ctx)
            # Progress resets the crash counter (I7): after the first checkpoint, other steps may run too.
            ctx.on_checkpoint = others.close
            self.targets.gate(ctx)
            yield

    @asynccontextmanager
    async def all_slots(self, ctx: Context) -> AsyncIterator[ExitStack]:
        """Hold all slots during the block, for one suspect at a time. Closing the returned stack releases all slots
        except one of the step's own pool."""
        ctx.waiting(SLOT)
        mine = self._slots_of(ctx.step)
        with ExitStack() as own, ExitStack() as others:
            await self._one_suspect.acquire()
            others.callback(self._one_suspect.release)
            await self.warm.wait()
            async with asyncio.TaskGroup() as requests:
                # Request all at the same time. One by one, other steps would be served between two requests, and slots
                # that are held already would stay idle.
                for name, slots in self._slots.items():
                    for i in range(self._sizes[name]):
                        if slots is not mine or i:
                            requests.create_task(_acquire(slots, others))
                await mine.acquire(None)
                hold = SlotHold(mine, FlowKey(ctx.step.owner, ctx.step.document_id), self.runtime.clock)
                own.callback(hold.end)
            others.callback(setattr, ctx.presence, "hold", hold)
            yield others

    async def run_exclusively(self, ctx: Context) -> None:
        """Record that the step runs alone, so that a crash from now on has a known cause. The caller holds all
        slots."""
        must(await self.ledger.write(leasing.GO_ALONE, ctx.step.lease), ctx, "alone")
        ctx.waiting(None)
        ctx.began = self.runtime.clock()

    def _slots_of(self, step: Step) -> Slots:
        return self._slots[pool_of(step.queue, self._sizes) or REST]

    def context(self, step: Step, state: RunState) -> Context:
        return Context(
            step,
            state,
            ledger=self.ledger,
            blobs=self.blobs,
            ports=self.ports,
            runtime=self.runtime,
            budget=self.budget,
            lease_s=self.lease_s,
            counters=self.record.counters,
            metrics=self.metrics,
            gatherers=self.gatherers,
            calls=self.calls,
            bought=self.bought,
            # What is inside it is a document already, with its own run.
            submit_children=None if state.generation.staging else self.submit_children,
        )


def is_suspect(step: Step) -> bool:
    return step.crashes >= leasing.SUSPECT


async def _acquire(slots: Slots, acquired: ExitStack) -> None:
    await slots.acquire(None)
    acquired.callback(slots.release)


def must(took: bool, ctx: Context, phase: str) -> None:
    if not took:
        ctx.mark_lost(phase)
        raise LeaseLost(f"step {ctx.step.lease.step_id} now belongs to another worker")
