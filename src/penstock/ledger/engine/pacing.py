"""How fast a target may be called: the limits that are known, and the one that is learnt from its refusals (429).

Pure functions on the row of a target. Requests are spaced evenly: each gets the time at which it may start. When the
target refuses a request, all workers wait as long as it asks. From then on the rate is the one that it accepted before,
the wait included; it grows slowly at first, then faster, until the target refuses again. So a window of any length is
found, and a limit that was raised, or is no longer needed, is forgotten after some minutes."""

import msgspec

from penstock.ledger.engine import targets

MARGIN = 0.985
"""The share of a known limit that is used. Requests take different times to arrive, so distances vary."""
SPAN_S = 30.0
"""Accepted requests are counted over the last one or two of these."""
HORIZON_S = 0.5
"""A worker gets the permits of this time at once, and at least one."""
LATEST_S = 2.0
"""No permit is given for later than this: the worker asks again."""
RETRY_S = 0.1
"""After a refusal, one request at a time is made until the target has accepted one. The others ask this often."""
DECREASE, LOWEST, LOWEST_AGAIN = 0.95, 0.7, 0.5
"""A refusal reduces the rate at least by the first factor, and at most by the second; by the third, if the target has
accepted nothing since the last one."""
SLOWEST = 0.5
"""The lowest rate that is learnt, in requests a second. A target that allows less states it by `Retry-After`; one that
refuses whatever the rate must not be called more and more slowly."""


class Known(msgspec.Struct, frozen=True):
    """The limits of a target, as the settings or its answers state them. None: not known."""

    calls: int
    requests_per_minute: float | None = None
    tokens_per_minute: float | None = None


class Pace(msgspec.Struct):
    """What the ledger knows about the pace of a target. Times are those of the database."""

    next_at: float = 0.0
    """When the next request may start."""
    tokens_at: float = 0.0
    """When the tokens of all requests so far are used up."""
    held_until: float = 0.0
    learnt: float | None = None
    """Requests a second that the target accepted before its last refusal."""
    ceiling: float | None = None
    """The rate at which the target refused; None: there was no limit."""
    throttles: int = 0
    """Refusals since the last accepted request."""
    counted_from: float = 0.0
    counted: int = 0
    """Requests accepted since then."""
    before: int = 0
    """Requests accepted in the SPAN_S before."""


def count(pace: Pace, accepted: int, now: float) -> None:
    """Add requests that the target has accepted."""
    age = now - pace.counted_from
    if now >= pace.held_until and age > SPAN_S:
        # After a pause of twice the span, a new period begins.
        pace.before = pace.counted if age <= 2 * SPAN_S else 0
        pace.counted, pace.counted_from = 0, now if age > 2 * SPAN_S else pace.counted_from + SPAN_S
    if not accepted:
        return
    pace.counted += accepted
    if now < pace.held_until:
        # These were sent before the refusal.
        _learn(pace)
    elif pace.throttles:
        pace.throttles, pace.next_at = 0, now


def _learn(pace: Pace) -> None:
    seconds = max(0.1, pace.held_until - pace.counted_from + (SPAN_S if pace.before else 0.0))
    rate = (pace.counted + pace.before) / seconds
    if pace.ceiling is not None:
        lowest = LOWEST if pace.throttles <= 1 else LOWEST_AGAIN
        rate = max(lowest * pace.ceiling, min(DECREASE * pace.ceiling, rate))
    pace.learnt = max(SLOWEST, rate)


def refuse(pace: Pace, known: Known, now: float, random: float, retry_after: float | None) -> float:
    """Record a refusal. Returns for how many seconds the target must not be called. Refusals of requests that were on
    their way when the first one came back can only extend the hold."""
    if now >= pace.held_until:
        pace.ceiling = rate(pace, known, now)
        pace.held_until = now + targets.hold_s(pace.throttles, random, retry_after)
        pace.throttles += 1
    elif retry_after is not None:
        pace.held_until = max(pace.held_until, now + retry_after)
    pace.next_at = pace.tokens_at = pace.held_until
    _learn(pace)
    return pace.held_until - now


def rate(pace: Pace, known: Known, now: float) -> float | None:
    """Requests a second; None: no limit."""
    stated = None if known.requests_per_minute is None else MARGIN * known.requests_per_minute / 60
    if pace.learnt is None:
        return stated
    since = max(0.0, now - pace.held_until)
    learnt = pace.learnt * (1 + 0.001 * since + (since / 120) ** 3)
    return learnt if stated is None else min(stated, learnt)


def permits(pace: Pace, known: Known, now: float, tokens: list[int]) -> list[float] | None:
    """Give requests with so many tokens each the time at which they may start, as seconds from now. The list is shorter
    if the later ones must ask again. None: they need no permits."""
    allowed, per_minute = rate(pace, known, now), known.tokens_per_minute
    if allowed is None and per_minute is None and pace.held_until <= now:
        return None
    gap = 0.0 if allowed is None else 1 / allowed
    if pace.throttles:
        gap = max(gap, 2 * LATEST_S)
    starts: list[float] = []
    for wanted in tokens:
        start = max(now, pace.next_at, pace.held_until, pace.tokens_at if per_minute else 0.0)
        if start > now + (HORIZON_S if starts else LATEST_S):
            break
        pace.next_at = start + gap
        if per_minute:
            pace.tokens_at = start + wanted * 60 / (MARGIN * per_minute)
        starts.append(start - now)
    return starts


def ready_in(pace: Pace, now: float) -> float:
    """Seconds until it makes sense to ask for permits again."""
    if pace.throttles and now >= pace.held_until:
        return RETRY_S
    return max(0.05, max(pace.next_at, pace.tokens_at, pace.held_until) - now - LATEST_S / 2)
