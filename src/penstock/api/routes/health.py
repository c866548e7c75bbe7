"""Whether the server is alive, and whether it can work; metrics; and a page for people."""

import html
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import HTMLResponse

from penstock.api.answers import answer
from penstock.api.answers import problems as refusals
from penstock.api.callers import Operates, service_of
from penstock.api.problems import KINDS, PAGE
from penstock.metrics.registry import CONTENT_TYPE

router = APIRouter(tags=["health"])


@router.get("/healthz", operation_id="healthz", response_class=Response)
async def healthz() -> Response:
    """The process is alive."""
    return answer({"status": "ok"})


@router.get("/readyz", operation_id="readyz", response_class=Response)
async def readyz(request: Request) -> Response:
    """Ledger, blobs and index answer. 503 if one does not, or if the server is stopping."""
    found = await service_of(request).readiness()
    ready = all(found.values())
    return answer({"status": "ok" if ready else "unavailable", **found}, 200 if ready else 503)


@router.get("/metrics", operation_id="metrics", response_class=Response, responses=refusals(401, 403))
async def metrics(access: Operates) -> Response:
    """The metrics of the worker in this process, and gauges of the ledger, in the format of Prometheus."""
    return Response(await access.service.metrics(), media_type=CONTENT_TYPE)


@router.get(PAGE, operation_id="problems", response_class=Response)
async def problems() -> Response:
    """The kinds of problems that the API answers with, and what to do about each."""
    return answer(
        {code: {"status": kind.status, "title": kind.title, "do": kind.about} for code, kind in KINDS.items()}
    )


@router.get("/docs", include_in_schema=False)
async def docs(request: Request) -> HTMLResponse:
    """The operations as a page. It loads nothing from elsewhere."""
    rows = [
        _row(path, method, one)
        for path, methods in request.app.openapi()["paths"].items()
        for method, one in methods.items()
    ]
    style = (
        "body{font:16px system-ui;max-width:70rem;margin:2rem auto;padding:0 1rem}td{padding:.3rem;vertical-align:top}"
    )
    text = (
        f"<!doctype html><html lang=en><meta charset=utf-8><title>Penstock API</title><style>{style}</style>"
        f"<h1>Penstock API</h1><p>Also as <a href=/openapi.json>OpenAPI</a>. Errors: <a href={PAGE}>problems</a>.</p>"
        f"<table>{''.join(rows)}</table></html>"
    )
    return HTMLResponse(text, headers={"Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'"})


def _row(path: str, method: str, one: dict[str, Any]) -> str:
    about = html.escape(str(one.get("description", "")))
    return f"<tr><td><b>{method.upper()}</b><td><code>{html.escape(path)}</code><td>{about}</tr>"
