"""Counts what a worker did, and sends live events, once the ledger has recorded it."""

from penstock.ledger.engine.failures import StepFailure
from penstock.metrics.base import Metrics
from penstock.model.events import Event, EventKind
from penstock.model.nouns import Json
from penstock.model.reasons import ADVICE
from penstock.model.states import DocumentStatus, StepStatus
from penstock.runtime import Runtime
from penstock.worker.broadcast import Broadcast
from penstock.worker.context import Context
from penstock.worker.counters import Counters

CUSTOM = "custom"


class StepRecorder:
    def __init__(self, broadcast: Broadcast, runtime: Runtime, metrics: Metrics) -> None:
        self.counters = Counters(metrics=metrics)
        self._metrics = metrics
        self._broadcast = broadcast
        self._runtime = runtime

    def started(self, ctx: Context) -> None:
        if self._broadcast.listeners:
            if ctx.step.position == 0 and ctx.step.lease.epoch == 1:
                self._tell(EventKind.ITEM_START, ctx)
            self._tell(EventKind.STEP_START, ctx, StepStatus.RUNNING)

    def completed(self, ctx: Context, meta: Json, end: DocumentStatus | None = None) -> None:
        """Record a completed step. `end` is the status of the document if it ended with this step."""
        ctx.ended = ctx.completed = True
        self._measure("step_completed", ctx)
        self.counters.tallies.completed(ctx.step.owner, ctx.step.kind, self._runtime.clock() - ctx.began)
        self.counters.passes(ctx, ctx.position or meta.get("rows", 0))
        if end is not None:
            self.counters.ends(ctx, end, ctx.step.position + 1)
        if self._broadcast.listeners:
            self._tell(EventKind.STEP_END, ctx, StepStatus.COMPLETED, meta=meta)
            if end is not None:
                self._tell(EventKind.ITEM_END, ctx, end)

    def failed(self, ctx: Context, failure: StepFailure) -> None:
        ctx.ended = True
        final = failure.retry_in is None
        self._measure("step_failed" if final else "step_error", ctx)
        self.counters.tallies.failed(ctx.step.owner, ctx.step.kind)
        if final:
            # A custom step may give any reason, and each would be another series.
            reason = failure.reason if failure.reason in ADVICE else CUSTOM
            self._metrics.incr("failure", reason=reason)
            self.counters.ends(ctx, DocumentStatus.FAILED, ctx.step.position)
        if self._broadcast.listeners:
            meta = {"reason": failure.reason, "page": failure.page}
            status = StepStatus.FAILED if final else StepStatus.ERROR
            self._tell(EventKind.STEP_FAILED, ctx, status, failure.error, meta)
            if final:
                self._tell(EventKind.ITEM_FAILED, ctx, DocumentStatus.FAILED, failure.error, meta)

    def _measure(self, name: str, ctx: Context) -> None:
        kind = ctx.step.kind
        self._metrics.incr(name, kind=kind)
        self._metrics.observe("step_duration", self._runtime.clock() - ctx.began, kind=kind)

    def _tell(
        self,
        kind: EventKind,
        ctx: Context,
        status: StepStatus | DocumentStatus | None = None,
        error: str | None = None,
        meta: Json | None = None,
    ) -> None:
        step = ctx.step
        of_step = kind in (EventKind.STEP_START, EventKind.STEP_END, EventKind.STEP_FAILED)
        self._broadcast.publish(
            Event(
                kind=kind,
                at=self._runtime.now(),
                owner=step.owner,
                document_id=step.document_id,
                name=ctx.document.name,
                run_id=step.run_id,
                step=step.name if of_step or error else None,
                step_kind=step.kind if of_step or error else None,
                attempt=step.attempts,
                status=status,
                error=error,
                meta=meta or {},
            )
        )
