"""For those who operate the engine: steps, workers, locks, checks and maintenance (scope `ops`)."""

from typing import Literal

from fastapi import APIRouter, Query, Response
from pydantic import BaseModel, ConfigDict, Field

from penstock.api.answers import answer, described
from penstock.api.callers import Operates, Reads
from penstock.api.fields import TEXT, Collection, Text
from penstock.api.problems import Problem
from penstock.api.routes.groups import whole
from penstock.ledger.reads.stats import ListedStep
from penstock.model.callers import KeyScope
from penstock.model.states import StepStatus
from penstock.upkeep.report import CheckReport
from penstock.verbs.maintenance import Locks
from penstock.verbs.views import Counts, WorkerView

router = APIRouter(tags=["operations"])


class Checking(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, json_schema_extra={"example": {"sample": 0.1}})

    repair: bool = False
    sample: float = Field(default=1.0, ge=0, le=1)


class Maintaining(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, json_schema_extra={"example": {"dry_run": True}})

    collection: Collection | None = None
    dry_run: bool = False


class Releasing(BaseModel):
    model_config = ConfigDict(
        extra="forbid", strict=True, json_schema_extra={"example": {"key": "index/default/default"}}
    )

    key: str = Field(max_length=500, pattern=TEXT)


@router.get("/status", operation_id="get_status", responses=described(Counts))
async def get_status(access: Reads) -> Response:
    """Return the counts of documents and steps by status, and what waits on what."""
    whole(access)
    return answer(await access.scope.status())


@router.get("/steps", operation_id="list_steps", responses=described({"steps": [ListedStep]}))
async def list_steps(
    access: Operates,
    status: StepStatus | None = None,
    kind: Text | None = None,
    stuck_s: float | None = Query(None, ge=0, le=10**9),
    limit: int = Query(100, ge=1, le=500),
) -> Response:
    """List steps, newest first."""
    found = await access.scope.list_steps(status=status, kind=kind, stuck_s=stuck_s, limit=limit)
    return answer({"steps": found})


@router.get("/workers", operation_id="list_workers", responses=described({"workers": [WorkerView]}))
async def list_workers(access: Operates) -> Response:
    """List the workers of this ledger."""
    return answer({"workers": await access.service.app.list_workers()})


@router.get("/locks", operation_id="list_locks", responses=described(Locks))
async def list_locks(access: Operates) -> Response:
    """List the locks that are held, and the newest forced releases."""
    return answer(await access.scope.list_locks())


@router.post("/locks/release", operation_id="release_lock", response_class=Response)
async def release_lock(access: Operates, lock: Releasing) -> Response:
    """Release a lock by force. Its holder can no longer write."""
    return answer(await access.scope.release_lock(lock.key, force=True, by=access.scope.actor))


@router.post("/checks", operation_id="check", responses=described(CheckReport))
async def check(access: Operates, asked: Checking | None = None) -> Response:
    """Compare ledger, blobs and index of this owner."""
    chosen = asked or Checking()
    return answer(await access.scope.check(repair=chosen.repair, sample=chosen.sample))


@router.post("/maintenance/{verb}", operation_id="maintain", response_class=Response)
async def maintain(access: Operates, verb: Literal["vacuum", "prune"], asked: Maintaining | None = None) -> Response:
    """Compact the indexes of this owner (vacuum), or remove old data of all owners (prune, needs the scope admin)."""
    chosen = asked or Maintaining()
    if verb == "vacuum":
        return answer(await access.scope.vacuum(chosen.collection, wait_s=5.0))
    if not access.caller.has(KeyScope.ADMIN):
        raise Problem("forbidden", "this needs the scope 'admin'", scope="admin")
    return answer(await access.service.app.prune(dry_run=chosen.dry_run))
