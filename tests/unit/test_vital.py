"""What a heart tells of a step, and when a step hangs."""

from penstock.model.nouns import StepId
from penstock.worker.activity import OTHERS_S, StepActivity

STEP = StepId(7)


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def told(vital: StepActivity, loop_lives: bool = True) -> tuple[str | None, bool, float | None] | None:
    sign, news = vital.sign(STEP, loop_lives)
    vital.recorded(news)
    return None if sign is None else (sign.waiting_on, sign.moved, sign.timeout_s)


def test_what_is_not_new_is_not_told() -> None:
    vital = StepActivity(Clock(), None)
    assert told(vital) is None
    vital.progress()
    assert told(vital) == (None, True, None)
    assert told(vital) is None
    vital.wait("limit")
    assert told(vital) == ("limit", False, None)
    assert told(vital) is None
    vital.wait(None)
    assert told(vital) == (None, False, None)


def test_what_the_ledger_did_not_take_is_told_again() -> None:
    vital = StepActivity(Clock(), None)
    vital.progress()
    assert vital.sign(STEP, True)[0] is not None
    assert told(vital) == (None, True, None)


def test_a_timeout_is_told_at_first_and_after_each_move() -> None:
    vital = StepActivity(Clock(), 5.0)
    assert told(vital) == (None, False, 5.0 + OTHERS_S)
    assert told(vital) is None
    vital.progress()
    assert told(vital) == (None, True, 5.0 + OTHERS_S)


def test_a_wait_moves_the_timeout_on_while_the_loop_lives() -> None:
    vital = StepActivity(Clock(), 5.0)
    vital.wait("lock")
    assert [told(vital), told(vital)] == [("lock", False, 5.0 + OTHERS_S)] * 2
    assert told(vital, loop_lives=False) is None, "nobody would notice that what it waits on has come"


def test_a_step_hangs_when_it_works_for_too_long_in_one_go() -> None:
    clock = Clock()
    vital, endless = StepActivity(clock, 5.0), StepActivity(clock, None)
    for getting_on in (vital.progress, lambda: vital.wait(None)):
        clock.now += 4.0
        assert not vital.overdue
        getting_on()
    vital.wait("lock")
    clock.now += 60.0
    assert not vital.overdue
    vital.wait(None)
    assert not vital.overdue
    clock.now += 6.0
    assert (vital.overdue, endless.overdue) == (True, False)
