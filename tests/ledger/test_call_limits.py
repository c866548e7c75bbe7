"""Calls of one worker within the limits, and what cancelled callers leave behind."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from tests.kit.ledger import ANNA, Desk

from penstock.blobs.local import LocalBlobs
from penstock.config_providers import TargetConfig
from penstock.errors import RateLimited
from penstock.metrics.base import NULL_METRICS
from penstock.model.nouns import WorkerId
from penstock.worker.bought import BoughtAnswers
from penstock.worker.limits import CallLimits
from penstock.worker.paid import PaidWork

API = "seller"


@pytest.fixture
async def failures() -> list[BaseException]:
    return []


@pytest.fixture
async def paid() -> AsyncIterator[PaidWork]:
    work = PaidWork()
    yield work
    await work.close()


@pytest.fixture
async def calls(desk: Desk, paid: PaidWork, failures: list[BaseException]) -> AsyncIterator[CallLimits]:
    limits = CallLimits(
        desk.ledger, desk.runtime, WorkerId("w1"), NULL_METRICS, {API: TargetConfig(calls=1)}, paid, failures.append
    )
    yield limits
    await limits.close()


async def test_a_caller_that_is_cancelled_while_it_waits_takes_no_slot(
    calls: CallLimits, failures: list[BaseException]
) -> None:
    """The cancelled caller has not run yet when the next call could start: its place must not be given to it."""
    entered, leave = asyncio.Event(), asyncio.Event()

    async def long() -> None:
        entered.set()
        await leave.wait()

    async def short() -> str:
        return "done"

    first = asyncio.create_task(calls.call(API, long))
    await asyncio.wait_for(entered.wait(), 60)
    waiting = asyncio.create_task(calls.call(API, short))
    await asyncio.sleep(0)
    known = calls._targets[API]
    waiting.cancel()
    # A grant of one slot more arrives in the same turn of the loop.
    known.slots += 1
    calls._dispatch(known)
    leave.set()
    await asyncio.wait_for(first, 60)
    assert await asyncio.wait_for(calls.call(API, short), 60) == "done"
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert failures == []
    assert known.in_use == 0


async def test_a_refusal_counts_though_the_step_was_cancelled(calls: CallLimits) -> None:
    """A paid call goes on after its step was cancelled. If it is refused then, all workers wait nevertheless."""
    entered, leave = asyncio.Event(), asyncio.Event()

    async def refused() -> None:
        entered.set()
        await leave.wait()
        raise RateLimited("the provider answered 429", retry_after=3600.0)

    call = asyncio.create_task(calls.call(API, refused, paid=True))
    await asyncio.wait_for(entered.wait(), 60)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    leave.set()
    known = calls._targets[API]
    async with asyncio.timeout(60):
        while known.held_until == 0.0 or known.in_use:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_an_operation_is_begun_once_whoever_asks_meanwhile(
    desk: Desk, paid: PaidWork, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """A step is cancelled while an operation begins, which continues; the step is tried again at once."""
    blobs = LocalBlobs(tmp_path_factory.mktemp("blobs"), desk.runtime)
    bought = BoughtAnswers(desk.ledger, blobs, desk.runtime, NULL_METRICS, paid)
    begun, leave = 0, asyncio.Event()

    async def begin() -> str:
        nonlocal begun
        begun += 1
        await leave.wait()
        return f"operation {begun}"

    first = asyncio.create_task(bought.start(ANNA, "pages 1-10", begin))
    async with asyncio.timeout(60):
        while not begun:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    first.cancel()
    again = asyncio.create_task(bought.start(ANNA, "pages 1-10", begin))
    await asyncio.sleep(0.05)
    leave.set()
    assert await asyncio.wait_for(again, 60) == "operation 1"
    assert begun == 1


async def test_nobody_waits_here_for_a_target_that_asks_for_a_long_pause(calls: CallLimits) -> None:
    """The step of the refused call waits as in an outage. So do those whose calls waited for their turn."""

    async def refused() -> None:
        await asyncio.sleep(0.05)
        raise RateLimited("the provider answered 429", retry_after=3600.0)

    results = await asyncio.wait_for(
        asyncio.gather(*(calls.call(API, refused) for _ in range(4)), return_exceptions=True), 60
    )
    assert [type(result) for result in results] == [RateLimited] * 4
    assert all(3500 < getattr(result, "retry_after", 0) <= 3601 for result in results)
    with pytest.raises(RateLimited, match="pause"):
        await asyncio.wait_for(calls.call(API, refused), 60)
