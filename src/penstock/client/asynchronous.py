"""`AsyncClient`: the operations of a server as methods. Modules with the types of answers are imported when they are
needed: the import of the client takes little time."""

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Literal

from penstock.client.connection import Connection, segment
from penstock.client.operations import Operations, Values, given
from penstock.errors import UsageError

if TYPE_CHECKING:
    from penstock.client.ingest import OnReceipt, Report
    from penstock.client.uploads import OnProgress
    from penstock.model.items import Chunk, Page
    from penstock.search.results import SearchResult
    from penstock.verbs.following import Change
    from penstock.verbs.ingest_plan import IngestPlan
    from penstock.verbs.receipts import UploadReceipt
    from penstock.verbs.summary import Summary
    from penstock.verbs.views import DocumentDetails, DocumentView

TIMEOUT_S = 30.0
PATIENCE_S = 60.0
FETCH_S = 300.0
SEARCH_S = 60.0


class AsyncClient(Operations):
    """The operations of a server. Use it in an `async with` block, or call `close`.

    `url`: the address of the server; default: `PENSTOCK_SERVER`. `key`: an API key or a tenant token; default:
    `PENSTOCK_KEY`. `timeout_s`: how long to wait for a connection, and for each piece of an answer. `patience_s`: how
    long a call goes on while the server cannot be reached, restarts or asks to wait. `owner`: for a key with the scope
    admin, the owner to act for."""

    def __init__(
        self,
        url: str | None = None,
        *,
        key: str | None = None,
        timeout_s: float = TIMEOUT_S,
        patience_s: float = PATIENCE_S,
        owner: str | None = None,
    ) -> None:
        self._connection = Connection(url, key, timeout_s=timeout_s, patience_s=patience_s, owner=owner)
        self._stopped = asyncio.Event()

    async def __aenter__(self) -> "AsyncClient":
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections."""
        await self._connection.close()

    @property
    def url(self) -> str:
        return self._connection.url

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r})"

    async def upload(
        self,
        file: str | Path | bytes | bytearray | memoryview | BinaryIO,
        *,
        name: str | None = None,
        source: str | None = None,
        metadata: dict[str, Any] | None = None,
        collection: str | None = None,
        workflow: str | None = None,
        params: str | None = None,
        priority: int = 0,
        batch: str | None = None,
        retry: bool = False,
        hold: bool = False,
        on_progress: "OnProgress | None" = None,
    ) -> "UploadReceipt":
        """Upload a file by its path, an open file, or bytes. When this returns, the document survives a power failure.
        Its source URI is `source`, or else the absolute path; for bytes, the name. `on_progress` is called with the
        bytes that were sent, and their number in all. A large file goes on where it was cut off, also after this
        process or the server died: call it again with the same arguments."""
        from penstock.client import uploads

        if isinstance(file, str | Path):
            from penstock.sources.folder import printable, source_of

            path = Path(file)
            order = uploads.Order(
                source or source_of(path.absolute()), name or printable(path.name), metadata or {}, collection,
                workflow, params, priority, batch, retry, hold,
            )  # fmt: skip
            return await uploads.upload_file(self._connection, path, order, on_progress)
        if not name and not source:
            raise UsageError('bytes need a name, as in name="notes.txt"')
        order = uploads.Order(
            source or name or "", name or source or "", metadata or {}, collection, workflow, params, priority, batch,
            retry, hold,
        )  # fmt: skip
        content = uploads.Bytes(file) if isinstance(file, bytes | bytearray | memoryview) else uploads.File(file)
        return await uploads.upload(self._connection, content, order, on_progress)

    async def upload_text(
        self,
        text: str,
        name: str,
        *,
        source: str | None = None,
        metadata: dict[str, Any] | None = None,
        collection: str | None = None,
        workflow: str | None = None,
        params: str | None = None,
        priority: int = 0,
        batch: str | None = None,
        retry: bool = False,
        hold: bool = False,
    ) -> "UploadReceipt":
        """Submit a text. Its source URI is `source`, or else the name."""
        from penstock.client import uploads

        order = uploads.Order("", "", {}, collection, workflow, params, priority, batch, retry, hold)
        data = given(text=text, name=name, source=source, metadata=metadata)
        return await uploads.upload_json(self._connection, data, order)

    async def upload_url(
        self,
        url: str,
        *,
        metadata: dict[str, Any] | None = None,
        collection: str | None = None,
        workflow: str | None = None,
        params: str | None = None,
        priority: int = 0,
        batch: str | None = None,
        retry: bool = False,
        hold: bool = False,
    ) -> "UploadReceipt":
        """Let the server fetch a web page."""
        from penstock.client import uploads

        order = uploads.Order("", "", {}, collection, workflow, params, priority, batch, retry, hold)
        return await uploads.upload_json(self._connection, given(url=url, metadata=metadata), order, FETCH_S)

    async def list_documents(
        self,
        *,
        status: str | None = None,
        collection: str | None = None,
        name: str | None = None,
        filter: Mapping[str, Any] | None = None,
        parent: str | None = None,
        after: str | None = None,
        page: int = 200,
    ) -> "AsyncGenerator[DocumentView, None]":
        """Yield documents, newest first. `name` is a glob pattern, and `filter` a filter as for a search. With
        `parent`, only documents directly inside that one. With `after`, continue after the document with this id. At
        most `page` of them are asked for at once."""
        from penstock.client.documents import paged
        from penstock.verbs.views import DocumentView

        query = {
            "status": status, "collection": collection, "name": name, "filter": filter, "parent": parent,
            "cursor": after, "limit": page,
        }  # fmt: skip
        found = paged(self._connection, "documents", "documents", DocumentView, query)
        async with aclosing(found) as documents:
            async for document in documents:
                yield document

    async def document(self, document: str) -> "DocumentDetails":
        """Return one document, by its whole id, with its steps, progress, attempts and error."""
        from penstock.verbs.views import DocumentDetails

        path = f"documents/{segment(document)}"
        found: DocumentDetails = await self._connection.json("GET", path, DocumentDetails)
        return found

    async def wait(self, document: str, timeout_s: float | None = None) -> "DocumentDetails":
        """Return the document when it has ended, whether it is COMPLETED or FAILED. Raise TimeoutError if that takes
        longer than `timeout_s`."""
        from penstock.client.documents import wait_for

        return await wait_for(self._connection, document, timeout_s)

    async def set_metadata(
        self, document: str, changes: dict[str, Any], *, remove: Sequence[str] = ()
    ) -> "DocumentDetails":
        """Set and remove keys of the metadata of a document. Nothing is embedded again."""
        from penstock.verbs.views import DocumentDetails

        data = {"set": changes, "remove": list(remove)}
        found: DocumentDetails = await self._connection.json(
            "PATCH", f"documents/{segment(document)}", DocumentDetails, data=data
        )
        return found

    async def delete(self, document: str) -> None:
        """Delete a document, and those inside it. No search that starts now finds it."""
        await self._connection.request("DELETE", f"documents/{segment(document)}")

    async def retry(
        self,
        document: str,
        *,
        workflow: str | None = None,
        params: str | None = None,
        values: Values | None = None,
    ) -> bool:
        """Continue a document that failed or was cancelled. Return whether there was anything to do."""
        data = given(workflow=workflow, params=params, values=values)
        path = f"documents/{segment(document)}/retry"
        return bool((await self._connection.json("POST", path, data=data))["retried"])

    async def cancel(self, document: str) -> bool:
        """Cancel a document that has not ended. Return whether there was anything to do."""
        return bool((await self._connection.json("POST", f"documents/{segment(document)}/cancel"))["cancelled"])

    async def pages(self, document: str, *, start: int = 0) -> "AsyncGenerator[Page, None]":
        """Yield the pages that were extracted, from number `start` on (counted from 0)."""
        from penstock.client.documents import paged
        from penstock.model.items import Page

        path = f"documents/{segment(document)}/pages"
        async with aclosing(paged(self._connection, path, "pages", Page, {"cursor": start})) as found:
            async for page in found:
                yield page

    async def chunks(self, document: str, *, start: int = 0) -> "AsyncGenerator[Chunk, None]":
        """Yield the chunks: what is embedded and found."""
        from penstock.client.documents import paged
        from penstock.model.items import Chunk

        path = f"documents/{segment(document)}/chunks"
        async with aclosing(paged(self._connection, path, "chunks", Chunk, {"cursor": start})) as found:
            async for chunk in found:
                yield chunk

    async def raw(self, document: str, *, start: int = 0) -> AsyncGenerator[bytes, None]:
        """Yield the bytes of a document as they were submitted, with flat memory. It goes on where the connection was
        cut off."""
        from penstock.client.documents import raw

        async with aclosing(raw(self._connection, document, start)) as pieces:
            async for piece in pieces:
                yield piece

    async def download(self, document: str, path: str | Path) -> int:
        """Write the bytes of a document to a file, and check them. Return their number."""
        from penstock.client.documents import download

        return await download(self._connection, document, Path(path))

    async def search(
        self,
        query: str,
        k: int = 5,
        *,
        mode: Literal["hybrid", "vector", "text"] = "hybrid",
        collection: str | Sequence[str] | None = None,
        filter: Mapping[str, Any] | None = None,
        group: Literal["document"] | None = None,
        context: int = 0,
        min_score: float | None = None,
        rerank: str | None = None,
        after: str | None = None,
        explain: bool = False,
    ) -> "SearchResult":
        """Return the best passages, best first, with the arguments of `App.search`."""
        from penstock.search.results import Explanation, Hit, SearchResult

        names = [collection] if isinstance(collection, str) else None if collection is None else list(collection)
        data = given(
            query=query, k=k, mode=mode, collections=names, filter=filter, group=group, context=context,
            min_score=min_score, rerank=rerank, cursor=after, explain=explain,
        )  # fmt: skip
        answer = await self._connection.json("POST", "search", data=data, once=False, wait_s=SEARCH_S)
        hits = self._connection.restored(answer.get("hits"), list[Hit])
        how = answer.get("explain")
        explanation = None if how is None else self._connection.restored(how, Explanation)
        return SearchResult(hits, answer.get("next"), explanation)

    async def changes(
        self,
        *,
        after: str | None = None,
        collection: str | None = None,
        group: str | None = None,
        document: str | None = None,
    ) -> "AsyncGenerator[Change, None]":
        """Follow the changes of documents, by whichever process. `after` is the id of a change: what happened since
        then comes first. A connection that is lost is opened again, and nothing is left out: a change may come twice,
        and a `reset` says that changes may be missing."""
        from penstock.client.events import ChangeStream

        query = {"collection": collection, "group": group, "document": document}
        async with aclosing(ChangeStream(self._connection, after, query).changes()) as changes:
            async for change in changes:
                if change is not None:
                    yield change

    async def ingest(
        self,
        paths: str | Path | Sequence[str | Path] = (),
        *,
        data: BinaryIO | None = None,
        name: str | None = None,
        source: str | None = None,
        metadata: dict[str, Any] | None = None,
        manifest: str | Path | None = None,
        collection: str | None = None,
        workflow: str | None = None,
        params: str | None = None,
        priority: int = 0,
        batch: str | None = None,
        include: str | Sequence[str] = (),
        exclude: str | Sequence[str] = (),
        retry: bool = False,
        again: bool = False,
        hold: bool = False,
        wait: bool = True,
        report: "Report | None" = None,
        on_receipt: "OnReceipt | None" = None,
    ) -> "Summary":
        """Upload files and folders, and web pages that the server fetches, then wait until they have ended, unless
        `wait` is False. The arguments are those of `App.ingest`; `data` is an open file of this machine. Files that
        the server has are found by their hashes, and not sent. After an interruption, the same call goes on."""
        from penstock.client.runs import ingest

        return await ingest(
            self._connection, paths, data=data, name=name, source=source, metadata=metadata, manifest=manifest,
            collection=collection, workflow=workflow, params=params, priority=priority, batch=batch, include=include,
            exclude=exclude, retry=retry, again=again, hold=hold, wait=wait, report=report, on_receipt=on_receipt,
            stopped=self._stopped,
        )  # fmt: skip

    async def plan_ingest(
        self,
        paths: str | Path | Sequence[str | Path],
        *,
        manifest: str | Path | None = None,
        collection: str | None = None,
        include: str | Sequence[str] = (),
        exclude: str | Sequence[str] = (),
    ) -> "IngestPlan":
        """Return what `ingest` would do with these files and folders, by type. Nothing is sent but hashes."""
        from penstock.client.runs import plan_ingest

        return await plan_ingest(
            self._connection, paths, manifest=manifest, collection=collection, include=include, exclude=exclude
        )

    def stop(self) -> None:
        """Let a running `ingest` return early. What was accepted is kept."""
        self._stopped.set()
