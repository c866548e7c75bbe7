"""Who may see which page."""

from collections.abc import Awaitable, Callable
from typing import Annotated

from fastapi import Depends, Request

from penstock.api.callers import Access, authenticated, requires
from penstock.api.problems import Problem


def page_for(scope: str) -> Callable[[Request], Awaitable[Access]]:
    """The dependency of a page that needs this scope. A token with a filter is for programs: pages show counts and
    lists of all documents."""
    required = requires(scope)

    async def access(request: Request) -> Access:
        found = await required(request)
        if found.caller.filter:
            raise Problem("forbidden", "a token with a filter cannot use the pages: use the API")
        return found

    return access


def refuse_part(access: Access) -> None:
    """Raise Problem 403 if the key allows only some collections, for pages that do not separate them."""
    if access.caller.collections is not None:
        raise Problem("forbidden", "this page shows all collections, and the key allows only some of them")


Anybody = Annotated[Access, Depends(authenticated)]
Searches = Annotated[Access, Depends(page_for("search"))]
Reads = Annotated[Access, Depends(page_for("read"))]
Ingests = Annotated[Access, Depends(page_for("ingest"))]
Writes = Annotated[Access, Depends(page_for("write"))]
Operates = Annotated[Access, Depends(page_for("ops"))]
Administers = Annotated[Access, Depends(page_for("admin"))]
