"""Search."""

from typing import Annotated, Literal

from fastapi import APIRouter, Response
from pydantic import BaseModel, ConfigDict, Field

from penstock.api.answers import answer, described
from penstock.api.callers import Searches
from penstock.api.fields import WHOLE, Collection, Filter
from penstock.api.problems import Problem, not_found
from penstock.search.results import Explanation, Hit

router = APIRouter(prefix="/search", tags=["search"])


class Question(BaseModel):
    """A search: the best `k` passages for a query."""

    model_config = ConfigDict(
        extra="forbid", strict=True, json_schema_extra={"example": {"query": "how fast does the turbine turn?", "k": 5}}
    )

    query: str = Field(max_length=20_000)
    k: Annotated[int, Field(ge=1, le=100), WHOLE] = 5
    mode: Literal["hybrid", "vector", "text"] = "hybrid"
    collections: list[Collection] | None = Field(default=None, min_length=1, max_length=100)
    filter: Filter | None = None
    group: Literal["document"] | None = None
    context: Annotated[int, Field(ge=0, le=20), WHOLE] = 0
    min_score: float | None = Field(default=None, ge=0, le=1)
    rerank: str | None = Field(default=None, max_length=200, pattern=r"^[A-Za-z0-9][A-Za-z0-9_.:-]*$")
    cursor: str | None = Field(default=None, max_length=2_000)
    explain: bool = False


@router.post(
    "", operation_id="search", responses=described({"hits": [Hit], "next": str | None, "explain": Explanation | None})
)
async def search(access: Searches, question: Question) -> Response:
    """Return the best passages, best first."""
    names = question.collections
    if names is None:
        if access.caller.collections is not None and not access.caller.collections:
            raise Problem("forbidden", "the key may use no collection")
        names = list(access.caller.collections or [access.scope.config.collection])
    for name in names:
        if not access.may_use(name):
            raise not_found("collection", name)
    filters = [one for one in (question.filter, access.caller.filter) if one]
    found = await access.scope.search(
        question.query,
        question.k,
        collection=names,
        mode=question.mode,
        filter={"$and": filters} if len(filters) > 1 else filters[0] if filters else None,
        group=question.group,
        context=question.context,
        min_score=question.min_score,
        rerank=question.rerank,
        after=question.cursor,
        explain=question.explain,
    )
    return answer({"hits": list(found), "next": found.next, "explain": found.explain})
