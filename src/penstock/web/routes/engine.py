"""Workers, steps and locks."""

from fastapi import APIRouter, Request, Response

from penstock.web.access import Operates
from penstock.web.pages import PageRoute, render

router = APIRouter(route_class=PageRoute, include_in_schema=False)

SHOWN = 200
STUCK_S = 60.0


@router.get("/workers")
async def workers(request: Request, access: Operates) -> Response:
    scope = access.scope
    live = [step for status in ("RUNNING", "ERROR") for step in await scope.list_steps(status=status, limit=SHOWN)]
    return render(
        request,
        "workers.html",
        access,
        workers=await access.service.app.list_workers(),
        stuck=await scope.list_steps(stuck_s=STUCK_S, limit=SHOWN),
        steps=live,
        locks=(await scope.list_locks()).locks,
    )
