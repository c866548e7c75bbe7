"""The files that pages load."""

from functools import cache
from importlib.resources import files

from fastapi import APIRouter, Response

from penstock.api.problems import not_found

router = APIRouter(include_in_schema=False)

TYPES = {"style.css": "text/css", "live.js": "text/javascript", "upload.js": "text/javascript"}


@router.get("/static/{name}")
async def static(name: str) -> Response:
    if name not in TYPES:
        raise not_found("file", name)
    headers = {"Cache-Control": "public, max-age=86400"}
    return Response(_read(name), headers=headers, media_type=TYPES[name])


@cache
def _read(name: str) -> bytes:
    return files("penstock.web").joinpath("static", name).read_bytes()
