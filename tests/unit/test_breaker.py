"""How long a target is left alone: one pure function."""

import pytest

from penstock.ledger.engine.targets import FIRST_S, LONGEST_S, hold_s


@pytest.mark.parametrize("failures", [0, 1, 5, 20, 10_000])
def test_a_hold_is_jittered_between_the_first_wait_and_one_that_doubles(failures: int) -> None:
    longest = min(LONGEST_S, FIRST_S * 2.0 ** min(failures, 20))
    assert hold_s(failures, 0.0) == FIRST_S
    assert hold_s(failures, 1.0) == longest
    assert FIRST_S <= hold_s(failures, 0.5) <= longest <= LONGEST_S


def test_a_hold_is_never_shorter_than_what_the_target_asks_for() -> None:
    assert 30.0 <= hold_s(0, 0.7, 30.0) <= 30.0 + FIRST_S
    assert hold_s(0, 0.0, 0.0) == FIRST_S
    assert hold_s(20, 1.0, 1.0) == LONGEST_S
