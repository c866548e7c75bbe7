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
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import Future
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Unpack

from penstock import app as penstock_app
from penstock.app import PATIENCE_S, App, RestoreReport
from penstock.config import Config, ConfigKeywords
from penstock.metrics.base import Metrics
from penstock.model.callers import LOCAL
from penstock.model.events import Event
from penstock.synchronous import (
    EventLoopThread,
    complete,
    held,
    items,
    made_call,
    made_iterator,
    made_manager,
    made_plain,
)
from penstock.verbs.owner import OwnerScope


class SyncScope:
    """The methods of `OwnerScope`, without `await`."""

    def __init__(self, thread: EventLoopThread, scope: OwnerScope) -> None:
        self._thread = thread
        self._scope = scope

    @property
    def owner(self) -> str:
        return self._scope.owner

    @property
    def config(self) -> Config:
        return self._scope.config

    if TYPE_CHECKING:
        # For type checkers. At run time `complete` makes all methods, also those that are not listed here.
        submit = made_iterator(OwnerScope.submit)
        ingest = made_call(OwnerScope.ingest)
        plan_ingest = made_call(OwnerScope.plan_ingest)
        search = made_call(OwnerScope.search)
        evaluate = made_call(OwnerScope.evaluate)
        status = made_call(OwnerScope.status)
        list_documents = made_call(OwnerScope.list_documents)
        count_documents = made_call(OwnerScope.count_documents)
        list_steps = made_call(OwnerScope.list_steps)
        show = made_iterator(OwnerScope.show)
        workflow = made_plain(OwnerScope.workflow)
        cancel = made_call(OwnerScope.cancel)
        set_metadata = made_call(OwnerScope.set_metadata)
        delete = made_call(OwnerScope.delete)
        delete_matching = made_call(OwnerScope.delete_matching)
        retry = made_call(OwnerScope.retry)
        list_collections = made_call(OwnerScope.list_collections)
        collection = made_call(OwnerScope.collection)
        drop_collection = made_call(OwnerScope.drop_collection)
        reindex = made_call(OwnerScope.reindex)
        reindex_status = made_call(OwnerScope.reindex_status)
        estimate_reindex = made_call(OwnerScope.estimate_reindex)
        pause_reindex = made_call(OwnerScope.pause_reindex)
        cancel_reindex = made_call(OwnerScope.cancel_reindex)
        undo_reindex = made_call(OwnerScope.undo_reindex)
        list_dead_letters = made_call(OwnerScope.list_dead_letters)
        dead_letter = made_call(OwnerScope.dead_letter)
        replay = made_call(OwnerScope.replay)
        discard = made_call(OwnerScope.discard)
        list_groups = made_call(OwnerScope.list_groups)
        group = made_call(OwnerScope.group)
        retry_group = made_call(OwnerScope.retry_group)
        cancel_group = made_call(OwnerScope.cancel_group)
        list_batches = made_call(OwnerScope.list_batches)
        start_batch = made_call(OwnerScope.start_batch)
        start_document = made_call(OwnerScope.start_document)
        check = made_call(OwnerScope.check)
        vacuum = made_call(OwnerScope.vacuum)
        hold_index = made_manager(OwnerScope.hold_index)
        list_locks = made_call(OwnerScope.list_locks)
        release_lock = made_call(OwnerScope.release_lock)
        create_key = made_call(OwnerScope.create_key)
        list_keys = made_call(OwnerScope.list_keys)
        revoke_key = made_call(OwnerScope.revoke_key)
        create_token = made_call(OwnerScope.create_token)
        list_audit = made_call(OwnerScope.list_audit)


class SyncApp(SyncScope):
    """The methods of `App`, without `await`. Use it in a `with` block, or call `close`."""

    _scope: App

    def __init__(self, thread: EventLoopThread, opened: AbstractContextManager[App]) -> None:
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

        return items(self._thread, self._thread.call(listen()))

    if TYPE_CHECKING:
        run = made_call(App.run)
        work = made_call(App.work)
        count_workers = made_call(App.count_workers)
        list_workers = made_call(App.list_workers)
        check = made_call(App.check)
        prune = made_call(App.prune)
        backup = made_call(App.backup)


complete(SyncScope, OwnerScope)
complete(SyncApp, App)


def open_app(
    config: Config | None = None,
    *,
    metrics: Metrics | None = None,
    patience_s: float | None = PATIENCE_S,
    **settings: Unpack[ConfigKeywords],
) -> SyncApp:
    """Open an app: `with penstock.sync.open_app(home="…") as app:`, or without `with`, and `app.close()` at the end."""
    opened = penstock_app.open_app(config, metrics=metrics, patience_s=patience_s, **settings)
    thread = EventLoopThread("the app")
    try:
        return SyncApp(thread, held(thread, opened))
    except BaseException:
        thread.close()
        raise


def restore(folder: str, config: Config | None = None, **options: Any) -> RestoreReport:
    """Create a home from a backup, like `penstock.restore`."""
    thread = EventLoopThread("the app")
    try:
        return thread.call(penstock_app.restore(folder, config, **options))
    finally:
        thread.close()
