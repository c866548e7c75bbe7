"""What OpenAI has and Penstock has not: every other call is answered with a problem that says so."""

from typing import Annotated

from fastapi import APIRouter, Depends, Request

from penstock.api.callers import Access, authenticated
from penstock.api.problems import Problem

router = APIRouter()

HAS_NOT = {
    "assistants": "no assistants",
    "audio": "no speech models",
    "batches": "no batches of model calls",
    "chat": "no language models",
    "completions": "no language models",
    "embeddings": "no embeddings for others",
    "evals": "no evals here: see `penstock eval`",
    "fine_tuning": "no fine-tuning",
    "images": "no image models",
    "models": "no list of models",
    "moderations": "no moderation",
    "responses": "no language models",
    "threads": "no threads",
    "uploads": "no uploads in parts here: files.create streams a file of any size, and /api/v1/uploads can be resumed",
}


@router.api_route("/{path:path}", methods=["GET", "POST", "PUT", "PATCH", "DELETE"], include_in_schema=False)
async def not_here(request: Request, path: str, access: Annotated[Access, Depends(authenticated)]) -> None:
    """Refuse a call that is not one of files and vector stores."""
    why = HAS_NOT.get(path.partition("/")[0])
    if why is None:
        raise Problem("not_found", f"there is no {request.method} /v1/{path[:200]}: /v1 has files and vector_stores")
    # OpenAI's clients would repeat the call.
    raise Problem(
        "not_supported", f"Penstock has {why}; /v1 has files and vector_stores", headers={"x-should-retry": "false"}
    )
