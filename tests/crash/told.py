"""Handlers that the scenario `told` names."""

from penstock.errors import Permanent
from penstock.events.context import HandlerContext
from penstock.model.events import LifecycleEvent


async def hear(event: LifecycleEvent, ctx: HandlerContext) -> None:
    pass


async def refuse(event: LifecycleEvent, ctx: HandlerContext) -> None:
    raise Permanent("not this one", reason="refused")
