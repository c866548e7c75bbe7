"""What the workflow of test_many_workers.py names: a step that takes its time, and a handler that writes down what it
is told. Both run in workers that are killed at any instant."""

import os

from penstock.events.context import HandlerContext
from penstock.model.events import LifecycleEvent
from penstock.stages.base import StepContext, StepResult

PARTS = 5


async def parts(ctx: StepContext) -> StepResult:
    """A few parts, one after the other, from where it was."""
    for number in range(ctx.checkpoint.cursor.get("parts", 0), PARTS):
        await ctx.runtime.sleep(ctx.params["seconds"] / PARTS)
        _note(ctx.params["done"], f"{ctx.document.id} {number}")
        await ctx.checkpoint.append([{"of": ctx.document.name, "part": number}], {"parts": number + 1})
    return StepResult({"parts": PARTS})


async def hear(event: LifecycleEvent, ctx: HandlerContext) -> None:
    _note(ctx.parameters["told"], f"{event.kind} {event.id}")


def _note(path: str, line: str) -> None:
    """One write at the file's end: a kill leaves all of the line or nothing, and nobody's lines are mixed."""
    file = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
    try:
        os.write(file, f"{line}\n".encode())
    finally:
        os.close(file)
