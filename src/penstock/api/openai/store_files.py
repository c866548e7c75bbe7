"""The files of a vector store."""

from collections.abc import AsyncIterator
from functools import partial
from typing import Any, Literal

from fastapi import APIRouter, Response
from fastapi.responses import StreamingResponse
from pydantic import ConfigDict

from penstock.api.answers import JSON, answer
from penstock.api.callers import Access, Ingests, Reads, Writes
from penstock.api.openai import words
from penstock.api.openai.attaching import Attachment, attach
from penstock.api.openai.words import Body, store_file_object, store_file_of, store_of
from penstock.ledger.engine import vector_stores
from penstock.ledger.engine.vector_stores import File, State, Store
from penstock.model.nouns import Owner
from penstock.verbs.as_json import encode

router = APIRouter(prefix="/vector_stores/{vector_store_id}/files", tags=["OpenAI: vector stores"])

StateFilter = Literal["in_progress", "completed", "failed", "cancelled"]


class NewAttributes(Body):
    model_config = ConfigDict(extra="forbid", json_schema_extra={"example": {"attributes": {"year": 2020}}})

    attributes: words.Attributes | None


@router.post("", operation_id="openai_add_file", response_class=Response)
async def add_file(access: Ingests, vector_store_id: str, asked: Attachment) -> Response:
    """Add a file to a vector store. It may be in several. It is found as soon as a worker has processed it."""
    store = await store_of(access, vector_store_id)
    [document] = await attach(access, store, [asked])
    return answer(store_file_object(await _file(access, document)), headers=words.POLL)


async def _file(access: Access, document: str) -> File:
    found = await access.scope.ledger.read(partial(vector_stores.files, Owner(access.owner)), [document])
    return found[document]


@router.get("", operation_id="openai_list_store_files", response_class=Response)
async def list_store_files(
    access: Reads,
    vector_store_id: str,
    filter: StateFilter | None = None,
    order: words.Order = "desc",
    after: words.Place = None,
    before: words.Place = None,
    limit: words.Limit = 20,
) -> Response:
    """List the files of a vector store."""
    store = await store_of(access, vector_store_id)
    first = None if after is None else (await store_file_of(access, store, after)).id
    end = None if before is None else (await store_file_of(access, store, before)).id
    # A page that ends before an object is read backwards, from that object.
    is_backwards = first is None and end is not None
    found = await _page(access, store, filter, (order == "asc") != is_backwards, end if is_backwards else first, limit)
    more, found = len(found) > limit, found[:limit]
    if is_backwards:
        found.reverse()
    elif end is not None and end in (ids := [one.id for one in found]):
        more, found = False, found[: ids.index(end)]
    return answer(words.listed([store_file_object(one) for one in found], has_more=more))


async def _page(
    access: Access, store: Store, state: State | None, ascending: bool, place: str | None, limit: int
) -> list[File]:
    """Files after a place, one more than are shown."""
    found: list[File] = []
    last = place or ""
    while True:
        page = await access.scope.ledger.read(
            partial(vector_stores.page, Owner(access.owner)),
            store.collection,
            state=state,
            older="" if ascending else last,
            newer=last if ascending else "",
            ascending=ascending,
            count=limit + 1,
        )
        found += [one for one in page if words.sees(access, one)]
        if len(page) <= limit or len(found) > limit:
            return found
        last = page[-1].id


@router.get("/{file_id}", operation_id="openai_get_store_file", response_class=Response)
async def get_store_file(access: Reads, vector_store_id: str, file_id: str) -> Response:
    """Return a file of a vector store with its status."""
    store = await store_of(access, vector_store_id)
    return answer(store_file_object(await store_file_of(access, store, file_id)), headers=words.POLL)


@router.post("/{file_id}", operation_id="openai_update_store_file", response_class=Response)
async def update_store_file(access: Writes, vector_store_id: str, file_id: str, asked: NewAttributes) -> Response:
    """Replace the attributes of a file of a vector store. Nothing is embedded again."""
    found = await store_file_of(access, await store_of(access, vector_store_id), file_id)
    attributes = words.checked_attributes(asked.attributes)
    former = words.attributes_of(found)
    gone = [name for name in former if name not in attributes]
    await access.scope.set_metadata(found.id, attributes, remove=gone)
    await access.scope.record("document.metadata", found.id, {"set": attributes, "remove": gone})
    return answer(store_file_object(await _file(access, found.id)))


@router.delete("/{file_id}", operation_id="openai_remove_file", response_class=Response)
async def remove_file(access: Writes, vector_store_id: str, file_id: str) -> Response:
    """Remove a file from a vector store. The file itself stays, and so do its documents in other stores."""
    found = await store_file_of(access, await store_of(access, vector_store_id), file_id)
    await access.scope.delete([found.id])
    await access.scope.record("document.delete", found.id, {}, {"source": found.source})
    return answer({"id": file_id, "object": "vector_store.file.deleted", "deleted": True})


@router.get("/{file_id}/content", operation_id="openai_get_store_file_content", response_class=Response)
async def get_store_file_content(access: Reads, vector_store_id: str, file_id: str) -> Response:
    """Return the text that was extracted from a file of a vector store, page by page."""
    found = await store_file_of(access, await store_of(access, vector_store_id), file_id)
    pages = aiter(access.scope.show(found.id, "pages"))
    # Before the answer begins, so that damaged pages are a problem and no broken answer.
    first: Any = await anext(pages, None)

    async def pieces() -> AsyncIterator[bytes]:
        yield b'{"object":"vector_store.file_content.page","has_more":false,"next_page":null,"data":['
        page, comma = first, b""
        while page is not None:
            yield comma + encode({"type": "text", "text": page.text})
            page, comma = await anext(pages, None), b","
        yield b"]}"

    return StreamingResponse(pieces(), media_type=JSON)
