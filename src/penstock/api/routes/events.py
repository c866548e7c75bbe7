"""The change feed as server-sent events."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Annotated

from fastapi import APIRouter, Header, Query, Response
from fastapi.responses import StreamingResponse

from penstock.api.callers import Access, Reads
from penstock.api.fields import Collection, Text
from penstock.api.problems import Problem
from penstock.verbs.as_json import as_data, encode
from penstock.verbs.following import Change, present

router = APIRouter(prefix="/events", tags=["events"])

MOST_STREAMS = 2_000
KEEP_ALIVE_S = 15.0
"""A comment is sent after this time of silence, so that proxies keep the connection."""
RETRY_MS = 2_000
EXAMPLE = """id: 0-1795041000.125000-01M7GZQJXCK1BXB2ZYP1YTP0G8
event: changed
data: {"event":"changed","document":"01M7GZQJXCK1BXB2ZYP1YTP0G8","status":"COMPLETED","searchable":true}

"""


@router.get(
    "",
    operation_id="follow_events",
    response_class=Response,
    responses={200: {"description": "The stream.", "content": {"text/event-stream": {"example": EXAMPLE}}}},
)
async def follow_events(
    access: Reads,
    collection: Annotated[Collection | None, Query(description="Only documents of this collection.")] = None,
    group: Annotated[Text | None, Query(description="Only documents whose newest run is in this group.")] = None,
    document: Annotated[Text | None, Query(description="Only this document, by its id.")] = None,
    after: Annotated[Text | None, Query(description="Continue after this id, like `Last-Event-ID`.")] = None,
    last_event_id: Annotated[Text | None, Header(description="Sent by a browser that connects again.")] = None,
) -> Response:
    """Follow the changes of documents, by whichever process, as server-sent events. `changed` carries a document as it
    is now, `deleted` a deletion, `progress` how far a running document is (without an id), and `reset` says that the
    id to continue after is too old: list the documents again. A change may be told twice, also after a reconnect."""
    if access.caller.filter is not None:
        raise Problem("forbidden", "a token with a filter cannot follow the changes of documents")
    if access.scope.resources.feed.streams >= MOST_STREAMS:
        raise Problem("unavailable", "there are too many streams", headers={"Retry-After": "10"})
    if document is not None:
        # Deleted ones too: their deletion is a change.
        document = document.upper()
    where = access.collection(collection) if collection is not None else None
    start = last_event_id or after
    # A client whose connection is lost before the first change continues here.
    place = await present(access.scope) if start is None else None
    changes = access.scope.changes(after=start, collection=where, group=group, document=document)
    # The first look is made here: an argument that is not valid is a problem, not a broken stream.
    first = asyncio.ensure_future(anext(changes, None))
    with suppress(TimeoutError):
        async with asyncio.timeout(0.05):
            await asyncio.shield(first)
    return StreamingResponse(
        _lines(access, changes, first, place),
        media_type="text/event-stream",
        headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"},
    )


async def _lines(
    access: Access, changes: AsyncIterator[Change], first: "asyncio.Future[Change | None]", place: str | None
) -> AsyncIterator[bytes]:
    task = first
    try:
        here = f"id: {place}\n" if place is not None else ""
        yield f"retry: {RETRY_MS}\n{here}: the changes of {access.owner} follow\n\n".encode()
        while True:
            done, _ = await asyncio.wait([task], timeout=KEEP_ALIVE_S)
            if not done:
                yield b": still here\n\n"
                continue
            change = task.result()
            if change is None:
                return
            if change.collection is None or access.may_use(change.collection):
                yield _message(change)
            task = asyncio.ensure_future(anext(changes, None))
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError, Exception):
            await task
        await changes.aclose()  # type: ignore[attr-defined]


def _message(change: Change) -> bytes:
    place = "" if change.id is None else f"id: {change.id}\n"
    return f"{place}event: {change.event}\ndata: ".encode() + encode(as_data(change)) + b"\n\n"
