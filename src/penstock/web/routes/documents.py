"""The list of documents, with actions on many."""

from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response

from penstock.api.callers import Access
from penstock.errors import UsageError
from penstock.model.states import DocumentStatus
from penstock.search.filters import parsed
from penstock.web.access import Reads, Writes
from penstock.web.acting import AT_ONCE, DONE, VERBS, act_on
from penstock.web.collections import names
from penstock.web.pages import PageRoute, back, first, form, render, with_query

router = APIRouter(route_class=PageRoute, include_in_schema=False)

LISTED = 100


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
    done = await act_on(access, verb, ids) if ids else await _act_on_matching(access, verb, chosen)
    return back(here, f"{done} documents: {DONE[verb]}.")


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


async def _act_on_matching(access: Access, verb: str, chosen: Mapping[str, Any]) -> int:
    """Act on the documents that match now, oldest page last. A document that the verb moves out of the selection is not
    met again, because the list continues behind it."""
    done, after = 0, None
    while page := await access.scope.list_documents(**chosen, limit=AT_ONCE, after=after):
        done += len(await getattr(access.scope, verb)([one.id for one in page]))
        after = page[-1].id
    return done
