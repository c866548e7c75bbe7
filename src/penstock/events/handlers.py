"""Built-in handlers. A workflow names them by their dotted path."""

import logging

import msgspec

from penstock.errors import Transient
from penstock.events.context import HandlerContext
from penstock.model.events import LifecycleEvent

WAIT_S = 30.0
"""Shorter than the default timeout of a handler, so that time is left for the vacuum."""
logger = logging.getLogger("penstock.events")


async def log(event: LifecycleEvent, ctx: HandlerContext) -> None:
    """Log the event as one line of JSON. A worker prints it to standard error."""
    logger.info("%s", msgspec.json.encode(event).decode())


async def vacuum(event: LifecycleEvent, ctx: HandlerContext) -> None:
    """Vacuum the index of the event's collection; intended for the end of a group. It waits `wait_s` seconds (a
    parameter) for the lock of the index, and fails if it does not get it."""
    wait_s = ctx.parameters.get("wait_s", WAIT_S)
    report = await ctx.app.for_owner(event.owner).vacuum(event.collection, wait_s=wait_s)
    if report.busy:
        holder = report.busy[0].worker
        raise Transient(
            f"the index of {event.collection!r} was not vacuumed: worker {holder} held its lock for {wait_s:g} s",
            reason="index_busy",
        )
