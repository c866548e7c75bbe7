"""Response headers that more than one caller reads."""

import re
from datetime import UTC
from email.utils import parsedate_to_datetime

LONGEST_S = 366 * 86_400.0
_SECONDS = re.compile(r"[0-9]{1,15}(\.[0-9]{1,9})?")


def retry_after(value: str | None, now: float) -> float | None:
    """The seconds that a `Retry-After` header asks for: a number of seconds or an HTTP date. None if there is no such
    header or it cannot be read. `now`: seconds since 1970."""
    text = (value or "").strip()
    if _SECONDS.fullmatch(text):
        return min(float(text), LONGEST_S)
    try:
        due = parsedate_to_datetime(text)
        # A date without a zone is in UTC, whatever the zone of this machine.
        due = due if due.tzinfo else due.replace(tzinfo=UTC)
        return min(max(0.0, due.timestamp() - now), LONGEST_S)
    except (ValueError, OverflowError, TypeError, IndexError):
        return None
