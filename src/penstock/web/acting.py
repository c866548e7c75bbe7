"""The verbs of documents on pages."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from penstock.api.callers import Access
from penstock.errors import UsageError
from penstock.verbs.step_values import by_step
from penstock.web.pages import first

AT_ONCE = 500
DONE = {"retry": "will be processed again", "cancel": "cancelled", "delete": "deleted", "start": "started"}
VERBS = {
    "retry": ("Retry", ""),
    "start": ("Start", ""),
    "cancel": ("Cancel", "plain"),
    "delete": ("Delete", "danger"),
}
"""The word on the button of each verb, and its look."""
ABOUT = {
    "retry": "Documents that failed, were cancelled or have no text continue at their checkpoints. Others stay as they "
    "are.",
    "start": "With other values, the steps that they affect are done again. What is searchable stays so until then.",
    "cancel": "Documents that have not ended stop. Their progress is kept.",
    "delete": "Deleted documents are no longer found by searches, and cannot be brought back.",
}


class Changes(msgspec.Struct, frozen=True):
    """What another run does differently."""

    workflow: str | None = None
    params: str | None = None
    values: dict[str, dict[str, Any]] = {}

    def given(self) -> dict[str, Any]:
        return msgspec.structs.asdict(self)


def changes(fields: Mapping[str, list[str]]) -> Changes:
    """The changes that a form names."""
    lines = [line.strip() for line in first(fields, "values").splitlines() if line.strip()]
    workflow, params = first(fields, "workflow").strip(), first(fields, "params").strip()
    return Changes(workflow or None, params or None, by_step(lines, ""))


async def act_on(
    access: Access, verb: str, ids: Sequence[str], different: Changes | None = None, password: str | None = None
) -> int:
    """Apply a verb to documents. Return to how many it applied. `password`: for a retry."""
    if verb not in DONE:
        raise UsageError(f"verb {verb[:80]!r}: use one of {', '.join(DONE)}")
    found = [(await access.document(one)).id for one in ids]
    given = different.given() if different is not None and verb in ("retry", "start") else {}
    secret = {"password": password} if password and verb == "retry" else {}
    done = 0
    if verb == "start":
        for one in found:
            done += (await access.scope.start_document(one, **given)).started
    else:
        for i in range(0, len(found), AT_ONCE):
            done += len(await getattr(access.scope, verb)(found[i : i + AT_ONCE], **given, **secret))
    for one in found:
        await access.scope.record(f"document.{verb}", one, given)
    return done
