"""What a worker knows about targets that do not work: which steps wait for them, which queues it does not claim from,
and when it may probe. While no target is away, the only cost is one read with each round of periodic work."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass

from penstock import user_code
from penstock.blobs.base import TARGET as BLOBS
from penstock.errors import Away, OutOfQuota, RateLimited, StorageError, TableFailed, Unauthorized
from penstock.ledger.database.store import Ledger
from penstock.ledger.engine import refusals, targets
from penstock.ledger.engine.claims import Claimed
from penstock.ledger.engine.targets import Hold, State
from penstock.metrics.base import Metrics
from penstock.model.nouns import Owner, Step, StepDefinition, StepId, Token, WorkerId
from penstock.runtime import Runtime
from penstock.worker.context import Context
from penstock.worker.tables import Notices

TABLE = "table:"
"""The prefix for an index table without a lock whose server names no target."""
RESERVED = (*targets.LOCKED, BLOBS, TABLE)
STAGE = "stage:"
"""The prefix for a name that would otherwise look like a table with a lock, which is never probed by a step."""
LONGEST_S = 86_400.0
"""A rate limit that lasts longer counts as an exhausted quota."""

CHECK_S, LOOK_S = 3.0, 0.05
"""How long the small call after a failed probe may take, and the time between two looks at it."""

Declared = Callable[[StepDefinition], str | None]
"""Returns the target that the stage of a step declares."""
Check = Callable[[StepDefinition], Awaitable[object] | None]
"""Starts the small call by which the stage of a step tests its target; None: there is none."""


class TargetHeld(Away):
    """Raised before a stage would use a target that is held. The target was not called."""


@dataclass
class _Probing:
    name: str
    token: Token
    ran: bool = False
    """Its stage has begun. A step whose artifact exists already does not call the target."""
    kept: bool = False
    """The step has stored something that the target returned."""


class Targets:
    def __init__(
        self,
        ledger: Ledger,
        runtime: Runtime,
        worker: WorkerId,
        notices: Notices,
        metrics: Metrics,
        declared: Declared,
        check: Check,
    ) -> None:
        self._ledger = ledger
        self._runtime = runtime
        self._worker = worker
        self._notices = notices
        self._metrics = metrics
        self._declared = declared
        self._check = check
        self.changed = asyncio.Event()
        """Set when there may be a target to probe."""
        self._held: dict[str, Hold] = {}
        self._due: dict[str, float] = {}
        """When each held target may be tried again, by the clock of this process."""
        self._before: dict[str, int] = {}
        """How many failures each target had when this worker started."""
        self._met: dict[tuple[Owner | None, str], str] = {}
        """By owner and method, or by kind: the target that such steps last waited for."""
        self._queues: dict[str, set[tuple[str, str | None]]] = {}
        """For each queue, the method or kind and the declared target of every step in any workflow. The owners of these
        steps are not known, so a target that only one owner's function needs never holds a queue."""
        self._probing: dict[StepId, _Probing] = {}

    @property
    def anything(self) -> bool:
        return bool(self._held or self._probing)

    def learn(self, definition: StepDefinition) -> None:
        """Record that a workflow has such a step."""
        self._queues.setdefault(definition.queue, set()).add(
            (definition.method or definition.kind, self._declared(definition))
        )

    async def start(self) -> None:
        """Make all held targets due, because the user who starts a worker may have repaired one, or wants to know what
        fails."""
        holds = await self._ledger.write(targets.TRY_ALL, None)
        self._before = {hold.name: hold.failures for hold in holds}
        self._record_all(holds)

    async def refresh(self) -> bool:
        """Read the held targets from the ledger. Return whether steps that waited may continue."""
        before = set(self._held)
        self._record_all(await self._ledger.read(targets.all_held))
        over = before - set(self._held)
        for name in over:
            self._before.pop(name, None)
            self._notices.works(name)
        return bool(over)

    def _record_all(self, holds: Sequence[Hold]) -> None:
        self._held, self._due = {}, {}
        for hold in holds:
            self.record(hold)

    def record(self, hold: Hold) -> None:
        self._held[hold.name] = hold
        self._due[hold.name] = self._runtime.clock() + max(0.0, hold.held_s)
        self.changed.set()

    def forget(self, name: str) -> None:
        """Record that the target works."""
        if self._held.pop(name, None) is not None:
            self._due.pop(name, None)
            self._before.pop(name, None)
            self._notices.works(name)

    # which steps wait

    def holds(self, definition: StepDefinition, owner: Owner) -> str | None:
        """Return the held target that such a step of this owner would have to wait for, or None."""
        if not self._held:
            return None
        return self._needs(_met_by(definition, owner), self._declared(definition), self._held)

    def _needs(self, met_by: tuple[Owner | None, str], declared: str | None, held: Iterable[str]) -> str | None:
        names = (declared, self._met.get(met_by))
        return next((name for name in held if name in names or name.startswith(BLOBS)), None)

    def gate(self, ctx: Context) -> None:
        """Called right before a stage runs. Raises `TargetHeld` if a target that the stage needs is held."""
        if not self.anything:
            return
        probing = self._probing.get(ctx.step.lease.step_id)
        if probing is not None:
            probing.ran = True
            if self._declared(ctx.definition) is not None:
                self._watch_checkpoint(ctx, probing)
            return
        name = self.holds(ctx.definition, ctx.step.owner)
        if name is not None:
            raise TargetHeld(f"{name} is away", target=name)

    def _watch_checkpoint(self, ctx: Context, probing: _Probing) -> None:
        """Note the next checkpoint of a probe. A stage with a declared target has stored an answer of the target then,
        and other steps need not wait for its end."""
        before = ctx.on_checkpoint

        def kept() -> None:
            before()
            ctx.on_checkpoint = before
            probing.kept = True
            self.changed.set()

        ctx.on_checkpoint = kept

    def open(self, queues: Iterable[str]) -> tuple[str, ...]:
        """Return the queues that have steps which need not wait for a target."""
        if not self._held:
            return tuple(queues)
        held = self.queues()
        return tuple(queue for queue in queues if queue not in held)

    def queues(self, name: str | None = None) -> set[str]:
        """Return the queues in which every step waits for a target: for `name`, or for any."""
        held = [held for held in self._held if name in (None, held)]
        if not held:
            return set()
        return {
            queue
            for queue, steps in self._queues.items()
            if all(self._needs((None, works_by), declared, held) is not None for works_by, declared in steps)
        }

    # what happens to a step

    @staticmethod
    def at_fault(ctx: Context, error: BaseException, ours: bool) -> Away | None:
        """Return the error if a target caused it, else None. Errors of users' steps count too. The exceptions: a table
        with a lock is paused by its lock, and a failure of the ledger or the blob store stops the worker."""
        if not isinstance(error, Away) or isinstance(error, StorageError):
            return None
        if isinstance(error, TableFailed) and (not ours or ctx.step.lease.resource_key is not None):
            return None
        return error

    def is_quota(self, ctx: Context, error: Away, ours: bool) -> bool:
        """Whether a rate limit lasts so long that it counts as an exhausted quota."""
        if not isinstance(error, RateLimited):
            return False
        asked = user_code.retry_after(error, 2 * LONGEST_S)
        hold = self._held.get(self._name(ctx, error, ours))
        lasting = hold is not None and hold.state is State.LIMITED and hold.age_s > LONGEST_S
        if isinstance(error, OutOfQuota):
            # Somebody may buy more at any time.
            return lasting
        return lasting or (asked is not None and asked > LONGEST_S)

    def _name(self, ctx: Context, error: Away, ours: bool) -> str:
        """Return the name of the target. A target that a user's step names belongs to the owner of the step (I10)."""
        name = user_code.named(error, "target")
        if name is not None and isinstance(error, TargetHeld):
            return name
        if name is None and isinstance(error, TableFailed):
            return f"{TABLE}{ctx.step.owner}/{ctx.document.collection}/{ctx.generation.index_version}"
        name = name or self._declared(ctx.definition) or f"{ctx.step.kind}:{ctx.definition.method or ctx.step.name}"
        if ctx.definition.method is not None and not (ours and self._is_ours(name)):
            return targets.own(ctx.step.owner) + name
        return STAGE + name if name.startswith(targets.LOCKED) else name

    def _is_ours(self, name: str) -> bool:
        return name.startswith(RESERVED) or any(name == named for steps in self._queues.values() for _, named in steps)

    @staticmethod
    def is_refused(ctx: Context, error: Away) -> bool:
        """Whether a target has refused this step so often, while it answered other calls, that the step must fail. A
        refusal is counted when the other call has succeeded. So a failure during an outage never counts."""
        if isinstance(error, TargetHeld | RateLimited | Unauthorized) or ctx.made_progress:
            return False
        return ctx.step.refused >= refusals.REFUSALS + ctx.definition.retries

    async def wait(self, ctx: Context, error: Away, ours: bool) -> bool:
        """Release the step with its attempt given back, until its target works. Return False if the lease is lost."""
        name = self._name(ctx, error, ours)
        probing = self._probing.get(ctx.step.lease.step_id)
        if probing is not None and name.startswith(targets.OWN) and probing.name.startswith(targets.OWN):
            # A step that names a new target at each error would otherwise never reach the limit of failures.
            name = probing.name
        token = probing.token if probing is not None else None
        failure = None if isinstance(error, TargetHeld) else self._failure(ctx, error, name, token)
        if failure is not None and name not in self._held:
            # From now on no step of this worker calls it, even before the ledger has recorded it.
            self.record(Hold(name, failure.state, failure.error, 1, targets.FIRST_S, 0.0))
        if failure is not None and await self._works_for_others(ctx, failure, name):
            self._probing.pop(ctx.step.lease.step_id, None)
            refusal = refusals.Refusal(ctx.step, name, failure.error, ctx.made_progress)
            took = await self._ledger.write(refusals.REFUSE, refusal)
            self.forget(name)
            return took
        wait = targets.Wait(ctx.step, name, failure, ctx.made_progress)
        answer = await self._ledger.write(targets.HOLD, wait)
        if failure is not None and probing is not None and probing.name == name:
            self._probing.pop(ctx.step.lease.step_id, None)
        if ctx.definition.method is not None or (isinstance(error, TableFailed) and not name.startswith(TABLE)):
            self._met[_met_by(ctx.definition, ctx.step.owner)] = name
        if answer.hold is None:
            self.forget(name)
            return answer.took
        self.record(answer.hold)
        if failure is not None:
            setting = f"Set {failure.setting}. " if failure.setting else ""
            self._notices.fails(name, error, f"{setting}Its documents wait")
            self._metrics.incr("target_failed", state=failure.state)
        if answer.took:
            self._metrics.incr("step_held", kind=ctx.step.kind)
        self.changed.set()
        return answer.took

    async def _works_for_others(self, ctx: Context, failure: targets.Failure, name: str) -> bool:
        """Whether the target of a probe that failed answers a small call. Otherwise a document that is the cause could
        not be told from an outage if no other step waits."""
        probing = self._probing.get(ctx.step.lease.step_id)
        if probing is None or probing.name != name or failure.state is not State.AWAY:
            return False
        call = self._check(ctx.definition) if self._declared(ctx.definition) == name else None
        if call is None:
            return False
        task = asyncio.ensure_future(call)
        end = self._runtime.clock() + CHECK_S
        while not task.done() and not ctx.told_to_stop and self._runtime.clock() < end:
            await asyncio.wait({task}, timeout=LOOK_S)
        if not task.done():
            task.cancel()
        return not isinstance((await asyncio.gather(task, return_exceptions=True))[0], BaseException)

    def _failure(self, ctx: Context, error: Away, name: str, token: Token | None) -> targets.Failure:
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
            ctx.step.owner if name.startswith(targets.OWN) else None,
            token,
        )

    # probes

    @property
    def due_in(self) -> float | None:
        """Seconds until the next target may be tried; None if there is none."""
        return min(self._due.values()) - self._runtime.clock() if self._due else None

    def take_due(self) -> list[str]:
        """Return the targets that may be tried now. Each is returned once, until there is new information about it."""
        now = self._runtime.clock()
        over = [name for name, at in self._due.items() if at <= now]
        for name in over:
            del self._due[name]
        return over

    async def probe(self, name: str, queues: Sequence[str], lease_s: float) -> Claimed | None:
        """Claim a step to test the target with. Return None if another worker does that, or no step needs the
        target."""
        token = Token(self._runtime.token())
        held = tuple(sorted(self.queues(name).intersection(queues)))
        probe = targets.Probe(name, self._worker, token, tuple(queues), held, lease_s)
        answer = await self._ledger.write(targets.PROBE, probe)
        if answer.hold is None:
            self.forget(name)
        elif answer.hold.held_s > 0:
            self.record(answer.hold)
        if answer.claimed is not None:
            self._probing[answer.claimed.step.lease.step_id] = _Probing(name, token)
        return answer.claimed

    async def close_answered(self) -> bool:
        """Close the breakers of targets that running probes have found to work. Return whether there was any."""
        answered = [step for step, probing in self._probing.items() if probing.kept]
        for step in answered:
            await self._answered(self._probing.pop(step))
        return bool(answered)

    async def ended(self, ctx: Context) -> bool:
        """Called when a step has ended. If it was a probe that completed, its target works; return True. If it gave no
        result, other workers may probe."""
        probing = self._probing.pop(ctx.step.lease.step_id, None)
        if probing is None:
            return False
        if (ctx.completed and probing.ran) or probing.kept:
            await self._answered(probing)
            return True
        await self._ledger.write(targets.END_PROBE, refusals.Answered(probing.name, probing.token))
        return False

    def dropped(self, step: Step) -> None:
        """Forget a probe whose document was deleted. The next probe finds that the target is not being probed."""
        self._probing.pop(step.lease.step_id, None)

    async def _answered(self, probing: _Probing) -> None:
        await self._ledger.write(refusals.ANSWERED, refusals.Answered(probing.name, probing.token))
        self.forget(probing.name)

    # calls that end by themselves

    @property
    def exhausted(self) -> bool:
        """Whether a target has failed since this worker started, here or elsewhere, and has failed TRIES times in all;
        or is held for very long."""
        return any(
            (hold.failures >= targets.TRIES and hold.failures > self._before.get(hold.name, 0))
            or hold.held_s > targets.LONGEST_S
            for hold in self._held.values()
        )

    async def blocking_error(self) -> str | None:
        """Return the error of a target if all remaining work waits for held targets, else None."""
        if not self.exhausted:
            return None
        return await self._ledger.read(targets.held_up, sorted(self.queues()))


def _met_by(definition: StepDefinition, owner: Owner) -> tuple[Owner | None, str]:
    return (None, definition.kind) if definition.method is None else (owner, definition.method)
