"""Calls that serve several steps."""

import asyncio
import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from tests.kit.providers import direct

from penstock.embedders.fake import FakeEmbedder
from penstock.errors import Away, Permanent
from penstock.net.providers import ProvidersOf
from penstock.runtime import Runtime
from penstock.stages.base import Gather, Limits, Ports
from penstock.worker.gathering import Gatherer

LIMITS = Limits(8, 100)


class Provider:
    """Answers with the items in capitals; refuses all of a call for one bad item."""

    def __init__(self) -> None:
        self.calls: list[list[str]] = []
        self.answering = asyncio.Event()
        self.answering.set()
        self.error: Callable[[], Exception] = lambda: Permanent("it refuses a text", reason="bad_text")

    async def call(self, ports: Ports, runtime: Runtime, providers: ProvidersOf, items: Sequence[str]) -> Any:
        self.calls.append(list(items))
        await self.answering.wait()
        if "bad" in items:
            raise self.error()
        return [item.upper() for item in items]

    def gatherer(
        self,
        calls: int = 2,
        limits: Limits = LIMITS,
        gather_s: float = 0.0,
        more_within: Callable[[], float] = lambda: 0.0,
    ) -> Gatherer:
        gather = Gather(self.call, len, lambda ports: limits)
        ports: Any = None
        return Gatherer(gather, limits, ports, Runtime(), calls, direct, gather_s, more_within)


async def together(gatherer: Gatherer, *parts: list[str]) -> list[Any]:
    return await asyncio.gather(*(gatherer.add(part, lambda: None) for part in parts), return_exceptions=True)


async def test_items_of_several_steps_go_into_one_call_and_come_back_in_order() -> None:
    provider = Provider()
    answers = await together(provider.gatherer(), ["a", "b"], ["c"], ["d", "e", "f"])
    assert answers == [["A", "B"], ["C"], ["D", "E", "F"]]
    assert provider.calls == [["a", "b", "c", "d", "e", "f"]]


async def test_a_call_is_no_larger_than_its_limits_and_divides_no_step_s_items() -> None:
    provider = Provider()
    await together(provider.gatherer(9), ["a"] * 5, ["b"] * 4, ["c"] * 4, ["d" * 60], ["e" * 60], ["f" * 200], ["g"])
    assert [len(call) for call in provider.calls] == [5, 8, 1, 1, 1, 1]


async def test_calls_that_are_under_way_make_the_next_ones_full() -> None:
    provider = Provider()
    provider.answering.clear()
    gatherer = provider.gatherer(1)
    steps = [asyncio.create_task(gatherer.add([f"{i}"], lambda: None)) for i in range(9)]
    while not provider.calls:  # noqa: ASYNC110
        await asyncio.sleep(0)
    steps += [asyncio.create_task(gatherer.add([f"later {i}"], lambda: None)) for i in range(7)]
    await asyncio.sleep(0.05)
    assert len(provider.calls) == 1
    provider.answering.set()
    await asyncio.gather(*steps)
    assert [len(call) for call in provider.calls] == [8, 8]


async def test_one_step_alone_waits_no_longer_than_a_moment() -> None:
    async with asyncio.timeout(1):
        assert await together(Provider().gatherer(), ["a"]) == [["A"]]


async def test_a_call_that_is_not_full_waits_while_more_may_come_and_no_longer() -> None:
    provider, more = Provider(), math.inf
    gatherer = provider.gatherer(gather_s=600.0, more_within=lambda: more)
    steps = [asyncio.create_task(gatherer.add([name], lambda: None)) for name in "abc"]
    await asyncio.sleep(0.1)
    assert not provider.calls
    steps += [asyncio.create_task(gatherer.add([name], lambda: None)) for name in "de"]
    await asyncio.sleep(0.02)
    more = 0.0
    async with asyncio.timeout(10):
        await asyncio.gather(*steps)
    assert provider.calls == [["a", "b", "c", "d", "e"]]


async def test_a_full_call_waits_for_nothing() -> None:
    provider = Provider()
    async with asyncio.timeout(10):
        await together(
            provider.gatherer(gather_s=600.0, more_within=lambda: math.inf), *[[name] for name in "abcdefgh"]
        )
    assert [len(call) for call in provider.calls] == [8]


async def test_no_step_waits_longer_than_the_set_time_for_others() -> None:
    """Although others keep arriving, and more may come."""
    provider = Provider()
    gatherer = provider.gatherer(limits=Limits(10**6), gather_s=0.2, more_within=lambda: math.inf)
    first = asyncio.create_task(gatherer.add(["first"], lambda: None))
    later = []
    async with asyncio.timeout(10):
        while not first.done():
            later.append(asyncio.create_task(gatherer.add(["later"], lambda: None)))
            await asyncio.sleep(0.01)
        await asyncio.gather(*later)
    assert len(provider.calls[0]) > 1


async def test_a_call_waits_for_slow_steps_only_while_some_arrive() -> None:
    provider = Provider()
    async with asyncio.timeout(10):
        await together(provider.gatherer(gather_s=600.0, more_within=lambda: 0.2), ["a"])
    assert provider.calls == [["a"]]


async def test_of_a_refused_call_only_the_step_whose_item_is_the_cause_fails() -> None:
    provider = Provider()
    answers = await together(provider.gatherer(), ["a"], ["b"], ["bad"], ["d"], ["e"])
    assert [answer for answer in answers if not isinstance(answer, Exception)] == [["A"], ["B"], ["D"], ["E"]]
    assert isinstance(answers[2], Permanent)
    assert provider.calls[0] == ["a", "b", "bad", "d", "e"]
    assert len(provider.calls) < 8


async def test_a_target_that_is_away_is_not_asked_again_for_each_step() -> None:
    provider = Provider()
    provider.error = lambda: Away("it is away")
    answers = await together(provider.gatherer(), ["a"], ["bad"], ["c"])
    assert [type(answer) for answer in answers] == [Away] * 3
    assert len(provider.calls) == 1


async def test_an_answer_that_lacks_entries_is_nobody_else_s() -> None:
    provider = Provider()
    call = provider.call

    async def short(ports: Ports, runtime: Runtime, providers: ProvidersOf, items: Sequence[str]) -> Any:
        return [item for item in await call(ports, runtime, providers, items) if item != "LOST"]

    gather = Gather(short, len, lambda ports: LIMITS)
    ports: Any = None
    answers = await together(Gatherer(gather, LIMITS, ports, Runtime(), 2, direct), ["a"], ["lost"], ["c"])
    assert (answers[0], answers[2]) == (["A"], ["C"])
    assert "0 were returned" in str(answers[1])


async def test_a_step_that_is_cancelled_harms_no_other_and_a_call_for_nobody_ends() -> None:
    provider = Provider()
    provider.answering.clear()
    gatherer = provider.gatherer()
    steps = [asyncio.create_task(gatherer.add([name], lambda: None)) for name in ("a", "b")]
    while not provider.calls:  # noqa: ASYNC110
        await asyncio.sleep(0.001)
    steps[0].cancel()
    await asyncio.sleep(0)
    assert gatherer._calls
    steps[1].cancel()
    await asyncio.gather(*steps, return_exceptions=True)
    await asyncio.sleep(0)
    assert not gatherer._calls
    provider.answering.set()
    assert await together(gatherer, ["c"]) == [["C"]]


@pytest.mark.parametrize("sizes", [[1] * 30, [30], [7, 16, 7]])
async def test_i12_vectors_are_the_same_however_texts_are_grouped(sizes: list[int]) -> None:
    texts = [f"text {i} of words{i % 5}" for i in range(30)]
    embedder = FakeEmbedder()

    async def call(ports: Ports, runtime: Runtime, providers: ProvidersOf, items: Sequence[str]) -> Any:
        return await embedder.embed_documents(items)

    ports: Any = None
    limits = Limits(16)
    gatherer = Gatherer(Gather(call, len, lambda ports: limits), limits, ports, Runtime(), 2, direct)
    parts, start = [], 0
    for size in sizes:
        parts.append(texts[start : start + size])
        start += size
    got = [vector.tolist() for answer in await together(gatherer, *parts) for vector in answer]
    assert got == (await embedder.embed_documents(texts)).tolist()
