"""The verbs of documents on pages."""

from collections.abc import Sequence

from penstock.api.callers import Access
from penstock.errors import UsageError

AT_ONCE = 500
DONE = {"retry": "will be processed again", "cancel": "cancelled", "delete": "deleted"}
VERBS = {
    "retry": ("Retry", ""),
    "cancel": ("Cancel", "plain"),
    "delete": ("Delete", "danger"),
}
"""The word on the button of each verb, and its look."""


async def act_on(access: Access, verb: str, ids: Sequence[str]) -> int:
    """Apply a verb to documents. Return to how many it applied."""
    if verb not in DONE:
        raise UsageError(f"verb {verb[:80]!r}: use one of {', '.join(DONE)}")
    done = 0
    for i in range(0, len(ids), AT_ONCE):
        part = [(await access.document(one)).id for one in ids[i : i + AT_ONCE]]
        done += len(await getattr(access.scope, verb)(part))
        for one in part:
            await access.scope.record(f"document.{verb}", one)
    return done
