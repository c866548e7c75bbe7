"""Ids, objects and lists as OpenAI's clients expect them."""

import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Annotated, Any, Literal, TypeVar

from fastapi import Query
from pydantic import BaseModel, ConfigDict, Field

from penstock.api.callers import Access, is_id
from penstock.api.problems import Problem, not_found
from penstock.config import check_name
from penstock.errors import ConfigError
from penstock.ledger.database.connection import Connection
from penstock.ledger.engine import vector_stores
from penstock.ledger.engine.vector_stores import STATE_OF, Count, File, Store
from penstock.model.nouns import DocumentId, Owner
from penstock.search.filters import Fields, compiled
from penstock.verbs.file_copies import PREFIX

FILES = "openai-files"
"""The collection of files. They are held there: accepted, but in no store yet."""
POLL = {"openai-poll-after-ms": "250"}
"""How soon a client that waits asks again."""
OF_THE_FILE = frozenset(
    {
        *("encrypted", "too_large", "too_many_pages", "unpacked_too_large", "nested_too_deeply", "too_many_pixels"),
        *("damaged", "unsupported_compression", "children_too_deep", "too_many_members", "parser_crash"),
        *("parser_timeout", "parser_memory", "parser_limit", "provider_refused", "text_rejected", "text_too_long"),
        "crash_loop",
    }
)
"""Reasons of dead letters for which another file helps."""
MOST_ATTRIBUTES = 16
LONGEST_NAME, LONGEST_VALUE = 64, 512

T = TypeVar("T")
Order = Annotated[Literal["asc", "desc"], Query(description="By the time when it was made.")]
Limit = Annotated[int, Query(ge=1, le=100)]
Place = Annotated[str | None, Query(max_length=200, description="The id of an object of the page before.")]
Attributes = Annotated[dict[str, str | float | bool], Field(max_length=MOST_ATTRIBUTES)]


class Body(BaseModel):
    """The body of a request. What is not known is refused, so that no client believes that it had an effect."""

    model_config = ConfigDict(extra="forbid")


def file_id(document: str) -> str:
    return f"file-{document}"


def id_of_store_file(file: File) -> str:
    """A document that was made of a file has the id of that file. Any other is a file itself."""
    made_of = file.source.removeprefix(PREFIX)
    return file_id(made_of if made_of != file.source and is_id(made_of) else file.id)


def document_of(text: str) -> DocumentId:
    """The document that a file id names. Raise Problem 404 for anything else."""
    found = text.removeprefix("file-")
    if found == text or not is_id(found):
        raise not_found("file", text)
    return DocumentId(found)


def collection_of(access: Access, text: str) -> str:
    """The collection that the id of a store names."""
    name = text.removeprefix("vs_")
    try:
        check_name("collection", name)
    except ConfigError:
        raise not_found("vector store", text) from None
    if name in (text, FILES) or not access.may_use(name):
        raise not_found("vector store", text)
    return name


async def store_of(access: Access, text: str) -> Store:
    found = await access.scope.ledger.read(partial(vector_stores.get, Owner(access.owner)), collection_of(access, text))
    if found is None:
        raise not_found("vector store", text)
    return found


def files_place(access: Access) -> str:
    """The collection of files. Raise Problem 403 if the key may not use it."""
    if not access.may_use(FILES):
        raise Problem("forbidden", f"the key is limited to some collections: add {FILES!r} to them to use files")
    return FILES


def sees(access: Access, file: File) -> bool:
    """Whether the caller may see a document."""
    if not access.may_use(file.collection):
        return False
    if not access.caller.filter:
        return True
    place = (file.id, file.collection, file.name, file.source, file.media_type, file.size, file.status)
    return compiled(access.caller.filter)(Fields(*place, file.pages, file.created_at, (file.submitted, file.found)))


async def files_of(access: Access, documents: Sequence[str]) -> dict[str, File]:
    """The documents with these ids that the caller may see."""
    found = await access.scope.ledger.read(partial(vector_stores.files, Owner(access.owner)), documents)
    return {document: file for document, file in found.items() if sees(access, file)}


async def store_file_of(access: Access, store: Store, text: str) -> File:
    """The file of a store with this id: the document that was made of it, or the document itself."""
    document = document_of(text)

    def look(connection: Connection) -> File | None:
        made = vector_stores.sourced(Owner(access.owner), connection, store.collection, [PREFIX + document])
        own = vector_stores.files(Owner(access.owner), connection, [document])
        return made.get(PREFIX + document) or own.get(document)

    found = await access.scope.ledger.read(look)
    if found is None or found.collection != store.collection or not sees(access, found):
        raise Problem("not_found", f"no file {text[:200]!r} in the vector store {store_id(store)!r}")
    return found


def store_id(store: Store) -> str:
    return f"vs_{store.collection}"


def file_object(file: File) -> dict[str, Any]:
    return {
        "id": file_id(file.id),
        "object": "file",
        "bytes": file.size,
        "created_at": int(file.created_at),
        "filename": file.name,
        "purpose": json.loads(file.submitted).get("purpose", "user_data"),
        "status": "processed",
        "expires_at": None,
        "status_details": None,
    }


def file_counts(counts: Sequence[tuple[str, int]]) -> dict[str, int]:
    """The numbers of documents by state, from those by status."""
    found = {"in_progress": 0, "completed": 0, "failed": 0, "cancelled": 0}
    for status, count in counts:
        found[STATE_OF[status]] += count
    return {**found, "total": sum(found.values())}


def store_object(store: Store, counts: Sequence[Count]) -> dict[str, Any]:
    numbers = file_counts([(one.status, one.documents) for one in counts])
    return {
        "id": store_id(store),
        "object": "vector_store",
        "created_at": int(store.created_at),
        "name": store.name,
        "usage_bytes": sum(one.bytes for one in counts),
        "file_counts": numbers,
        "status": "in_progress" if numbers["in_progress"] else "completed",
        "expires_after": None,
        "expires_at": None,
        "last_active_at": int(max((one.newest for one in counts), default=store.created_at)),
        "metadata": store.metadata,
    }


def attributes_of(file: File) -> dict[str, Any]:
    """The submitted metadata, as far as clients of OpenAI know such values."""
    return {key: value for key, value in json.loads(file.submitted).items() if isinstance(value, str | int | float)}


def store_file_object(file: File) -> dict[str, Any]:
    state = STATE_OF[file.status]
    return {
        "id": id_of_store_file(file),
        "object": "vector_store.file",
        "created_at": int(file.created_at),
        "usage_bytes": file.size,
        "vector_store_id": f"vs_{file.collection}",
        "status": state,
        "last_error": _last_error(file) if state == "failed" else None,
        "attributes": attributes_of(file),
        "chunking_strategy": {"type": "other"},
    }


def _last_error(file: File) -> dict[str, str]:
    said = file.error or ""
    match file.status:
        case "UNSUPPORTED":
            return {"code": "unsupported_file", "message": said or "files of this type cannot be read"}
        case "NOT_INDEXABLE":
            return {"code": "invalid_file", "message": said or "there is no text in the file"}
    code = "invalid_file" if file.reason in OF_THE_FILE else "server_error"
    return {"code": code, "message": said or "the file could not be processed"}


def listed(objects: list[dict[str, Any]], *, has_more: bool) -> dict[str, Any]:
    return {
        "object": "list",
        "data": objects,
        "first_id": objects[0]["id"] if objects else None,
        "last_id": objects[-1]["id"] if objects else None,
        "has_more": has_more,
    }


def cut(
    found: Sequence[T], key: Callable[[T], str], *, after: str | None, before: str | None, limit: int
) -> tuple[Sequence[T], bool]:
    """The part of a whole list, which is in the order of the answer, that a page shows; and whether there is more."""
    places = {key(one): place for place, one in enumerate(found)}
    for what, name in (("after", after), ("before", before)):
        if name is not None and name not in places:
            raise Problem("invalid", f"{what}: there is no {name[:200]!r} in this list")
    first = 0 if after is None else places[after] + 1
    last = len(found) if before is None else places[before]
    if after is None and before is not None:
        # The page that ends before the named object.
        first = max(0, last - limit)
        return found[first:last], first > 0
    return found[first : max(first, min(last, first + limit))], last - first > limit


def checked_attributes(given: Mapping[str, Any] | None) -> dict[str, Any]:
    """Attributes of a file, or the metadata of a store. A number that is whole stays a whole number."""
    for name, value in (given or {}).items():
        if not 0 < len(name) <= LONGEST_NAME:
            raise Problem("invalid", f"attributes: a name has at most {LONGEST_NAME} characters")
        if isinstance(value, str) and len(value) > LONGEST_VALUE:
            raise Problem("invalid", f"attributes: the value of {name!r} has more than {LONGEST_VALUE} characters")
    return {
        name: int(value) if isinstance(value, float) and value.is_integer() else value
        for name, value in (given or {}).items()
    }


def refuse_expiry(given: object) -> None:
    if given is not None:
        raise Problem("invalid", "expires_after: Penstock deletes by `retention` in its settings, not by a policy here")
