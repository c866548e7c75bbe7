"""Whose turn it is."""

from collections import Counter

import pytest

from penstock.worker import fair_queue
from penstock.worker.fair_queue import LONG_EVERY, FairQueue, FlowKey

QUICK_S = 1.0


def served(queue: FairQueue[FlowKey], count: int, seconds: float) -> list[FlowKey]:
    """Turns that each take so long; whoever had one wants another."""
    order = []
    for _ in range(count):
        flow = queue.pop()
        order.append(flow)
        queue.used(flow, seconds)
        queue.add(flow, flow)
    return order


def test_owners_share_the_time_however_many_documents_they_have() -> None:
    queue: FairQueue[FlowKey] = FairQueue(QUICK_S)
    for flow in [FlowKey("anna", i) for i in range(60)] + [FlowKey("bert", 0)]:
        queue.add(flow, flow)
    assert Counter(flow.owner for flow in served(queue, 100, 1.0)) == {"anna": 50, "bert": 50}


def test_who_takes_longer_has_fewer_turns() -> None:
    queue: FairQueue[FlowKey] = FairQueue(QUICK_S)
    slow, quick = FlowKey("anna", 1), FlowKey("bert", 1)
    queue.add(slow, slow)
    queue.add(quick, quick)
    had: Counter[FlowKey] = Counter()
    for _ in range(110):
        flow = queue.pop()
        had[flow] += 1
        queue.used(flow, 10.0 if flow is slow else 1.0)
        queue.add(flow, flow)
    assert had[slow] in (10, 11)


def test_one_who_comes_new_is_next_and_has_no_claim_on_what_was_before() -> None:
    queue: FairQueue[FlowKey] = FairQueue(QUICK_S)
    anna, bert = FlowKey("anna", 1), FlowKey("bert", 1)
    queue.add(anna, anna)
    served(queue, 1000, 1.0)
    queue.add(bert, bert)
    order = served(queue, 20, 1.0)
    assert bert in order[:2]
    assert order.count(bert) <= 11


def test_a_quick_document_goes_before_a_long_one_of_the_same_owner_which_does_not_starve() -> None:
    queue: FairQueue[FlowKey] = FairQueue(QUICK_S)
    long = FlowKey("anna", "long")
    queue.add(long, long)
    served(queue, 2, QUICK_S)
    order = []
    for i in range(20):
        queue.add(FlowKey("anna", i), FlowKey("anna", i))
        flow = queue.pop()
        order.append(flow)
        queue.used(flow, 0.1)
        if flow is long:
            queue.add(long, long)
    assert order[0] != long or order[1] != long
    assert order.count(long) == 20 // LONG_EVERY


def test_long_documents_of_one_owner_are_worked_on_in_the_order_in_which_they_came() -> None:
    queue: FairQueue[FlowKey] = FairQueue(QUICK_S)
    flows = [FlowKey("anna", i) for i in range(3)]
    for flow in flows:
        queue.add(flow, flow)
        queue.used(flow, 2 * QUICK_S)
    assert set(served(queue, 10, 1.0)) == {flows[0]}


def test_what_is_removed_is_not_served_and_what_was_sent_back_is_first() -> None:
    queue: FairQueue[int] = FairQueue(QUICK_S)
    flow = FlowKey("anna", 1)
    for i in (1, 2, 3):
        queue.add(flow, i)
    queue.remove(flow, 2)
    queue.remove(flow, 2)
    queue.remove(FlowKey("nobody", 1), 2)
    queue.add(flow, 0, again=True)
    assert list(queue) == [0, 1, 3]
    assert [queue.pop() for _ in range(3)] == [0, 1, 3]
    assert not queue


def test_what_has_gone_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fair_queue, "REMEMBERED", 50)
    queue: FairQueue[int] = FairQueue(QUICK_S)
    waiting = FlowKey("carl", 0)
    queue.add(waiting, 0)
    for i in range(5000):
        flow = FlowKey(f"owner{i}", i)
        queue.add(flow, i)
        queue.used(flow, 0.001)
        queue.remove(flow, i)
        if i % 10 == 0:
            queue.used(waiting, 0.001)
            queue.pop()
            queue.add(waiting, 0)
    assert len(queue._documents) <= 52
    assert len(queue._used_s) <= 600
    assert waiting in queue._documents


def test_more_may_wait_than_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fair_queue, "REMEMBERED", 4)
    queue: FairQueue[FlowKey] = FairQueue(QUICK_S)
    for number in range(6):
        queue.add(FlowKey("ann", number), FlowKey("ann", number))
    assert {queue.pop().document for _ in range(6)} == set(range(6))
