"""Steps that hang: a live worker's step is taken away once it has worked too long without progress."""

import msgspec
import pytest
from tests.kit.ledger import KEY, LEASE_S, Desk

from penstock.ledger.engine import checkpoints, leasing, locks, releases
from penstock.model.nouns import Step, StepId, WorkerId

OVER = -1.0
"""A timeout of this length is over when it is told."""


async def tell(
    desk: Desk, step: Step, timeout_s: float | None, *, waiting_on: str | None = None, moved: bool = False
) -> frozenset[StepId]:
    sign = leasing.StepSignal(step.lease.step_id, waiting_on, moved, timeout_s)
    beat = leasing.Beat(WorkerId("w1"), (step.lease,), (), (sign,), LEASE_S)
    return (await desk.ledger.write(leasing.HEARTBEAT, beat)).alive


async def test_a_step_without_progress_is_reaped_although_its_worker_beats(desk: Desk) -> None:
    step = await desk.started()
    assert await tell(desk, step, OVER) == {step.lease.step_id}, "the beat itself takes nothing away"
    assert await desk.reap() == 1
    status, crashes, error = await desk.step(step, "status, crashes, error")
    assert (status, crashes) == ("PENDING", 1)
    assert "w1 hung in this step" in error


async def test_a_dead_worker_s_step_is_not_said_to_hang(desk: Desk) -> None:
    step = await desk.started()
    await tell(desk, step, OVER)
    assert await desk.reap("w1") == 1
    assert "died or was stopped" in await desk.step(step, "error")


async def test_what_hangs_in_the_reaper_s_own_hands_is_left_to_it(desk: Desk) -> None:
    step = await desk.started()
    await tell(desk, step, OVER)
    assert await desk.reap(held=[step]) == 0


@pytest.mark.parametrize("sign", ["progress", "a wait"])
async def test_a_sign_of_life_moves_the_timeout_on(desk: Desk, sign: str) -> None:
    step = await desk.started()
    await tell(desk, step, OVER)
    await tell(desk, step, 60.0, waiting_on="limit" if sign == "a wait" else None, moved=sign == "progress")
    assert await desk.reap() == 0
    assert (await desk.step(step, "progress_at") is not None) == (sign == "progress")
    assert await desk.step(step, "waiting_on") == ("limit" if sign == "a wait" else None)


async def test_a_beat_that_says_nothing_leaves_the_timeout_as_it_was(desk: Desk) -> None:
    step = await desk.started()
    await tell(desk, step, OVER, waiting_on="limit")
    silent = leasing.Beat(WorkerId("w1"), (step.lease,), (), (), LEASE_S)
    assert (await desk.ledger.write(leasing.HEARTBEAT, silent)).alive == {step.lease.step_id}
    await tell(desk, step, None, waiting_on="lock")
    assert await desk.step(step, "waiting_on") == "lock"
    assert await desk.reap() == 1


async def test_a_checkpoint_moves_the_timeout_on(desk: Desk) -> None:
    step = await desk.started()
    opened = await desk.open(step)
    await tell(desk, step, OVER)
    timed = msgspec.structs.replace(desk.flush(step, opened.artifact.id, 0), timeout_s=60.0)
    assert await desk.ledger.write(checkpoints.CHECKPOINT, timed)
    assert await desk.step(step, "progress_at IS NOT NULL")
    assert await desk.reap() == 0


@pytest.mark.parametrize("kind", ["extract", "index"])
async def test_a_new_claim_begins_without_the_timeout_of_the_last(desk: Desk, kind: str) -> None:
    step = await desk.indexing() if kind == "index" else await desk.started()
    await tell(desk, step, OVER)
    await desk.ledger.write(releases.RELEASE, releases.Release(step, give_back=True))
    await desk.ledger.write(locks.RELEASE, (KEY, step.lease.token))
    [again] = await desk.claim_keyed() if kind == "index" else await desk.claim()
    assert await desk.reap() == 0
    assert await desk.step(again, "timeout_at") is None


async def test_i3_who_hung_and_comes_back_writes_nothing(desk: Desk) -> None:
    step = await desk.started()
    await tell(desk, step, OVER)
    await desk.reap()
    [again] = await desk.claim(worker="w2")
    assert await tell(desk, step, 60.0) == frozenset()
    assert not (await desk.complete(step)).took
    assert not await desk.fail(step)
    assert (await desk.complete(again)).took


async def test_the_lock_of_a_step_that_hangs_is_free_again(desk: Desk) -> None:
    step = await desk.indexing()
    await tell(desk, step, OVER)
    assert await desk.reap() == 1
    [again] = await desk.claim_keyed(worker="w2")
    assert again.lease.step_id == step.lease.step_id
    assert not await desk.ledger.read(locks.held, KEY, step.lease.token)


async def test_i7_a_step_that_hangs_alone_again_and_again_is_a_dead_letter(desk: Desk) -> None:
    step = await desk.started()
    for _ in range(5):
        assert await desk.ledger.write(leasing.GO_ALONE, step.lease)
        await tell(desk, step, OVER)
        assert await desk.reap() == 1
        step = (await desk.claim() or [step])[0]
    assert await desk.status(step.document_id) == "FAILED"
    assert await desk.one("SELECT reason FROM dead_letters") == "crash_loop"
