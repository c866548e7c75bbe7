"""Locks that are taken away by force, locks that somebody waits for, and what people see of locks, steps, workers."""

import asyncio
from functools import partial

import pytest
from tests.kit.ledger import ANNA, BERT, EXPIRED_S, KEY, LEASE_S, Desk, output

from penstock.ledger.database import workers
from penstock.ledger.engine import leasing, locks
from penstock.ledger.reads import stats
from penstock.ledger.reads.stats import ListedStep
from penstock.model.nouns import Owner, Token, WorkerId
from penstock.model.states import StepStatus


async def force(desk: Desk, key: str = KEY, owner: Owner = ANNA) -> locks.Forced | None:
    return await desk.ledger.write(locks.FORCE, locks.Force(owner, key, "carl@desk"))


def acquire(token: str, wanted_s: float = 0.0) -> locks.Acquire:
    return locks.Acquire(KEY, Token(token), WorkerId("w2"), "hold", LEASE_S, wanted_s)


async def releases(desk: Desk, owner: Owner = ANNA) -> list[stats.LockRelease]:
    return await desk.ledger.read(lambda c: stats.lock_releases(owner, c, 10))


async def test_a_lock_taken_away_is_free_its_steps_wait_again_and_it_is_written_down(desk: Desk) -> None:
    await desk.to_index("/a", "/b")
    steps = await desk.claim_keyed()
    assert await force(desk) == locks.Forced(WorkerId("w1"), "step", 2)
    [written] = await releases(desk)
    assert (written.key, written.worker, written.purpose, written.steps) == (KEY, "w1", "step", 2)
    assert written.released_by == "carl@desk"
    assert written.until - LEASE_S == pytest.approx(written.released_at, abs=5)
    assert (
        await desk.rows("SELECT status, attempts, crashes FROM steps WHERE kind = 'index'") == [("PENDING", 0, 0)] * 2
    )
    again = await desk.claim_keyed(worker="w2")
    assert {step.lease.step_id for step in again} == {step.lease.step_id for step in steps}


async def test_a_lock_taken_away_wakes_its_key(desk: Desk) -> None:
    """Its holder may just have let go of it, and somebody else have found nothing there."""
    await desk.indexing()
    await desk.rows("UPDATE locks SET ready = 0 RETURNING 1")
    await force(desk)
    assert len(await desk.claim_keyed()) == 1


async def test_i3_a_holder_that_lost_its_lock_by_force_writes_nothing(desk: Desk) -> None:
    step = await desk.indexing()
    await force(desk)
    assert not await desk.ledger.read(locks.held, KEY, step.lease.token)
    assert not await desk.flip(step)
    assert not await desk.fail(step)
    beat = leasing.Beat(WorkerId("w1"), (step.lease,), ((KEY, step.lease.token),), (), LEASE_S)
    assert await desk.ledger.write(leasing.HEARTBEAT, beat) == leasing.Beaten(frozenset(), frozenset())
    assert not await desk.ledger.write(locks.RELEASE, (KEY, step.lease.token))


async def test_a_lock_that_is_not_held_cannot_be_taken_away(desk: Desk) -> None:
    assert await force(desk) is None
    await desk.indexing()
    assert await force(desk) is not None
    assert await force(desk) is None
    assert len(await releases(desk)) == 1


async def test_i10_locks_of_other_owners_are_neither_shown_nor_taken_away(desk: Desk) -> None:
    step = await desk.indexing()
    assert await force(desk, owner=BERT) is None
    assert await force(desk, owner=Owner("ann")) is None
    assert await desk.ledger.read(locks.held, KEY, step.lease.token)
    for owner, shown in ((ANNA, [KEY]), (BERT, []), (Owner("ann"), [])):
        assert [lock.key for lock in await desk.ledger.read(partial(stats.locks, owner))] == shown
    await force(desk)
    assert await releases(desk, BERT) == []


async def test_a_lock_shows_its_holder_and_what_that_does(desk: Desk) -> None:
    await desk.ledger.write(workers.REGISTER, workers.Worker(WorkerId("w1"), "somewhere", 7))
    await desk.to_index("/a", "/b")
    await desk.claim_keyed()
    [lock] = await desk.ledger.read(lambda c: stats.locks(ANNA, c))
    assert (lock.worker, lock.host, lock.pid, lock.purpose, lock.steps) == ("w1", "somewhere", 7, "step", 2)
    [worker] = await desk.ledger.read(workers.busy)
    assert (worker.id, worker.host, worker.pid, worker.steps) == ("w1", "somewhere", 7, 2)


async def test_no_step_goes_before_somebody_who_waits_for_the_lock(desk: Desk) -> None:
    await desk.to_index("/a", "/b")
    [step] = await desk.claim_keyed(1)
    assert not await desk.ledger.write(locks.ACQUIRE, acquire("waiting", 60.0))
    await desk.ledger.write(locks.RELEASE, (KEY, step.lease.token))
    assert await desk.claim_keyed() == []
    assert await desk.ledger.write(locks.ACQUIRE, acquire("waiting", 60.0))
    await desk.ledger.write(locks.RELEASE, (KEY, Token("waiting")))
    assert len(await desk.claim_keyed()) == 1


async def test_somebody_who_waits_no_longer_keeps_no_step_out(desk: Desk) -> None:
    await desk.to_index("/a", "/b")
    [step] = await desk.claim_keyed(1)
    assert not await desk.ledger.write(locks.ACQUIRE, acquire("gone", EXPIRED_S))
    await desk.ledger.write(locks.RELEASE, (KEY, step.lease.token))
    assert len(await desk.claim_keyed()) == 1


async def listed(
    desk: Desk,
    *,
    status: StepStatus | None = None,
    kind: str = "",
    stuck_s: float | None = None,
    owner: Owner = ANNA,
    count: int = 100,
) -> list[ListedStep]:
    return await desk.ledger.read(
        lambda c: stats.list_steps(owner, c, status=status, kind=kind, stuck_s=stuck_s, count=count)
    )


async def test_steps_are_listed_newest_first_by_status_and_kind(desk: Desk) -> None:
    await desk.submit("/a", "/b", "/c")
    one, two = await desk.claim(2)
    await desk.complete(one, "chunk")
    await desk.fail(two)
    assert [(s.document, s.name, s.status) for s in await listed(desk)] == [
        ("a", "step1", "PENDING"),
        ("c", "one", "PENDING"),
        ("b", "one", "FAILED"),
        ("a", "one", "COMPLETED"),
    ]
    assert [s.document for s in await listed(desk, status=StepStatus.PENDING)] == ["a", "c"]
    assert [s.document for s in await listed(desk, kind="chunk")] == ["a"]
    assert [s.document for s in await listed(desk, count=2)] == ["a", "c"]
    [failed] = await listed(desk, status=StepStatus.FAILED)
    assert (failed.error, failed.attempts, failed.worker, failed.kind) == ("it broke", 1, None, "extract")
    assert await listed(desk, owner=BERT) == []


async def test_steps_of_deleted_documents_are_not_listed(desk: Desk) -> None:
    step = await desk.started()
    await desk.delete(step.document_id)
    assert await listed(desk) == []


async def age(desk: Desk, *columns: str) -> None:
    """As if an hour had passed since then."""
    for column in columns:
        table, _, name = column.partition(".")
        await desk.rows(f"UPDATE {table} SET {name} = {name} - 3600 RETURNING 1")


async def test_a_step_is_stuck_when_it_began_long_ago_and_got_no_further(desk: Desk) -> None:
    await desk.submit("/a", "/b", "/c", "/d")
    running, backed_off, moving = await desk.claim(3)
    artifact = (await desk.open(moving)).artifact
    await desk.fail(backed_off, retry_in=60.0)
    assert await listed(desk, stuck_s=1800.0) == []
    await age(desk, "steps.started_at", "steps.created_at", "documents.updated_at", "artifacts.updated_at")
    assert [s.document for s in await listed(desk, stuck_s=1800.0)] == ["c", "b", "a"]
    assert [s.document for s in await listed(desk, stuck_s=1800.0, count=1)] == ["c"]
    assert [s.document for s in await listed(desk, stuck_s=1800.0, status=StepStatus.ERROR)] == ["b"]
    assert await listed(desk, stuck_s=7200.0) == []
    assert await desk.progress(moving, artifact.id, 0)
    stuck = await listed(desk, stuck_s=1800.0)
    assert [(s.document, s.worker) for s in stuck] == [("b", None), ("a", "w1")]
    assert running.document_id == stuck[1].document_id


async def test_a_step_that_was_retried_just_now_is_not_stuck(desk: Desk) -> None:
    step = await desk.started()
    await desk.fail(step)
    await age(desk, "steps.started_at", "documents.updated_at")
    await desk.retry(step.document_id)
    await desk.claim()
    assert await listed(desk, stuck_s=1800.0) == []


async def test_a_forced_release_and_the_holder_s_heartbeats_do_not_deadlock(desk: Desk, second: Desk) -> None:
    for i in range(10):
        await desk.to_index(f"/{i}")
        [step] = await desk.claim_keyed()
        beat = leasing.Beat(WorkerId("w1"), (step.lease,), ((KEY, step.lease.token),), (), LEASE_S)
        beats = [second.ledger.write(leasing.HEARTBEAT, beat) for _ in range(3)]
        answers = await asyncio.gather(force(desk), *beats)
        assert answers[0] == locks.Forced(WorkerId("w1"), "step", 1)
        [again] = await desk.claim_keyed()
        assert await desk.flip(again, output=output((await desk.open(again, f"f{i}")).artifact.id, 0))
        await desk.ledger.write(locks.RELEASE, (KEY, again.lease.token))
