"""One step, from its lease to its end: open the artifact, run the stage, complete, chain."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field

import msgspec

from penstock import foreign
from penstock.artifacts.fingerprints import fingerprint
from penstock.blobs.base import Blobs
from penstock.errors import (
    BudgetSpent,
    Cancelled,
    LeaseLost,
    PenstockError,
    Refused,
    StorageError,
    TableFailed,
    TornSegment,
    Transient,
)
from penstock.ledger.database.store import Ledger
from penstock.ledger.engine import checkpoints, completions, failures, flips, leasing, releases
from penstock.ledger.engine.locks import index_key, own_key
from penstock.metrics.base import NOTHING, Metrics
from penstock.model.nouns import ArtifactId, Step, StepDefinition, Token, WorkerId
from penstock.model.states import DocumentStatus
from penstock.runtime import Runtime
from penstock.stages.base import Ports, Stage, StepResult
from penstock.stages.custom import custom
from penstock.worker.broadcast import Broadcast
from penstock.worker.budget import Budget
from penstock.worker.context import Context, RunState
from penstock.worker.pools import REST, pool_of
from penstock.worker.record import Record
from penstock.worker.retry import RetryPolicy, retry_in
from penstock.worker.rooms import Room, Stay
from penstock.worker.tables import Sayings
from penstock.worker.turns import Flow
from penstock.workflows.way import following

EXTRACT, EMBED, INDEX = "extract", "embed", "index"
COUNTED = {EXTRACT: "pages", "chunk": "chunks"}
"""What such a step reports of its items."""
ARTIFACT_POLL_S = 0.05
ROOM = leasing.ROOM
UNWRITABLE = "the step failed, and the ledger would not take what its error says"


@dataclass
class Bench:
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
    metrics: Metrics = NOTHING

    def __post_init__(self) -> None:
        self.record = Record(self.broadcast, self.runtime, self.metrics)
        # Those who read documents wait for the parser processes most of the time, and must not keep out the others.
        self._sizes = self.pools or {EXTRACT: self.slots, REST: self.slots}
        self._rooms = {name: Room(size, self.runtime.clock) for name, size in self._sizes.items()}
        self.backed_off = asyncio.Event()
        """A step has to wait for its next attempt."""
        self._one_suspect = asyncio.Lock()
        self.warm = asyncio.Event()
        """Models and libraries are loaded."""
        self.sayings = Sayings(self.runtime)
        self.fail: Callable[[BaseException], None] = lambda error: None
        """What to do when ledger or blobs fail: no step is to blame, and the worker cannot go on."""

    def stage(self, definition: StepDefinition) -> Stage | None:
        """What runs a step: the shipped stage of its kind, or the user's own function."""
        if definition.method is None:
            return self.stages.get(definition.kind)
        return custom(definition)

    @asynccontextmanager
    async def room(self, ctx: Context) -> AsyncIterator[None]:
        """Room to run a stage. A step that was there when its worker died, again and again, gets all of it."""
        if not is_suspect(ctx.step):
            room = self._room_of(ctx.step)
            if room.is_full:
                ctx.waiting(ROOM)
            stay = ctx.stay = await room.stay(Flow(ctx.step.owner, ctx.step.document_id))
            try:
                ctx.waiting(None)
                ctx.began = self.runtime.clock()
                yield
            finally:
                stay.end()
            return
        async with self.all_rooms(ctx) as others:
            await self.go_alone(ctx)
            # Progress forgives (I7): from its first checkpoint on others run beside it.
            ctx.on_checkpoint = others.close
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
                stay = Stay(mine, Flow(ctx.step.owner, ctx.step.document_id), self.runtime.clock)
                own.callback(stay.end)
            others.callback(setattr, ctx, "stay", stay)
            yield others

    async def go_alone(self, ctx: Context) -> None:
        """With all rooms ours: if we die now, this step is why."""
        _must(await self.ledger.write(leasing.GO_ALONE, ctx.step.lease), ctx, "alone")
        ctx.waiting(None)
        ctx.began = self.runtime.clock()

    def _room_of(self, step: Step) -> Room:
        return self._rooms[pool_of(step.lane, self._sizes) or REST]

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
            tally=self.record.tally,
            metrics=self.metrics,
        )


def is_suspect(step: Step) -> bool:
    return step.crashes >= leasing.SUSPECT


async def _enter(room: Room, stay: ExitStack) -> None:
    await room.enter(None)
    stay.callback(room.leave)


async def execute(bench: Bench, ctx: Context, chain: Callable[[str], bool]) -> Context | None:
    """Run the step. Returns the context of the next one if it was claimed along with the completion; `chain` says
    whether there is room in its lane."""
    stage = bench.stage(ctx.definition)
    if stage is None:
        raise LeaseLost(f"no stage of kind {ctx.step.kind!r} here")
    result, output = await _work(bench, ctx, stage)
    ctx.raise_if_cancelled()
    end = result.end or stage.ends(result.meta)
    after = following(ctx.state.workflow, ctx.step.position, result.choice) if end is None else end
    if result.choice is not None:
        result = msgspec.structs.replace(result, meta={**result.meta, "choice": result.choice})
    ctx.finishing = True
    meta = msgspec.json.encode(result.meta).decode()
    if isinstance(after, DocumentStatus):
        end = after
        took = await bench.ledger.write(flips.FLIP, flip(ctx, end, meta, output))
        _must(took, ctx, "complete")
        bench.record.completed(ctx, result.meta, end)
        return None
    if result.media_type is not None:
        ctx.state.document = msgspec.structs.replace(ctx.document, media_type=result.media_type)
    upcoming = _upcoming(bench, ctx, after, chain)
    completion = completions.Completion(
        ctx.step, bench.worker, bench.lease_s, meta, upcoming, output, result.media_type
    )
    completed = await bench.ledger.write(completions.COMPLETE, completion)
    _must(completed.took, ctx, "complete")
    bench.record.completed(ctx, result.meta)
    if completed.next is None:
        return None
    bench.metrics.incr("step_chained", kind=completed.next.kind)
    context = bench.context(completed.next, ctx.state)
    context.opened = completed.opened
    return context


def _upcoming(bench: Bench, ctx: Context, position: int, chain: Callable[[str], bool]) -> completions.NextStep:
    """What comes after the step; with a token and its artifact's fingerprint if we may go on with it ourselves."""
    definition = ctx.state.workflow.steps[position]
    owner, collection = ctx.step.owner, ctx.document.collection
    key = own_key(owner, collection, definition.resource_key)
    if definition.kind == INDEX and bench.ports.index.traits.single_writer:
        key = index_key(owner, collection, ctx.generation.index_version)
    upcoming = completions.NextStep(position, definition.name, definition.kind, key, None, pool=definition.pool)
    stage = bench.stage(definition)
    if not chain(definition.lane) or key is not None or stage is None or not bench.budget.fits(definition.kind):
        return upcoming
    made = artifact_fingerprint(bench.ports, ctx.state, position, stage) if stage.codec is not None else None
    return msgspec.structs.replace(upcoming, token=Token(bench.runtime.token()), fingerprint=made)


async def _work(bench: Bench, ctx: Context, stage: Stage) -> tuple[StepResult, checkpoints.Output | None]:
    """The stage's result: made now, or made before and found by its fingerprint."""
    if stage.codec is None:
        async with bench.room(ctx):
            return await stage.run(ctx), None
    # Outside the room: those who wait for an artifact must not keep out the one that makes it.
    key = artifact_fingerprint(bench.ports, ctx.state, ctx.step.position, stage)
    opened = await open_artifact(bench, ctx, key)
    artifact = opened.artifact
    if artifact.complete:
        ctx.state.artifacts[ctx.definition.name] = artifact
        return StepResult({**artifact.meta, "reused": True}), None
    async with bench.room(ctx):
        ctx.begin(artifact, stage.codec, stage.durable)
        result = await stage.run(ctx)
        flush = await ctx.checkpoint.close()
    if ctx.definition.method is not None and ctx.step.kind in COUNTED:
        # The index step goes by it, and a user's own function need not know.
        result = msgspec.structs.replace(result, meta={**result.meta, COUNTED[ctx.step.kind]: flush.items})
    done = msgspec.structs.replace(
        artifact,
        complete=True,
        cursor=flush.cursor,
        items=flush.items,
        segments=ctx.checkpoint.segments,
        meta=result.meta,
    )
    ctx.state.artifacts[ctx.definition.name] = done
    if artifact.segments == 0 and len(flush.segments) == done.segments:
        ctx.state.segments[artifact.id] = list(flush.segments)
        if ctx.checkpoint.only is not None:
            ctx.state.items[artifact.id] = ctx.checkpoint.only
    output = checkpoints.Output(
        artifact.id,
        msgspec.json.encode(flush.cursor).decode(),
        flush.items,
        ctx.checkpoint.segments,
        msgspec.json.encode(result.meta).decode(),
        flush.segments,
    )
    return result, output


def artifact_fingerprint(ports: Ports, state: RunState, position: int, stage: Stage) -> str:
    """(content, media type, kind, adapter and version, method, parameters, input): DESIGN's key of an artifact."""
    definition = state.workflow.steps[position]
    media_type = state.document.media_type
    before = [
        state.artifacts[earlier.name].fingerprint
        for earlier in state.workflow.steps[:position]
        if earlier.name in state.artifacts
    ]
    return fingerprint(
        state.generation.sha256,
        media_type,
        stage.kind,
        stage.version(ports, definition.parameters, media_type),
        definition.method,
        definition.parameters,
        before[-1] if before else None,
    )


async def open_artifact(bench: Bench, ctx: Context, key: str) -> checkpoints.Opened:
    """Made already, ours to make, or being made by another run: then wait for it, and take over if that one dies."""
    request = checkpoints.Open(ctx.step, key)
    opened = ctx.opened
    if opened is None:
        opened = await bench.ledger.write(checkpoints.OPEN, request)
    while not (opened.mine or opened.artifact.complete):
        ctx.waiting("artifact")
        if ctx.stopping or bench.budget.spent:
            raise BudgetSpent("stopped while another run makes the same artifact")
        await bench.runtime.sleep(ARTIFACT_POLL_S)
        ctx.raise_if_cancelled()
        if not await bench.ledger.read(checkpoints.being_built, opened.artifact.id):
            opened = await bench.ledger.write(checkpoints.OPEN, request)
    ctx.waiting(None)
    return opened


def flip(ctx: Context, status: DocumentStatus, meta: str, output: checkpoints.Output | None = None) -> flips.Flip:
    """Pages and chunks are counted in the artifacts themselves: any step may report what it likes."""
    pages, chunks = (ctx.state.newest(kind, ctx.step.position + 1) for kind in COUNTED)
    return flips.Flip(ctx.step, status, pages.items if pages else None, chunks.items if chunks else 0, meta, output)


async def settle(bench: Bench, ctx: Context, error: BaseException) -> None:
    """A step that did not complete: hand it over, rewind, back off, or bury it. The one classifier of errors: what
    nobody of us asked for counts, whatever its type."""
    step, ours = ctx.step, _is_ours(ctx, error)
    if ctx.lost or (ours and isinstance(error, LeaseLost | Cancelled)):
        ctx.lose("work")
        return
    ctx.finishing = True
    if ctx.timed_out:
        error = Transient(
            f"step {step.name!r} made no progress for {ctx.definition.timeout:g} s, the timeout of its workflow",
            reason="timeout",
        )
    if ours and isinstance(error, TornSegment):
        rewind = checkpoints.Rewind(step, ArtifactId(error.artifact_id), error.ordinal)
        if await bench.ledger.write(checkpoints.REWIND, rewind):
            bench.metrics.incr("step_rewound", kind=step.kind)
            return
    asked = ctx.told_to_stop if isinstance(error, asyncio.CancelledError) else isinstance(error, BudgetSpent)
    if _stores_failed(ctx, error):
        bench.fail(error)
        asked = True
    if ours and (asked or isinstance(error, TableFailed)):
        moved = ctx.has_checkpoint and ctx.checkpoint.moved
        begun = ctx.has_checkpoint and ctx.checkpoint.begun and asked
        why = None if asked else foreign.sentence(error)
        if await bench.ledger.write(releases.RELEASE, releases.Release(step, give_back=moved or not begun, error=why)):
            bench.metrics.incr("step_released", kind=step.kind)
        else:
            ctx.lose("release")
        return
    errors = 0 if ctx.has_checkpoint and ctx.checkpoint.moved else step.errors
    delay = retry_in(bench.policy, error, errors, ctx.definition.retries, bench.runtime.random())
    reason, sentence = foreign.reason(error, "error"), foreign.sentence(error)
    failure = failures.StepFailure(step, reason, sentence, foreign.trace(error), foreign.page(error), delay)
    if await _write_down(bench, failure):
        bench.record.failed(ctx, failure)
        bench.backed_off.set()
    else:
        ctx.lose("error")


async def _write_down(bench: Bench, failure: failures.StepFailure) -> bool:
    try:
        return await bench.ledger.write(failures.ERROR, failure)
    except Refused:
        # Whatever it was that the ledger does not take: a step whose error cannot be written would never end.
        plain = failures.StepFailure(failure.step, "error", UNWRITABLE, retry_in=failure.retry_in)
        return await bench.ledger.write(failures.ERROR, plain)


def _stores_failed(ctx: Context, error: BaseException) -> bool:
    """Ledger or blobs: no step is to blame. A write that was refused for what is in it is the step's own."""
    return isinstance(error, StorageError) and not isinstance(error, Refused) and _is_ours(ctx, error)


def _is_ours(ctx: Context, error: BaseException) -> bool:
    """A user's step may let our errors pass, and they steer the worker. One that it raises itself does not."""
    if ctx.definition.method is None or not isinstance(error, PenstockError):
        return True
    return foreign.raised_by(error, "penstock")


def _must(took: bool, ctx: Context, phase: str) -> None:
    if not took:
        ctx.lose(phase)
        raise LeaseLost(f"step {ctx.step.lease.step_id} belongs to somebody else now")
