"""Vector stores: a vector store is a collection."""

from functools import partial
from typing import Any, Literal

from fastapi import APIRouter, Response
from pydantic import ConfigDict, Field

from penstock.api.answers import answer
from penstock.api.callers import Access, Ingests, Reads, Searches, Writes
from penstock.api.openai import searching, words
from penstock.api.openai.attaching import Attachment, Chunking, attach
from penstock.api.openai.words import FILES, Body, store_id, store_of
from penstock.api.problems import Problem
from penstock.api.routes.groups import whole
from penstock.ledger.database.connection import Connection
from penstock.ledger.engine import vector_stores
from penstock.ledger.engine.vector_stores import Count, SetStore, Store
from penstock.model.nouns import Owner
from penstock.verbs.as_json import encode

router = APIRouter(prefix="/vector_stores", tags=["OpenAI: vector stores"])

MOST_FILES = 2_000


class NewStore(Body):
    model_config = ConfigDict(extra="forbid", json_schema_extra={"example": {"name": "handbook", "metadata": {}}})

    name: str | None = Field(default=None, max_length=1_000)
    metadata: words.Attributes | None = None
    file_ids: list[str] = Field(default=[], max_length=MOST_FILES)
    chunking_strategy: Chunking | None = None
    expires_after: Any = None


class StoreChange(Body):
    model_config = ConfigDict(extra="forbid", json_schema_extra={"example": {"name": "handbook"}})

    name: str | None = Field(default=None, max_length=1_000)
    metadata: words.Attributes | None = None
    expires_after: Any = None


class Question(Body):
    model_config = ConfigDict(extra="forbid", json_schema_extra={"example": {"query": "how fast is the turbine?"}})

    query: str | list[str]
    filters: dict[str, Any] | None = None
    max_num_results: int = Field(default=10, ge=1, le=50)
    ranking_options: "Ranking | None" = None
    rewrite_query: bool = False


class Ranking(Body):
    ranker: Literal["auto", "none", "default-2024-11-15"] = "auto"
    score_threshold: float | None = Field(default=None, ge=0, le=1)


async def _shown(access: Access, store: Store) -> dict[str, Any]:
    counts = await access.scope.ledger.read(partial(vector_stores.counts, Owner(access.owner)), store.collection)
    return words.store_object(store, counts)


@router.post("", operation_id="openai_create_vector_store", response_class=Response)
async def create_store(access: Ingests, asked: NewStore) -> Response:
    """Make a vector store, with files in it if `file_ids` names some."""
    whole(access)
    words.refuse_expiry(asked.expires_after)
    metadata = words.checked_attributes(asked.metadata)
    given = [Attachment(file_id=one, chunking_strategy=asked.chunking_strategy) for one in asked.file_ids]
    collection, owner = access.service.runtime.ulid(), Owner(access.owner)
    made = await access.scope.ledger.write(
        vector_stores.SET_STORE, SetStore(owner, collection, asked.name or "", encode(metadata).decode())
    )
    try:
        await attach(access, made, given)
    except BaseException:
        await access.scope.ledger.write(vector_stores.FORGET_STORE, (owner, collection))
        raise
    return answer(await _shown(access, made))


@router.get("", operation_id="openai_list_vector_stores", response_class=Response)
async def list_stores(
    access: Reads,
    order: words.Order = "desc",
    after: words.Place = None,
    before: words.Place = None,
    limit: words.Limit = 20,
) -> Response:
    """List the vector stores. Every collection is one."""
    owner = Owner(access.owner)
    found = await access.scope.ledger.read(partial(vector_stores.stores, owner))
    found = [one for one in found if one.collection != FILES and access.may_use(one.collection)]
    if order == "desc":
        found.reverse()
    page, has_more = words.cut(found, store_id, after=after, before=before, limit=limit)

    def count(connection: Connection) -> list[list[Count]]:
        return [vector_stores.counts(owner, connection, one.collection) for one in page]

    counts = await access.scope.ledger.read(count)
    shown = [words.store_object(one, numbers) for one, numbers in zip(page, counts, strict=True)]
    return answer(words.listed(shown, has_more=has_more))


@router.get("/{vector_store_id}", operation_id="openai_get_vector_store", response_class=Response)
async def get_store(access: Reads, vector_store_id: str) -> Response:
    """Return a vector store with the counts of its files."""
    return answer(await _shown(access, await store_of(access, vector_store_id)))


@router.post("/{vector_store_id}", operation_id="openai_update_vector_store", response_class=Response)
async def update_store(access: Writes, vector_store_id: str, asked: StoreChange) -> Response:
    """Change the name or the metadata of a vector store."""
    words.refuse_expiry(asked.expires_after)
    former = await store_of(access, vector_store_id)
    name = former.name if asked.name is None else asked.name
    metadata = former.metadata if asked.metadata is None else words.checked_attributes(asked.metadata)
    change = SetStore(Owner(access.owner), former.collection, name, encode(metadata).decode())
    changed = await access.scope.ledger.write(vector_stores.SET_STORE, change)
    was = {"name": former.name, "metadata": former.metadata}
    await access.scope.record("vector_store.update", former.collection, {"name": name, "metadata": metadata}, was)
    return answer(await _shown(access, changed))


@router.delete("/{vector_store_id}", operation_id="openai_delete_vector_store", response_class=Response)
async def delete_store(access: Writes, vector_store_id: str) -> Response:
    """Delete a vector store: the collection with all its documents. The files that they were made of stay."""
    whole(access)
    found = await store_of(access, vector_store_id)
    done = await access.scope.drop_collection(found.collection)
    await access.scope.ledger.write(vector_stores.FORGET_STORE, (Owner(access.owner), found.collection))
    await access.scope.record("collection.drop", found.collection, {}, {"documents": done.documents})
    return answer({"id": vector_store_id, "object": "vector_store.deleted", "deleted": True})


@router.post("/{vector_store_id}/search", operation_id="openai_search_vector_store", response_class=Response)
async def search_store(access: Searches, vector_store_id: str, question: Question) -> Response:
    """Return the best passages of a vector store, best first. The score is how well a passage covers the query, from 0
    to 1."""
    store = await store_of(access, vector_store_id)
    queries = [question.query] if isinstance(question.query, str) else question.query
    if not 0 < len(queries) <= searching.MOST_QUERIES:
        raise Problem("invalid", f"query: send 1 to {searching.MOST_QUERIES} texts")
    if question.rewrite_query:
        raise Problem("invalid", "rewrite_query: Penstock has no language model that rewrites queries; send false")
    ranking = question.ranking_options or Ranking()
    found = await searching.search(
        access, store, queries, question.max_num_results, question.filters, ranking.score_threshold
    )
    return answer(
        {
            "object": "vector_store.search_results.page",
            "search_query": queries,
            "data": found,
            "has_more": False,
            "next_page": None,
        }
    )
