"""The list of documents, with actions on many."""

from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response

from penstock.api.callers import Access
from penstock.errors import UsageError
from penstock.ledger.engine import dead_letters
from penstock.ledger.reads import stats
from penstock.model.callers import KeyScope
from penstock.model.states import DocumentStatus
from penstock.search.filters import parsed
from penstock.verbs.actions import VERBS as BULK
from penstock.verbs.actions import Criteria
from penstock.verbs.selection import COUNTED
from penstock.web.access import Reads, Writes, refuse_part
from penstock.web.acting import ABOUT, DONE, VERBS, act_on, changes
from penstock.web.collections import names
from penstock.web.pages import PageRoute, back, first, form, render, with_query

router = APIRouter(route_class=PageRoute, include_in_schema=False)

LISTED = 100
FILTERED = 500
"""How many documents a count with a filter by metadata looks at, before the action asks for the whole number."""
FIELDS = ("name", "status", "collection", "reason", "filter", "parent")


@router.get("/documents")
async def documents(
    request: Request,
    access: Reads,
    name: Annotated[str, Query(max_length=4_000)] = "",
    status: str = "",
    collection: str = "",
    reason: str = "",
    filter: Annotated[str, Query(max_length=4_000)] = "",
    parent: str = "",
    after: str = "",
) -> Response:
    query = dict(zip(FIELDS, (name, status, collection, reason, filter, parent), strict=True))
    chosen = _chosen(access, query)
    found = await access.scope.list_documents(**chosen, limit=LISTED + 1, after=after or None)
    # A filter by metadata is decided here, document by document.
    most = FILTERED if chosen["filter"] else COUNTED
    counted = await access.scope.count_documents(**chosen, most=most)
    more = len(found) > LISTED
    is_whole = access.caller.collections is None
    return render(
        request,
        "documents.html",
        access,
        query=query,
        filtered=any(query.values()),
        statuses=[one.value for one in DocumentStatus],
        collections=await names(access),
        counts=(await access.scope.ledger.read(partial(stats.documents, access.owner))).items() if is_whole else [],
        reasons=await access.scope.ledger.read(partial(dead_letters.by_reason, access.owner)) if is_whole else [],
        documents=found[:LISTED],
        writes=access.caller.has(KeyScope.WRITE),
        matching=f"{counted.count:,}{'' if counted.exact else ' or more'}",
        verbs=[(verb, *VERBS[verb]) for verb in ("retry", "cancel", "delete")],
        after=with_query("/documents", **query, after=found[LISTED - 1].id) if more else None,
    )


@router.post("/documents/act")
async def act(request: Request, access: Writes) -> Response:
    """Act on the selected documents, or start an action on all that match, after a page that asks with their number."""
    fields = form(request)
    verb, ids = first(fields, "verb"), fields.get("id", [])
    if verb not in BULK or verb not in DONE:
        raise UsageError(f"verb {verb[:80]!r}: use retry, cancel or delete")
    query = {name: first(fields, name) for name in FIELDS}
    here = with_query("/documents", **query)
    matching = first(fields, "which") == "matching"
    if not matching and not ids:
        return back(here, "Select documents first, or choose all that match.")
    if first(fields, "sure") != "yes":
        return await _ask(request, access, verb, query, ids, matching=matching)
    different = changes(fields)
    if not matching:
        done = await act_on(access, verb, ids, different)
        return back(here, f"{done:,} documents: {DONE[verb]}." if done != 1 else f"1 document: {DONE[verb]}.")
    refuse_part(access)
    given = different.given() if verb == "retry" else {}
    made = await access.scope.start_action(verb, _criteria(access, query), **given)
    return back(f"/actions/{made.id}")


async def _ask(
    request: Request, access: Access, verb: str, query: Mapping[str, str], ids: list[str], *, matching: bool
) -> Response:
    if matching:
        refuse_part(access)
        counted = await access.scope.count_action(verb, _criteria(access, query))
        several = "" if counted.count == 1 else "s"
        number = f"all {counted.count:,}{'' if counted.exact else ' or more'} document{several} that match"
        given = [("which", "matching"), *query.items()]
    else:
        number = f"{len(ids):,} documents" if len(ids) > 1 else "1 document"
        given = [("which", "selected"), *query.items(), *(("id", one) for one in ids)]
    title = f"{VERBS[verb][0]} {number}?"
    return render(
        request,
        "confirm.html",
        access,
        question=title,
        about=ABOUT[verb],
        action="/documents/act",
        fields=[("verb", verb), *given],
        changes=verb == "retry",
        yes=title.rstrip("?"),
        danger=verb == "delete",
        back=with_query("/documents", **query),
    )


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
        "reason": query["reason"] or None,
    }


def _criteria(access: Access, query: Mapping[str, str]) -> Criteria:
    """What an action chooses by. Without a filter, that is every name."""
    chosen = _chosen(access, query)
    return Criteria(**chosen if any(chosen.values()) else chosen | {"name": "*"})
