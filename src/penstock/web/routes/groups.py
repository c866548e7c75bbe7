"""Groups of runs."""

from typing import Any

from fastapi import APIRouter, Request, Response

from penstock.errors import UsageError
from penstock.verbs.groups import GroupView
from penstock.web.access import Reads, Writes, refuse_part
from penstock.web.pages import PageRoute, back, render
from penstock.web.words import duration, money

router = APIRouter(route_class=PageRoute, include_in_schema=False)

SHOWN = 200


@router.get("/groups")
async def groups(request: Request, access: Reads) -> Response:
    refuse_part(access)
    return render(request, "groups.html", access, groups=await access.scope.list_groups(limit=SHOWN))


@router.get("/groups/{group_id}")
async def group(request: Request, access: Reads, group_id: str) -> Response:
    refuse_part(access)
    found = await access.scope.group(group_id)
    verbs = []
    if found.group.failed or found.group.cancelled:
        verbs.append(("retry", "Retry what failed", ""))
    if found.group.running or found.group.pending:
        verbs.append(("cancel", "Cancel the rest", "danger"))
    return render(request, "group.html", access, g=found, verbs=verbs, about=_about(found))


@router.post("/groups/{group_id}/{verb}")
async def act(request: Request, access: Writes, group_id: str, verb: str) -> Response:
    refuse_part(access)
    if verb == "retry":
        told = f"{await access.scope.retry_group(group_id)} runs will be processed again."
    elif verb == "cancel":
        told = f"{await access.scope.cancel_group(group_id)} runs were cancelled."
    else:
        raise UsageError(f"verb {verb!r}: use retry or cancel")
    return back(f"/groups/{group_id}", told)


def _about(view: GroupView) -> list[tuple[str, Any]]:
    group = view.group
    return [
        ("id", group.id),
        ("collection", group.collection),
        ("workflow", group.workflow),
        ("parameter set", group.params),
        ("batch", group.batch),
        ("completed", group.completed),
        ("without text", group.not_indexable),
        ("not supported", group.unsupported),
        ("running", group.running),
        ("pending", group.pending),
        ("failed", group.failed),
        ("cancelled", group.cancelled),
        ("runs per second", f"{view.runs_per_s:.2f}" if view.runs_per_s else None),
        ("median duration", duration(view.durations.p50) if view.durations else None),
        ("bought", money(view.usage.bought.cost)),
    ]
