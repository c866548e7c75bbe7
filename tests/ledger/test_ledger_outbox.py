"""The outbox on both databases: what is told, to whom, how often, and what becomes of it (I8)."""

import json
from typing import Any

import pytest
from msgspec.structs import replace
from tests.kit.ledger import ANNA, BERT, EXPIRED_S, Desk, sha

from penstock.ledger.engine import dead_letters, groups, lifecycle, outbox, submits, work
from penstock.ledger.engine.groups import GroupStart
from penstock.ledger.engine.outbox import Delivery, Undelivered
from penstock.ledger.reads import stats
from penstock.model.nouns import Token, WorkerId
from penstock.model.states import DocumentStatus


def body(**events: list[dict[str, Any]]) -> dict[str, str]:
    """A snapshot whose workflow names these handlers."""
    text = json.dumps({"id": "w", "name": "w", "steps": [], "lifecycle_events": events})
    return {"snapshot": sha(text), "body": text}


def to(name: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "method": f"mine.{name}", **more}


async def dispatch(desk: Desk) -> int:
    return await desk.ledger.write(outbox.DISPATCH, outbox.FAN_OUT)


async def take(desk: Desk, count: int = 100, worker: str = "w1", margin_s: float = 15.0) -> list[Delivery]:
    request = outbox.Take(WorkerId(worker), Token(desk.token()), count, margin_s)
    return await desk.ledger.write(outbox.TAKE, request)


async def submit(desk: Desk, *sources: str, snapshot: str, body: str, **changes: Any) -> None:
    submission = desk.submission(*(desk.document(source) for source in sources), **changes)
    await desk.ledger.write(submits.SUBMIT, replace(submission, snapshot=snapshot, body=body))


async def told(desk: Desk, *sources: str, **events: list[dict[str, Any]]) -> None:
    """Documents whose first step is claimed, with handlers for what happens to them."""
    await submit(desk, *sources, **body(**events))
    assert len(await desk.claim(len(sources))) == len(sources)


async def waiting(desk: Desk) -> outbox.Waiting:
    return await desk.ledger.read(outbox.waiting)


async def test_i8_an_event_goes_to_each_of_its_handlers_and_to_no_other(desk: Desk) -> None:
    await told(desk, "/a", "/b", item_start=[to("one"), to("two", retries=7)], item_end=[to("three")])
    assert (await waiting(desk)).due
    assert (await desk.ledger.read(work.left)).due_events
    assert await dispatch(desk) == 2
    assert await dispatch(desk) == 0
    taken = await take(desk)
    assert sorted((d.kind, d.to.name, d.attempts, d.to.retries) for d in taken) == [
        ("ITEM_START", "one", 1, 3),
        ("ITEM_START", "one", 1, 3),
        ("ITEM_START", "two", 1, 7),
        ("ITEM_START", "two", 1, 7),
    ]
    assert len({(d.event_id, d.handler) for d in taken}) == 4
    assert await take(desk) == []
    for delivery in taken:
        assert await desk.ledger.write(outbox.DELIVERED, delivery)
    assert (await waiting(desk)) == outbox.Waiting(False, None)
    assert not (await desk.ledger.read(work.left)).due_events


async def test_i8_an_event_is_as_lasting_as_what_it_tells(desk: Desk) -> None:
    """A completion that comes too late writes neither."""
    await submit(desk, "/a", **body(step_end=[to("one")]))
    [late] = await desk.claim(lease_s=EXPIRED_S)
    await desk.reap()
    assert not (await desk.complete(late)).took
    assert not (await waiting(desk)).new
    [again] = await desk.claim()
    assert (await desk.complete(again)).took
    assert await dispatch(desk) == 1


async def test_the_lease_lasts_as_long_as_the_handler_may_take(desk: Desk) -> None:
    await told(desk, "/a", item_start=[to("quick", timeout=5.0), to("slow", timeout=600.0)])
    await dispatch(desk)
    await take(desk, margin_s=15.0)
    for name, seconds in (("quick", 20), ("slow", 615)):
        query = f"SELECT not_before - at FROM deliveries JOIN events ON id = event_id WHERE deliveries.name = '{name}'"
        assert seconds <= await desk.one(query) < seconds + 60


async def test_i8_a_lease_that_is_over_counts_and_the_late_outcome_does_not(desk: Desk, second: Desk) -> None:
    await told(desk, "/a", item_start=[to("one")])
    await dispatch(desk)
    [late] = await take(desk, margin_s=-61.0)
    [again] = await take(second, worker="w2")
    assert (late.attempts, again.attempts, again.event_id) == (1, 2, late.event_id)
    assert not await desk.ledger.write(outbox.DELIVERED, late)
    assert not await desk.ledger.write(outbox.UNDELIVERED, Undelivered(late, "bad", "it broke"))
    assert await second.ledger.write(outbox.DELIVERED, again)
    assert await desk.one("SELECT count(*) FROM dead_letters") == 0


async def test_i8_what_the_dead_were_about_to_deliver_is_due_at_once(desk: Desk) -> None:
    await told(desk, "/a", item_start=[to("one")])
    await dispatch(desk)
    await take(desk, worker="dead")
    assert await take(desk) == []
    await desk.reap("other")
    assert await take(desk) == []
    await desk.reap("dead")
    [again] = await take(desk)
    assert again.attempts == 2


async def test_i8_what_was_delivered_or_given_up_is_never_taken_again(desk: Desk) -> None:
    """Not when the lease is over, and not when its worker has died."""
    await told(desk, "/a", item_start=[to("one"), to("two")])
    await dispatch(desk)
    good, bad = await take(desk, margin_s=-100.0)
    assert await desk.ledger.write(outbox.DELIVERED, good)
    assert await desk.ledger.write(outbox.UNDELIVERED, Undelivered(bad, "bad", "it broke"))
    await desk.reap("w1")
    assert await desk.one("SELECT max(not_before) < min(at) FROM deliveries JOIN events ON id = event_id"), "it is due"
    assert await take(desk) == []


async def test_a_failure_waits_and_one_that_is_given_back_costs_no_attempt(desk: Desk) -> None:
    await told(desk, "/a", item_start=[to("one")])
    await dispatch(desk)
    [first] = await take(desk)
    assert await desk.ledger.write(outbox.UNDELIVERED, Undelivered(first, "bad", "it broke", retry_in=0.0))
    [second] = await take(desk)
    back = Undelivered(second, "", "stopped", retry_in=0.0, given_back=True)
    assert await desk.ledger.write(outbox.UNDELIVERED, back)
    [third] = await take(desk)
    assert (second.attempts, third.attempts) == (2, 2)
    assert await desk.ledger.write(outbox.UNDELIVERED, Undelivered(third, "bad", "it broke", retry_in=100.0))
    look = await waiting(desk)
    assert not look.due
    assert look.due_in is not None
    assert 90 < look.due_in <= 100
    assert not (await desk.ledger.read(work.left)).due_events
    assert await desk.ledger.read(lambda c: stats.events(ANNA, c).waiting) == 1
    assert await desk.ledger.read(lambda c: stats.events(BERT, c).waiting) == 0


async def test_i8_the_last_failure_is_a_dead_letter_and_a_replay_begins_anew(desk: Desk) -> None:
    await told(desk, "/a", "/b", item_start=[to("one"), to("two")])
    await dispatch(desk)
    taken = await take(desk)
    for delivery in taken:
        assert await desk.ledger.write(outbox.UNDELIVERED, Undelivered(delivery, "bad", "it broke", "trace"))
    assert await desk.rows("SELECT DISTINCT status FROM deliveries") == [("FAILED",)]
    letters = await desk.ledger.read(lambda c: dead_letters.newest(ANNA, c, 10))
    assert len(letters) == 4
    assert {(n.handler, n.kind, n.reason, n.error, n.traceback, n.attempts) for n in letters} == {
        ("one", "ITEM_START", "bad", "it broke", "trace", 1),
        ("two", "ITEM_START", "bad", "it broke", "trace", 1),
    }
    assert {n.source for n in letters} == {"/a", "/b"}
    assert await desk.ledger.read(lambda c: dead_letters.of(ANNA, c, [n.document_id for n in letters])) == []
    waiting = await desk.ledger.read(lambda c: dead_letters.waiting(ANNA, c, "bad"))
    assert sum(alike.count for alike in waiting if alike.origin is None and not alike.is_message) == 4
    assert [row[:2] for row in await desk.ledger.read(lambda c: dead_letters.by_reason(ANNA, c))] == [("bad", 4)]

    replay = dead_letters.EventReplay
    everyone = tuple(letter.id for letter in letters)
    assert await desk.ledger.write(dead_letters.REPLAY_EVENTS, replay(BERT, everyone)) == set()
    assert await desk.ledger.write(dead_letters.REPLAY_EVENTS, replay(ANNA, (987,))) == set()
    done = await desk.ledger.write(dead_letters.REPLAY_EVENTS, replay(ANNA, (letters[0].id,)))
    assert letters[0].event is not None
    assert done == {letters[0].event.id}
    [again] = await take(desk)
    assert (again.to.name, again.attempts) == (letters[0].handler, 1)
    # It may die a second time.
    assert await desk.ledger.write(outbox.UNDELIVERED, Undelivered(again, "bad", "it broke"))
    open_now = tuple(n.id for n in await desk.ledger.read(lambda c: dead_letters.newest(ANNA, c, 10)))
    done = await desk.ledger.write(dead_letters.REPLAY_EVENTS, replay(ANNA, open_now))
    assert len(done) == 2
    assert len(await take(desk)) == 4
    assert await desk.ledger.read(lambda c: dead_letters.newest(ANNA, c, 10)) == []


async def test_letters_of_events_are_not_closed_with_those_of_their_document(desk: Desk) -> None:
    await submit(desk, "/a", **body(item_failed=[to("one")]))
    [step] = await desk.claim()
    assert await desk.fail(step)
    await dispatch(desk)
    [delivery] = await take(desk)
    assert await desk.ledger.write(outbox.UNDELIVERED, Undelivered(delivery, "deaf", "it broke"))
    await desk.retry(step.document_id)
    found = await desk.ledger.read(lambda c: dead_letters.newest(ANNA, c, 10))
    assert [letter.reason for letter in found] == ["deaf"]
    await desk.delete(step.document_id)
    found = await desk.ledger.read(lambda c: dead_letters.newest(ANNA, c, 10))
    assert [letter.reason for letter in found] == ["deaf"]


async def test_i8_a_group_ends_once_for_each_completion(desk: Desk) -> None:
    group = GroupStart("g1", "w")
    flow = body(group_start=[to("one")], group_end=[to("two")])
    await submit(desk, "/a", group=group, **flow)
    await submit(desk, "/b", group=group, **flow)
    steps = await desk.claim(2)
    assert await desk.fail(steps[0])
    assert await desk.ledger.write(groups.SEAL, "g1")
    assert not await desk.ledger.write(groups.SEAL, "g1"), "it is sealed already"
    assert await dispatch(desk) == 1
    assert await desk.fail(steps[1])
    assert await dispatch(desk) == 1
    taken = await take(desk)
    assert [(d.kind, d.completion) for d in taken] == [("GROUP_START", 0), ("GROUP_END", 1)]
    start, end = await desk.ledger.read(lifecycle.describe, taken, ["w", "w"])
    assert (end.collection, end.group_id, end.counts, end.name) == ("default", "g1", {"FAILED": 2}, None)
    assert start.id != end.id
    assert end.id == f"g1-{taken[1].event_id}"


async def test_a_group_without_runs_is_sealed_in_vain(desk: Desk) -> None:
    assert not await desk.ledger.write(groups.SEAL, "never")
    assert not (await waiting(desk)).new


async def test_an_event_says_what_it_is_about(desk: Desk) -> None:
    group = GroupStart("g1", "w")
    await submit(desk, "/a", group=group, batch="spring", **body(step_failed=[to("one")], item_end=[to("one")]))
    [step] = await desk.claim()
    assert await desk.fail(step, retry_in=60.0)
    await dispatch(desk)
    [event] = await desk.ledger.read(lifecycle.describe, await take(desk), ["w"])
    assert (event.name, event.source, event.batch, event.group_id) == ("a", "/a", "spring", "g1")
    assert (event.step, event.step_kind, event.attempt, event.status) == ("one", "extract", 1, "ERROR")
    assert (event.error, dict(event.meta), event.counts) == ("it broke", {"reason": "bad", "page": 7}, {})
    await desk.cancel(step.document_id)
    await dispatch(desk)
    [event] = await desk.ledger.read(lifecycle.describe, await take(desk), ["w"])
    assert (event.kind, event.status, event.step) == ("ITEM_END", DocumentStatus.CANCELLED, None)


@pytest.mark.parametrize("count", [1, 3])
async def test_two_couriers_never_take_the_same(desk: Desk, second: Desk, count: int) -> None:
    await told(desk, "/a", "/b", "/c", item_start=[to("one"), to("two")])
    await dispatch(desk)
    seen: list[tuple[int, int]] = []
    while taken := [*await take(desk, count), *await take(second, count, "w2")]:
        seen += [(d.event_id, d.handler) for d in taken]
    assert len(seen) == len(set(seen)) == 6


async def test_the_end_of_a_delivery_concerns_that_one_alone_and_needs_its_lease(desk: Desk) -> None:
    await told(desk, "/a", "/b", item_start=[to("one"), to("two")])
    await dispatch(desk)
    first, *others = await take(desk)
    assert len({d.token for d in (first, *others)}) == 1
    mine = f"event_id = {first.event_id} AND handler = {first.handler}"
    before = await desk.rows(f"SELECT * FROM deliveries WHERE NOT ({mine}) ORDER BY event_id, handler")
    again = Undelivered(first, "handler_failed", "it failed", retry_in=100.0)
    assert await desk.ledger.write(outbox.UNDELIVERED, again) is True
    after = await desk.rows("SELECT * FROM deliveries ORDER BY event_id, handler")
    # The lease is over: nothing more is written under it.
    assert await desk.ledger.write(outbox.UNDELIVERED, again) is False
    assert await desk.ledger.write(outbox.UNDELIVERED, replace(again, retry_in=None)) is False
    assert await desk.ledger.write(outbox.DELIVERED, first) is False
    assert await desk.rows("SELECT * FROM deliveries ORDER BY event_id, handler") == after
    assert await desk.rows(f"SELECT * FROM deliveries WHERE NOT ({mine}) ORDER BY event_id, handler") == before
    assert await desk.rows("SELECT * FROM dead_letters") == []
    second, *rest = others
    assert await desk.ledger.write(outbox.UNDELIVERED, Undelivered(second, "handler_failed", "it failed")) is True
    assert await desk.ledger.write(outbox.DELIVERED, rest[0]) is True
    assert sorted(row[0] for row in await desk.rows("SELECT status FROM deliveries")) == [
        "DELIVERED",
        "FAILED",
        "PENDING",
        "PENDING",
    ]
