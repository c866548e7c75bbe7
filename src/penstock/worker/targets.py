"""What a worker knows about targets that do not work: which steps wait for them, which queues it does not claim, and
when it may probe. While nothing is away this costs nothing but one read with each upkeep tick."""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from penstock import user_code
from penstock.errors import Away, RateLimited, StorageError, TableFailed, Unauthorized
from penstock.ledger.database.store import Ledger
from penstock.ledger.engine import targets
from penstock.ledger.engine.claims import Claimed
from penstock.ledger.engine.targets import Hold, State
from penstock.metrics.base import Metrics
from penstock.model.nouns import Step, StepDefinition, StepId, Token, WorkerId
from penstock.runtime import Runtime
from penstock.worker.context import Context
from penstock.worker.tables import Notices

BLOBS = "blobs:"
"""What the names of blob stores begin with: every step needs them."""
TABLE = "table:"
"""Of an index table without a lock, where the server itself names no target."""
RESERVED = (targets.TABLES, BLOBS, TABLE)
OWN = "own:"
"""Before the name that a user's step gives to a target of its own, where it is one of ours."""
LONGEST_S = 86_400.0
"""Throttling that lasts longer is a quota that is spent."""

Declared = Callable[[StepDefinition], str | None]
"""The target that the stage of a step declares."""


class HeldTargets(Away):
    """Raised before a stage would use a target that is held. The target was not called."""


@dataclass
class _Probing:
    name: str
    token: Token
    ran: bool = False
    """Its stage has begun: a step whose artifact was made before calls nobody."""
    kept: bool = False
    """It has kept something that the target has answered."""


class Targets:
    def __init__(
        self,
        ledger: Ledger,
        runtime: Runtime,
        worker: WorkerId,
        notices: Notices,
        metrics: Metrics,
        declared: Declared,
    ) -> None:
        self._ledger = ledger
        self._runtime = runtime
        self._worker = worker
        self._notices = notices
        self._metrics = metrics
        self._declared = declared
        self.changed = asyncio.Event()
        """There may be something to probe."""
        self._held: dict[str, Hold] = {}
        self._due: dict[str, float] = {}
        """When each of them may be tried again, by our clock."""
        self._before: dict[str, int] = {}
        """How often each had failed when this worker started."""
        self._met: dict[str, str] = {}
        """By a user's function, or a kind: the target that its steps met when they last waited."""
        self._queues: dict[str, set[tuple[str, str | None]]] = {}
        """For each queue, the method or kind and the declared target of every step that any workflow has there."""
        self._probing: dict[StepId, _Probing] = {}

    @property
    def anything(self) -> bool:
        return bool(self._held or self._probing)

    def learn(self, definition: StepDefinition) -> None:
        """A workflow has such a step."""
        self._queues.setdefault(definition.queue, set()).add(
            (definition.method or definition.kind, self._declared(definition))
        )

    async def start(self) -> None:
        """Whoever starts a worker may have repaired what failed, or wants to hear now what does."""
        holds = await self._ledger.write(targets.TRY_ALL, None)
        self._before = {hold.name: hold.failures for hold in holds}
        self._see(holds)

    async def refresh(self) -> bool:
        """Read what others found out. Whether steps may go on that waited."""
        before = set(self._held)
        self._see(await self._ledger.read(targets.all_held))
        over = before - set(self._held)
        for name in over:
            self._before.pop(name, None)
            self._notices.works(name)
        return bool(over)

    def _see(self, holds: Sequence[Hold]) -> None:
        self._held, self._due = {}, {}
        for hold in holds:
            self.knows(hold)

    def knows(self, hold: Hold) -> None:
        self._held[hold.name] = hold
        self._due[hold.name] = self._runtime.clock() + max(0.0, hold.held_s)
        self.changed.set()

    def forget(self, name: str) -> None:
        """It works."""
        if self._held.pop(name, None) is not None:
            self._due.pop(name, None)
            self._before.pop(name, None)
            self._notices.works(name)

    # which steps wait

    def holds(self, definition: StepDefinition) -> str | None:
        """The target that such a step would have to wait for."""
        if not self._held:
            return None
        return self._needs(definition.method or definition.kind, self._declared(definition), self._held)

    def _needs(self, works_by: str, declared: str | None, held: Iterable[str]) -> str | None:
        names = (declared, self._met.get(works_by))
        return next((name for name in held if name in names or name.startswith(BLOBS)), None)

    def gate(self, ctx: Context) -> None:
        """Called right before a stage runs. Raises `HeldTargets` if a target that the stage needs is held."""
        if not self.anything:
            return
        probing = self._probing.get(ctx.step.lease.step_id)
        if probing is not None:
            probing.ran = True
            if self._declared(ctx.definition) is not None:
                self._listen(ctx, probing)
            return
        name = self.holds(ctx.definition)
        if name is not None:
            raise HeldTargets(f"{name} is away", target=name)

    def _listen(self, ctx: Context, probing: _Probing) -> None:
        """What a stage with a declared target has kept, the target has answered: others need not wait for the end."""
        before = ctx.on_checkpoint

        def kept() -> None:
            before()
            ctx.on_checkpoint = before
            probing.kept = True
            self.changed.set()

        ctx.on_checkpoint = kept

    def open(self, queues: Iterable[str]) -> tuple[str, ...]:
        """Those of these queues that are worth a claim."""
        if not self._held:
            return tuple(queues)
        held = self.queues()
        return tuple(queue for queue in queues if queue not in held)

    def queues(self, name: str | None = None) -> set[str]:
        """Queues in which every step waits for a target: for `name`, or for any."""
        held = [held for held in self._held if name in (None, held)]
        if not held:
            return set()
        return {
            queue
            for queue, steps in self._queues.items()
            if all(self._needs(works_by, declared, held) is not None for works_by, declared in steps)
        }

    # what happens to a step

    @staticmethod
    def at_fault(ctx: Context, error: BaseException, ours: bool) -> Away | None:
        """The error, if it is a target's and no document's. Users' steps are believed, too; but a table with a lock is
        paused under it, and a store of ours that fails stops the worker."""
        if not isinstance(error, Away) or isinstance(error, StorageError):
            return None
        if isinstance(error, TableFailed) and (not ours or ctx.step.lease.resource_key is not None):
            return None
        return error

    def is_quota(self, ctx: Context, error: Away, ours: bool) -> bool:
        """Whether throttling lasts for so long that it is no throttling any more."""
        if not isinstance(error, RateLimited):
            return False
        asked = user_code.retry_after(error, 2 * LONGEST_S)
        hold = self._held.get(self._name(ctx, error, ours))
        lasting = hold is not None and hold.state is State.LIMITED and hold.age_s > LONGEST_S
        return lasting or (asked is not None and asked > LONGEST_S)

    def _name(self, ctx: Context, error: Away, ours: bool) -> str:
        declared = self._declared(ctx.definition)
        name = user_code.named(error, "target")
        if name is None and isinstance(error, TableFailed):
            return f"{TABLE}{ctx.step.owner}/{ctx.document.collection}/{ctx.generation.index_version}"
        if name is None:
            return declared or f"{ctx.step.kind}:{ctx.definition.method or ctx.step.name}"
        if ours or isinstance(error, HeldTargets):
            return name
        known = {declared for steps in self._queues.values() for _, declared in steps}
        return OWN + name if name in known or name.startswith(RESERVED) else name

    async def wait(self, ctx: Context, error: Away, ours: bool) -> bool:
        """Release the step with its attempt given back, until its target answers. False: it is not ours any more."""
        name = self._name(ctx, error, ours)
        probing = self._probing.get(ctx.step.lease.step_id)
        token = probing.token if probing is not None else None
        failure = None if isinstance(error, HeldTargets) else self._failure(ctx, error, ours, token)
        if failure is not None and name not in self._held:
            # From now on nobody here calls it, though the ledger does not know yet.
            self.knows(Hold(name, failure.state, failure.error, 1, targets.FIRST_S, 0.0))
        answer = await self._ledger.write(targets.HOLD, targets.Wait(ctx.step, name, failure))
        if failure is not None and probing is not None and probing.name == name:
            self._probing.pop(ctx.step.lease.step_id, None)
        if ctx.definition.method is not None or (isinstance(error, TableFailed) and not name.startswith(TABLE)):
            self._met[ctx.definition.method or ctx.step.kind] = name
        if answer.hold is None:
            self.forget(name)
            return answer.took
        self.knows(answer.hold)
        if failure is not None:
            setting = f"Set {failure.setting}. " if failure.setting else ""
            self._notices.fails(name, error, f"{setting}Its documents wait")
            self._metrics.incr("target_failed", state=failure.state)
        if answer.took:
            self._metrics.incr("step_held", kind=ctx.step.kind)
        self.changed.set()
        return answer.took

    def _failure(self, ctx: Context, error: Away, ours: bool, token: Token | None) -> targets.Failure:
        state = State.AWAY
        if isinstance(error, Unauthorized):
            state = State.UNAUTHORIZED
        elif isinstance(error, RateLimited):
            state = State.LIMITED
        return targets.Failure(
            state,
            user_code.sentence(error),
            self._runtime.random(),
            user_code.retry_after(error, LONGEST_S),
            user_code.named(error, "setting"),
            None if ours else ctx.step.owner,
            token,
        )

    # probes

    @property
    def due_in(self) -> float | None:
        """Seconds until the next target may be tried."""
        return min(self._due.values()) - self._runtime.clock() if self._due else None

    def take_due(self) -> list[str]:
        """Those that may be tried now. Each is told once, until more is known of it."""
        now = self._runtime.clock()
        over = [name for name, at in self._due.items() if at <= now]
        for name in over:
            del self._due[name]
        return over

    async def probe(self, name: str, queues: Sequence[str], lease_s: float) -> Claimed | None:
        """A step to try the target with, claimed; None: another worker does that, or no step needs the target."""
        token = Token(self._runtime.token())
        held = tuple(sorted(self.queues(name).intersection(queues)))
        probe = targets.Probe(name, self._worker, token, tuple(queues), held, lease_s)
        answer = await self._ledger.write(targets.PROBE, probe)
        if answer.hold is None:
            self.forget(name)
        elif answer.hold.held_s > 0:
            self.knows(answer.hold)
        if answer.claimed is not None:
            self._probing[answer.claimed.step.lease.step_id] = _Probing(name, token)
        return answer.claimed

    async def hear(self) -> bool:
        """Close what the probes under way have found to work. Whether there was any."""
        heard = [step for step, probing in self._probing.items() if probing.kept]
        for step in heard:
            await self._answered(self._probing.pop(step))
        return bool(heard)

    async def ended(self, ctx: Context) -> bool:
        """A step has ended. If it was a probe, and was completed, its target works: everything goes on. If it found out
        nothing, others may try."""
        probing = self._probing.pop(ctx.step.lease.step_id, None)
        if probing is None:
            return False
        if (ctx.completed and probing.ran) or probing.kept:
            await self._answered(probing)
            return True
        await self._ledger.write(targets.END_PROBE, targets.Answered(probing.name, probing.token))
        return False

    def dropped(self, step: Step) -> None:
        """It was a probe, and its document is gone: the next look finds that nobody probes."""
        self._probing.pop(step.lease.step_id, None)

    async def _answered(self, probing: _Probing) -> None:
        await self._ledger.write(targets.ANSWERED, targets.Answered(probing.name, probing.token))
        self.forget(probing.name)

    # calls that end by themselves

    @property
    def exhausted(self) -> bool:
        """Whether a target has failed here or elsewhere since we started, and often enough in all."""
        return any(
            (hold.failures >= targets.TRIES and hold.failures > self._before.get(hold.name, 0))
            or hold.held_s > targets.LONGEST_S
            for hold in self._held.values()
        )

    async def held_up(self) -> str | None:
        """What a target said, if all that is left to do waits for such ones."""
        if not self.exhausted:
            return None
        return await self._ledger.read(targets.held_up, sorted(self.queues()))
