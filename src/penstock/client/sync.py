"""`Client`: the methods of `AsyncClient` without `await`. What is an async iterator there is an iterator here."""

import atexit
from typing import TYPE_CHECKING

from penstock.client.asynchronous import PATIENCE_S, TIMEOUT_S, AsyncClient
from penstock.client.operations import Operations
from penstock.synchronous import EventLoopThread, complete, made_call, made_iterator


class Client:
    """The operations of a server, with the arguments of `AsyncClient`. Use it in a `with` block, or call `close`.
    Several threads may use one client. `on_progress` is called in a background thread."""

    def __init__(
        self,
        url: str | None = None,
        *,
        key: str | None = None,
        timeout_s: float = TIMEOUT_S,
        patience_s: float = PATIENCE_S,
        owner: str | None = None,
    ) -> None:
        self._scope = AsyncClient(url, key=key, timeout_s=timeout_s, patience_s=patience_s, owner=owner)
        self._thread = EventLoopThread("the client")
        self._closed = False
        atexit.register(self.close)

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        if self._closed:
            return
        self._closed = True
        atexit.unregister(self.close)
        try:
            self._thread.call(self._scope.close())
        finally:
            self._thread.close()

    def stop(self) -> None:
        """Let a running `ingest` return early. What was accepted is kept. Any thread may call this."""
        self._thread.loop.call_soon_threadsafe(self._scope.stop)

    @property
    def url(self) -> str:
        return self._scope.url

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r})"

    if TYPE_CHECKING:
        # For type checkers. At run time `complete` makes all methods, also those that are not listed here.
        upload = made_call(AsyncClient.upload)
        upload_text = made_call(AsyncClient.upload_text)
        upload_url = made_call(AsyncClient.upload_url)
        list_documents = made_iterator(AsyncClient.list_documents)
        document = made_call(AsyncClient.document)
        wait = made_call(AsyncClient.wait)
        set_metadata = made_call(AsyncClient.set_metadata)
        delete = made_call(AsyncClient.delete)
        retry = made_call(AsyncClient.retry)
        cancel = made_call(AsyncClient.cancel)
        pages = made_iterator(AsyncClient.pages)
        chunks = made_iterator(AsyncClient.chunks)
        raw = made_iterator(AsyncClient.raw)
        download = made_call(AsyncClient.download)
        search = made_call(AsyncClient.search)
        changes = made_iterator(AsyncClient.changes)
        ingest = made_call(AsyncClient.ingest)
        plan_ingest = made_call(AsyncClient.plan_ingest)
        status = made_call(Operations.status)
        session = made_call(Operations.session)
        usage = made_call(Operations.usage)
        list_batches = made_call(Operations.list_batches)
        start_batch = made_call(Operations.start_batch)
        list_groups = made_call(Operations.list_groups)
        group = made_call(Operations.group)
        retry_group = made_call(Operations.retry_group)
        cancel_group = made_call(Operations.cancel_group)
        list_dead_letters = made_call(Operations.list_dead_letters)
        dead_letter = made_call(Operations.dead_letter)
        replay = made_call(Operations.replay)
        discard = made_call(Operations.discard)
        count_action = made_call(Operations.count_action)
        start_action = made_call(Operations.start_action)
        action = made_call(Operations.action)
        wait_action = made_call(Operations.wait_action)
        list_actions = made_call(Operations.list_actions)
        cancel_action = made_call(Operations.cancel_action)
        list_collections = made_call(Operations.list_collections)
        collection = made_call(Operations.collection)
        drop_collection = made_call(Operations.drop_collection)
        list_workflows = made_call(Operations.list_workflows)
        list_parameter_sets = made_call(Operations.list_parameter_sets)
        create_key = made_call(Operations.create_key)
        list_keys = made_iterator(Operations.list_keys)
        revoke_key = made_call(Operations.revoke_key)
        create_token = made_call(Operations.create_token)
        list_audit = made_iterator(Operations.list_audit)
        list_steps = made_call(Operations.list_steps)
        list_workers = made_call(Operations.list_workers)
        list_locks = made_call(Operations.list_locks)
        release_lock = made_call(Operations.release_lock)
        check = made_call(Operations.check)
        vacuum = made_call(Operations.vacuum)
        prune = made_call(Operations.prune)
        ready = made_call(Operations.ready)
        metrics = made_call(Operations.metrics)


complete(Client, AsyncClient)
complete(Client, Operations)
