"""The documents of the caller: list, follow, change, and what was extracted."""

import hashlib
from collections.abc import AsyncIterator
from functools import partial
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Header, Query, Request, Response
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, ConfigDict

from penstock.api.answers import answer, described
from penstock.api.bodies import byte_range
from penstock.api.callers import Access, Reads, Writes
from penstock.api.custom_code import refuse_methods
from penstock.api.fields import FILTER, Collection, DefinitionId, DocumentIdText, Text, Values, in_query
from penstock.api.filtering import as_filter, narrowed
from penstock.api.problems import Problem
from penstock.ledger.engine import documents
from penstock.model.nouns import Owner
from penstock.model.states import DocumentStatus
from penstock.verbs.views import DocumentDetails, DocumentView

router = APIRouter(prefix="/documents", tags=["documents"])

WAIT_S = 60.0
LOOK_S = (0.1, 1.0)
"""The first and the longest pause between two looks at a document that is waited for."""
PIECE = 1 << 20
ENDS = ("COMPLETED", "NOT_INDEXABLE", "UNSUPPORTED", "FAILED", "CANCELLED")

Id = Annotated[str, "The id of a document."]
Limit = Annotated[int, Query(ge=1, le=500)]


class MetadataPatch(BaseModel):
    """Keys to set and keys to remove."""

    model_config = ConfigDict(
        extra="forbid", strict=True, json_schema_extra={"example": {"set": {"year": 2020}, "remove": []}}
    )

    set: dict[str, Any] = {}
    remove: list[str] = []


class Retry(BaseModel):
    """What to change for the new attempt."""

    model_config = ConfigDict(extra="forbid", strict=True, json_schema_extra={"example": {}})

    workflow: DefinitionId | None = None
    params: DefinitionId | None = None
    values: Values | None = None


@router.get("", operation_id="list_documents", responses=described({"documents": [DocumentView], "next": str | None}))
async def list_documents(
    access: Reads,
    status: DocumentStatus | None = None,
    collection: Collection | None = None,
    name: Annotated[Text | None, Query(description="A glob pattern of file names.")] = None,
    parent: Annotated[DocumentIdText | None, Query(description="Only documents inside this one.")] = None,
    batch: Annotated[Text | None, Query(description="Only documents of this batch.")] = None,
    group: Annotated[Text | None, Query(description="Only documents with a run of this group.")] = None,
    updated_since: Annotated[
        float | None, Query(ge=0, le=1e12, description="Only documents changed since then (seconds since 1970).")
    ] = None,
    reason: Annotated[Text | None, Query(description="Only documents that failed for this reason.")] = None,
    filter: Annotated[
        str | None, Query(description="A filter as for a search, in JSON.", json_schema_extra=in_query(FILTER))
    ] = None,
    limit: Limit = 100,
    cursor: Annotated[DocumentIdText | None, Query(description="`next` of the page before.")] = None,
) -> Response:
    """List documents, newest first. Use at most one of `parent`, `batch`, `group`, `updated_since` and `reason`."""
    where, wanted = narrowed(access, collection, as_filter(filter))
    if parent is not None:
        parent = (await access.document(parent)).id
    found = await access.scope.list_documents(
        status=status, collection=where, name=name, filter=wanted, parent=parent, batch=batch, group=group,
        updated_since=updated_since, reason=reason, limit=limit, after=cursor,
    )  # fmt: skip
    return answer({"documents": found, "next": found[-1].id if len(found) == limit else None})


@router.get("/{document_id}", operation_id="get_document", responses=described(DocumentDetails))
async def get_document(
    request: Request,
    access: Reads,
    document_id: Id,
    wait: Annotated[float, Query(ge=0, le=WAIT_S, description="Wait so many seconds until it has ended.")] = 0,
    if_none_match: Annotated[str | None, Header()] = None,
) -> Response:
    """Return one document with its steps and progress. With `wait`, the answer comes when it has ended, or after that
    time. With `If-None-Match`, it is 304 if nothing has changed."""
    found = await access.document(document_id)
    if wait and found.status not in ENDS:
        found = await _ended(request, access, document_id, wait, found)
    shown = answer(found)
    tag = f'"{hashlib.sha256(bytes(shown.body)).hexdigest()[:32]}"'
    if if_none_match is not None and tag in (one.strip().removeprefix("W/") for one in if_none_match.split(",")):
        return Response(status_code=304, headers={"ETag": tag})
    shown.headers["ETag"] = tag
    return shown


async def _ended(
    request: Request, access: Access, document_id: str, wait: float, found: DocumentDetails
) -> DocumentDetails:
    """Look again, less and less often, until the document has ended, or the client or the server does not wait."""
    runtime, stopping = access.service.runtime, access.service.stopping
    until, pause = runtime.clock() + wait, LOOK_S[0]
    while found.status not in ENDS and not stopping.is_set() and (left := until - runtime.clock()) > 0:
        await runtime.wait(stopping, min(pause, left))
        if await request.is_disconnected():
            break
        pause = min(LOOK_S[1], pause * 1.5)
        found = await access.document(document_id)
    return found


@router.patch("/{document_id}", operation_id="patch_document", responses=described(DocumentDetails))
async def patch_document(access: Writes, document_id: Id, changes: MetadataPatch) -> Response:
    """Change the metadata of a document. Nothing is embedded again."""
    found = await access.document(document_id)
    await access.scope.set_metadata(found.id, changes.set, remove=changes.remove)
    await access.scope.record("document.metadata", found.id, {"set": changes.set, "remove": changes.remove})
    return answer(await access.document(document_id))


@router.delete("/{document_id}", operation_id="delete_document", status_code=204, response_class=Response)
async def delete_document(access: Writes, document_id: Id) -> Response:
    """Delete a document, and those inside it. No search that starts after the answer finds it."""
    found = await access.document(document_id)
    await access.scope.delete([found.id])
    await access.scope.record("document.delete", found.id, {}, {"source": found.source})
    return Response(status_code=204)


@router.post("/{document_id}/retry", operation_id="retry_document", responses=described({"retried": bool}))
async def retry_document(access: Writes, document_id: Id, change: Retry | None = None) -> Response:
    """Continue a document that failed or was cancelled at its checkpoint. Another workflow or other values start a new
    run, which repeats only the steps that they affect."""
    found, wanted = await access.document(document_id), change or Retry()
    refuse_methods(access, wanted.workflow)
    done = await access.scope.retry([found.id], workflow=wanted.workflow, params=wanted.params, values=wanted.values)
    await access.scope.record("document.retry", found.id, wanted.model_dump(exclude_none=True))
    return answer({"retried": bool(done)})


@router.post("/{document_id}/cancel", operation_id="cancel_document", responses=described({"cancelled": bool}))
async def cancel_document(access: Writes, document_id: Id) -> Response:
    """Cancel a document that has not ended, and those inside it."""
    found = await access.document(document_id)
    done = await access.scope.cancel([found.id])
    await access.scope.record("document.cancel", found.id)
    return answer({"cancelled": bool(done)})


@router.get(
    "/{document_id}/raw",
    operation_id="get_raw",
    response_class=Response,
    responses={
        200: {"content": {"application/octet-stream": {}}, "description": "The bytes."},
        206: {"content": {"application/octet-stream": {}}, "description": "A part of them."},
    },
)
async def get_raw(access: Reads, document_id: Id, range: Annotated[str | None, Header()] = None) -> Response:
    """Return the bytes of a document as they were submitted. `Range` asks for a part of them."""
    found = await access.document(document_id)
    raw = await access.scope.ledger.read(partial(documents.raw, Owner(access.owner)), found.id)
    if raw is None:
        raise Problem("gone", "the bytes of this document are not stored")
    key, size, sha256 = raw
    headers = {
        "Accept-Ranges": "bytes",
        "ETag": f'"{sha256}"',
        # The bytes of others are never shown in the browser as a page of this server.
        "Content-Disposition": "attachment",
        "Content-Security-Policy": "sandbox; default-src 'none'",
    }
    wanted = byte_range(range, size)
    first, last = wanted or (0, size - 1)
    headers["Content-Length"] = str(last - first + 1)
    if wanted is not None:
        headers["Content-Range"] = f"bytes {first}-{last}/{size}"
    # Before the first byte is sent, so that a missing blob is a problem and no broken answer.
    head = await access.scope.blobs.read_range(key, first, min(PIECE, last - first + 1)) if size else b""

    async def pieces() -> AsyncIterator[bytes]:
        yield head
        place = first + len(head)
        while place <= last:
            piece = await access.scope.blobs.read_range(key, place, min(PIECE, last - place + 1))
            if not piece:
                raise OSError(f"blob {key} is shorter than the ledger says")
            place += len(piece)
            yield piece

    return StreamingResponse(pieces(), 200 if wanted is None else 206, headers, "application/octet-stream")


@router.get(
    "/{document_id}/pages",
    operation_id="list_pages",
    responses=described({"pages": [dict[str, Any]], "next": int | None}),
)
async def list_pages(
    access: Reads,
    document_id: Id,
    limit: Limit = 100,
    cursor: Annotated[int, Query(ge=0, description="`next` of the page before.")] = 0,
) -> Response:
    """Return the pages that were extracted, with their text."""
    return await _items(access, document_id, "pages", limit, cursor)


@router.get(
    "/{document_id}/chunks",
    operation_id="list_chunks",
    responses=described({"chunks": [dict[str, Any]], "next": int | None}),
)
async def list_chunks(
    access: Reads,
    document_id: Id,
    limit: Limit = 100,
    cursor: Annotated[int, Query(ge=0, description="`next` of the page before.")] = 0,
) -> Response:
    """Return the chunks of a document: what is embedded and found."""
    return await _items(access, document_id, "chunks", limit, cursor)


async def _items(
    access: Access, document_id: str, what: Literal["pages", "chunks"], limit: int, cursor: int
) -> Response:
    found = await access.document(document_id)
    out: list[Any] = []
    more = False
    async for item in access.scope.show(found.id, what, start=cursor):
        if len(out) == limit:
            more = True
            break
        out.append(item)
    return answer({what: out, "next": cursor + limit if more else None})
