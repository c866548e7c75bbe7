"""How fast a target may be called: known limits, and what is learnt from its refusals."""

from collections import deque

import pytest

from penstock.ledger.engine import pacing
from penstock.ledger.engine.pacing import Known, Pace

UNKNOWN = Known(8)


def run(pace: Pace, known: Known, most: int, window_s: float, seconds: float) -> tuple[list[float], list[float]]:
    """Simulate a client that always has work, against a sliding window that states when to come back. Returns the times
    of accepted and refused requests."""
    now, accepted, refused, recent = 0.0, list[float](), list[float](), deque[float]()
    while now < seconds:
        starts = pacing.permits(pace, known, now, [0])
        if starts == []:
            now += pacing.ready_in(pace, now)
            continue
        now += (starts or [0.0])[0] + 0.001
        while recent and recent[0] <= now - window_s:
            recent.popleft()
        if len(recent) < most:
            accepted.append(now)
            recent.append(now)
            pacing.count(pace, 1, now)
        else:
            refused.append(now)
            pacing.refuse(pace, known, now, 0.5, float(int(recent[0] + window_s - now) + 1))
    return accepted, refused


@pytest.mark.parametrize("window_s", [1.0, 6.0, 60.0])
def test_a_known_limit_is_used_up_and_kept(window_s: float) -> None:
    known = Known(8, requests_per_minute=300)
    accepted, refused = run(Pace(), known, int(300 * window_s / 60), window_s, 300)
    assert len(accepted) >= 0.95 * 300 * 5
    assert not refused


@pytest.mark.parametrize("window_s", [1.0, 10.0, 60.0])
def test_an_unknown_limit_is_learnt_whatever_its_window(window_s: float) -> None:
    most = int(300 * window_s / 60)
    accepted, refused = run(Pace(), UNKNOWN, most, window_s, 600)
    assert len(accepted) >= 0.8 * 300 * 10, f"{len(accepted)} accepted, {len(refused)} refused"
    assert len(refused) < 0.05 * len(accepted), f"{len(accepted)} accepted, {len(refused)} refused"


def test_a_limit_that_was_raised_is_found_within_minutes() -> None:
    pace = Pace()
    run(pace, UNKNOWN, 60, 60.0, 120)
    slow = pacing.rate(pace, UNKNOWN, 120.0)
    assert slow is not None
    assert slow < 1.2
    fast = pacing.rate(pace, UNKNOWN, 900.0)
    assert fast is None or fast > 20


def test_tokens_are_a_limit_of_their_own() -> None:
    pace, known = Pace(), Known(8, tokens_per_minute=60_000)
    # 250 tokens take a quarter of a second. The third of the four calls would start after the horizon.
    assert pacing.permits(pace, known, 100.0, [250, 250, 250, 250]) == pytest.approx([0.0, 0.25 / pacing.MARGIN])
    assert pacing.permits(pace, known, 100.0, [250]) == pytest.approx([0.5 / pacing.MARGIN])


def test_all_wait_as_long_as_the_target_asks() -> None:
    pace = Pace()
    pacing.count(pace, 5, 0.0)
    assert pacing.refuse(pace, UNKNOWN, 1.0, 0.0, 7.0) == pytest.approx(7.0)
    # A refusal that arrives later can extend the hold, but does not count again.
    assert pacing.refuse(pace, UNKNOWN, 2.0, 0.0, 20.0) == pytest.approx(20.0)
    assert pace.throttles == 1
    assert pacing.permits(pace, UNKNOWN, 3.0, [0]) == []
    assert pacing.permits(pace, UNKNOWN, 22.0, [0]) == [0.0]
