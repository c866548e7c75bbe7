"""When a step is tried again: a frozen policy and one pure function."""

import pytest

from penstock.errors import Permanent, RateLimited, Transient
from penstock.worker.retry import RetryPolicy, retry_in

POLICY = RetryPolicy(base_s=1.0, cap_s=10.0)


def test_a_permanent_error_is_never_tried_again() -> None:
    assert retry_in(POLICY, Permanent("no", reason="x"), 0, 100, 0.5) is None


@pytest.mark.parametrize(("retries", "delays"), [(1, 0), (3, 2), (5, 4)])
def test_retries_are_attempts_in_all(retries: int, delays: int) -> None:
    answers = [retry_in(POLICY, Transient("try"), errors, retries, 0.5) for errors in range(10)]
    assert [answer is not None for answer in answers] == [True] * delays + [False] * (10 - delays)


def test_the_delay_doubles_up_to_a_cap() -> None:
    assert [retry_in(POLICY, Transient("try"), errors, 99, 1.0) for errors in range(6)] == [1, 2, 4, 8, 10, 10]


@pytest.mark.parametrize("random", [0.0, 0.25, 0.999])
def test_the_jitter_is_full(random: float) -> None:
    assert retry_in(POLICY, Transient("try"), 2, 99, random) == random * 4.0


def test_retry_after_is_obeyed() -> None:
    delay = retry_in(POLICY, RateLimited("wait", retry_after=30.0), 0, 99, 0.5)
    assert delay == 30.5
    assert retry_in(POLICY, RateLimited("wait"), 0, 99, 0.5) == 0.5


def test_an_unexpected_exception_is_tried_again() -> None:
    assert retry_in(POLICY, ValueError("what?"), 0, 3, 0.0) == 0.0


def test_many_errors_do_not_overflow() -> None:
    assert retry_in(POLICY, Transient("try"), 500, 10**6, 1.0) == 10.0
