"""Actions on many documents, and how far they are."""

from fastapi import APIRouter, Request, Response

from penstock.verbs.actions import ActionView
from penstock.web.access import Reads, Writes, refuse_part
from penstock.web.pages import PageRoute, back, render

router = APIRouter(route_class=PageRoute, include_in_schema=False)

SHOWN = 100


@router.get("/actions")
async def actions(request: Request, access: Reads) -> Response:
    refuse_part(access)
    found = await access.scope.list_actions(limit=SHOWN)
    return render(request, "actions.html", access, actions=[(one, _done(one)) for one in found])


@router.get("/actions/{action_id}")
async def action(request: Request, access: Reads, action_id: str) -> Response:
    refuse_part(access)
    found = await access.scope.action(action_id)
    return render(
        request,
        "action.html",
        access,
        a=found,
        heading=f"{found.verb.capitalize()} documents",
        done=_done(found),
        is_open=found.state in ("CHOOSING", "WORKING"),
        is_waiting=not await access.service.app.list_workers(),
    )


@router.post("/actions/{action_id}/cancel")
async def cancel(request: Request, access: Writes, action_id: str) -> Response:
    refuse_part(access)
    await access.scope.cancel_action(action_id)
    return back(f"/actions/{action_id}", "Stopped. What it has done stays.")


def _done(found: ActionView) -> int:
    return found.changed + found.unchanged + found.failed
