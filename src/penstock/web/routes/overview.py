"""The first page: what is done, what waits, what is wrong."""

import os
from datetime import UTC, datetime
from functools import partial
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from markupsafe import Markup

from penstock.api.callers import Access
from penstock.ledger.reads import history
from penstock.model.states import WORKING, DocumentStatus
from penstock.web.access import Reads, refuse_part
from penstock.web.pages import PageRoute, render
from penstock.web.plots import stacked

router = APIRouter(route_class=PageRoute, include_in_schema=False)

WINDOWS = (("hour", 1), ("day", 24), ("week", 168))
BARS = 60
LIVE = frozenset({DocumentStatus.PENDING, *WORKING})


@router.get("/")
async def overview(request: Request, access: Reads, hours: Annotated[int, Query(ge=1, le=168)] = 1) -> Response:
    refuse_part(access)
    counts = await access.scope.status()
    waiting = await access.scope.ledger.read(partial(history.oldest_waiting, access.owner))
    usage = counts.usage
    return render(
        request,
        "overview.html",
        access,
        counts=counts,
        total=sum(counts.documents.values()),
        working=sum(number for status, number in counts.documents.items() if status in LIVE),
        ended=[(status, number) for status, number in counts.documents.items() if status not in LIVE],
        saved=usage.saved_by_cache.cost + usage.saved_by_resume.cost,
        free=await access.scope.runtime.run_blocking("io", _free, str(access.scope.config.home_path)),
        oldest=waiting,
        windows=WINDOWS,
        chosen=hours,
        plot=await _plot(access, hours),
    )


async def _plot(access: Access, hours: int) -> Markup:
    width = hours * 3_600 / BARS
    now = access.scope.runtime.now()
    until = (now // width + 1) * width
    edges = [until - width * i for i in range(BARS, -1, -1)]
    found = await access.scope.ledger.read(partial(history.ended, access.owner), edges)
    ended = [found.get(i, {}) for i in range(BARS)]
    shape = "%H:%M" if hours <= 24 else "%d %b"
    labels = [datetime.fromtimestamp(edge, UTC).strftime(shape) for edge in edges[:-1]]
    series = [
        ("completed", "var(--good)", [bar.get("COMPLETED", 0) for bar in ended]),
        ("failed", "var(--bad)", [bar.get("FAILED", 0) for bar in ended]),
        (
            "other ends",
            "var(--none)",
            [sum(bar.values()) - bar.get("COMPLETED", 0) - bar.get("FAILED", 0) for bar in ended],
        ),
    ]
    return stacked("Documents that ended (UTC)", labels, series)


def _free(home: str) -> int:
    found = os.statvfs(home)
    return found.f_bavail * found.f_frsize
