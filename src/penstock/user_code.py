"""User code: call the user's steps and handlers, and read the errors that they raise."""

import asyncio
import math
import traceback
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from penstock.errors import Away, StepError

T = TypeVar("T")

SENTENCE, TRACE, REASON, NAME = 2_000, 20_000, 100, 200
"""The maximum number of characters that are kept of the parts of an error."""
MOST_PAGES = 2**31 - 1
OUTSIDE = "raised inside the code itself, not because Penstock stopped it"


class UserCodeExit(Exception):
    """Wraps a BaseException of user code that must not stop the worker, such as SystemExit: `error`."""

    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.error = error


async def contained(function: Callable[..., Awaitable[T]], *arguments: Any) -> T:
    """Call the function. Other errors than `Exception` and `CancelledError` are wrapped in `UserCodeExit`, because
    `SystemExit` in a task would end the event loop."""
    try:
        return await function(*arguments)
    except (Exception, asyncio.CancelledError):
        raise
    except BaseException as error:
        raise UserCodeExit(error) from error


async def call(function: Callable[..., Awaitable[T]], *arguments: Any) -> T:
    """Like `contained`, but raise `CancelledError` only if the calling task was cancelled. The function runs in its own
    task: if it cancels that task, this must not look like a stop of the worker."""
    task = asyncio.create_task(contained(function, *arguments))
    try:
        return await task
    except asyncio.CancelledError as error:
        own = asyncio.current_task()
        if own is not None and own.cancelling():
            raise
        raise UserCodeExit(error) from error


def raised_by(error: BaseException, package: str) -> bool:
    """Whether a module of the package raised the error, rather than code that the package called or was called by."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace is not None and str(trace.tb_frame.f_globals.get("__name__", "")).startswith(f"{package}.")


def clean(text: str) -> str:
    """Text that every database accepts: NUL and lone surrogates are escaped."""
    return text.replace("\0", "\\x00").encode("utf-8", "backslashreplace").decode()


def sentence(error: BaseException) -> str:
    """The message of an error: never empty, and of limited length."""
    if isinstance(error, UserCodeExit):
        error = error.error
    name, said = type(error).__name__, _text(error)
    if isinstance(error, StepError | Away):
        return _cut(said or name, SENTENCE)
    if not isinstance(error, Exception):
        name = f"{name} ({OUTSIDE})"
    return _cut(f"{name}: {said}" if said else name, SENTENCE)


def trace(error: BaseException) -> str | None:
    """The traceback; None for errors that Penstock or the user's step raises deliberately."""
    if isinstance(error, StepError | Away):
        return None
    if isinstance(error, UserCodeExit):
        error = error.error
    try:
        return _cut("".join(traceback.format_exception(error)), TRACE)
    except Exception:
        return None


def reason(error: BaseException, otherwise: str) -> str:
    """The reason of the dead letter. Subclasses in user code may not have called our `__init__`."""
    found = _attribute(error, "reason")
    return _cut(str.__str__(found), REASON) if isinstance(found, str) and found else otherwise


def page(error: BaseException) -> int | None:
    found = _attribute(error, "page")
    return int(found) if isinstance(found, int) and 0 <= found <= MOST_PAGES else None


def retry_after(error: BaseException, most: float) -> float | None:
    """The requested waiting time in seconds; None if it is missing or not a number."""
    found = _attribute(error, "retry_after")
    if isinstance(found, bool) or not isinstance(found, int | float) or not found >= 0:
        return None
    return min(float(found), most) if math.isfinite(found) else most


def named(error: BaseException, attribute: str) -> str | None:
    """A short text attribute of an error, such as its target; None if it is missing or not text."""
    found = _attribute(error, attribute)
    return _cut(str.__str__(found), NAME) if isinstance(found, str) and found else None


def _attribute(error: BaseException, name: str) -> object:
    """An attribute of an error of our own classes; None if it is missing."""
    try:
        return getattr(error, name, None) if isinstance(error, StepError | Away) else None
    except BaseException:
        return None


def _text(error: BaseException) -> str:
    try:
        return str.__str__(str(error)).strip()
    except BaseException as other:
        return f"its text could not be read ({type(other).__name__})"


def _cut(text: str, most: int) -> str:
    """Shorten a text, keeping its beginning and its end: the end of a traceback matters most."""
    if len(text) <= most:
        return clean(text)
    return clean(f"{text[: most // 2]} […] {text[-most // 2 :]}")
