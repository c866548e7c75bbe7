"""Pausing and resuming the intake."""

from fastapi import APIRouter, Response
from pydantic import BaseModel, ConfigDict, Field

from penstock.api.answers import answer, described
from penstock.api.callers import Access, Operates, Reads
from penstock.api.fields import TEXT
from penstock.api.problems import Problem
from penstock.api.routes.groups import whole
from penstock.model.callers import KeyScope
from penstock.verbs.intake_pauses import IntakeState

router = APIRouter(prefix="/intake", tags=["intake"])


class Pausing(BaseModel):
    """Whose intake to pause, and why."""

    model_config = ConfigDict(extra="forbid", strict=True, json_schema_extra={"example": {"reason": "a new disk"}})

    reason: str = Field("", max_length=500, pattern=TEXT, description="Shown to whoever is refused.")
    everyone: bool = Field(False, description="Of all owners (scope `admin`).")


class Resuming(BaseModel):
    """Whose intake to resume."""

    model_config = ConfigDict(extra="forbid", strict=True, json_schema_extra={"example": {"everyone": False}})

    everyone: bool = Field(False, description="Of all owners (scope `admin`).")


@router.get("", operation_id="get_intake", responses=described(IntakeState))
async def get_intake(access: Reads) -> Response:
    """Say whether new documents are accepted."""
    return answer(await access.scope.intake())


@router.post("/pause", operation_id="pause_intake", responses=described(IntakeState))
async def pause_intake(access: Operates, asked: Pausing | None = None) -> Response:
    """Accept no new documents: uploads are answered with 503 and `Retry-After`. Documents that were accepted are
    processed."""
    chosen = asked or Pausing(reason="", everyone=False)
    _check(access, chosen.everyone)
    return answer(await access.scope.pause_intake(reason=chosen.reason, everyone=chosen.everyone))


@router.post("/resume", operation_id="resume_intake", responses=described(IntakeState))
async def resume_intake(access: Operates, asked: Resuming | None = None) -> Response:
    """Accept new documents again. An owner whose intake is paused itself, or with all others, stays paused by the other
    pause."""
    chosen = asked or Resuming(everyone=False)
    _check(access, chosen.everyone)
    return answer(await access.scope.resume_intake(everyone=chosen.everyone))


def _check(access: Access, everyone: bool) -> None:
    whole(access)
    if everyone and not access.caller.has(KeyScope.ADMIN):
        raise Problem("forbidden", "to pause or resume the intake of all owners needs the scope 'admin'", scope="admin")
