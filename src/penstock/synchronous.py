"""Methods without `await`, made from those of an async class, which run in an event loop in a background thread."""

import asyncio
import functools
import inspect
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, AbstractContextManager, contextmanager
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from penstock.errors import UsageError

P = ParamSpec("P")
S = TypeVar("S")
T = TypeVar("T")

CLOSING_S = 10.0
"""How long an interrupted call waits for its work to stop."""
_END = object()


class EventLoopThread:
    """An event loop in a background thread."""

    def __init__(self, what: str) -> None:
        """`what` names in messages what has this loop, such as "the app"."""
        self._what = what
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="penstock", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self.loop) as runner:
            runner.get_loop().run_forever()

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Return the result of a coroutine. When the caller is interrupted (Ctrl-C), cancel it, and wait until it has
        stopped."""
        if self.loop.is_closed():
            work.close()
            raise UsageError(f"{self._what} is closed")
        if threading.current_thread() is self._thread:
            work.close()
            raise UsageError(
                f"a function that Penstock calls cannot call {self._what} itself: do that after it has returned"
            )
        stopped = threading.Event()
        task = asyncio.run_coroutine_threadsafe(_until_stopped(work, stopped), self.loop)
        try:
            return task.result()
        except BaseException:
            if not stopped.is_set():
                task.cancel()
                stopped.wait(CLOSING_S)
            raise

    def close(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(CLOSING_S)


async def _until_stopped(work: Coroutine[Any, Any, T], stopped: threading.Event) -> T:
    try:
        return await work
    finally:
        stopped.set()


@contextmanager
def held(thread: EventLoopThread, opened: AbstractAsyncContextManager[T]) -> Iterator[T]:
    """Enter and leave an async context manager in one task, as it would be in async code."""
    entered: Future[T] = Future()
    leave = asyncio.Event()

    async def hold() -> None:
        try:
            async with opened as value:
                entered.set_result(value)
                await leave.wait()
        except BaseException as error:
            if not entered.done():
                entered.set_exception(error)
                return
            raise

    task = asyncio.run_coroutine_threadsafe(hold(), thread.loop)
    try:
        yield entered.result()
    finally:
        thread.loop.call_soon_threadsafe(leave.set)
        task.result()


class Synchronous(Protocol):
    """A class whose methods are made from those of `_scope`."""

    @property
    def _thread(self) -> EventLoopThread: ...

    @property
    def _scope(self) -> Any: ...


def made_call(
    method: Callable[Concatenate[S, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate["Synchronous", P], T]:
    @functools.wraps(method)
    def call(self: "Synchronous", /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._thread.call(method(self._scope, *args, **kwargs))

    return call


def made_plain(method: Callable[Concatenate[S, P], T]) -> Callable[Concatenate["Synchronous", P], T]:
    @functools.wraps(method)
    def call(self: "Synchronous", /, *args: P.args, **kwargs: P.kwargs) -> T:
        async def inside() -> T:
            return method(self._scope, *args, **kwargs)

        return self._thread.call(inside())

    return call


def made_iterator(
    method: Callable[Concatenate[S, P], AsyncIterator[T]],
) -> Callable[Concatenate["Synchronous", P], Iterator[T]]:
    @functools.wraps(method)
    def call(self: "Synchronous", /, *args: P.args, **kwargs: P.kwargs) -> Iterator[T]:
        return items(self._thread, method(self._scope, *args, **kwargs))

    return call


def items(thread: EventLoopThread, source: AsyncIterator[T]) -> Iterator[T]:
    async def following() -> Any:
        return await anext(source, _END)

    async def close() -> None:
        if (aclose := getattr(source, "aclose", None)) is not None:
            await aclose()

    try:
        while (item := thread.call(following())) is not _END:
            yield item
    finally:
        # An iterator that was left may be collected after the app was closed, which has ended it.
        if not thread.loop.is_closed():
            thread.call(close())


def made_manager(
    method: Callable[Concatenate[S, P], AbstractAsyncContextManager[T]],
) -> Callable[Concatenate["Synchronous", P], AbstractContextManager[T]]:
    @functools.wraps(method)
    def call(self: "Synchronous", /, *args: P.args, **kwargs: P.kwargs) -> AbstractContextManager[T]:
        return held(self._thread, method(self._scope, *args, **kwargs))

    return call


def complete(sync: type[Any], of: type[Any]) -> None:
    """Add the public methods of `of` that `sync` does not define itself."""
    for name, method in vars(of).items():
        if name.startswith("_") or name in vars(sync) or not inspect.isfunction(method):
            continue
        within = inspect.unwrap(method)
        if inspect.iscoroutinefunction(method):
            made: Any = made_call(method)
        elif inspect.isasyncgenfunction(method):
            made = made_iterator(method)
        else:
            made = made_manager(method) if inspect.isasyncgenfunction(within) else made_plain(method)
        setattr(sync, name, made)
