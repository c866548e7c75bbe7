"""Response headers that more than one caller reads."""

import re
from collections.abc import Mapping
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import NamedTuple

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


class StatedLimits(NamedTuple):
    requests_per_minute: float | None
    tokens_per_minute: float | None


def stated_limits(headers: Mapping[str, str]) -> StatedLimits:
    """The limits that an answer states, as OpenAI, Azure OpenAI and compatible servers do (`x-ratelimit-limit-…`). The
    names of the headers are in lower case."""
    return StatedLimits(*(_number(headers.get(f"x-ratelimit-limit-{what}")) for what in ("requests", "tokens")))


def _number(value: str | None) -> float | None:
    text = (value or "").strip()
    return float(text) if _SECONDS.fullmatch(text) and float(text) > 0 else None
