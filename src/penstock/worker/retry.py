"""When a step is tried again, as one pure function."""

import msgspec

from penstock import user_code
from penstock.errors import Permanent

LONGEST_S = 86_400.0
"""The longest wait that a provider may request."""


class RetryPolicy(msgspec.Struct, frozen=True):
    """Exponential backoff with full jitter."""

    base_s: float = 0.5
    cap_s: float = 60.0
    crashes: int = 7
    """How many crashes without progress a step may have. The first two may have another cause; in the other five the
    step was running alone."""


def retry_in(policy: RetryPolicy, error: BaseException, errors: int, retries: int, random: float) -> float | None:
    """Return the seconds until the next attempt, or None for a dead letter. `errors` is the number of earlier errors
    since the last progress of the step. `retries` is the number of attempts in all."""
    if isinstance(error, Permanent) or errors + 1 >= retries:
        return None
    delay = random * min(policy.cap_s, policy.base_s * 2.0**errors)
    asked = user_code.retry_after(error, LONGEST_S)
    return delay if asked is None else asked + delay
