"""Bulk actions on documents."""

from typing import Annotated, Any

from fastapi import APIRouter, Query, Response
from pydantic import BaseModel, ConfigDict, Field

from penstock.api.answers import answer
from penstock.api.callers import Access, Reads, Writes
from penstock.api.problems import Problem
from penstock.verbs.actions import Criteria

router = APIRouter(prefix="/actions", tags=["actions"])

EXAMPLE = {
    "id": "01M7GZQJXCK1BXB2ZYP1YTP0G8", "verb": "retry", "state": "WORKING", "total": 9812, "changed": 200,
    "unchanged": 0, "failed": 0, "failures": [], "created_at": "2026-11-18T09:00:00Z", "finished_at": None,
}  # fmt: skip


class Chosen(BaseModel):
    """The documents that meet all criteria."""

    model_config = ConfigDict(extra="forbid")

    status: str | None = Field(None, examples=["FAILED"])
    collection: str | None = None
    name: str | None = Field(None, description="A pattern of names, such as `*.pdf`.")
    metadata: dict[str, Any] | None = Field(None, description="A filter, as for a search.")


class ActionRequest(BaseModel):
    """A verb, and the documents: by a filter, or by their ids."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={"example": {"verb": "retry", "filter": {"status": "FAILED"}, "dry_run": True}},
    )

    verb: str = Field(description="retry, cancel, delete or discard")
    filter: Chosen | None = None
    ids: list[str] | None = Field(None, min_length=1, max_length=10_000)
    values: dict[str, dict[str, Any]] | None = Field(None, description="For retry: other values, by step and name.")
    dry_run: bool = False


@router.post(
    "",
    operation_id="start_action",
    status_code=202,
    response_class=Response,
    responses={
        200: {
            "description": "A dry run.",
            "content": {"application/json": {"example": {"count": 9812, "exact": True}}},
        },
        202: {"description": "A worker does it.", "content": {"application/json": {"example": EXAMPLE}}},
    },
)
async def start_action(access: Writes, asked: ActionRequest) -> Response:
    """Do one verb on all documents that match. A worker does it, in short transactions, and goes on after a kill. The
    documents are chosen once, so that none is acted on twice. With `dry_run`, only count them."""
    _refuse_limited(access)
    criteria = None
    if asked.filter is not None:
        where = None if asked.filter.collection is None else access.collection(asked.filter.collection)
        criteria = Criteria(asked.filter.status, where, asked.filter.name, asked.filter.metadata)
    if asked.dry_run:
        if criteria is None:
            found = {"verb": asked.verb, "count": len(set(asked.ids or ())), "exact": True}
            return answer(found | {"dry_run": True})
        counted = await access.scope.count_action(asked.verb, criteria)
        return answer({"verb": counted.verb, "count": counted.count, "exact": counted.exact, "dry_run": True})
    made = await access.scope.start_action(asked.verb, criteria, ids=asked.ids, values=asked.values)
    return answer(made, 202, {"Location": f"/api/v1/actions/{made.id}"})


@router.get("", operation_id="list_actions", response_class=Response)
async def list_actions(access: Reads, limit: Annotated[int, Query(ge=1, le=500)] = 100) -> Response:
    """List actions, newest first."""
    _refuse_limited(access)
    return answer({"actions": await access.scope.list_actions(limit=limit)})


@router.get("/{action_id}", operation_id="get_action", response_class=Response)
async def get_action(access: Reads, action_id: str) -> Response:
    """Return an action, with its progress and the first failures."""
    _refuse_limited(access)
    return answer(await access.scope.action(action_id))


@router.post("/{action_id}/cancel", operation_id="cancel_action", response_class=Response)
async def cancel_action(access: Writes, action_id: str) -> Response:
    """End an action. What it has done stays."""
    _refuse_limited(access)
    return answer(await access.scope.cancel_action(action_id))


def _refuse_limited(access: Access) -> None:
    """An action may be about any document of the owner."""
    if access.caller.collections is not None or access.caller.filter is not None:
        raise Problem("forbidden", "a key that is limited to collections cannot use bulk actions")
