"""What every step of a worker works with: the ledger, the ports, room to run, and what happened so far."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field

from penstock.blobs.base import Blobs
from penstock.errors import LeaseLost
from penstock.ledger.database.store import Ledger
from penstock.ledger.engine import leasing
from penstock.metrics.base import NULL_METRICS, Metrics
from penstock.model.nouns import Step, StepDefinition, WorkerId
from penstock.runtime import Runtime
from penstock.stages.base import Ports, Stage
from penstock.stages.custom import custom
from penstock.worker.broadcast import Broadcast
from penstock.worker.budget import Budget
from penstock.worker.context import Context, RunState
from penstock.worker.fair_queue import FlowKey
from penstock.worker.gathering import Gatherers
from penstock.worker.pools import REST, pool_of
from penstock.worker.recorder import StepRecorder
from penstock.worker.retry import RetryPolicy
from penstock.worker.slots import SlotHold, Slots
from penstock.worker.tables import Notices
from penstock.worker.targets import Targets

EXTRACT, EMBED, INDEX = "extract", "embed", "index"
ROOM = leasing.ROOM


@dataclass
class WorkerServices:
    """What every step of a worker works with."""

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
    """Steps that read documents, and as many others, whose stage runs at once. One whose completion is being written
    makes room for another."""
    broadcast: Broadcast = field(default_factory=Broadcast)
    pools: Mapping[str, int] | None = None
    """Sizes of typed pools, by kind; None: one pool for all kinds."""
    metrics: Metrics = NULL_METRICS

    def __post_init__(self) -> None:
        self.record = StepRecorder(self.broadcast, self.runtime, self.metrics)
        # Those who read documents wait for the parser processes most of the time, and must not keep out the others.
        self._sizes = self.pools or {EXTRACT: self.slots, REST: self.slots}
        self._rooms = {name: Slots(size, self.runtime.clock) for name, size in self._sizes.items()}
        self.gatherers = Gatherers(self.ports, self.runtime, self.slots)
        self.backed_off = asyncio.Event()
        """A step has to wait for its next attempt."""
        self._one_suspect = asyncio.Lock()
        self.warm = asyncio.Event()
        """Models and libraries are loaded."""
        self.notices = Notices(self.runtime)
        self.targets = Targets(self.ledger, self.runtime, self.worker, self.notices, self.metrics, self._target)
        self.fail: Callable[[BaseException], None] = lambda error: None
        """What to do when ledger or blobs fail: no step is to blame, and the worker cannot go on."""

    def stage(self, definition: StepDefinition) -> Stage | None:
        """What runs a step: the shipped stage of its kind, or the user's own function."""
        if definition.method is None:
            return self.stages.get(definition.kind)
        return custom(definition)

    def _target(self, definition: StepDefinition) -> str | None:
        stage = self.stages.get(definition.kind) if definition.method is None else None
        return None if stage is None else stage.target(self.ports, definition.parameters)

    @asynccontextmanager
    async def room(self, ctx: Context) -> AsyncIterator[None]:
        """Room to run a stage. A step that was there when its worker died, again and again, gets all of it."""
        if not is_suspect(ctx.step):
            room = self._room_of(ctx.step)
            if room.is_full:
                ctx.waiting(ROOM)
            stay = ctx.presence.stay = await room.stay(FlowKey(ctx.step.owner, ctx.step.document_id))
            try:
                if ctx.waiting_on is not None:
                    ctx.waiting(None)
                ctx.began = self.runtime.clock()
                self.targets.gate(ctx)
                yield
            finally:
                stay.end()
            return
        async with self.all_rooms(ctx) as others:
            await self.go_alone(ctx)
            # Progress forgives (I7): from its first checkpoint on others run beside it.
            ctx.on_checkpoint = others.close
            self.targets.gate(ctx)
            yield

    @asynccontextmanager
    async def all_rooms(self, ctx: Context) -> AsyncIterator[ExitStack]:
        """For suspects, one after the other. Closed, the answer lets go of all but one place in the room of this."""
        ctx.waiting(ROOM)
        mine = self._room_of(ctx.step)
        with ExitStack() as own, ExitStack() as others:
            await self._one_suspect.acquire()
            others.callback(self._one_suspect.release)
            await self.warm.wait()
            async with asyncio.TaskGroup() as queue_up:
                # All at once: one by one, it would let everybody pass again for each, and keep idle what it has.
                for name, room in self._rooms.items():
                    for i in range(self._sizes[name]):
                        if room is not mine or i:
                            queue_up.create_task(_enter(room, others))
                await mine.enter(None)
                stay = SlotHold(mine, FlowKey(ctx.step.owner, ctx.step.document_id), self.runtime.clock)
                own.callback(stay.end)
            others.callback(setattr, ctx.presence, "stay", stay)
            yield others

    async def go_alone(self, ctx: Context) -> None:
        """With all rooms ours: if we die now, this step is why."""
        must(await self.ledger.write(leasing.GO_ALONE, ctx.step.lease), ctx, "alone")
        ctx.waiting(None)
        ctx.began = self.runtime.clock()

    def _room_of(self, step: Step) -> Slots:
        return self._rooms[pool_of(step.queue, self._sizes) or REST]

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
        )


def is_suspect(step: Step) -> bool:
    return step.crashes >= leasing.SUSPECT


async def _enter(room: Slots, stay: ExitStack) -> None:
    await room.enter(None)
    stay.callback(room.leave)


def must(took: bool, ctx: Context, phase: str) -> None:
    if not took:
        ctx.lose(phase)
        raise LeaseLost(f"step {ctx.step.lease.step_id} now belongs to another worker")
