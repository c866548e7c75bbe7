"""How a page is made and answered: templates, headers, errors, forms."""

from collections.abc import Callable, Coroutine, Mapping
from functools import cache
from typing import Any
from urllib.parse import parse_qs, quote, urlencode

from fastapi import Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse
from fastapi.routing import APIRoute
from jinja2 import Environment, PackageLoader, StrictUndefined

from penstock import __version__
from penstock.api.callers import Access
from penstock.api.keys import CSRF
from penstock.api.problems import KINDS, Problem, log_unexpected, problem_of
from penstock.model.callers import KeyScope
from penstock.web import words

NAVIGATION = (
    ("/", "Overview", KeyScope.READ),
    ("/documents", "Documents", KeyScope.READ),
    ("/search", "Search", KeyScope.SEARCH),
    ("/upload", "Upload", KeyScope.INGEST),
    ("/dead-letters", "Dead letters", KeyScope.READ),
    ("/actions", "Actions", KeyScope.READ),
    ("/groups", "Groups", KeyScope.READ),
    ("/steps", "Steps", KeyScope.OPS),
    ("/workers", "Workers", KeyScope.OPS),
    ("/webhooks", "Webhooks", KeyScope.OPS),
    ("/keys", "Keys", KeyScope.ADMIN),
    ("/audit", "Audit", KeyScope.ADMIN),
)
"""The pages, and the scope that each needs."""
EVENTS = "/api/v1/events"
FORM_LIMIT = 1 << 20
SECURITY = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}
"""Pages load nothing from elsewhere and execute no script of a document."""


@cache
def _environment() -> Environment:
    made = Environment(
        loader=PackageLoader("penstock.web"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters.update(words.FILTERS)
    return made


class PageRoute(APIRoute):
    """Answers errors as pages."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def page(request: Request) -> Response:
            try:
                if request.method == "POST":
                    request.state.form = fields = await _read_form(request)
                    # A form without JavaScript cannot send the header that the check of a session looks for.
                    request.scope["headers"].append(
                        (CSRF.lower().encode(), first(fields, "csrf").encode("latin-1", "replace"))
                    )
                return await handle(request)
            except Exception as error:
                return _answer(request, error)

        return page


def _answer(request: Request, error: Exception) -> Response:
    problem = problem_of(error)
    if problem.code == "unauthorized" and request.method == "GET":
        return RedirectResponse(f"/login?next={quote(_here(request))}", 303)
    if problem.code == "internal":
        log_unexpected(error, str(request.scope.get("penstock.request_id")))
    kind = KINDS[problem.code]
    return render(
        request, "problem.html", status=kind.status, heading=kind.title, detail=problem.detail, about=kind.about
    )


def render(
    request: Request, template: str, access: Access | None = None, *, status: int = 200, **context: Any
) -> HTMLResponse:
    now = request.app.state.service.app.runtime.now()

    def ago(seconds: float) -> str:
        return f"{words.duration(max(0.0, now - seconds))} ago"

    environment = _environment().overlay()
    environment.filters["ago"] = ago
    text = environment.get_template(template).render(
        {
            "version": __version__,
            "nav": _navigation(access),
            "here": _section(request.url.path),
            "owner": access.owner if access is not None else "",
            "csrf": csrf_of(access),
            "session": csrf_of(access) != "",
            "events": EVENTS if access is not None and access.caller.has(KeyScope.READ) else "",
            "told": _told(request),
            **context,
        }
    )
    return HTMLResponse(text.encode(errors="replace"), status, SECURITY)


def _navigation(access: Access | None) -> list[dict[str, str]]:
    """The pages that the caller may see."""
    if access is None:
        return []
    return [{"path": path, "title": title} for path, title, scope in NAVIGATION if access.caller.has(scope)]


def _told(request: Request) -> str:
    """What the page before did. A link on another site must not write on our pages."""
    if request.headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
        return ""
    return request.query_params.get("told", "")[:300]


def csrf_of(access: Access | None) -> str:
    """The token that a form of this session must repeat; empty without a session."""
    return access.caller.csrf or "" if access is not None else ""


async def _read_form(request: Request) -> Mapping[str, list[str]]:
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > FORM_LIMIT:
            raise Problem("too_large", f"a form has at most {FORM_LIMIT} bytes")
    try:
        return parse_qs(body.decode(), keep_blank_values=True, max_num_fields=10_000)
    except ValueError as error:
        raise Problem("bad_request", f"the form cannot be read: {error}") from error


def form(request: Request) -> Mapping[str, list[str]]:
    """The fields of the form that was sent."""
    fields: Mapping[str, list[str]] = request.state.form
    return fields


def first(fields: Mapping[str, list[str]], name: str) -> str:
    return fields.get(name, [""])[0]


def back(path: str, told: str = "") -> RedirectResponse:
    """Go on at a page, which shows what was done."""
    joint = "&" if "?" in path else "?"
    return RedirectResponse(f"{path}{joint}{urlencode({'told': told})}" if told else path, 303)


def with_query(path: str, **values: str | int | None) -> str:
    given = {name: value for name, value in values.items() if value not in (None, "")}
    return f"{path}?{urlencode(given)}" if given else path


def _section(path: str) -> str:
    return next((known for known, _, _ in NAVIGATION[1:] if path == known or path.startswith(f"{known}/")), path)


def _here(request: Request) -> str:
    return f"{request.url.path}?{request.url.query}" if request.url.query else request.url.path
