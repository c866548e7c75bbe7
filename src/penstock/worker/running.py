"""The steps that a worker executes: their tasks, contexts, leases and locks."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from penstock.ledger.database.liveness import Liveness
from penstock.model.nouns import DocumentId, Lease, Owner, StepId
from penstock.runtime import shielded
from penstock.worker.context import Context
from penstock.worker.counters import DocumentInProgress, in_hand
from penstock.worker.execute import settle
from penstock.worker.heartbeat import Heartbeat
from penstock.worker.services import ROOM, WorkerServices

STOP_S = 1.0
"""How long running steps may look for the end of their batch before they are stopped in its middle."""


class Running:
    def __init__(self, services: WorkerServices, liveness: Liveness, has_news: Callable[[Context], None]) -> None:
        """`has_news` is called when something happened to a step that handlers may have to be told."""
        self.services = services
        self.stopping = False
        self.tasks: set[asyncio.Task[Any]] = set()
        self.contexts: dict[StepId, tuple[Context, asyncio.Task[Any]]] = {}
        self.wanted = asyncio.Event()
        """There is work to claim, or there may be."""
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
        """Refresh this lease from now on."""
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
        """What became of the step goes into the ledger even while its task is being cancelled."""
        await shielded(settle(self.services, ctx, error))

    def owners(self) -> set[Owner]:
        return {ctx.step.owner for ctx, _ in self.contexts.values()}

    def in_hand(self) -> list[DocumentInProgress]:
        """The documents that are being worked on, the longest first."""
        working = (ctx for ctx, _ in self.contexts.values() if not ctx.ended)
        return [in_hand(ctx) for ctx in working if ctx.has_checkpoint or ctx.waiting_on not in (None, ROOM)]

    def stop(self) -> None:
        """Running steps flush at the end of their batch and are released."""
        self.stopping = True
        for ctx, _ in self.contexts.values():
            ctx.stopping = True
        self.wake()

    async def drain(self) -> None:
        """Let running steps reach the end of their batch; stop those that take longer in the middle of it."""
        if self.tasks:
            await asyncio.wait(list(self.tasks), timeout=STOP_S)
        ending = {task for ctx, task in self.contexts.values() if ctx.finishing and not ctx.grouped}
        for task in self.tasks - ending:
            task.cancel()
        if self.tasks:
            await asyncio.wait(list(self.tasks))

    def _on_lost(self, leases: set[Lease]) -> None:
        """Cancelled, superseded or reaped: stop spending on it now."""
        for lease in leases:
            ctx, task = self.contexts.get(lease.step_id, (None, None))
            if ctx is None or task is None or ctx.step.lease != lease:
                continue
            if not ctx.lost and not ctx.finishing:
                ctx.lose("heartbeat")
                if not ctx.grouped:
                    task.cancel()

    def _on_hanging(self, steps: set[StepId]) -> None:
        """They work without progress for longer than their workflow allows: end them, so that they are tried again."""
        for step in steps:
            ctx, task = self.contexts.get(step, (None, None))
            if ctx is None or task is None or ctx.lost or ctx.finishing or not ctx.activity.overdue:
                continue
            if not ctx.grouped or not ctx.timed_out:
                # Steps of a group share a task, which then settles all of them: it must not be cancelled twice.
                task.cancel()
            ctx.timed_out = True
