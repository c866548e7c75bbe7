"""Steps of a user's own, named by their dotted path in the workflows of test_workflows.py."""

import asyncio
import os
import time
from pathlib import Path
from typing import Any

from penstock.errors import Permanent, Transient
from penstock.model.items import Chunk, Page
from penstock.stages.base import StepContext, StepResult

calls: list[str] = []
"""What ran, in order. The tests empty it."""


async def triage(ctx: StepContext) -> StepResult:
    head = (await ctx.source.read_range(0, 8)).decode()
    calls.append(f"triage {head.split()[0]}")
    return StepResult(choice=head.split()[0].lower())


async def by_name(ctx: StepContext) -> StepResult:
    return StepResult(choice=ctx.document.name.partition(".")[0])


async def backwards(ctx: StepContext) -> StepResult:
    data = await ctx.source.read_range(0, 10_000)
    calls.append("backwards")
    await ctx.checkpoint.append([Page(1, data.decode()[::-1])], {"pages": 1})
    return StepResult({"pages": 1})


async def count(ctx: StepContext) -> StepResult:
    """Counts chunks, keeping each count: one at a time, from where it was."""
    done: int = ctx.checkpoint.cursor.get("chunks", 0)
    async for chunks in ctx.inputs("chunk", done):
        for chunk in chunks:
            calls.append(f"count {chunk.ordinal}")
            done += 1
            await ctx.checkpoint.append([{"ordinal": chunk.ordinal, "long": len(chunk.text)}], {"chunks": done})
            if ctx.params.get("slow"):
                await asyncio.sleep(0.05)
    return StepResult({"counted": done})


async def summed(ctx: StepContext) -> StepResult:
    items: list[Any] = []
    async for part in ctx.inputs("count"):
        items += part
    return StepResult({"sum": sum(item["long"] for item in items), "of": len(items)})


async def flaky(ctx: StepContext) -> StepResult:
    calls.append("flaky")
    if calls.count("flaky") < 3:
        raise Transient("not yet")
    return StepResult()


async def wrong(ctx: StepContext) -> Any:
    return {"meta": 1}


async def nothing(ctx: StepContext) -> None:
    return None


async def hang(ctx: StepContext) -> None:
    """Never ends, as often as `params` say; then it does."""
    calls.append("hang")
    if calls.count("hang") <= ctx.params["times"]:
        await asyncio.sleep(600)


async def linger(ctx: StepContext) -> None:
    """Works, gets on or waits, for longer than it may work in one go."""
    calls.append("linger")
    for _ in range(6):
        if ctx.params["how"] == "waits":
            ctx.waiting("limit")
        elif ctx.params["how"] == "appends":
            await ctx.checkpoint.append([{"n": 1}], {"n": len(calls)})
        else:
            ctx.progress()
        await asyncio.sleep(0.3)
    ctx.waiting(None)


async def block(ctx: StepContext) -> StepResult:
    """Stands still with its whole worker, the first time, until somebody says go."""
    here = Path(ctx.params["folder"])
    if not (here / "blocked").exists():
        (here / "blocked").touch()
        while not (here / "go").exists():
            time.sleep(0.02)  # noqa: ASYNC251
        await ctx.checkpoint.append([{"n": 1}], {"n": 1}, keep=True)
        (here / "written").touch()
    return StepResult({"pid": os.getpid()})


async def press(ctx: StepContext) -> StepResult:
    """Nobody else may be in here at the same time: says so if somebody is."""
    here = Path(ctx.params["folder"]) / "inside"
    try:
        here.touch(exist_ok=False)
    except FileExistsError:
        raise Permanent("two are in here at once", reason="crowd") from None
    try:
        await asyncio.sleep(ctx.params.get("seconds", 0.03))
    finally:
        here.unlink()
    return StepResult({"pid": os.getpid()})


async def picky(ctx: StepContext) -> StepResult:
    """Fails until it is given what it likes."""
    calls.append("picky")
    if ctx.params.get("likes") != "it":
        raise Permanent("it does not like that", reason=ctx.params.get("reason", "picky"))
    return StepResult({"liked": True})


async def two_pages(ctx: StepContext) -> StepResult:
    """Reads a page, and the second one once a test has put "open" into `calls`."""
    for number in range(ctx.checkpoint.cursor.get("pages", 0) + 1, 3):
        if number == 2 and "open" not in calls:
            await ctx.checkpoint.flush()
            raise Permanent("the second page is stuck", reason="stuck", page=2)
        calls.append(f"page {number}")
        await ctx.checkpoint.append([Page(number, f"Page {number} tells of sluices.")], {"pages": number})
    return StepResult({"pages": 2})


async def wish(ctx: StepContext) -> None:
    """Asks for what perhaps nobody has made."""
    calls.append("wish")
    if ctx.params.get("first"):
        await asyncio.sleep(ctx.params["first"])
    async for _ in ctx.inputs(ctx.params["of"]):
        pass


async def cut(ctx: StepContext) -> None:
    """Many chunks, or none, and not a word about how many."""
    many = [Chunk(i, f"sluice {i}", 1, 1, 0, 1) for i in range(ctx.params["many"])]
    await ctx.checkpoint.append(many, {"done": True})


async def doze(ctx: StepContext) -> StepResult:
    """Takes five seconds, until a test has put "awake" into `calls`; says when it is stopped in the middle."""
    calls.append("doze")
    try:
        for _ in range(0 if "awake" in calls else 50):
            await asyncio.sleep(0.1)
            ctx.progress()
    except asyncio.CancelledError:
        calls.append("stopped")
        raise
    calls.append("slept")
    return StepResult()


async def two(ctx: StepContext) -> StepResult:
    """Two parts. The second of the suspect comes when somebody else is through."""
    for number in (1, 2):
        calls.append(f"{ctx.document.name} begins {number}")
        await asyncio.sleep(0.5)
        while (ctx.document.name, number) == ("suspect", 2) and "other ends 2" not in calls:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        calls.append(f"{ctx.document.name} ends {number}")
        await ctx.checkpoint.append([{"part": number}], {"parts": number}, keep=True)
    return StepResult()


async def boast(ctx: StepContext) -> StepResult:
    """Makes an artifact, and reports counts that are none of its business."""
    await ctx.checkpoint.append([{"n": 1}], {"n": 1})
    return StepResult({"pages": 700, "chunks": 3000})


async def wait_for_others(ctx: StepContext) -> StepResult:
    """Waits until three steps do, then works alone as long as there is room for one."""
    ctx.waiting("others")
    calls.append("waits")
    while calls.count("waits") < 3:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    ctx.waiting(None)
    async for _ in ctx.inputs("extract"):
        calls.append("works")
        await asyncio.sleep(0.05)
        calls.append("worked")
    return StepResult()


async def rewind(ctx: StepContext) -> None:
    """Ignores its cursor: starts from the beginning each time, flushes, and fails at the same place."""
    calls.append("rewind")
    for number in range(3):
        await ctx.checkpoint.append([{"n": number}], {"n": number + 1}, keep=True)
    raise RuntimeError("it always fails here")


async def cycle(ctx: StepContext) -> None:
    """Its cursor goes round in a circle of five, one place with each call."""
    calls.append("cycle")
    await ctx.checkpoint.append([{"n": 1}], {"n": calls.count("cycle") % 5}, keep=True)
    raise RuntimeError("it always fails here")


async def invent(ctx: StepContext) -> None:
    """Its cursor is another one with each call, and says nothing."""
    calls.append("invent")
    await ctx.checkpoint.append([{"n": 1}], {"n": calls.count("invent")}, keep=True)
    raise RuntimeError("it always fails here")


async def stumble(ctx: StepContext) -> StepResult:
    """Fails after each of a hundred parts, and goes on from its cursor."""
    done = ctx.checkpoint.cursor.get("parts", 0)
    calls.append("stumble")
    if done < 100:
        await ctx.checkpoint.append([{"part": done}], {"parts": done + 1}, keep=True)
        raise RuntimeError("interrupted")
    return StepResult({"parts": done})
