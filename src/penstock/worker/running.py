"""The steps that a worker executes: their tasks, contexts, leases and locks."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from penstock.ledger.database.liveness import Liveness
from penstock.model.nouns import DocumentId, Lease, Owner, StepId
from penstock.runtime import shielded
from penstock.worker.context import Context
from penstock.worker.counters import DocumentInProgress, document_in_progress
from penstock.worker.execute import settle
from penstock.worker.heartbeat import Heartbeat
from penstock.worker.services import SLOT, WorkerServices

STOP_S = 1.0
"""How long running steps may continue to the end of their batch before they are cancelled."""


class Running:
    def __init__(self, services: WorkerServices, liveness: Liveness, has_news: Callable[[Context], None]) -> None:
        """`has_news` is called after a change of a step that may concern handlers."""
        self.services = services
        self.stopping = False
        self.tasks: set[asyncio.Task[Any]] = set()
        self.contexts: dict[StepId, tuple[Context, asyncio.Task[Any]]] = {}
        self.wanted = asyncio.Event()
        """There may be work to claim."""
        self.may_find_work = False
        """A claim is under way, or follows at once because the last one found some."""
        self.steps_done = 0
        self.touched: dict[Owner, set[DocumentId]] = {}
        self.heartbeat = Heartbeat(
            services.ledger, liveness, services.worker, services.lease_s, self._on_lost, self._on_hanging, services.fail
        )
        self._has_news = has_news

    def wake(self) -> None:
        self.wanted.set()

    def start(self, work: Coroutine[Any, Any, object]) -> "asyncio.Task[Any]":
        task = asyncio.create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self.ended)
        return task

    def ended(self, task: "asyncio.Task[Any]") -> None:
        self.tasks.discard(task)
        self.wake()
        if not task.cancelled() and (error := task.exception()) is not None:
            self.services.fail(error)

    def hold(self, lease: Lease) -> None:
        """Extend this lease with each heartbeat from now on."""
        self.heartbeat.leases[lease.step_id] = lease

    def enter(self, ctx: Context) -> None:
        task = asyncio.current_task()
        assert task is not None
        ctx.stopping = self.stopping
        self.touched.setdefault(ctx.step.owner, set()).add(ctx.step.document_id)
        self.hold(ctx.step.lease)
        self.heartbeat.activities[ctx.step.lease.step_id] = ctx.activity
        ctx.task = task
        self.contexts[ctx.step.lease.step_id] = (ctx, task)
        self.services.record.started(ctx)
        self._has_news(ctx)

    def leave(self, ctx: Context) -> None:
        self._has_news(ctx)
        ctx.count()
        self.forget(ctx.step.lease.step_id)

    def forget(self, step: StepId) -> None:
        self.heartbeat.leases.pop(step, None)
        self.heartbeat.activities.pop(step, None)
        self.contexts.pop(step, None)

    async def settle(self, ctx: Context, error: BaseException) -> None:
        """Write the end of the attempt to the ledger, even while the task is being cancelled."""
        await shielded(settle(self.services, ctx, error))

    def owners(self) -> set[Owner]:
        return {ctx.step.owner for ctx, _ in self.contexts.values()}

    def documents_in_progress(self) -> list[DocumentInProgress]:
        """Return the documents that are being worked on, in the order in which their steps began."""
        working = (ctx for ctx, _ in self.contexts.values() if not ctx.ended)
        return [
            document_in_progress(ctx) for ctx in working if ctx.has_checkpoint or ctx.waiting_on not in (None, SLOT)
        ]

    def stop(self) -> None:
        """Running steps flush at the end of their batch and are released."""
        self.stopping = True
        for ctx, _ in self.contexts.values():
            ctx.stopping = True
        self.wake()

    async def drain(self) -> None:
        """Wait until running steps reach the end of their batch. Cancel those that take longer than STOP_S."""
        if self.tasks:
            await asyncio.wait(list(self.tasks), timeout=STOP_S)
        ending = {task for ctx, task in self.contexts.values() if ctx.finishing and not ctx.grouped}
        for task in self.tasks - ending:
            task.cancel()
        if self.tasks:
            await asyncio.wait(list(self.tasks))

    def _on_lost(self, leases: set[Lease]) -> None:
        """Stop steps whose lease is lost because they were cancelled, superseded or reaped."""
        for lease in leases:
            ctx, task = self.contexts.get(lease.step_id, (None, None))
            if ctx is None or task is None or ctx.step.lease != lease:
                continue
            if not ctx.lost and not ctx.finishing:
                ctx.mark_lost("heartbeat")
                if not ctx.grouped:
                    task.cancel()

    def _on_hanging(self, steps: set[StepId]) -> None:
        """Cancel steps that made no progress for longer than their timeout, so that they are tried again."""
        for step in steps:
            ctx, task = self.contexts.get(step, (None, None))
            if ctx is None or task is None or ctx.lost or ctx.finishing or not ctx.activity.overdue:
                continue
            if not ctx.grouped or not ctx.timed_out:
                # The steps of a group share a task, which then settles all of them. It must not be cancelled twice.
                task.cancel()
            ctx.timed_out = True
