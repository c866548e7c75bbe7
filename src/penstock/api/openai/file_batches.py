"""Several files that are added to a vector store at once."""

from functools import partial
from typing import Any

from fastapi import APIRouter, Response
from pydantic import ConfigDict, Field

from penstock.api.answers import answer
from penstock.api.callers import Access, Ingests, Reads, Writes, is_id
from penstock.api.openai import words
from penstock.api.openai.attaching import Attachment, Chunking, attach
from penstock.api.openai.store_files import StateFilter
from penstock.api.openai.vector_stores import MOST_FILES
from penstock.api.openai.words import Body, id_of_store_file, store_file_object, store_of
from penstock.api.problems import Problem, not_found
from penstock.ledger.engine import vector_stores
from penstock.ledger.engine.vector_stores import STATE_OF, Batch, File, NewBatch
from penstock.model.nouns import DocumentId, Owner

router = APIRouter(prefix="/vector_stores/{vector_store_id}/file_batches", tags=["OpenAI: vector stores"])

_ID = "vsfb_"


class NewFileBatch(Body):
    """Files to add: by `file_ids`, or each with its own attributes by `files`."""

    model_config = ConfigDict(
        extra="forbid", json_schema_extra={"example": {"file_ids": ["file-01M7GZQJXCK1BXB2ZYP1YTP0G8"]}}
    )

    file_ids: list[str] | None = Field(default=None, max_length=MOST_FILES)
    files: list[Attachment] | None = Field(default=None, max_length=MOST_FILES)
    attributes: words.Attributes | None = None
    chunking_strategy: Chunking | None = None


@router.post("", operation_id="openai_create_file_batch", response_class=Response)
async def create_file_batch(access: Ingests, vector_store_id: str, asked: NewFileBatch) -> Response:
    """Add files to a vector store. When this answers, all of them are durable there."""
    if bool(asked.file_ids) == bool(asked.files):
        raise Problem("invalid", "send either file_ids or files, with at least one file")
    store = await store_of(access, vector_store_id)
    files = asked.files or [
        Attachment(file_id=one, attributes=asked.attributes, chunking_strategy=asked.chunking_strategy)
        for one in asked.file_ids or ()
    ]
    documents = tuple(dict.fromkeys(await attach(access, store, files)))
    # The batch comes last: a client that was cut off sends it again, and the files are there already.
    new = NewBatch(Owner(access.owner), access.service.runtime.ulid(), store.collection, documents)
    batch = await access.scope.ledger.write(vector_stores.ADD_FILE_BATCH, new)
    return answer(await _shown(access, batch), headers=words.POLL)


async def _batch(access: Access, vector_store_id: str, text: str) -> Batch:
    store = await store_of(access, vector_store_id)
    name = text.removeprefix(_ID)
    found = None
    if name != text and is_id(name):
        read = partial(vector_stores.batch, Owner(access.owner))
        found = await access.scope.ledger.read(read, store.collection, name)
    if found is None:
        raise not_found("file batch", text)
    return found


async def _files(access: Access, batch: Batch) -> dict[str, File]:
    found: dict[str, File] = await access.scope.ledger.read(
        partial(vector_stores.files, Owner(access.owner)), batch.documents
    )
    return found


async def _shown(access: Access, batch: Batch) -> dict[str, Any]:
    files = await _files(access, batch)
    # What was removed from the store meanwhile does not come any more.
    numbers = words.file_counts([(files[one].status if one in files else "CANCELLED", 1) for one in batch.documents])
    status = "completed"
    if numbers["in_progress"]:
        status = "in_progress"
    elif batch.cancelled:
        status = "cancelled"
    elif numbers["failed"] == numbers["total"]:
        status = "failed"
    return {
        "id": _ID + batch.id,
        "object": "vector_store.files_batch",
        "created_at": int(batch.created_at),
        "vector_store_id": f"vs_{batch.collection}",
        "status": status,
        "file_counts": numbers,
    }


@router.get("/{batch_id}", operation_id="openai_get_file_batch", response_class=Response)
async def get_file_batch(access: Reads, vector_store_id: str, batch_id: str) -> Response:
    """Return how far a batch of files is."""
    return answer(await _shown(access, await _batch(access, vector_store_id, batch_id)), headers=words.POLL)


@router.post("/{batch_id}/cancel", operation_id="openai_cancel_file_batch", response_class=Response)
async def cancel_file_batch(access: Writes, vector_store_id: str, batch_id: str) -> Response:
    """Cancel the files of a batch that have not ended."""
    batch = await _batch(access, vector_store_id, batch_id)
    files = await _files(access, batch)
    waiting = [DocumentId(one) for one, file in files.items() if STATE_OF[file.status] == "in_progress"]
    if waiting:
        await access.scope.ledger.write(vector_stores.CANCEL_FILE_BATCH, (Owner(access.owner), batch.id))
        await access.scope.cancel(waiting)
        await access.scope.record("document.cancel", _ID + batch.id, {"documents": len(waiting)})
    return answer(await _shown(access, await _batch(access, vector_store_id, batch_id)))


@router.get("/{batch_id}/files", operation_id="openai_list_batch_files", response_class=Response)
async def list_batch_files(
    access: Reads,
    vector_store_id: str,
    batch_id: str,
    filter: StateFilter | None = None,
    order: words.Order = "desc",
    after: words.Place = None,
    before: words.Place = None,
    limit: words.Limit = 20,
) -> Response:
    """List the files of a batch."""
    batch = await _batch(access, vector_store_id, batch_id)
    found = [one for one in (await _files(access, batch)).values() if words.sees(access, one)]
    found = [one for one in found if filter is None or STATE_OF[one.status] == filter]
    found.sort(key=lambda one: one.id, reverse=order == "desc")
    page, has_more = words.cut(found, id_of_store_file, after=after, before=before, limit=limit)
    return answer(words.listed([store_file_object(one) for one in page], has_more=has_more))
