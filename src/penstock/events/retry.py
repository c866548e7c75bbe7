"""The time of the next attempt of a delivery, as a pure function."""

from penstock import user_code
from penstock.errors import Permanent
from penstock.model.nouns import Handler

METHOD_S, METHOD_CAP_S = 0.5, 60.0
WEBHOOK_S, WEBHOOK_CAP_S = 2.0, 3600.0
"""With full jitter, the first delay of a webhook is about one second."""
LONGEST_S = 86_400.0
"""The maximum waiting time that a response can request."""


def retry_in(error: BaseException, handler: Handler, attempts: int, random: float) -> float | None:
    """Seconds until the next attempt, or None for a dead letter. Exponential with full jitter. `attempts` includes the
    current one."""
    if isinstance(error, Permanent) or attempts >= handler.retries:
        return None
    asked = user_code.retry_after(error, LONGEST_S)
    if handler.webhook is not None:
        return webhook_delay(attempts, asked, random)
    return _delay(METHOD_S, METHOD_CAP_S, attempts, asked, random)


def webhook_delay(attempts: int, asked: float | None, random: float) -> float:
    """Seconds until the next attempt to call a webhook. `asked`: what it asked for."""
    return _delay(WEBHOOK_S, WEBHOOK_CAP_S, attempts, asked, random)


def _delay(base: float, cap: float, attempts: int, asked: float | None, random: float) -> float:
    delay = random * min(cap, base * 2.0 ** min(attempts - 1, 64))
    return delay if asked is None else min(asked, LONGEST_S) + delay
