"""Uploads from a browser: `static/upload.js` sends each file in pieces, and continues after an interruption."""

from fastapi import APIRouter, Request, Response

from penstock.web.access import Ingests
from penstock.web.pages import PageRoute, render

router = APIRouter(route_class=PageRoute, include_in_schema=False)


@router.get("/upload")
async def upload(request: Request, access: Ingests) -> Response:
    return render(request, "upload.html", access, collection=access.scope.config.collection)
