"""The list of documents, with actions on many; and the page of one."""

from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response

from penstock.api.callers import Access
from penstock.errors import UsageError
from penstock.ledger.engine import dead_letters
from penstock.ledger.engine.dead_letters import DeadLetter
from penstock.model.reasons import ADVICE
from penstock.model.states import DocumentStatus
from penstock.search.filters import parsed
from penstock.verbs.views import DocumentDetails
from penstock.web.access import Reads, Writes
from penstock.web.collections import names
from penstock.web.page_text import page_text
from penstock.web.pages import PageRoute, back, first, form, render, with_query
from penstock.web.steps import timeline

router = APIRouter(route_class=PageRoute, include_in_schema=False)

LISTED = 100
ACTED_AT_ONCE = 500
DONE = {"retry": "will be processed again", "cancel": "cancelled", "delete": "deleted"}
VERBS = {
    "retry": ("Retry", ""),
    "cancel": ("Cancel", "plain"),
    "delete": ("Delete", "danger"),
}
OPEN = frozenset(
    {DocumentStatus.PENDING, DocumentStatus.EXTRACTING, DocumentStatus.CHUNKING, DocumentStatus.EMBEDDING}
    | {DocumentStatus.INDEXING}
)
REPEATABLE = frozenset({DocumentStatus.FAILED, DocumentStatus.CANCELLED, DocumentStatus.NOT_INDEXABLE})


@router.get("/documents")
async def documents(
    request: Request,
    access: Reads,
    name: Annotated[str, Query(max_length=4_000)] = "",
    status: str = "",
    collection: str = "",
    filter: Annotated[str, Query(max_length=4_000)] = "",
    parent: str = "",
    after: str = "",
) -> Response:
    query = {"name": name, "status": status, "collection": collection, "filter": filter, "parent": parent}
    chosen = _chosen(access, query)
    found = await access.scope.list_documents(**chosen, limit=LISTED + 1, after=after or None)
    counted = await access.scope.count_documents(**chosen)
    more = len(found) > LISTED
    return render(
        request,
        "documents.html",
        access,
        query=query,
        filtered=any(query.values()),
        statuses=[one.value for one in DocumentStatus],
        collections=await names(access),
        counts=[] if access.caller.collections is not None else (await access.scope.status()).documents.items(),
        documents=found[:LISTED],
        matching=f"{counted.count}{'' if counted.exact else ' or more'}",
        after=with_query("/documents", **query, after=found[LISTED - 1].id) if more else None,
    )


@router.post("/documents/act")
async def act(request: Request, access: Writes) -> Response:
    """Act on the selected documents, or on all that match, after a page that asks with their number."""
    fields = form(request)
    verb, ids = first(fields, "verb"), fields.get("id", [])
    if verb not in DONE:
        raise UsageError(f"verb {verb!r}: use one of {', '.join(DONE)}")
    query = {name: first(fields, name) for name in ("name", "status", "collection", "filter", "parent")}
    chosen = _chosen(access, query)
    here = with_query("/documents", **query)
    if first(fields, "which") == "matching":
        counted = await access.scope.count_documents(**chosen)
        number = f"all {counted.count}{'' if counted.exact else ' or more'} documents that match"
        ids = []
    elif ids:
        number = f"{len(ids)} documents" if len(ids) > 1 else "1 document"
    else:
        return back(here, "Select documents first, or choose all that match.")
    if first(fields, "sure") != "yes":
        given = [("verb", verb), ("which", first(fields, "which")), *query.items(), *(("id", one) for one in ids)]
        title = f"{VERBS[verb][0]} {number}?"
        return render(
            request,
            "confirm.html",
            access,
            question=title,
            about="Deleted documents are no longer found by searches." if verb == "delete" else "",
            action="/documents/act",
            fields=given,
            yes=title.rstrip("?"),
            danger=verb == "delete",
            back=here,
        )
    done = await _act_on(access, verb, ids) if ids else await _act_on_matching(access, verb, chosen)
    return back(here, f"{done} documents: {DONE[verb]}.")


@router.get("/documents/{document_id}")
async def document(
    request: Request,
    access: Reads,
    document_id: str,
    page: Annotated[int, Query(ge=1)] = 1,
    chunk: Annotated[int | None, Query(ge=0)] = None,
) -> Response:
    details = await access.document(document_id)
    letter = await _letter(access, details)
    return render(
        request,
        "document.html",
        access,
        d=details,
        ended=details.status not in OPEN,
        verbs=[(verb, *VERBS[verb]) for verb in _verbs(details)],
        steps=timeline(details.steps, access.scope.runtime.now()),
        about=_about(details),
        text=await page_text(access, details, page, chunk),
        letter=letter,
        advice=ADVICE.get(letter.reason, "") if letter is not None else "",
    )


@router.post("/documents/{document_id}/{verb}")
async def act_on_one(request: Request, access: Writes, document_id: str, verb: str) -> Response:
    fields = form(request)
    details = await access.document(document_id)
    if verb not in DONE:
        raise UsageError(f"verb {verb!r}: use one of {', '.join(DONE)}")
    if verb == "delete" and first(fields, "sure") != "yes":
        return render(
            request,
            "confirm.html",
            access,
            question="Delete this document?",
            about=details.name,
            action=f"/documents/{details.id}/delete",
            fields=[],
            yes="Delete",
            danger=True,
            back=f"/documents/{details.id}",
        )
    done = await _act_on(access, verb, [details.id])
    told = DONE[verb].capitalize() + "." if done else "Nothing to do: its status has changed."
    return back("/documents" if verb == "delete" else f"/documents/{details.id}", told)


def _chosen(access: Access, query: Mapping[str, str]) -> dict[str, Any]:
    collection = query["collection"] or None
    if collection is not None or access.caller.collections is not None:
        collection = access.collection(collection)
    return {
        "name": query["name"] or None,
        "status": query["status"] or None,
        "collection": collection,
        "filter": parsed((query["filter"],)) if query["filter"].strip() else None,
        "parent": query["parent"] or None,
    }


async def _act_on(access: Access, verb: str, ids: list[str]) -> int:
    done = 0
    for i in range(0, len(ids), ACTED_AT_ONCE):
        part = [(await access.document(one)).id for one in ids[i : i + ACTED_AT_ONCE]]
        done += len(await getattr(access.scope, verb)(part))
    return done


async def _act_on_matching(access: Access, verb: str, chosen: Mapping[str, Any]) -> int:
    """Act on the documents that match now, oldest page last. A document that the verb moves out of the selection is not
    met again, because the list continues behind it."""
    done, after = 0, None
    while page := await access.scope.list_documents(**chosen, limit=ACTED_AT_ONCE, after=after):
        done += len(await getattr(access.scope, verb)([one.id for one in page]))
        after = page[-1].id
    return done


async def _letter(access: Access, details: DocumentDetails) -> DeadLetter | None:
    """The open dead letter of a document."""
    found = await access.scope.ledger.read(partial(dead_letters.of, access.owner), [details.id])
    return await access.scope.dead_letter(found[0][0]) if found else None


def _verbs(details: DocumentDetails) -> list[str]:
    if details.status in OPEN:
        return ["cancel", "delete"]
    return ["retry", "delete"] if details.status in REPEATABLE else ["delete"]


def _about(details: DocumentDetails) -> list[tuple[str, Any]]:
    known = [
        ("id", details.id),
        ("source", details.source),
        ("collection", details.collection),
        ("type", details.media_type),
        ("size", f"{details.size} bytes"),
        ("pages", details.pages),
        ("chunks", details.chunks),
        ("attempts", details.attempts),
        ("retries", details.retry_count),
    ]
    return [*known, *((f"metadata: {key}", value) for key, value in details.metadata.items())]
