"""The first page: what is done, what waits, what is wrong."""

import os
from functools import partial

from fastapi import APIRouter, Request, Response

from penstock.errors import UsageError
from penstock.ledger.reads import history
from penstock.model.callers import KeyScope
from penstock.model.states import WORKING, DocumentStatus
from penstock.web.access import Reads, refuse_part
from penstock.web.charts import WINDOWS, charts
from penstock.web.pages import PageRoute, render

router = APIRouter(route_class=PageRoute, include_in_schema=False)

LIVE = frozenset({DocumentStatus.PENDING, *WORKING})


@router.get("/")
async def overview(request: Request, access: Reads, window: str = "hour") -> Response:
    refuse_part(access)
    if window not in WINDOWS:
        raise UsageError(f"window {window[:80]!r}: use one of {', '.join(WINDOWS)}")
    counts = await access.scope.status()
    oldest = await access.scope.ledger.read(partial(history.oldest_waiting, access.owner))
    usage, documents = counts.usage, counts.documents
    waiting = documents.get(DocumentStatus.PENDING, 0)
    working = sum(documents.get(status, 0) for status in WORKING)
    return render(
        request,
        "overview.html",
        access,
        counts=counts,
        total=sum(documents.values()),
        waiting=waiting,
        working=working,
        ended=[(status, number) for status, number in documents.items() if status not in LIVE],
        spent=usage.bought.cost,
        saved=usage.saved_by_cache.cost + usage.saved_by_resume.cost,
        disk=await access.scope.runtime.run_blocking("io", _disk, str(access.scope.config.home_path)),
        oldest=oldest,
        operates=access.caller.has(KeyScope.OPS),
        windows=list(WINDOWS),
        chosen=window,
        plots=await charts(access, window, waiting, working),
    )


def _disk(home: str) -> tuple[int, int]:
    """The bytes that are free, and those that there are."""
    found = os.statvfs(home)
    return found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize
