"""Dead letters, by reason."""

from collections.abc import Mapping

from fastapi import APIRouter, Request, Response

from penstock.api.callers import Access
from penstock.errors import UsageError
from penstock.model.reasons import ADVICE
from penstock.verbs.actions import Criteria
from penstock.web.access import Reads, Writes, refuse_part
from penstock.web.acting import changes
from penstock.web.pages import PageRoute, back, first, form, render

router = APIRouter(route_class=PageRoute, include_in_schema=False)

SHOWN = 100
VERBS = {"replay": "retry", "discard": "discard"}
"""The verb of the documents for each verb of dead letters."""


@router.get("/dead-letters")
async def dead_letters(request: Request, access: Reads) -> Response:
    refuse_part(access)
    letters = await access.scope.list_dead_letters(limit=SHOWN)
    reasons = [
        {"reason": name, "count": count, "advice": ADVICE.get(name, "")}
        for name, count in sorted(letters.by_reason.items(), key=lambda item: -item[1])
    ]
    return render(request, "letters.html", access, letters=letters, reasons=reasons)


@router.post("/dead-letters/act")
async def act(request: Request, access: Writes) -> Response:
    """Replay or discard all with a reason, after a page that asks with their number."""
    refuse_part(access)
    fields = form(request)
    reason, verb = first(fields, "reason"), first(fields, "verb")
    if verb not in VERBS or not reason:
        raise UsageError("choose a reason, and replay or discard")
    count = (await access.scope.list_dead_letters(limit=0)).by_reason.get(reason, 0)
    if first(fields, "sure") != "yes":
        title = f"{verb.capitalize()} {count:,} dead letter{'' if count == 1 else 's'} ({reason})?"
        about = (
            "Their runs continue at their checkpoints."
            if verb == "replay"
            else "They are closed without another attempt. Their documents stay FAILED."
        )
        return render(
            request,
            "confirm.html",
            access,
            question=title,
            about=about,
            action="/dead-letters/act",
            fields=[("reason", reason), ("verb", verb)],
            changes=verb == "replay",
            yes=title.rstrip("?"),
            danger=verb == "discard",
            back="/dead-letters",
        )
    return await _act(access, verb, reason, count, fields)


async def _act(access: Access, verb: str, reason: str, count: int, fields: Mapping[str, list[str]]) -> Response:
    scope, criteria = access.scope, Criteria(reason=reason)
    given = changes(fields).given() if verb == "replay" else {}
    counted = await scope.count_action(VERBS[verb], criteria)
    if counted.count == count or not counted.exact:
        made = await scope.start_action(VERBS[verb], criteria, **given)
        return back(f"/actions/{made.id}")
    # Some are of events, which are not documents.
    if verb == "replay":
        await scope.replay(reason=reason, **given)
    else:
        await scope.discard(reason=reason)
    await scope.record(f"dead_letters.{verb}", reason, given)
    return back("/dead-letters", f"Dead letters with the reason {reason}: {verb}ed.")
