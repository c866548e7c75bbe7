"""Penstock without `await`, for scripts and notebooks:

    import penstock.sync

    with penstock.sync.open_app(home="./.penstock") as app:
        app.ingest("notes")
        print(app.search("…"))

Each app has its own event loop in a background thread, so that this also works where a loop runs already, as in
Jupyter. The methods are made from those of `App` and `OwnerScope`: they have the same arguments and results. What is an
async iterator there is an iterator here, and an async context manager is a context manager. Functions that a caller
passes (`report`, `on_receipt`, …) are called in the background thread."""

import asyncio
import atexit
import functools
import inspect
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar, Unpack

from penstock import app as penstock_app
from penstock.app import PATIENCE_S, App, RestoreReport
from penstock.config import Config, ConfigKeywords
from penstock.errors import UsageError
from penstock.metrics.base import Metrics
from penstock.model.callers import LOCAL
from penstock.model.events import Event
from penstock.verbs.owner import OwnerScope
from penstock.verbs.scope import Scope

P = ParamSpec("P")
S = TypeVar("S", bound=Scope)
T = TypeVar("T")

CLOSING_S = 10.0
"""How long an interrupted call waits for its work to stop."""
_END = object()


class _Thread:
    """An event loop in a background thread."""

    def __init__(self) -> None:
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
            raise UsageError("the app is closed")
        if threading.current_thread() is self._thread:
            work.close()
            raise UsageError("a function that Penstock calls cannot call the app itself: do that after it has returned")
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
def _held(thread: _Thread, opened: AbstractAsyncContextManager[T]) -> Iterator[T]:
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


def _call(method: Callable[Concatenate[S, P], Coroutine[Any, Any, T]]) -> Callable[Concatenate["SyncScope", P], T]:
    @functools.wraps(method)
    def call(self: "SyncScope", /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._thread.call(method(self._scope, *args, **kwargs))  # type: ignore[arg-type]

    return call


def _plain(method: Callable[Concatenate[S, P], T]) -> Callable[Concatenate["SyncScope", P], T]:
    @functools.wraps(method)
    def call(self: "SyncScope", /, *args: P.args, **kwargs: P.kwargs) -> T:
        async def inside() -> T:
            return method(self._scope, *args, **kwargs)  # type: ignore[arg-type]

        return self._thread.call(inside())

    return call


def _iterate(
    method: Callable[Concatenate[S, P], AsyncIterator[T]],
) -> Callable[Concatenate["SyncScope", P], Iterator[T]]:
    @functools.wraps(method)
    def call(self: "SyncScope", /, *args: P.args, **kwargs: P.kwargs) -> Iterator[T]:
        return _items(self._thread, method(self._scope, *args, **kwargs))  # type: ignore[arg-type]

    return call


def _items(thread: _Thread, source: AsyncIterator[T]) -> Iterator[T]:
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


def _manage(
    method: Callable[Concatenate[S, P], AbstractAsyncContextManager[T]],
) -> Callable[Concatenate["SyncScope", P], AbstractContextManager[T]]:
    @functools.wraps(method)
    def call(self: "SyncScope", /, *args: P.args, **kwargs: P.kwargs) -> AbstractContextManager[T]:
        return _held(self._thread, method(self._scope, *args, **kwargs))  # type: ignore[arg-type]

    return call


class SyncScope:
    """The methods of `OwnerScope`, without `await`."""

    def __init__(self, thread: _Thread, scope: OwnerScope) -> None:
        self._thread = thread
        self._scope = scope

    @property
    def owner(self) -> str:
        return self._scope.owner

    @property
    def config(self) -> Config:
        return self._scope.config

    if TYPE_CHECKING:
        # For type checkers. At run time `_complete` makes all methods, also those that are not listed here.
        submit = _iterate(OwnerScope.submit)
        ingest = _call(OwnerScope.ingest)
        plan_ingest = _call(OwnerScope.plan_ingest)
        search = _call(OwnerScope.search)
        evaluate = _call(OwnerScope.evaluate)
        status = _call(OwnerScope.status)
        list_documents = _call(OwnerScope.list_documents)
        count_documents = _call(OwnerScope.count_documents)
        list_steps = _call(OwnerScope.list_steps)
        show = _iterate(OwnerScope.show)
        workflow = _plain(OwnerScope.workflow)
        cancel = _call(OwnerScope.cancel)
        set_metadata = _call(OwnerScope.set_metadata)
        delete = _call(OwnerScope.delete)
        delete_matching = _call(OwnerScope.delete_matching)
        retry = _call(OwnerScope.retry)
        list_collections = _call(OwnerScope.list_collections)
        collection = _call(OwnerScope.collection)
        drop_collection = _call(OwnerScope.drop_collection)
        reindex = _call(OwnerScope.reindex)
        reindex_status = _call(OwnerScope.reindex_status)
        estimate_reindex = _call(OwnerScope.estimate_reindex)
        pause_reindex = _call(OwnerScope.pause_reindex)
        cancel_reindex = _call(OwnerScope.cancel_reindex)
        undo_reindex = _call(OwnerScope.undo_reindex)
        list_dead_letters = _call(OwnerScope.list_dead_letters)
        dead_letter = _call(OwnerScope.dead_letter)
        replay = _call(OwnerScope.replay)
        discard = _call(OwnerScope.discard)
        list_groups = _call(OwnerScope.list_groups)
        group = _call(OwnerScope.group)
        retry_group = _call(OwnerScope.retry_group)
        cancel_group = _call(OwnerScope.cancel_group)
        list_batches = _call(OwnerScope.list_batches)
        start_batch = _call(OwnerScope.start_batch)
        start_document = _call(OwnerScope.start_document)
        check = _call(OwnerScope.check)
        vacuum = _call(OwnerScope.vacuum)
        hold_index = _manage(OwnerScope.hold_index)
        list_locks = _call(OwnerScope.list_locks)
        release_lock = _call(OwnerScope.release_lock)
        create_key = _call(OwnerScope.create_key)
        list_keys = _call(OwnerScope.list_keys)
        revoke_key = _call(OwnerScope.revoke_key)
        create_token = _call(OwnerScope.create_token)
        list_audit = _call(OwnerScope.list_audit)


class SyncApp(SyncScope):
    """The methods of `App`, without `await`. Use it in a `with` block, or call `close`."""

    _scope: App

    def __init__(self, thread: _Thread, opened: AbstractContextManager[App]) -> None:
        self._opened = opened
        self._closed = False
        super().__init__(thread, opened.__enter__())
        atexit.register(self.close)

    def __enter__(self) -> "SyncApp":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the app. Running calls of other threads are stopped first; their progress is kept."""
        if self._closed:
            return
        self._closed = True
        atexit.unregister(self.close)
        try:
            self._opened.__exit__(None, None, None)
        finally:
            self._thread.close()

    def for_owner(self, owner: str, actor: str = LOCAL) -> SyncScope:
        """Return the methods for one owner. `actor` is who the audit log names for changes."""
        return SyncScope(self._thread, self._scope.for_owner(owner, actor))

    def stop(self) -> None:
        """Release the running steps within two seconds. Checkpoints are kept. Any thread, and a signal handler, may
        call this."""
        self._thread.loop.call_soon_threadsafe(self._scope.stop)

    def events(self, until: "Future[Any] | None" = None) -> Iterator[Event]:
        """Yield the live events of the workers of this app, from the time of this call. The iteration ends when
        `until` is done, a future of a `concurrent.futures` executor that calls `app.ingest`, for example. It always
        ends when the app is closed."""

        async def listen() -> AsyncIterator[Event]:
            return self._scope.events(asyncio.wrap_future(until) if until is not None else None)

        return _items(self._thread, self._thread.call(listen()))

    if TYPE_CHECKING:
        run = _call(App.run)
        work = _call(App.work)
        count_workers = _call(App.count_workers)
        list_workers = _call(App.list_workers)
        check = _call(App.check)
        prune = _call(App.prune)
        backup = _call(App.backup)


def _complete(sync: type[SyncScope], of: type[OwnerScope]) -> None:
    """Add the public methods that `sync` does not define itself."""
    for name, method in vars(of).items():
        if name.startswith("_") or name in vars(sync) or not inspect.isfunction(method):
            continue
        within = inspect.unwrap(method)
        if inspect.iscoroutinefunction(method):
            made: Any = _call(method)
        elif inspect.isasyncgenfunction(method):
            made = _iterate(method)
        else:
            made = _manage(method) if inspect.isasyncgenfunction(within) else _plain(method)
        setattr(sync, name, made)


_complete(SyncScope, OwnerScope)
_complete(SyncApp, App)


def open_app(
    config: Config | None = None,
    *,
    metrics: Metrics | None = None,
    patience_s: float | None = PATIENCE_S,
    **settings: Unpack[ConfigKeywords],
) -> SyncApp:
    """Open an app: `with penstock.sync.open_app(home="…") as app:`, or without `with`, and `app.close()` at the end."""
    opened = penstock_app.open_app(config, metrics=metrics, patience_s=patience_s, **settings)
    thread = _Thread()
    try:
        return SyncApp(thread, _held(thread, opened))
    except BaseException:
        thread.close()
        raise


def restore(folder: str, config: Config | None = None, **options: Any) -> RestoreReport:
    """Create a home from a backup, like `penstock.restore`."""
    thread = _Thread()
    try:
        return thread.call(penstock_app.restore(folder, config, **options))
    finally:
        thread.close()
