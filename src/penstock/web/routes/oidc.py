"""Signing in with an account of a provider."""

from fastapi import APIRouter, Request, Response
from fastapi.responses import RedirectResponse

from penstock.api.keys import COOKIE as SESSION
from penstock.api.problems import Problem
from penstock.errors import NotAuthenticated
from penstock.verbs.keys import SESSION_S
from penstock.web.oidc import COOKIE, PENDING_S, Oidc
from penstock.web.pages import PageRoute, render
from penstock.web.routes.session import local

router = APIRouter(route_class=PageRoute, include_in_schema=False)


def _oidc(request: Request) -> Oidc:
    found: Oidc = request.app.state.oidc
    if not found.is_on:
        raise Problem("not_found", "no provider is set: serve.oidc.issuer")
    return found


@router.get("/login/oidc")
async def begin(request: Request, next: str = "/") -> Response:
    oidc = _oidc(request)
    try:
        url, cookie = await oidc.begin(local(next), str(request.base_url))
    except NotAuthenticated as error:
        return render(request, "login.html", status=401, next=local(next), problem=str(error), oidc=True)
    answer = RedirectResponse(url, 303)
    secure = request.url.scheme == "https"
    # Lax: the provider sends the browser back here from another site.
    answer.set_cookie(
        COOKIE, cookie, max_age=int(PENDING_S), httponly=True, samesite="lax", secure=secure, path="/login/oidc"
    )
    return answer


@router.get("/login/oidc/callback")
async def finish(request: Request) -> Response:
    oidc = _oidc(request)
    cookie = request.cookies.get(COOKIE, "")
    try:
        made, onward = await oidc.finish(request.query_params, cookie, str(request.base_url))
    except NotAuthenticated as error:
        return render(request, "login.html", status=401, next="/", problem=str(error), oidc=True)
    # A page, and not a redirect: a browser does not send a strict cookie along a redirect from another site.
    answer = render(request, "signed_in.html", onward=onward)
    secure = request.url.scheme == "https"
    answer.set_cookie(SESSION, made.cookie, max_age=int(SESSION_S), httponly=True, samesite="strict", secure=secure)
    answer.delete_cookie(COOKIE, path="/login/oidc")
    return answer
