"""Whether the server is alive, and whether it can work."""

from fastapi import APIRouter, Request, Response

from penstock.api.answers import answer
from penstock.api.callers import service_of
from penstock.api.problems import KINDS, PAGE

router = APIRouter(tags=["health"])


@router.get("/healthz")
async def healthz() -> Response:
    """The process is alive."""
    return answer({"status": "ok"})


@router.get("/readyz")
async def readyz(request: Request) -> Response:
    """The ledger answers."""
    service = service_of(request)
    ready = await service.app.ledger.is_there() and not service.stopping.is_set()
    return answer({"status": "ok" if ready else "unavailable"}, 200 if ready else 503)


@router.get(PAGE)
async def problems() -> Response:
    """The kinds of problems that the API answers with, and what to do about each."""
    return answer(
        {code: {"status": kind.status, "title": kind.title, "do": kind.about} for code, kind in KINDS.items()}
    )
