"""Dead letters: what failed, and what to do about it."""

from typing import Annotated

from fastapi import APIRouter, Path, Query, Response
from pydantic import BaseModel, ConfigDict, Field

from penstock.api.answers import answer, described
from penstock.api.callers import Reads, Writes
from penstock.api.fields import TEXT, WHOLE
from penstock.api.problems import Problem
from penstock.api.routes.groups import whole
from penstock.ledger.engine.dead_letters import DeadLetter
from penstock.verbs.dead_letters import DeadLetters
from penstock.verbs.replays import Discard, Replay

router = APIRouter(prefix="/dead-letters", tags=["dead letters"])

Number = Annotated[int, Path(ge=1, le=2**53 - 1)]


class Chosen(BaseModel):
    """Dead letters by number, or by reason."""

    model_config = ConfigDict(
        extra="forbid",
        strict=True,
        json_schema_extra={
            "example": {"reason": "encrypted", "dry_run": True},
            "oneOf": [
                {"required": ["letters"], "properties": {"letters": {"type": "array"}, "reason": {"type": "null"}}},
                {"required": ["reason"], "properties": {"reason": {"type": "string"}, "letters": {"type": "null"}}},
            ],
        },
    )

    letters: list[Annotated[int, Field(ge=1, le=2**53 - 1), WHOLE]] | None = Field(
        default=None, min_length=1, max_length=10_000
    )
    reason: str | None = Field(default=None, min_length=1, max_length=200, pattern=TEXT)
    dry_run: bool = False

    def check(self) -> None:
        if (self.letters is None) == (self.reason is None):
            raise Problem("invalid", "name either letters or a reason")


@router.get("", operation_id="list_dead_letters", responses=described(DeadLetters))
async def list_dead_letters(access: Reads, limit: int = Query(100, ge=1, le=500)) -> Response:
    """Return the number of open dead letters for each reason, and the newest of them."""
    whole(access)
    return answer(await access.scope.list_dead_letters(limit=limit))


@router.get("/{letter:int}", operation_id="get_dead_letter", responses=described(DeadLetter))
async def get_dead_letter(access: Reads, letter: Number) -> Response:
    """Return one dead letter with its error."""
    whole(access)
    return answer(await access.scope.dead_letter(letter))


@router.post("/replay", operation_id="replay_dead_letters", responses=described(Replay))
async def replay(access: Writes, chosen: Chosen) -> Response:
    """Continue the documents of dead letters at their checkpoints."""
    whole(access)
    chosen.check()
    done = await access.scope.replay(chosen.letters, reason=chosen.reason, dry_run=chosen.dry_run)
    if not chosen.dry_run:
        await access.scope.record("dead_letter.replay", "", chosen.model_dump(exclude_none=True))
    return answer(done)


@router.post("/discard", operation_id="discard_dead_letters", responses=described(Discard))
async def discard(access: Writes, chosen: Chosen) -> Response:
    """Close dead letters without another attempt."""
    whole(access)
    chosen.check()
    done = await access.scope.discard(chosen.letters, reason=chosen.reason, dry_run=chosen.dry_run)
    if not chosen.dry_run:
        await access.scope.record("dead_letter.discard", "", chosen.model_dump(exclude_none=True))
    return answer(done)
