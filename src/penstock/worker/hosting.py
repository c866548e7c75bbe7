"""What a worker provides for the groups of each grouped kind."""

from collections.abc import Sequence
from typing import Any

from penstock.stages import base
from penstock.worker.context import Context
from penstock.worker.heartbeat import Heartbeat
from penstock.worker.services import WorkerServices

Member = base.Member[Context]


class GroupHost:
    """The host of a grouped kind that needs nothing from the ledger but its leases. Other hosts override methods."""

    def __init__(self, services: WorkerServices) -> None:
        self._services = services

    async def open(self, contexts: Sequence[Context]) -> Any:
        """Return the target of a group. An error here concerns all of its steps."""
        return None

    async def announce(self, contexts: Sequence[Context]) -> list[Member]:
        """Record in the ledger that the steps begin to write. Return the steps without those whose lease is lost."""
        return [Member(ctx, ctx.step.lease.epoch > 1) for ctx in contexts]

    async def finish(self, contexts: Sequence[Context], target: Any) -> None:
        """Called when everything that can be written was written."""

    async def idle(self, heartbeat: Heartbeat) -> None:
        """Called when the worker had nothing to do for a while, and at its end."""
