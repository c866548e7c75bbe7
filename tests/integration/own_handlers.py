"""Handlers of a user's own, named by their dotted path in the workflows of test_lifecycle.py."""

import asyncio
import os
import signal
from pathlib import Path

from penstock.errors import Permanent
from penstock.events.context import HandlerContext
from penstock.model.events import LifecycleEvent

heard: list[LifecycleEvent] = []
"""What was told, in order. The tests empty it."""
contexts: list[HandlerContext] = []
broken = False


async def hear(event: LifecycleEvent, ctx: HandlerContext) -> None:
    heard.append(event)
    contexts.append(ctx)


async def stumble(event: LifecycleEvent, ctx: HandlerContext) -> None:
    heard.append(event)
    if broken:
        raise ValueError("the cellar is flooded")


async def refuse(event: LifecycleEvent, ctx: HandlerContext) -> None:
    raise Permanent("not today", reason="rate_limited")


async def hang(event: LifecycleEvent, ctx: HandlerContext) -> None:
    heard.append(event)
    await asyncio.sleep(60)


async def dawdle(event: LifecycleEvent, ctx: HandlerContext) -> None:
    await asyncio.sleep(ctx.parameters["seconds"])
    heard.append(event)


async def nonsense(event: LifecycleEvent, ctx: HandlerContext) -> object:
    heard.append(event)
    return {"never": "looked at"}


async def give_up(event: LifecycleEvent, ctx: HandlerContext) -> None:
    raise asyncio.CancelledError


async def cling(event: LifecycleEvent, ctx: HandlerContext) -> None:
    """Does not even end when it is cancelled."""
    (Path(ctx.parameters["folder"]) / "told").touch()
    while True:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            continue


async def write_down(event: LifecycleEvent, ctx: HandlerContext) -> None:
    """In a process of its own: a line for each telling. Where there is a file `deadly`, it kills its worker."""
    folder = Path(ctx.parameters["folder"])
    with (folder / "told").open("a") as file:
        file.write(f"{event.id} {event.kind} {ctx.attempt}\n")
    if (folder / "deadly").exists():
        os.kill(os.getpid(), signal.SIGKILL)
    if (folder / "slow").exists():
        await asyncio.sleep(30)
