"""Targets that do not work: hold, probe, answered."""

import pytest
from msgspec.structs import replace
from tests.kit.ledger import KEY, LEASE_S, Desk

from penstock.ledger.engine import leasing, locks, refusals, releases, targets, work
from penstock.ledger.engine.targets import State
from penstock.model.nouns import Step, Token, WorkerId

API = "openai:key"
W1, W2 = WorkerId("w1"), WorkerId("w2")


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hold is over when it begins, unless the target asked for more."""
    monkeypatch.setattr(targets, "FIRST_S", -1.0)
    monkeypatch.setattr(targets, "LONGEST_S", -1.0)


def failure(state: State = State.AWAY, **more: object) -> targets.Failure:
    return replace(targets.Failure(state, "answered 503", 0.0), **more)


async def hold(desk: Desk, step: Step, **more: object) -> targets.Waits:
    return await desk.ledger.write(targets.HOLD, targets.Wait(step, API, failure(**more)))  # type: ignore[arg-type]


async def probe(desk: Desk, *, held: tuple[str, ...] = (), worker: WorkerId = W1) -> tuple[Token, targets.Probed]:
    token = desk.token()
    request = targets.Probe(API, worker, token, ("extract",), held, LEASE_S)
    return token, await desk.ledger.write(targets.PROBE, request)


async def row(desk: Desk, step: Step) -> tuple[object, ...]:
    found: tuple[object, ...] = await desk.step(step, "status, attempts, errors, waiting_on, error")
    return tuple(found)


async def test_i7_a_step_that_meets_a_target_that_is_away_is_charged_nothing(desk: Desk) -> None:
    step = await desk.started()
    waits = await hold(desk, step)
    assert waits.took
    assert waits.hold is not None
    assert waits.hold.failures == 1
    assert await row(desk, step) == ("ERROR", 0, 0, API, "answered 503")
    assert await desk.claim() == []


async def test_i3_a_stale_lease_waits_for_nothing_but_its_news_of_the_target_counts(desk: Desk) -> None:
    step = await desk.started()
    stale = replace(step, lease=replace(step.lease, token=desk.token()))
    assert not (await hold(desk, stale)).took
    assert (await row(desk, step))[0] == "RUNNING"


async def test_of_many_steps_that_fail_at_once_one_counts(desk: Desk) -> None:
    await desk.submit("/a", "/b", "/c")
    steps = await desk.claim(3)
    assert [(await hold(desk, step)).hold.failures for step in steps] == [1, 1, 1]  # type: ignore[union-attr]


async def test_a_target_is_obeyed_by_all_for_as_long_as_it_asks(desk: Desk) -> None:
    await desk.submit("/a", "/b")
    one, two = await desk.claim(2)
    assert (await hold(desk, one, state=State.LIMITED)).hold.held_s < 0  # type: ignore[union-attr]
    assert (await hold(desk, two, state=State.LIMITED, retry_after=30.0)).hold.held_s > 29  # type: ignore[union-attr]
    assert (await probe(desk))[1].claimed is None
    # A worker that starts does not ask before.
    [held] = await desk.ledger.write(targets.TRY_ALL, None)
    assert held.held_s > 29


async def test_one_worker_at_a_time_may_probe(desk: Desk) -> None:
    await desk.submit("/a", "/b")
    for step in await desk.claim(2):
        await hold(desk, step)
    token, first = await probe(desk)
    assert first.claimed is not None
    assert (first.claimed.step.lease.token, first.claimed.step.attempts) == (token, 1)
    assert (await probe(desk, worker=W2))[1].claimed is None
    waits = await hold(desk, first.claimed.step, probe=token)
    assert waits.hold is not None
    assert waits.hold.failures == 2
    assert (await row(desk, first.claimed.step))[:3] == ("ERROR", 0, 0)
    assert (await probe(desk, worker=W2))[1].claimed is not None


async def test_a_probe_that_dies_makes_room_for_another(desk: Desk) -> None:
    await desk.submit("/a", "/b")
    for step in await desk.claim(2):
        await hold(desk, step)
    lost, first = await probe(desk)
    assert await desk.reap("w1") == 1
    token, second = await probe(desk, worker=W2)
    assert first.claimed is not None
    assert second.claimed is not None
    assert await desk.ledger.write(refusals.ANSWERED, refusals.Answered(API, lost)) is None
    assert await desk.ledger.write(refusals.ANSWERED, refusals.Answered(API, token)) is not None


async def test_a_document_for_which_alone_the_target_does_not_work_waits_behind_the_others(desk: Desk) -> None:
    await desk.submit("/poison", "/a", "/b")
    poison, one, two = await desk.claim(3)
    await hold(desk, poison)
    for step in (one, two):
        await desk.ledger.write(targets.HOLD, targets.Wait(step, API))
    for healthy in (one, two):
        token, probed = await probe(desk)
        assert probed.claimed is not None
        assert probed.claimed.step.document_id == healthy.document_id
        if healthy is one:
            await desk.ledger.write(targets.END_PROBE, refusals.Answered(API, token))
            assert await desk.fail(probed.claimed.step)
    assert await desk.ledger.write(refusals.ANSWERED, refusals.Answered(API, token)) == 0
    assert (await row(desk, poison))[:4] == ("ERROR", 0, 0, None)
    assert refusals.AGAIN_S / 2 < await desk.ledger.read(work.due_in) <= refusals.AGAIN_S  # type: ignore[operator]


async def test_when_the_target_answers_all_that_waited_goes_on(desk: Desk) -> None:
    await desk.submit("/a", "/b", "/c")
    for step in await desk.claim(3):
        await hold(desk, step)
    token, probed = await probe(desk)
    assert probed.claimed is not None
    await hold(desk, probed.claimed.step, probe=token)
    token, _ = await probe(desk)
    assert await desk.ledger.write(refusals.ANSWERED, refusals.Answered(API, token)) == 2
    assert await desk.ledger.read(targets.all_held) == []
    again = await desk.claim(3)
    assert len(again) == 2
    assert {step.attempts for step in again} == {1}
    assert (await row(desk, again[0]))[3:] == (None, None)
    # One that met it meanwhile, and comes late, does not wait for what nobody probes.
    late = await desk.ledger.write(targets.HOLD, targets.Wait(again[1], API))
    assert late == targets.Waits(True, None)
    assert (await row(desk, again[1]))[:2] == ("PENDING", 0)


async def test_a_probe_without_a_waiting_step_takes_one_of_a_queue_that_is_held(desk: Desk) -> None:
    step = await desk.started("/a")
    await hold(desk, step)
    await desk.submit("/b")
    _, probed = await probe(desk)
    assert probed.claimed is not None
    assert probed.claimed.step.document_id == step.document_id
    assert await desk.fail(probed.claimed.step)
    await desk.ledger.write(targets.END_PROBE, refusals.Answered(API, probed.claimed.step.lease.token))
    assert (await probe(desk))[1].claimed is None
    _, fresh = await probe(desk, held=("extract",))
    assert fresh.claimed is not None
    assert fresh.claimed.step.document_id != step.document_id


async def test_a_probe_that_finds_nothing_out_leaves_the_target_to_others(desk: Desk) -> None:
    await hold(desk, await desk.started())
    token, _ = await probe(desk)
    assert await desk.ledger.write(targets.END_PROBE, refusals.Answered(API, token))
    [held] = await desk.ledger.read(targets.all_held)
    assert held.failures == 1


async def test_a_target_that_no_step_waits_for_is_forgotten(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    step = await desk.started()
    await hold(desk, step)
    monkeypatch.setattr(targets, "FORGET_S", -60.0)
    await desk.ledger.write(targets.PROBE, targets.Probe(API, W1, desk.token(), ("other",), (), LEASE_S))
    assert len(await desk.ledger.read(targets.all_held)) == 1
    await desk.cancel(step.document_id)
    assert (await probe(desk))[1].hold is None


async def test_a_new_state_of_a_target_has_a_beginning_of_its_own(desk: Desk) -> None:
    await hold(desk, await desk.started())
    token, probed = await probe(desk)
    assert probed.claimed is not None
    await hold(desk, probed.claimed.step, probe=token, state=State.UNAUTHORIZED, setting="OPENAI_API_KEY")
    [held] = await desk.ledger.read(targets.all_held)
    assert (held.state, held.failures) == (State.UNAUTHORIZED, 2)


async def test_a_call_hears_when_all_that_is_left_waits(desk: Desk) -> None:
    await desk.submit("/a", "/b")
    one, two = await desk.claim(2)
    await hold(desk, one)
    for _ in range(targets.TRIES - 1):
        assert await desk.ledger.read(targets.held_up) is None
        token, probed = await probe(desk)
        assert probed.claimed is not None
        await hold(desk, probed.claimed.step, probe=token)
    assert await desk.ledger.read(targets.held_up) is None
    assert await desk.ledger.write(releases.RELEASE, releases.Release(two, give_back=True))
    assert await desk.ledger.read(targets.held_up) is None
    assert await desk.ledger.read(targets.held_up, ("extract",)) == "answered 503"


async def test_a_table_that_fails_is_a_target_under_its_lock(desk: Desk) -> None:
    token = (await desk.indexing()).lease.token
    paused = await desk.ledger.write(targets.PAUSE, targets.Pause(KEY, token, "disk full", 0.0))
    assert paused is not None
    assert (paused.name, paused.failures) == (KEY, 1)
    assert await desk.ledger.write(targets.PAUSE, targets.Pause(KEY, token, "disk full", 0.0)) is None
    request = locks.Acquire(KEY, desk.token(), W1, "vacuum", LEASE_S)
    assert await desk.ledger.write(locks.ACQUIRE, request)
    assert await desk.ledger.write(locks.RELEASE, (KEY, request.token))
    assert len(await desk.ledger.read(targets.all_held)) == 1
    # The step was not handed back here: a reaper does it. The next group that works closes the breaker.
    assert await desk.reap("w1") == 1
    [step] = await desk.claim_keyed()
    assert await desk.ledger.write(locks.RELEASE, (KEY, step.lease.token))
    assert await desk.ledger.read(targets.all_held) == []
    assert await desk.one("SELECT paused_until FROM locks") is None


async def refused(desk: Desk, step: Step) -> int:
    found: int = await desk.step(step, "refused")
    return found


async def with_probe_of_another(desk: Desk, failing: list[Step], source: str) -> None:
    """These steps meet the failure; then the first probe, with another document, succeeds."""
    for step in failing:
        await hold(desk, step)
    await desk.submit(source)
    token, probed = await probe(desk, held=("extract",))
    assert probed.claimed is not None
    assert await desk.ledger.write(refusals.ANSWERED, refusals.Answered(API, token)) is not None
    assert await desk.fail(probed.claimed.step)


async def claimed_again(desk: Desk) -> Step:
    assert await desk.ledger.write(leasing.DUE, 100) == 1
    [step] = await desk.claim(5)
    return step


async def test_a_refusal_counts_when_another_step_is_answered(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refusals, "AGAIN_S", 0.0)
    step = await desk.started("/poison")
    for number in range(1, 4):
        await with_probe_of_another(desk, [step], f"/{number}")
        assert await refused(desk, step) == number
        assert (await row(desk, step))[:4] == ("ERROR", 0, 0, None)
        step = await claimed_again(desk)
        assert step.refused == number
    moved = targets.Wait(step, API, failure(), moved=True)
    await desk.ledger.write(targets.HOLD, moved)
    assert await refused(desk, step) == 0, "progress forgets them"


async def test_an_outage_never_counts(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not while it lasts, not at its end, and not for a step that only waited."""
    monkeypatch.setattr(refusals, "AGAIN_S", 0.0)
    await desk.submit("/a", "/b", "/c")
    one, two, bystander = await desk.claim(3)
    await hold(desk, one)
    await hold(desk, two)
    await desk.ledger.write(targets.HOLD, targets.Wait(bystander, API))
    for _ in range(10):
        token, probed = await probe(desk)
        assert probed.claimed is not None
        await hold(desk, probed.claimed.step, probe=token)
    token, probed = await probe(desk)
    assert probed.claimed is not None
    await desk.ledger.write(refusals.ANSWERED, refusals.Answered(API, token))
    assert [await refused(desk, step) for step in (one, two, bystander)] == [0, 0, 0]


async def test_steps_that_fail_together_are_suspected_once_and_do_not_count(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A short outage hits several, and so does a common call with one bad document."""
    monkeypatch.setattr(refusals, "AGAIN_S", 0.0)
    await desk.submit("/a", "/b")
    steps = await desk.claim(2)
    for number in range(4):
        await with_probe_of_another(desk, steps, f"/{number}")
        assert [await refused(desk, step) for step in steps] == [1, 1]
        assert await desk.ledger.write(leasing.DUE, 100) == 2
        steps = await desk.claim(5)


async def test_a_probe_that_fails_while_the_target_answers_counts_and_closes_the_breaker(desk: Desk) -> None:
    await desk.submit("/poison", "/a")
    poison, waiting = await desk.claim(2)
    await hold(desk, poison)
    await hold(desk, waiting)
    _, probed = await probe(desk)
    assert probed.claimed is not None
    stale = replace(probed.claimed.step, lease=replace(probed.claimed.step.lease, token=desk.token()))
    assert not await desk.ledger.write(refusals.REFUSE, refusals.Refusal(stale, API, "answered 503"))
    assert await desk.ledger.read(targets.all_held) != []
    assert await desk.ledger.write(refusals.REFUSE, refusals.Refusal(probed.claimed.step, API, "answered 503"))
    assert await refused(desk, probed.claimed.step) == 1
    assert (await row(desk, probed.claimed.step))[:4] == ("ERROR", 0, 0, None)
    assert await desk.ledger.read(targets.all_held) == []
