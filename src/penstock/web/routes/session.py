"""Signing in with a key, and out."""

from urllib.parse import urlsplit

from fastapi import APIRouter, Request, Response
from fastapi.responses import RedirectResponse

from penstock.api.callers import service_of
from penstock.api.keys import COOKIE
from penstock.errors import NotAuthenticated
from penstock.verbs.keys import SESSION_S
from penstock.web.access import Anybody
from penstock.web.pages import PageRoute, first, form, render

router = APIRouter(route_class=PageRoute, include_in_schema=False)


@router.get("/login")
async def show(request: Request, next: str = "/") -> Response:
    return render(request, "login.html", next=local(next), problem="", oidc=request.app.state.oidc.is_on)


@router.post("/login")
async def login(request: Request) -> Response:
    fields = form(request)
    onward = local(first(fields, "next"))
    try:
        made = await service_of(request).keys.authenticator.open_session(first(fields, "key").strip())
    except NotAuthenticated as error:
        return render(
            request, "login.html", status=401, next=onward, problem=str(error), oidc=request.app.state.oidc.is_on
        )
    answer = RedirectResponse(onward, 303)
    secure = request.url.scheme == "https"
    answer.set_cookie(COOKIE, made.cookie, max_age=int(SESSION_S), httponly=True, samesite="strict", secure=secure)
    return answer


@router.post("/logout")
async def logout(request: Request, access: Anybody) -> Response:
    cookie = request.cookies.get(COOKIE)
    if cookie is not None and access.caller.csrf is not None:
        await service_of(request).keys.authenticator.close_session(cookie)
    answer = RedirectResponse("/login", 303)
    answer.delete_cookie(COOKIE)
    return answer


def local(path: str) -> str:
    """The path on this server; anything else becomes the first page."""
    parts = urlsplit(path)
    is_local = (
        path.startswith("/") and not parts.scheme and not parts.netloc and "\\" not in path and path.isprintable()
    )
    return path if is_local else "/"
