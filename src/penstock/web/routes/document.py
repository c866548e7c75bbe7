"""The page of one document: its steps, its original beside its chunks, its versions."""

from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response

from penstock.api.callers import Access
from penstock.api.problems import Problem, not_found
from penstock.errors import PenstockError, StepError
from penstock.ledger.engine import dead_letters
from penstock.ledger.engine.dead_letters import DeadLetter
from penstock.ledger.reads import history
from penstock.ledger.reads.history import Version
from penstock.model.callers import KeyScope
from penstock.model.reasons import ADVICE
from penstock.model.states import ENDS, DocumentStatus
from penstock.verbs.views import DocumentDetails
from penstock.web.access import Reads, Writes
from penstock.web.acting import ABOUT, DONE, act_on, changes
from penstock.web.originals import Originals, excuse, has_pages, picture
from penstock.web.page_text import page_text
from penstock.web.pages import PageRoute, back, first, form, render
from penstock.web.steps import timeline

router = APIRouter(route_class=PageRoute, include_in_schema=False)

VERSIONS = 20
REPEATABLE = frozenset({DocumentStatus.FAILED, DocumentStatus.CANCELLED, DocumentStatus.NOT_INDEXABLE})
PICTURE = {
    "Content-Security-Policy": "default-src 'none'; img-src data:; sandbox",
    "Cache-Control": "private, no-cache",
    "X-Content-Type-Options": "nosniff",
}
"""A picture contains nothing that can be executed, and is not trusted either."""


@router.get("/documents/{document_id}")
async def document(
    request: Request,
    access: Reads,
    document_id: str,
    page: Annotated[int, Query(ge=1, le=10**9)] = 1,
    chunk: Annotated[int | None, Query(ge=0, le=10**12)] = None,
) -> Response:
    details = await access.document(document_id)
    letter = await _letter(access, details)
    versions = await access.scope.ledger.read(partial(history.versions, access.owner), details.id, VERSIONS)
    text, missing = None, ""
    try:
        text = await page_text(access, details, page, chunk)
    except PenstockError as error:
        missing = str(error)
    return render(
        request,
        "document.html",
        access,
        d=details,
        ended=details.status in ENDS,
        verbs=_verbs(details),
        steps=timeline(details.steps, access.scope.runtime.now()),
        about=_about(details),
        versions=versions,
        shown=_shown(versions),
        text=text,
        missing=missing,
        chosen=chunk,
        writes=access.caller.has(KeyScope.WRITE),
        original=text is not None and has_pages(details),
        letter=letter,
        advice=ADVICE.get(letter.reason, "") if letter is not None else "",
    )


@router.get("/documents/{document_id}/pages/{number}.svg")
async def original(
    request: Request,
    access: Reads,
    document_id: str,
    number: int,
    chunk: Annotated[int | None, Query(ge=0, le=10**12)] = None,
) -> Response:
    """A page of the original, as a picture, with a chunk marked."""
    details = await access.document(document_id)
    page = await page_text(access, details, number, chunk) if has_pages(details) and 0 < number < 10**9 else None
    if page is None or page.number != number:
        raise not_found("page", str(number))
    versions = await access.scope.ledger.read(partial(history.versions, access.owner), details.id, VERSIONS)
    shown = _shown(versions)
    if shown is None:
        raise Problem("gone", "the bytes of this document are not stored")
    originals: Originals = request.app.state.originals
    try:
        drawn = picture(await originals.draw(access.scope, details, shown, page), page, chunk)
    except (StepError, TimeoutError) as error:
        drawn = excuse(error)
    return Response(drawn, headers=PICTURE, media_type="image/svg+xml")


@router.post("/documents/{document_id}/{verb}")
async def act_on_one(request: Request, access: Writes, document_id: str, verb: str) -> Response:
    fields = form(request)
    details = await access.document(document_id)
    here = f"/documents/{details.id}"
    if verb in ("delete", "start") and first(fields, "sure") != "yes":
        return render(
            request,
            "confirm.html",
            access,
            question="Delete this document?" if verb == "delete" else "Run this document again?",
            about=f"{details.name}: {ABOUT[verb][0].lower()}{ABOUT[verb][1:]}",
            action=f"{here}/{verb}",
            fields=[],
            changes="open" if verb == "start" else False,
            yes="Delete" if verb == "delete" else "Start",
            danger=verb == "delete",
            back=here,
        )
    done = await act_on(access, verb, [details.id], changes(fields), first(fields, "password") or None)
    told = f"{details.name}: {DONE[verb]}." if done else "Nothing to do: its status has changed."
    return back("/documents" if verb == "delete" else here, told)


def _shown(versions: list[Version]) -> Version | None:
    """The version whose text is shown: the searchable one, else the newest."""
    return next((one for one in versions if one.state == "ACTIVE"), versions[0] if versions else None)


async def _letter(access: Access, details: DocumentDetails) -> DeadLetter | None:
    """The open dead letter of a document."""
    found = await access.scope.ledger.read(partial(dead_letters.of, access.owner), [details.id])
    return await access.scope.dead_letter(found[0][0]) if found else None


def _verbs(details: DocumentDetails) -> list[tuple[str, str, str]]:
    """The verbs that apply, each with the word on its button and its look."""
    delete = ("delete", "Delete …", "danger")
    if details.status == DocumentStatus.HELD:
        return [("start", "Start …", ""), ("cancel", "Cancel", "plain"), delete]
    if details.status not in ENDS:
        return [("cancel", "Cancel", "plain"), delete]
    again = ("start", "Run again with values …", "plain")
    return [("retry", "Retry", ""), again, delete] if details.status in REPEATABLE else [again, delete]


def _about(details: DocumentDetails) -> list[tuple[str, Any]]:
    known = [
        ("id", details.id),
        ("source", details.source),
        ("collection", details.collection),
        ("type", details.media_type),
        ("size", f"{details.size:,} bytes"),
        ("pages", details.pages),
        ("chunks", details.chunks),
        ("retries", details.retry_count or None),
    ]
    return [*known, *((f"metadata: {key}", value) for key, value in details.metadata.items())]
