"""Batches and groups: many documents at once."""

from fastapi import APIRouter, Query, Response
from pydantic import BaseModel, ConfigDict

from penstock.api.answers import answer, described
from penstock.api.callers import Access, Reads, Writes
from penstock.api.custom_code import refuse_methods
from penstock.api.fields import Collection, DefinitionId, Priority, Text, Values
from penstock.api.problems import Problem, not_found
from penstock.ledger.reads.batches import Batch, Group
from penstock.verbs.groups import BatchStart, GroupView

router = APIRouter(tags=["batches and groups"])


class Start(BaseModel):
    """The workflow to start for the documents of a batch."""

    model_config = ConfigDict(extra="forbid", strict=True, json_schema_extra={"example": {"workflow": "default"}})

    workflow: DefinitionId | None = None
    params: DefinitionId | None = None
    values: Values = {}
    collection: Collection | None = None
    priority: Priority = 0
    again: bool = False


def whole(access: Access) -> None:
    """Raise Problem 403 if the caller may see only some of the documents."""
    if access.caller.collections is not None or access.caller.filter:
        raise Problem("forbidden", "a key that is limited to some documents cannot do this")


@router.get("/batches", operation_id="list_batches", responses=described({"batches": [Batch]}))
async def list_batches(access: Reads) -> Response:
    """List batches, newest first."""
    whole(access)
    return answer({"batches": await access.scope.list_batches()})


@router.post("/batches/{batch}/start", operation_id="start_batch", responses=described(BatchStart))
async def start_batch(access: Writes, batch: str, start: Start | None = None) -> Response:
    """Start a workflow for all documents of a batch, as one group. Held documents start with the workflow and
    the values that they were submitted with, unless others are given."""
    whole(access)
    if not any(one.name == batch for one in await access.scope.list_batches()):
        raise not_found("batch", batch)
    chosen = start or Start()
    refuse_methods(access, chosen.workflow)
    done = await access.scope.start_batch(batch, **chosen.model_dump())
    await access.scope.record("batch.start", batch, chosen.model_dump(exclude_none=True))
    return answer(done)


@router.get("/groups", operation_id="list_groups", responses=described({"groups": [Group]}))
async def list_groups(access: Reads, batch: Text | None = None, limit: int = Query(100, ge=1, le=500)) -> Response:
    """List groups of runs, newest first."""
    whole(access)
    return answer({"groups": await access.scope.list_groups(batch=batch, limit=limit)})


@router.get("/groups/{group}", operation_id="get_group", responses=described(GroupView))
async def get_group(access: Reads, group: str) -> Response:
    """Return one group with its counts, durations, rate and estimated time left."""
    whole(access)
    return answer(await access.scope.group(group))


@router.post("/groups/{group}/retry", operation_id="retry_group", responses=described({"retried": int}))
async def retry_group(access: Writes, group: str, cancelled: bool = False) -> Response:
    """Continue the failed runs of a group at their checkpoints."""
    whole(access)
    count = await access.scope.retry_group(group, cancelled=cancelled)
    await access.scope.record("group.retry", group, {"retried": count})
    return answer({"retried": count})


@router.post("/groups/{group}/cancel", operation_id="cancel_group", responses=described({"cancelled": int}))
async def cancel_group(access: Writes, group: str) -> Response:
    """Cancel the runs of a group that have not ended."""
    whole(access)
    count = await access.scope.cancel_group(group)
    await access.scope.record("group.cancel", group, {"cancelled": count})
    return answer({"cancelled": count})
