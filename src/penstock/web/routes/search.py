"""Search, with the reasons of each hit."""

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response

from penstock.errors import UsageError
from penstock.search.filters import parsed
from penstock.web.access import Searches
from penstock.web.collections import names
from penstock.web.pages import PageRoute, render, with_query

router = APIRouter(route_class=PageRoute, include_in_schema=False)

HITS = 10


@router.get("/search")
async def search(
    request: Request,
    access: Searches,
    q: Annotated[str, Query(max_length=10_000)] = "",
    mode: str = "hybrid",
    collection: str = "",
    filter: Annotated[str, Query(max_length=10_000)] = "",
    after: str | None = None,
) -> Response:
    known = await names(access)
    chosen = collection or access.scope.config.collection
    query = {"q": q, "mode": mode, "collection": chosen, "filter": filter}
    told: dict[str, Any] = {"hits": None, "after": None, "problem": None, "milliseconds": 0}
    began = access.scope.runtime.clock()
    if q.strip():
        try:
            found = await access.scope.search(
                q,
                HITS,
                collection=access.collection(chosen),
                mode=mode,  # type: ignore[arg-type]
                filter=parsed((filter,)) if filter.strip() else None,
                after=after or None,
                explain=True,
            )
            told |= {"hits": found, "after": with_query("/search", **query, after=found.next) if found.next else None}
        except UsageError as error:
            told["problem"] = str(error)
    told["milliseconds"] = round(1_000 * (access.scope.runtime.clock() - began))
    return render(request, "search.html", access, query=query, collections=known, **told)
