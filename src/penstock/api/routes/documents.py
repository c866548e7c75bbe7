"""The documents of the caller."""

from typing import Annotated

from fastapi import APIRouter, Query, Response

from penstock.api.answers import answer
from penstock.api.callers import Reads

router = APIRouter(prefix="/documents", tags=["documents"])


@router.get("")
async def list_documents(
    access: Reads,
    status: str | None = None,
    collection: str | None = None,
    name: str | None = None,
    limit: Annotated[int, Query(ge=1, le=500)] = 100,
    cursor: str | None = None,
) -> Response:
    """List documents, newest first."""
    chosen = access.collection(collection) if collection is not None or access.caller.collections else None
    found = await access.scope.list_documents(status=status, collection=chosen, name=name, limit=limit, after=cursor)
    following = found[-1].id if len(found) == limit else None
    return answer({"documents": found, "next": following})


@router.get("/{document_id}")
async def get_document(access: Reads, document_id: str) -> Response:
    """Return one document with its steps and its progress."""
    return answer(await access.document(document_id))
