"""Limits of targets that all workers share."""

import asyncio
from collections.abc import Sequence

import pytest
from tests.kit.ledger import Desk

from penstock.ledger.database.workers import REGISTER, Worker
from penstock.ledger.engine import leasing, limits
from penstock.ledger.engine.limits import Grant
from penstock.ledger.engine.pacing import Known
from penstock.model.nouns import WorkerId

API = "azure:key"
THREE = Known(3)


async def lease(
    desk: Desk,
    worker: str,
    wanted: int,
    in_use: int = 0,
    *,
    known: Known = THREE,
    permits: Sequence[int] = (),
    **more: float,
) -> Grant:
    values = {"lease_s": 60.0, "accepted": 0, **more}
    request = limits.Request(
        API, WorkerId(worker), known, in_use, wanted, values["lease_s"], int(values["accepted"]), tuple(permits)
    )
    # The clock of SQLite has milliseconds: no two requests have the same time.
    await asyncio.sleep(0.002)
    return await desk.ledger.write(limits.LEASE, request)


async def test_slots_of_all_workers_together_are_no_more_than_the_limit(desk: Desk, second: Desk) -> None:
    assert (await lease(desk, "w1", 8)).slots == 3
    starved = await lease(second, "w2", 8)
    assert starved.slots == 0
    # The first worker learns that another one waits, and passes on what is above its share when its calls end.
    asked = await lease(desk, "w1", 8, in_use=3)
    assert (asked.slots, asked.wanted_elsewhere) == (1, True)
    assert (await lease(second, "w2", 8)).slots == 0
    await lease(desk, "w1", 8, in_use=1)
    # What is left after the shares goes to whoever asks first.
    assert (await lease(second, "w2", 8)).slots == 2
    assert (await lease(desk, "w1", 8, in_use=1)).slots == 1


async def test_what_is_not_used_is_given_back(desk: Desk) -> None:
    assert (await lease(desk, "w1", 3)).slots == 3
    await lease(desk, "w1", 0)
    assert (await lease(desk, "w2", 3)).slots == 3
    assert await desk.rows("SELECT worker_id FROM limit_slots") == [("w2",)]


async def test_a_worker_that_dies_leaves_or_is_silent_loses_its_slots(desk: Desk) -> None:
    for name in ("dead", "gone"):
        await desk.ledger.write(REGISTER, Worker(WorkerId(name), "here", 1))
    assert (await lease(desk, "dead", 1)).slots == 1
    assert (await lease(desk, "gone", 1)).slots == 1
    assert (await lease(desk, "silent", 1, lease_s=-1.0)).slots == 1
    assert (await lease(desk, "w4", 3)).slots == 1
    await desk.reap("dead")
    assert (await lease(desk, "w4", 3)).slots == 2
    await desk.ledger.write(leasing.LEAVE, WorkerId("gone"))
    assert (await lease(desk, "w4", 3)).slots == 3


async def test_a_single_slot_goes_round(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    one = Known(1)
    assert (await lease(desk, "w1", 2, known=one)).slots == 1
    assert (await lease(desk, "w2", 2, known=one)).slots == 0
    assert (await lease(desk, "w1", 2, in_use=1, known=one)).slots == 1
    with monkeypatch.context() as at_once:
        at_once.setattr(limits, "TURN_S", -1.0)
        assert (await lease(desk, "w1", 2, in_use=1, known=one)).slots == 0
    await lease(desk, "w1", 2, known=one)
    assert (await lease(desk, "w2", 2, known=one)).slots == 1


async def test_workers_without_a_slot_get_one_in_the_order_in_which_they_asked(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "WAITING_S", 60.0)
    one = Known(1)
    assert (await lease(desk, "w1", 1, known=one)).slots == 1
    assert (await lease(desk, "w2", 1, known=one)).slots == 0
    assert (await lease(desk, "w3", 1, known=one)).slots == 0
    # It asks again while it waits, and keeps its place.
    assert (await lease(desk, "w2", 1, known=one)).slots == 0
    await lease(desk, "w1", 0, known=one)
    assert (await lease(desk, "w3", 1, known=one)).slots == 0
    assert (await lease(desk, "w2", 1, known=one)).slots == 1


async def test_permits_of_two_workers_never_share_a_time(desk: Desk, second: Desk) -> None:
    known = Known(8, requests_per_minute=600)
    starts: list[float] = []
    for who, name in ((desk, "w1"), (second, "w2"), (desk, "w1"), (second, "w2")):
        grant = await lease(who, name, 2, known=known, permits=(0, 0))
        assert grant.starts
        starts += grant.starts
    assert len(starts) >= 6
    # Each grant is later than the one before, apart from the time that passed between them.
    assert max(starts) >= 0.1 * (len(starts) - 1) - 1.0


async def test_a_refusal_holds_all_workers_and_a_limit_is_learnt(desk: Desk, second: Desk) -> None:
    free = await lease(desk, "w1", 2, permits=(0, 0))
    assert free.starts is None
    refusal = limits.Refusal(API, THREE, 0.5, 30.0, accepted=20)
    assert await desk.ledger.write(limits.REFUSE, refusal) >= 30.0
    other = await lease(second, "w2", 1, permits=(0,))
    assert other.starts == []
    assert other.held_s > 29
    [(learnt, throttles)] = await desk.rows("SELECT learnt, throttles FROM limits")
    assert 0.5 < learnt < 0.7
    assert throttles == 1


async def test_a_limit_in_the_settings_counts_more_than_one_that_the_target_states(desk: Desk) -> None:
    await desk.ledger.write(limits.STATE, limits.Stated(API, 60.0, None))
    fast = await lease(desk, "w1", 2, known=Known(3, 60_000.0), permits=(0, 0))
    assert fast.starts is not None
    assert len(fast.starts) == 2
    slow = await lease(desk, "w1", 2, permits=(0, 0))
    assert slow.starts is not None
    assert len(slow.starts) == 1
