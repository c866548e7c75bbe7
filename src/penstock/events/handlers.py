"""The handlers that ship. A workflow names them by their dotted path."""

import logging

import msgspec

from penstock.events.context import HandlerContext
from penstock.model.events import LifecycleEvent

logger = logging.getLogger("penstock.events")


async def log(event: LifecycleEvent, ctx: HandlerContext) -> None:
    """One line of JSON. A worker shows it on standard error."""
    logger.info("%s", msgspec.json.encode(event).decode())


async def vacuum(event: LifecycleEvent, ctx: HandlerContext) -> None:
    """Compact the index of the event's collection; meant for the end of a group."""
    await ctx.app.vacuum(collection=event.collection, owner=event.owner)
