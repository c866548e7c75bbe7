"""Whatever a user's code may raise or answer: each by a name, for steps and handlers alike."""

import asyncio
import errno
import sys
from collections.abc import Callable
from typing import Any, NoReturn

from penstock.errors import (
    BudgetSpent,
    Cancelled,
    ConfigError,
    LeaseLost,
    LedgerAway,
    LockHeld,
    Permanent,
    RateLimited,
    StorageError,
    TornSegment,
    Transient,
)
from penstock.events.context import HandlerContext
from penstock.model.events import LifecycleEvent
from penstock.model.items import Chunk, Page
from penstock.model.states import DocumentStatus
from penstock.stages.base import StepContext, StepResult


class PanicException(BaseException):
    """As pyo3 raises it for a panic in Rust."""


class Mute(Exception):
    def __str__(self) -> str:
        raise ValueError("no words")


class Exiting(Exception):
    def __str__(self) -> str:
        sys.exit(4)


class Liar(Exception):
    def __str__(self) -> Any:
        return 5


class Unborn(Permanent):
    """Does not call our `__init__`."""

    def __init__(self) -> None:
        pass


class Text(str):
    def __str__(self) -> str:
        return Text("odd")


def _raise(error: BaseException) -> Callable[[], NoReturn]:
    def throw() -> NoReturn:
        raise error

    return throw


def _deep(depth: int = 0) -> int:
    return _deep(depth + 1) + 1


def _chain() -> NoReturn:
    error: Exception = ValueError("the first")
    for number in range(2000):
        following = ValueError(f"number {number}")
        following.__cause__ = error
        error = following
    raise error


def _cancel_me() -> None:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()


def _noted() -> NoReturn:
    error = ValueError("noted")
    error.__notes__ = 7  # type: ignore[assignment]
    raise error


def _rubbish(name: str, value: Any) -> Callable[[], NoReturn]:
    def throw() -> NoReturn:
        error = RateLimited("rubbish") if name == "retry_after" else Permanent("rubbish", reason="r")
        setattr(error, name, value)
        raise error

    return throw


RAISED: dict[str, Callable[[], Any]] = {
    "panic": _raise(PanicException("Invalid byte sequence")),
    "exit": lambda: sys.exit(3),
    "exit_quietly": lambda: sys.exit(),
    "interrupt": _raise(KeyboardInterrupt()),
    "generator_exit": _raise(GeneratorExit()),
    "cancelled": _raise(asyncio.CancelledError()),
    "cancels_itself": _cancel_me,
    "base": _raise(BaseException("base")),
    "group": _raise(ExceptionGroup("several", [ValueError("one"), Permanent("two", reason="two")])),
    "base_group": _raise(BaseExceptionGroup("several", [SystemExit(2), asyncio.CancelledError()])),
    "mute": _raise(Mute()),
    "mute_exit": _raise(Exiting()),
    "liar": _raise(Liar()),
    "unborn": _raise(Unborn()),
    "noted": _noted,
    "long": _raise(ValueError("x" * 5_000_000)),
    "long_argument": _raise(ValueError(["y" * 500] * 9_000)),
    "nul": _raise(ValueError("a\0b")),
    "nul_on_purpose": _raise(Permanent("a\0b", reason="c\0d")),
    "surrogate": _raise(ValueError("caf\udce9")),
    "surrogate_on_purpose": _raise(Permanent("caf\udce9", reason="caf\udce9")),
    "escapes": _raise(ValueError("\x1b[31mred\r\n\u202e{}%s\"'\\;--")),
    "chain": _chain,
    "recursion": _deep,
    "memory": _raise(MemoryError()),
    "stop_iteration": _raise(StopIteration(4)),
    "stop_async_iteration": _raise(StopAsyncIteration()),
    "assertion": _raise(AssertionError()),
    "system": _raise(OSError(errno.EIO, "Input/output error", "/nowhere")),
    "full": _raise(OSError(errno.ENOSPC, "No space left on device")),
    "timeout": _raise(TimeoutError()),
    "broken_pipe": _raise(BrokenPipeError()),
    "unicode": lambda: b"\xff".decode(),
    "budget": _raise(BudgetSpent("I am tired")),
    "lease": _raise(LeaseLost("not mine")),
    "cancelled_run": _raise(Cancelled("not wanted")),
    "lock": _raise(LockHeld("busy")),
    "storage": _raise(StorageError("my own disk")),
    "away": _raise(LedgerAway("my own server")),
    "torn": _raise(TornSegment("torn", artifact_id=1, ordinal=0)),
    "torn_rubbish": _raise(TornSegment("torn", artifact_id="one", ordinal=None)),  # type: ignore[arg-type]
    "config": _raise(ConfigError("unset")),
    "transient": _raise(Transient("not yet")),
    "reason_none": _rubbish("reason", None),
    "reason_long": _rubbish("reason", "r" * 100_000),
    "reason_odd": _rubbish("reason", Text("odd")),
    "page_text": _rubbish("page", "three"),
    "page_huge": _rubbish("page", 10**40),
    "page_negative": _rubbish("page", -1),
    "wait_text": _rubbish("retry_after", "soon"),
    "wait_nan": _rubbish("retry_after", float("nan")),
    "wait_negative": _rubbish("retry_after", -9.0),
}
"""What a step or a handler raises. Asking for a day of patience is no poison."""
WAITING = {"wait_text", "wait_nan", "wait_negative"}
"""Those for which a step waits, and fails never: they speak of a target (test_targets.py)."""

ANSWERED: dict[str, Callable[[], Any]] = {
    "dictionary": lambda: {"meta": 1},
    "number": lambda: 5,
    "class": lambda: StepResult,
    "meta_list": lambda: StepResult([1]),  # type: ignore[arg-type]
    "meta_none": lambda: StepResult(None),  # type: ignore[arg-type]
    "meta_object": lambda: StepResult({"a": object()}),
    "meta_keys": lambda: StepResult({object(): 1}),  # type: ignore[dict-item]
    "meta_large": lambda: StepResult({"a": "x" * 3_000_000}),
    "meta_endless": lambda: StepResult(_endless()),
    "meta_surrogate": lambda: StepResult({"a": "\ud800"}),
    "choice_number": lambda: StepResult(choice=5),  # type: ignore[arg-type]
    "choice_list": lambda: StepResult(choice=["a"]),  # type: ignore[arg-type]
    "media_type": lambda: StepResult(media_type=b"x"),  # type: ignore[arg-type]
    "media_type_nul": lambda: StepResult(media_type="application/\0evil"),
    "media_type_surrogate": lambda: StepResult(media_type="application/\udce9"),
    "end_text": lambda: StepResult(end="COMPLETED"),  # type: ignore[arg-type]
    "end_working": lambda: StepResult(end=DocumentStatus.CHUNKING),
    "end_failed": lambda: StepResult(end=DocumentStatus.FAILED),
    "end_list": lambda: StepResult(end=[]),  # type: ignore[arg-type]
}
"""What a step answers, and should not."""

HARMLESS: dict[str, Callable[[], Any]] = {
    "none": lambda: None,
    "meta_nan": lambda: StepResult({"a": float("nan"), "b": float("inf")}),
    "meta_nul": lambda: StepResult({"a": "x\0y"}),
    "choice_unasked": lambda: StepResult(choice="nowhere"),
}
"""What it may answer, odd as it is."""


def _endless() -> dict[str, Any]:
    meta: dict[str, Any] = {}
    meta["again"] = meta
    return meta


async def step(ctx: StepContext) -> Any:
    """Takes the poison that its document is named after."""
    name = ctx.document.name.removesuffix(".txt")
    take = RAISED.get(name) or ANSWERED.get(name) or HARMLESS.get(name)
    if take is None:
        return None
    answer = take()
    await asyncio.sleep(0)
    return answer


CHECKPOINTS: dict[str, Callable[[StepContext], Any]] = {
    "cursor_none": lambda ctx: ctx.checkpoint.append([Page(1, "x")], None),  # type: ignore[arg-type]
    "cursor_object": lambda ctx: ctx.checkpoint.append([Page(1, "x")], {"a": object()}, keep=True),
    "items_text": lambda ctx: ctx.checkpoint.append("xy", {"a": 1}, keep=True),
    "items_number": lambda ctx: ctx.checkpoint.append(5, {"a": 1}),  # type: ignore[arg-type]
    "items_object": lambda ctx: ctx.checkpoint.append([object()], {"a": 1}, keep=True),
    "count_nan": lambda ctx: ctx.checkpoint.append([Page(1, "x")], {"a": 1}, count=float("nan"), keep=True),  # type: ignore[arg-type]
    "count_huge": lambda ctx: ctx.checkpoint.append([Page(1, "x")], {"a": 1}, count=10**40, keep=True),
    "size_text": lambda ctx: ctx.checkpoint.append([Page(1, "x")], {"a": 1}, size="1"),  # type: ignore[arg-type]
}
"""What a step that reads documents hands to its checkpoint."""


async def read(ctx: StepContext) -> Any:
    name = ctx.document.name.removesuffix(".txt")
    if name == "waits_on_nul":
        ctx.waiting("a\0b\udce9")
        await asyncio.sleep(1.2)
        ctx.waiting(None)
    if name == "waits_on_object":
        ctx.waiting(object())  # type: ignore[arg-type]
    if name in CHECKPOINTS:
        await CHECKPOINTS[name](ctx)
    else:
        await ctx.checkpoint.append([Page(1, "words enough to search for")], {"pages": 1})
    return StepResult({"pages": 1})


async def handle(event: LifecycleEvent, ctx: HandlerContext) -> Any:
    assert event.name is not None
    RAISED.get(event.name.removesuffix(".txt"), lambda: None)()
    await asyncio.sleep(0)


CHUNKS: dict[str, Any] = {
    "text_number": Chunk(0, 5, 1, 1, 0, 1),  # type: ignore[arg-type]
    "text_surrogate": Chunk(0, "caf\udce9", 1, 1, 0, 1),
    "page_huge": Chunk(0, "words", 10**20, 10**20, 0, 1),
    "headings_number": Chunk(0, "words", 1, 1, 0, 1, headings=(5,)),  # type: ignore[arg-type]
}


async def cut(ctx: StepContext) -> None:
    healthy = Chunk(0, f"words of {ctx.document.name}", 1, 1, 0, 5)
    await ctx.checkpoint.append([CHUNKS.get(ctx.document.name.removesuffix(".txt"), healthy)], {"done": True})
