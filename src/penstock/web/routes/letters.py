"""Dead letters, by reason."""

from fastapi import APIRouter, Request, Response

from penstock.errors import UsageError
from penstock.model.reasons import ADVICE
from penstock.web.access import Reads, Writes, refuse_part
from penstock.web.pages import PageRoute, back, first, form, render

router = APIRouter(route_class=PageRoute, include_in_schema=False)

SHOWN = 200


@router.get("/dead-letters")
async def dead_letters(request: Request, access: Reads, reason: str = "") -> Response:
    refuse_part(access)
    letters = await access.scope.list_dead_letters(limit=SHOWN)
    reasons = [
        {"reason": name, "count": count, "advice": ADVICE.get(name, "")}
        for name, count in sorted(letters.by_reason.items(), key=lambda item: -item[1])
    ]
    shown = [letter for letter in letters.letters if reason in ("", letter.reason)]
    return render(request, "letters.html", access, letters=letters, reasons=reasons, shown=shown)


@router.post("/dead-letters/act")
async def act(request: Request, access: Writes) -> Response:
    refuse_part(access)
    fields = form(request)
    reason, verb = first(fields, "reason"), first(fields, "verb")
    if verb not in ("replay", "discard") or not reason:
        raise UsageError("choose a reason, and replay or discard")
    if first(fields, "sure") != "yes":
        count = (await access.scope.list_dead_letters(limit=0)).by_reason.get(reason, 0)
        title = f"{verb.capitalize()} {count} dead letters ({reason})?"
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
            yes=title.rstrip("?"),
            danger=verb == "discard",
            back="/dead-letters",
        )
    if verb == "replay":
        await access.scope.replay(reason=reason)
    else:
        await access.scope.discard(reason=reason)
    return back("/dead-letters", f"Dead letters with the reason {reason}: {verb}ed.")
