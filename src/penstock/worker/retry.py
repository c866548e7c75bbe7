"""When a step is tried again: one pure function."""

import msgspec

from penstock import user_code
from penstock.errors import Permanent

LONGEST_S = 86_400.0
"""What a provider may ask for."""


class RetryPolicy(msgspec.Struct, frozen=True):
    """Exponential with full jitter."""

    base_s: float = 0.5
    cap_s: float = 60.0
    crashes: int = 7
    """How often a step may take its worker down without progress: two may be anybody's, five were its own alone."""


def retry_in(policy: RetryPolicy, error: BaseException, errors: int, retries: int, random: float) -> float | None:
    """Seconds until the next attempt, or None for a dead letter. `errors`: how many there were before this one since
    the step last made progress; `retries`: attempts in all."""
    if isinstance(error, Permanent) or errors + 1 >= retries:
        return None
    delay = random * min(policy.cap_s, policy.base_s * 2.0**errors)
    asked = user_code.retry_after(error, LONGEST_S)
    return delay if asked is None else asked + delay
