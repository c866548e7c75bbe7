"""Requests with an idempotency key, and the numbers of clients, on both databases."""

import asyncio
from typing import Any

from tests.kit.ledger import ANNA, BERT, Desk

from penstock.ledger.engine import numbers, requests
from penstock.ledger.engine.requests import Enter, StoreAnswer, Stored
from penstock.model.nouns import Owner


async def enter(
    desk: Desk, key: str = "k", fingerprint: str = "one", lease_s: float = 60.0, owner: Owner = ANNA
) -> Any:
    token = desk.token()
    request = Enter(owner, key, fingerprint, token, lease_s)
    answer = await desk.ledger.write(requests.ENTER_REQUEST, request)
    return token if answer == "entered" else answer


def stored(token: Any, body: bytes = b"made", fingerprint: str = "one/all") -> StoreAnswer:
    return StoreAnswer(ANNA, "k", token, fingerprint, 201, "[]", body)


async def test_a_request_is_entered_once_and_answered_as_before(desk: Desk, second: Desk) -> None:
    token = await enter(desk)
    assert await enter(second) == Stored("one", None, None, None)
    assert await desk.ledger.write(requests.STORE_ANSWER, stored(token, b"\x00\xff"))
    assert await enter(second) == Stored("one/all", 201, "[]", b"\x00\xff")
    assert isinstance(await enter(desk, owner=BERT), str)


async def test_a_lost_request_is_taken_over_and_its_answer_is_refused(desk: Desk, second: Desk) -> None:
    lost = await enter(desk, lease_s=-1.0)
    assert await enter(second, fingerprint="another") == Stored("one", None, None, None)
    token = await enter(second)
    assert isinstance(token, str)
    assert not await desk.ledger.write(requests.STORE_ANSWER, stored(lost))
    assert not await desk.ledger.write(requests.RENEW_REQUEST, (ANNA, "k", lost, 60.0))
    assert not await desk.ledger.write(requests.FORGET_REQUEST, (ANNA, "k", lost))
    assert await second.ledger.write(requests.STORE_ANSWER, stored(token))


async def test_a_renewed_request_is_not_taken_over(desk: Desk) -> None:
    token = await enter(desk, lease_s=-1.0)
    assert await desk.ledger.write(requests.RENEW_REQUEST, (ANNA, "k", token, 60.0))
    assert isinstance(await enter(desk), Stored)


async def test_many_at_once_are_entered_once(desk: Desk, second: Desk) -> None:
    found = await asyncio.gather(*(enter(one) for one in (desk, second) for _ in range(20)))
    assert sum(isinstance(one, str) for one in found) == 1


async def test_after_a_day_a_key_is_new_again(desk: Desk) -> None:
    token = await enter(desk)
    await desk.ledger.write(requests.STORE_ANSWER, stored(token))
    await enter(desk, key="other")
    await desk.rows(f"UPDATE requests SET created_at = created_at - {requests.KEPT_S + 1}, lease_until = 0")
    assert isinstance(await enter(desk, fingerprint="another"), str)
    assert await desk.rows("SELECT key FROM requests") == [("k",)]


async def test_numbers_are_allotted_once_and_stay(desk: Desk, second: Desk) -> None:
    async def ask(one: Desk, *ids: str) -> dict[str, int]:
        return await one.ledger.write(numbers.ALLOT, numbers.Numbering(ANNA, "run", ids))

    assert await ask(desk, "a", "b", "a") == {"a": 1, "b": 2}
    found = await asyncio.gather(*(ask(one, f"r{i}", f"r{i + 1}") for one in (desk, second) for i in range(30)))
    given = {name: number for some in found for name, number in some.items()}
    assert len(set(given.values())) == len(given) == 31
    assert all(given[name] == number for some in found for name, number in some.items())
    assert await ask(second, "b", "c") == {"b": 2, "c": max(given.values()) + 1}
    assert await desk.ledger.write(numbers.ALLOT, numbers.Numbering(ANNA, "step", ("a",))) == {"a": 1}
    assert await desk.ledger.write(numbers.ALLOT, numbers.Numbering(BERT, "run", ("z",))) == {"z": 1}
