"""Bulk actions on documents."""

from typing import Annotated, Literal

from fastapi import APIRouter, Query, Response
from pydantic import BaseModel, ConfigDict, Field

from penstock.api.answers import answer, described
from penstock.api.callers import Access, Reads, Writes
from penstock.api.fields import Collection, DocumentIdText, Filter, Text, Values
from penstock.api.problems import Problem
from penstock.model.states import DocumentStatus
from penstock.verbs.actions import ActionView, Criteria

router = APIRouter(prefix="/actions", tags=["actions"])


class Chosen(BaseModel):
    """The documents that meet all criteria."""

    model_config = ConfigDict(extra="forbid", strict=True)

    status: DocumentStatus | None = Field(None, examples=["FAILED"], strict=False)
    collection: Collection | None = None
    name: Text | None = Field(None, description="A pattern of names, such as `*.pdf`.")
    metadata: Filter | None = Field(None, description="A filter, as for a search.")


class ActionRequest(BaseModel):
    """A verb, and the documents: by a filter, or by their ids."""

    model_config = ConfigDict(
        extra="forbid",
        strict=True,
        json_schema_extra={
            "example": {"verb": "retry", "filter": {"status": "FAILED"}, "dry_run": True},
            "oneOf": [
                {"required": ["filter"], "properties": {"filter": {"type": "object"}, "ids": {"type": "null"}}},
                {"required": ["ids"], "properties": {"ids": {"type": "array"}, "filter": {"type": "null"}}},
            ],
        },
    )

    verb: Literal["retry", "cancel", "delete", "discard"]
    filter: Chosen | None = None
    ids: list[DocumentIdText] | None = Field(None, min_length=1, max_length=10_000)
    values: Values | None = Field(None, description="For retry: other values, by step and name.")
    dry_run: bool = False


@router.post(
    "",
    operation_id="start_action",
    status_code=202,
    response_class=Response,
    responses={
        **described({"verb": str, "count": int, "exact": bool, "dry_run": bool}),
        **described(ActionView, 202),
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


@router.get("", operation_id="list_actions", responses=described({"actions": [ActionView]}))
async def list_actions(access: Reads, limit: Annotated[int, Query(ge=1, le=500)] = 100) -> Response:
    """List actions, newest first."""
    _refuse_limited(access)
    return answer({"actions": await access.scope.list_actions(limit=limit)})


@router.get("/{action_id}", operation_id="get_action", responses=described(ActionView))
async def get_action(access: Reads, action_id: str) -> Response:
    """Return an action, with its progress and the first failures."""
    _refuse_limited(access)
    return answer(await access.scope.action(action_id))


@router.post("/{action_id}/cancel", operation_id="cancel_action", responses=described(ActionView))
async def cancel_action(access: Writes, action_id: str) -> Response:
    """End an action. What it has done stays."""
    _refuse_limited(access)
    return answer(await access.scope.cancel_action(action_id))


def _refuse_limited(access: Access) -> None:
    """An action may be about any document of the owner."""
    if access.caller.collections is not None or access.caller.filter is not None:
        raise Problem("forbidden", "a key that is limited to collections cannot use bulk actions")
