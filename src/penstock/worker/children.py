"""Submits the documents that a step finds inside its document."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from penstock.errors import LeaseLost, Permanent
from penstock.extractors.base import Child
from penstock.ledger.database.store import Ledger
from penstock.ledger.engine import children, deletions
from penstock.ledger.engine.children import Origin, Parent
from penstock.model.nouns import Document, Step, Workflow
from penstock.stages.base import Ports

SWEPT = 200
"""How many children are deleted in one transaction."""


@dataclass(frozen=True)
class FoundChildren:
    """Children to submit, with what they get from their parent."""

    document: Document
    workflow: Workflow
    origin: Origin
    parent: Parent
    password: str | None
    children: Sequence[Child]


SubmitChildren = Callable[[FoundChildren], Awaitable[list[str]]]
"""Submits children durably, and returns why some were refused. Raises LeaseLost if the step lost its lease."""


class Source(Protocol):
    async def password(self) -> str | None: ...


class Context(Protocol):
    """What this module needs of the context of a step."""

    step: Step
    ports: Ports

    @property
    def document(self) -> Document: ...

    @property
    def source(self) -> Source: ...

    def mark_lost(self, phase: str) -> None: ...

    def progress(self) -> None: ...


class StepChildren:
    """The children of the document of one step."""

    def __init__(self, ctx: Context, workflow: Workflow, ledger: Ledger, submit: SubmitChildren) -> None:
        self._ctx = ctx
        self._workflow = workflow
        self._ledger = ledger
        self._submit = submit

    async def submit(self, found: Sequence[Child]) -> list[str]:
        """Submit children. When this returns, they survive a power failure. Returns why some were refused."""
        ctx = self._ctx
        origin, parent = await self._look()
        self._check_depth(origin.depth + 1)
        # Before anything is stored. The submit checks it again, because other steps may submit children meanwhile.
        children.check_limits(parent, origin.members, origin.bytes, len(found))
        password = await ctx.source.password()
        order = FoundChildren(ctx.document, self._workflow, origin, parent, password, found)
        try:
            return await self._submit(order)
        except LeaseLost:
            ctx.mark_lost("checkpoint")
            raise

    async def sweep(self) -> int:
        """Delete the children that the document no longer contains, and return their number."""
        _, parent = await self._look()
        total = 0
        while True:
            swept = await self._ledger.write(deletions.SWEEP, deletions.Sweep(self._ctx.step.owner, parent, SWEPT))
            if swept is None:
                self._ctx.mark_lost("checkpoint")
                raise LeaseLost(f"step {self._ctx.step.lease.step_id} now belongs to another worker")
            total += swept
            if swept < SWEPT:
                return total
            self._ctx.progress()

    async def _look(self) -> tuple[Origin, Parent]:
        step = self._ctx.step
        origin = await self._ledger.read(partial(children.origin, step.owner), step.run_id)
        if origin is None:
            raise LeaseLost(f"the run of {self._ctx.document.name!r} no longer exists")
        limits = self._ctx.ports.limits
        return origin, Parent(
            step.document_id,
            step.generation_id,
            step.lease,
            origin.root_id,
            origin.depth,
            origin.group_id,
            limits.members,
            limits.members_megabytes * children.MEGABYTE,
        )

    def _check_depth(self, depth: int) -> None:
        limit = self._ctx.ports.limits.nesting
        if depth > limit:
            raise Permanent(
                f"it contains documents at depth {depth:,}, and the limit is {limit:,} (limits.nesting). If it is "
                f"genuine, raise the limit, then `penstock retry {self._ctx.document.id}`",
                reason="children_too_deep",
            )
