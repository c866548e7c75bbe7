"""Resource locks: steps behind a key are claimed through it, by one at a time, and no wakeup is lost."""

import asyncio
from functools import partial

import msgspec
from tests.kit.ledger import ANNA, BERT, EXPIRED_S, KEY, Desk

from penstock.ledger.engine import claims, completions, leasing, locks, releases, submissions
from penstock.ledger.reads import stats
from penstock.ledger.upkeep import audit
from penstock.model.nouns import Step, Token, WorkerId


def acquire(token: str, lease_s: float = 60.0, key: str = KEY) -> locks.Acquire:
    return locks.Acquire(key, Token(token), WorkerId("w2"), "purge", lease_s)


async def test_a_keyed_claim_takes_the_lock_and_then_its_steps(desk: Desk) -> None:
    await desk.to_index("/a", "/b", "/c")
    steps = await desk.claim_keyed(2)
    assert len(steps) == 2
    assert {step.lease.resource_key for step in steps} == {KEY}
    token = steps[0].lease.token
    assert await desk.one("SELECT token, worker_id, ready FROM locks") == (token, "w1", 1)
    assert await desk.ledger.read(locks.held, KEY, token)
    assert not await desk.ledger.read(locks.held, KEY, Token("another"))
    assert await desk.one(f"SELECT count(*) FROM steps WHERE lease_token = '{token}'") == 2


async def test_keyed_steps_are_not_claimed_without_their_key(desk: Desk) -> None:
    await desk.to_index("/a")
    assert await desk.claim(10, "index") == []


async def test_a_second_claimer_gets_nothing_while_the_lock_is_held(desk: Desk, second: Desk) -> None:
    await desk.to_index("/a", "/b")
    [step] = await desk.claim_keyed(1)
    assert await second.claim_keyed() == []
    assert await desk.ledger.write(locks.RELEASE, (KEY, step.lease.token))
    assert len(await second.claim_keyed()) == 1


async def test_a_lock_without_steps_is_put_to_rest_until_one_comes(desk: Desk) -> None:
    step = await desk.flipped()
    assert await desk.claim_keyed() == []
    assert await desk.one("SELECT ready, token FROM locks") == (0, None)
    await desk.to_index("/b")
    assert len(await desk.claim_keyed()) == 1
    assert step.lease.resource_key == KEY


async def test_one_claim_never_spans_two_keys(desk: Desk) -> None:
    await desk.to_index("/a")
    await desk.to_index("/a", owner=BERT)
    one, two = await desk.claim_keyed(), await desk.claim_keyed()
    assert {step.owner for step in one + two} == {"anna", "bert"}
    assert len(one) == len(two) == 1


async def test_the_key_that_rested_longest_goes_first(desk: Desk) -> None:
    owners = []
    await desk.to_index("/a", "/b", "/c")
    await desk.to_index("/a", "/b", "/c", owner=BERT)
    for _ in range(6):
        [step] = await desk.claim_keyed(1)
        owners.append(step.owner)
        assert step.lease.resource_key is not None
        await desk.ledger.write(locks.RELEASE, (step.lease.resource_key, step.lease.token))
        await asyncio.sleep(0.005)  # SQLite's clock counts milliseconds.
    assert owners in ([ANNA, BERT] * 3, [BERT, ANNA] * 3)


async def test_a_lock_is_acquired_once(desk: Desk) -> None:
    assert await desk.ledger.write(locks.ACQUIRE, acquire("one"))
    assert not await desk.ledger.write(locks.ACQUIRE, acquire("two"))
    assert not await desk.ledger.write(locks.RELEASE, (KEY, Token("two")))
    assert await desk.ledger.write(locks.RELEASE, (KEY, Token("one")))
    assert await desk.ledger.write(locks.ACQUIRE, acquire("two"))


async def test_upkeep_and_steps_exclude_each_other(desk: Desk) -> None:
    await desk.to_index("/a")
    assert await desk.ledger.write(locks.ACQUIRE, acquire("purge"))
    assert await desk.claim_keyed() == []
    assert await desk.ledger.write(locks.RELEASE, (KEY, Token("purge")))
    assert len(await desk.claim_keyed()) == 1
    assert not await desk.ledger.write(locks.ACQUIRE, acquire("purge"))


async def test_an_expired_lock_can_be_taken(desk: Desk) -> None:
    assert await desk.ledger.write(locks.ACQUIRE, acquire("one", EXPIRED_S))
    assert not await desk.ledger.read(locks.held, KEY, Token("one"))
    assert await desk.ledger.write(locks.ACQUIRE, acquire("two"))
    assert not await desk.ledger.write(locks.RELEASE, (KEY, Token("one")))
    assert await desk.ledger.read(locks.held, KEY, Token("two"))


async def test_a_reap_sweeps_expired_locks_and_those_of_the_dead(desk: Desk) -> None:
    await desk.ledger.write(locks.ACQUIRE, acquire("one", EXPIRED_S, "k1"))
    await desk.ledger.write(locks.ACQUIRE, acquire("two", 60.0, "k2"))
    await desk.reap()
    assert await desk.rows("SELECT resource_key FROM locks WHERE token IS NOT NULL") == [("k2",)]
    await desk.reap("w2")
    assert await desk.rows("SELECT resource_key FROM locks WHERE token IS NOT NULL") == []


async def test_a_dead_indexer_s_steps_and_lock_are_both_taken_back(desk: Desk) -> None:
    await desk.to_index("/a", "/b")
    assert len(await desk.claim_keyed(worker="dead")) == 2
    assert await desk.reap("dead") == 2
    again = await desk.claim_keyed()
    assert len(again) == 2
    assert {step.crashes for step in again} == {1}


async def test_a_heartbeat_keeps_a_lock(desk: Desk) -> None:
    await desk.to_index("/a")
    [step] = await desk.claim_keyed(lease_s=0.5)
    beat = leasing.Beat(WorkerId("w1"), (step.lease,), ((KEY, step.lease.token),), (), 100.0)
    assert (await desk.ledger.write(leasing.HEARTBEAT, beat)).locks == {KEY}
    stale = leasing.Beat(WorkerId("w1"), (), ((KEY, Token("stale")),), (), 100.0)
    assert (await desk.ledger.write(leasing.HEARTBEAT, stale)).locks == frozenset()
    assert await desk.reap() == 0
    assert await desk.ledger.read(locks.held, KEY, step.lease.token)


async def test_a_released_index_step_wakes_its_key(desk: Desk) -> None:
    step = await desk.indexing()
    await desk.ledger.write(locks.RELEASE, (KEY, step.lease.token))
    assert await desk.claim_keyed() == []
    await desk.ledger.write(releases.RELEASE, releases.Release(step, give_back=True))
    assert len(await desk.claim_keyed()) == 1


async def test_a_reaped_index_step_wakes_its_key(desk: Desk) -> None:
    step = await desk.indexing()
    await desk.ledger.write(locks.RELEASE, (KEY, step.lease.token))
    assert await desk.claim_keyed(worker="w2") == []
    assert await desk.reap("w1") == 1
    assert len(await desk.claim_keyed()) == 1


async def test_a_backed_off_index_step_wakes_its_key_when_it_is_due(desk: Desk) -> None:
    step = await desk.indexing()
    await desk.fail(step, retry_in=-1.0)
    await desk.ledger.write(locks.RELEASE, (KEY, step.lease.token))
    assert await desk.claim_keyed() == []
    assert await desk.one("SELECT ready FROM locks") == 0
    assert await desk.ledger.write(leasing.DUE, 100) == 1
    assert len(await desk.claim_keyed()) == 1


async def test_a_retried_index_step_wakes_its_key(desk: Desk) -> None:
    step = await desk.indexing()
    await desk.fail(step)
    await desk.ledger.write(locks.RELEASE, (KEY, step.lease.token))
    assert await desk.claim_keyed() == []
    assert await desk.retry(step.document_id) == {step.document_id}
    assert len(await desk.claim_keyed()) == 1


async def test_no_wakeup_is_lost_while_another_claims(desk: Desk, second: Desk) -> None:
    """Steps come behind a key while a claimer finds it empty and puts it to rest, over and over."""
    count = 60
    await desk.submit(*(f"/{i}" for i in range(count)))
    steps = await desk.claim(count)
    claimed: list[int] = []
    ended = asyncio.Event()

    async def insert() -> None:
        for step in steps:
            await desk.complete(step, "index", key=KEY)
        ended.set()

    async def drain() -> None:
        while True:
            last = ended.is_set()
            got = await second.claim_keyed()
            claimed.extend(step.lease.step_id for step in got)
            if got:
                await second.ledger.write(locks.RELEASE, (KEY, got[0].lease.token))
            elif last:
                return

    await asyncio.gather(insert(), drain())
    assert len(claimed) == len(set(claimed)) == count


OWN = locks.own_key(ANNA, "default", "press-{collection}") or ""


async def behind(desk: Desk, *sources: str, kind: str = "enrich", pool: str | None = None) -> None:
    """Documents whose step waits behind a key of the workflow's own."""
    assert OWN == "step:anna/press-default"
    await desk.submit(*sources)
    for step in await desk.claim(len(sources)):
        done = desk.completion(step, kind, key=OWN)
        done = msgspec.structs.replace(done, next=msgspec.structs.replace(done.next, pool=pool))
        assert (await desk.ledger.write(completions.COMPLETE, done)).took


async def claim_behind(desk: Desk, queue: str) -> list[Step]:
    return await desk.ledger.write(claims.CLAIM_KEYED, claims.KeyedClaim(WorkerId("w1"), queue, 64, desk.token(), 60.0))


async def test_behind_a_custom_key_runs_one_step_at_a_time(desk: Desk) -> None:
    await behind(desk, "/a", "/b")
    [first] = await claim_behind(desk, "enrich")
    assert await claim_behind(desk, "enrich") == []
    assert await desk.ledger.write(locks.RELEASE, (OWN, first.lease.token))
    assert len(await claim_behind(desk, "enrich")) == 1


async def test_different_queues_behind_one_key_take_turns(desk: Desk) -> None:
    await behind(desk, "/a", "/b")
    await behind(desk, "/c", pool="gpu")
    await behind(desk, "/d", kind="route")
    queues = []
    for _ in range(12):
        for queue in ("route", "gpu", "enrich"):
            for step in await claim_behind(desk, queue):
                queues.append(step.queue)
                await desk.complete(step)
                await desk.ledger.write(locks.RELEASE, (OWN, step.lease.token))
    assert sorted(queues) == ["enrich", "enrich", "gpu", "route"]
    assert await desk.ledger.read(audit.unheard, ANNA) == []


async def test_different_queues_may_come_behind_one_key_at_once(desk: Desk) -> None:
    await desk.submit("/a", "/b")
    one, two = await desk.claim(2)
    done = [desk.completion(one, "enrich", key=OWN), desk.completion(two, "route", key=OWN)]
    assert [c.took for c in await asyncio.gather(*(desk.ledger.write(completions.COMPLETE, c) for c in done))] == [
        True
    ] * 2
    assert await desk.ledger.read(audit.unheard, ANNA) == []
    assert len(await claim_behind(desk, "enrich") + await claim_behind(desk, "route")) == 1


async def test_a_queue_that_waits_behind_a_key_for_nobody_is_found(desk: Desk) -> None:
    await behind(desk, "/a")
    await desk.rows("UPDATE locks SET kind = 'route'")
    assert await desk.ledger.read(audit.unheard, ANNA) == [(OWN, "enrich", 1)]


async def test_the_first_step_of_a_run_may_wait_behind_a_key(desk: Desk) -> None:
    await desk.submit("/a", first=submissions.FirstStep("one", "enrich", "gpu", OWN))
    assert await desk.claim(1, "enrich", "gpu") == []
    [step] = await claim_behind(desk, "gpu")
    assert (step.pool, step.lease.resource_key) == ("gpu", OWN)


async def test_i10_a_custom_key_is_seen_and_forced_by_its_owner_only(desk: Desk) -> None:
    await behind(desk, "/a")
    [step] = await claim_behind(desk, "enrich")
    assert [x.key for x in await desk.ledger.read(partial(stats.locks, ANNA))] == [OWN]
    assert await desk.ledger.read(partial(stats.locks, BERT)) == []
    assert await desk.ledger.write(locks.FORCE, locks.Force(BERT, OWN, "bert")) is None
    assert await desk.ledger.write(locks.FORCE, locks.Force(ANNA, OWN, "anna")) is not None
    assert not (await desk.complete(step)).took
    assert len(await claim_behind(desk, "enrich")) == 1


def test_i10_the_keys_of_two_owners_never_meet() -> None:
    assert locks.own_key(ANNA, "c", "press") != locks.own_key(BERT, "c", "press")
    assert locks.own_key(ANNA, "c", "{owner}-{collection}-{owner}") == "step:anna/anna-c-anna"


async def test_a_free_key_is_for_the_queue_that_waits_first(desk: Desk) -> None:
    await behind(desk, "/a")
    await behind(desk, "/b", kind="route")
    [step] = await claim_behind(desk, "route")
    await desk.ledger.write(locks.RELEASE, (OWN, step.lease.token))
    assert await desk.one("SELECT kind FROM locks") == "enrich"


async def test_who_finds_nothing_of_its_queue_hands_the_key_on(desk: Desk) -> None:
    await behind(desk, "/a")
    await desk.rows("UPDATE locks SET kind = 'route'")
    assert await claim_behind(desk, "route") == []
    assert len(await claim_behind(desk, "enrich")) == 1


async def test_steps_of_different_queues_may_come_back_behind_one_key_at_once(desk: Desk) -> None:
    for source, kind in (("/a", "enrich"), ("/b", "route")):
        await behind(desk, source, kind=kind)
        [step] = await claim_behind(desk, kind)
        await desk.fail(step, retry_in=-1.0)
        await desk.ledger.write(locks.RELEASE, (OWN, step.lease.token))
    assert await desk.ledger.write(leasing.DUE, 100) == 2
    assert await desk.ledger.read(audit.unheard, ANNA) == []


async def test_i3_a_step_without_a_lock_may_write_only_while_its_own_lease_is_valid(desk: Desk) -> None:
    step = await desk.started()
    mine, stale = step.lease, msgspec.structs.replace(step.lease, token=desk.token())
    assert set(await desk.ledger.read(locks.leased, [mine])) == {mine.step_id}
    assert not await desk.ledger.read(locks.leased, [stale])
    await desk.rows("UPDATE steps SET lease_until = 1")
    assert not await desk.ledger.read(locks.leased, [mine])
