"""Workers, steps and locks."""

from fastapi import APIRouter, Request, Response

from penstock.model.states import StepStatus
from penstock.web.access import Operates
from penstock.web.pages import PageRoute, back, first, form, render
from penstock.workflows.read import KINDS

router = APIRouter(route_class=PageRoute, include_in_schema=False)

SHOWN = 200
STUCK_S = 60.0


@router.get("/steps")
async def steps(request: Request, access: Operates, status: str = "", kind: str = "") -> Response:
    """Those that make no progress first."""
    scope = access.scope
    chosen = [status] if status else ["RUNNING", "ERROR"]
    found = [step for one in chosen for step in await scope.list_steps(status=one, kind=kind or None, limit=SHOWN)]
    stuck = await scope.list_steps(stuck_s=STUCK_S, kind=kind or None, limit=SHOWN)
    return render(
        request,
        "steps.html",
        access,
        stuck=[step for step in stuck if status in ("", step.status)],
        steps=found[:SHOWN],
        shown=SHOWN,
        query={"status": status, "kind": kind},
        statuses=[one.value for one in StepStatus if one is not StepStatus.COMPLETED],
        kinds=KINDS,
    )


@router.get("/workers")
async def workers(request: Request, access: Operates) -> Response:
    found = await access.scope.list_locks()
    return render(
        request,
        "workers.html",
        access,
        workers=await access.service.app.list_workers(),
        locks=found.locks,
        releases=found.released,
    )


@router.post("/locks/release")
async def release(request: Request, access: Operates) -> Response:
    fields = form(request)
    key = first(fields, "key")
    if first(fields, "sure") != "yes":
        return render(
            request,
            "confirm.html",
            access,
            question="Release this lock by force?",
            about=f"{key}: the work of its holder is done again by another worker. Only do this if the holder hangs.",
            action="/locks/release",
            fields=[("key", key)],
            changes=False,
            yes="Release the lock",
            danger=True,
            back="/workers",
        )
    await access.scope.release_lock(key, force=True, by=access.scope.actor)
    await access.scope.record("lock.release", key)
    return back("/workers", "The lock is released.")
