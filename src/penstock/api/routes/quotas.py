"""What an owner may have, and what it has."""

from fastapi import APIRouter, Response
from pydantic import BaseModel, ConfigDict, Field

from penstock.api.answers import answer, described
from penstock.api.callers import Administers, Reads
from penstock.verbs.quotas import MOST, MOST_REQUESTS, QuotaView

router = APIRouter(prefix="/quota", tags=["quotas"])


class NewQuota(BaseModel):
    """The limits of an owner. What is left out is as in the settings; -1: no limit."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"example": {"documents": 10_000, "megabytes": 500}})

    documents: int | None = Field(None, ge=-1, le=MOST)
    megabytes: int | None = Field(None, ge=-1, le=MOST, description="Of the raw bytes of the documents.")
    requests_per_s: float | None = Field(None, gt=0, le=MOST_REQUESTS, allow_inf_nan=False)


@router.get("", operation_id="get_quota", responses=described(QuotaView))
async def get_quota(access: Reads) -> Response:
    """Return the quota of the owner, and how much of it is used."""
    return answer(await access.scope.quota())


@router.put("", operation_id="set_quota", responses=described(QuotaView))
async def set_quota(access: Administers, new: NewQuota) -> Response:
    """Give the owner limits of its own, in place of all that were set before. An admin names another owner with
    `X-Penstock-Owner`."""
    made = await access.scope.set_quota(
        documents=new.documents, megabytes=new.megabytes, requests_per_s=new.requests_per_s
    )
    return answer(made)


@router.delete("", operation_id="clear_quota", responses=described(QuotaView))
async def clear_quota(access: Administers) -> Response:
    """Remove the limits of the owner's own: those of the settings hold again."""
    return answer(await access.scope.set_quota())
