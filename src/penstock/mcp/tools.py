"""The tools, as methods. Each call asks for the access of its client, and every failure is an error, never an empty
answer."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Annotated, Any, Literal

from mcp.server.mcpserver.exceptions import ToolError
from pydantic import Field

from penstock.errors import NotFound, PenstockError
from penstock.mcp.access import Access
from penstock.mcp.answers import Document, Documents, Found, Progress, Result, Retried, Submitted, Text
from penstock.model.items import Page
from penstock.redaction import masked
from penstock.search.results import Hit
from penstock.verbs.views import DocumentDetails, DocumentView

LONGEST = 40_000
"""The characters of a document that one `fetch` returns, unless its first page has more."""
LIST_MOST = 200

Query = Annotated[str, Field(min_length=1, max_length=10_000)]
Name = Annotated[
    str, Field(min_length=1, max_length=4_000, description="The id, the name or the source of a document.")
]
Collection = Annotated[str | None, Field(description="A collection. Default: the configured one.")]


def page_uri(document: str, page: int) -> str:
    return f"penstock://documents/{document}/pages/{page}"


class Tools:
    def __init__(self, access: Callable[[], Access]) -> None:
        self._access = access

    async def search(
        self,
        query: Query,
        k: Annotated[int, Field(ge=1, le=50)] = 8,
        collection: Collection = None,
        mode: Literal["hybrid", "vector", "text"] = "hybrid",
        filter: Annotated[
            dict[str, Any] | None, Field(description='Only matching documents, as {"year": {"$gte": 2020}}.')
        ] = None,
        after: str | None = None,
    ) -> Found:
        """Search the documents. Returns the passages that answer the query best, best first."""
        async with self._client() as access:
            where = _allowed(access, collection)
            hits = await access.scope.search(query, k, collection=where, mode=mode, filter=filter, after=after)
            return Found(results=[_result(hit) for hit in hits], next=hits.next)

    async def fetch(self, id: Name, page: Annotated[int, Field(ge=1, description="The first page.")] = 1) -> Text:
        """Read the text of a document, from a page on. Long documents are returned in parts."""
        async with self._client() as access:
            details = await _document(access, id)
            text, next_page, any_page = "", None, False
            async for item in access.scope.show(details.id, "pages"):
                if item.number < page:
                    continue
                if any_page and len(text) + len(item.text) > LONGEST:
                    next_page = item.number
                    break
                text += ("\n\n" if any_page else "") + item.text
                any_page = True
            if not any_page:
                raise ToolError(_no_page(details, page))
            return Text(
                id=details.id,
                title=_title(details.name, details.metadata),
                url=page_uri(details.id, page),
                text=text,
                source=details.source,
                pages=details.pages,
                next_page=next_page,
                metadata=dict(details.metadata),
            )

    async def list_documents(
        self,
        status: str | None = None,
        collection: Collection = None,
        name: Annotated[str | None, Field(description="A pattern, as in *.pdf.")] = None,
        filter: dict[str, Any] | None = None,
        limit: Annotated[int, Field(ge=1, le=LIST_MOST)] = 50,
        after: str | None = None,
    ) -> Documents:
        """List documents, newest first."""
        async with self._client() as access:
            names = _allowed(access, collection)
            if collection is None and names is not None:
                if len(names) > 1:
                    raise ToolError(f"collection: name one of {', '.join(names)}")
                collection = names[0]
            found = await access.scope.list_documents(
                status=status, collection=collection, name=name, filter=filter, limit=limit + 1, after=after
            )
            more = len(found) > limit
            return Documents(
                documents=[Document(**_fields(view)) for view in found[:limit]],
                next=found[limit - 1].id if more else None,
            )

    async def document_status(self, id: Name) -> Progress:
        """Say how far the processing of a document is, and why it failed if it did."""
        async with self._client() as access:
            details = await _document(access, id)
            waiting = next((step.waiting_on for step in details.steps if step.waiting_on), None)
            return Progress(
                **_fields(details),
                phase=details.progress.phase,
                pages_done=details.progress.pages,
                chunks=details.progress.chunks,
                attempts=details.attempts,
                waiting_on=waiting,
            )

    async def ingest_text(
        self,
        name: Annotated[str, Field(min_length=1, max_length=1_000, description="A file name, as in notes.md.")],
        text: Annotated[str, Field(min_length=1)],
        metadata: dict[str, Any] | None = None,
        collection: Collection = None,
    ) -> Submitted:
        """Store a text as a document. It is safe at once, and searchable after its processing. The same name replaces
        the former text."""
        async with self._client(ingest=True) as access:
            source = f"mcp:{name}"
            return await _submit(access, collection, data=text.encode(), name=name, source=source, metadata=metadata)

    async def ingest_url(
        self, url: Annotated[str, Field(max_length=4_000, pattern="^https?://")], collection: Collection = None
    ) -> Submitted:
        """Fetch a web page or file, and store it as a document."""
        async with self._client(ingest=True) as access:
            return await _submit(access, collection, paths=[url])

    async def retry(self, id: Name) -> Retried:
        """Continue a failed or cancelled document where it stopped."""
        async with self._client(ingest=True) as access:
            details = await _document(access, id)
            return Retried(id=details.id, retried=bool(await access.scope.retry([details.id])))

    async def page(self, document: str, number: int) -> str:
        """The text of one page."""
        async with self._client() as access:
            details = await _document(access, document)
            async for item in access.scope.show(details.id, "pages"):
                page: Page = item
                if page.number == number:
                    return page.text
            raise NotFound(_no_page(details, number))

    @asynccontextmanager
    async def _client(self, *, ingest: bool = False) -> AsyncIterator[Access]:
        access = self._access()
        if ingest and not access.can_ingest:
            raise ToolError("this client may only read")
        try:
            yield access
        except PenstockError as error:
            # The library shows the message of a ToolError to the agent, and hides that of any other error.
            raise ToolError(masked(str(error))) from error


async def _document(access: Access, name: str) -> DocumentDetails:
    details = await access.scope.status(name)
    if not access.sees(details.collection):
        raise NotFound(f"no document {name!r}")
    return details


async def _submit(access: Access, collection: str | None, **what: Any) -> Submitted:
    names = _allowed(access, collection)
    if collection is None and names is not None:
        collection = names[0]
    async for receipt in access.scope.submit(collection=collection, **what):
        if receipt.id is None:
            raise ToolError(receipt.problem or "the document was refused")
        return Submitted(id=receipt.id, outcome=receipt.outcome, status=receipt.status or "")
    raise ToolError("nothing was submitted")


def _allowed(access: Access, collection: str | None) -> tuple[str, ...] | None:
    names = access.chosen(collection)
    if names == ():
        raise NotFound(f"there is no collection {collection!r}")
    return names


def _result(hit: Hit) -> Result:
    return Result(
        id=hit.document_id,
        title=_title(hit.name, hit.metadata),
        url=page_uri(hit.document_id, hit.page),
        text=hit.text,
        source=hit.source,
        collection=hit.collection,
        page=hit.page,
        page_end=hit.page_end,
        headings=list(hit.headings),
        relevance=hit.relevance,
        metadata=hit.metadata,
    )


def _fields(view: DocumentView) -> dict[str, Any]:
    fields = {name: getattr(view, name) for name in Document.model_fields if name != "metadata"}
    return {**fields, "metadata": dict(view.metadata)}


def _title(name: str, metadata: Any) -> str:
    title = metadata.get("title")
    return title if isinstance(title, str) and title.strip() else name


def _no_page(details: DocumentDetails, page: int) -> str:
    if details.pages is None:
        return f"{details.name} has no text yet: its status is {details.status}"
    return f"{details.name} has no page {page}: its last one is {details.pages}"
