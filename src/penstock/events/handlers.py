"""The handlers that ship. A workflow names them by their dotted path."""

import logging

import msgspec

from penstock.errors import Transient
from penstock.events.context import HandlerContext
from penstock.model.events import LifecycleEvent

WAIT_S = 30.0
"""Less than the usual timeout of a handler, so that there is time left for the work."""
logger = logging.getLogger("penstock.events")


async def log(event: LifecycleEvent, ctx: HandlerContext) -> None:
    """One line of JSON. A worker shows it on standard error."""
    logger.info("%s", msgspec.json.encode(event).decode())


async def vacuum(event: LifecycleEvent, ctx: HandlerContext) -> None:
    """Compact the index of the event's collection; meant for the end of a group. `wait_s` in its parameters: so long it
    waits for whoever writes there, and fails if that is not enough."""
    wait_s = ctx.parameters.get("wait_s", WAIT_S)
    report = await ctx.app.for_owner(event.owner).vacuum(event.collection, wait_s=wait_s)
    if report.busy:
        holder = report.busy[0]["worker"]
        raise Transient(
            f"the index of {event.collection!r} was not vacuumed: worker {holder} kept its lock for {wait_s:g} s",
            reason="index_busy",
        )
