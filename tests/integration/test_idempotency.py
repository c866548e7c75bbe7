"""`Idempotency-Key`: a request that is repeated is done once."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import httpx2
import pytest
from fastapi import FastAPI, Request, Response
from tests.conftest import StartApp

from penstock.api import idempotency
from penstock.api.edge import Edge
from penstock.api.idempotency import Idempotency
from penstock.api.problems import add_handlers
from penstock.api.service import Service
from penstock.app import App

KEY = {"Idempotency-Key": "order-1"}


class Shop:
    """An app that counts what it does."""

    def __init__(self, app: App) -> None:
        self.done = 0
        self.wait: asyncio.Event | None = None
        self.status = 201
        self.began = asyncio.Event()
        self.keys: list[Any] = []
        api = FastAPI()
        add_handlers(api)

        @api.post("/api/v1/orders")
        async def order(request: Request) -> Response:
            self.keys.append(request.scope.get("penstock.idempotency_key"))
            body = await request.body()
            self.done += 1
            self.began.set()
            if self.wait is not None:
                await self.wait.wait()
            if self.status == 599:
                raise ZeroDivisionError
            return Response(b"%d:%d" % (self.done, len(body)), self.status, {"Location": "/x", "X-Other": "y"})

        api.add_middleware(Idempotency, service=Service(app), prefixes=("/api/v1",))
        api.add_middleware(Edge, runtime=app.runtime)
        transport = httpx2.ASGITransport(api, client=("127.0.0.1", 1))
        self.client = httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1/api/v1/")


@pytest.fixture
async def shop(start_app: StartApp, database_url: str) -> AsyncIterator[Shop]:
    shop = Shop(await start_app(database=database_url))
    async with shop.client:
        yield shop


async def test_a_repeated_request_gets_the_first_answer(shop: Shop) -> None:
    first, second = [await shop.client.post("orders", content=b"abc", headers=KEY) for _ in range(2)]
    assert (first.status_code, first.text, shop.done) == (201, "1:3", 1)
    assert (second.status_code, second.text) == (201, "1:3")
    assert second.headers["idempotency-replayed"] == "true"
    assert second.headers["location"] == "/x"
    assert "idempotency-replayed" not in first.headers
    assert shop.keys == ["order-1"]
    assert (await shop.client.post("orders", content=b"abc")).text == "2:3"


async def test_another_payload_is_refused(shop: Shop) -> None:
    await shop.client.post("orders", content=b"abc", headers=KEY)
    for changed in ({"content": b"abd"}, {"content": b"abc", "params": {"a": 1}}, {"content": b""}):
        again = await shop.client.post("orders", headers=KEY, **changed)
        assert (again.status_code, shop.done) == (422, 1)
        assert "Idempotency-Key" in again.json()["error"]


async def test_a_request_in_flight_is_a_conflict(shop: Shop) -> None:
    shop.wait = asyncio.Event()
    first = asyncio.create_task(shop.client.post("orders", content=b"abc", headers=KEY))
    await shop.began.wait()
    second = await shop.client.post("orders", content=b"abc", headers=KEY)
    assert (second.status_code, second.headers["retry-after"]) == (409, "3")
    shop.wait.set()
    assert (await first).status_code == 201
    assert (await shop.client.post("orders", content=b"abc", headers=KEY)).text == "1:3"


@pytest.mark.parametrize("status", [401, 409, 429, 500, 503, 599])
async def test_what_did_nothing_can_be_repeated(shop: Shop, status: int) -> None:
    shop.status = status
    await shop.client.post("orders", content=b"abc", headers=KEY)
    shop.status = 201
    assert (await shop.client.post("orders", content=b"abd", headers=KEY)).text == "2:3"


async def test_an_error_of_the_request_itself_is_kept(shop: Shop) -> None:
    shop.status = 404
    first, second = [await shop.client.post("orders", content=b"abc", headers=KEY) for _ in range(2)]
    assert [first.status_code, second.status_code, shop.done] == [404, 404, 1]


@pytest.mark.parametrize("key", ["", " ", "a b", "x" * 256, "\u00e4"])
async def test_a_bad_key_is_refused(shop: Shop, key: str) -> None:
    headers = [(b"Idempotency-Key", key.encode("latin-1"))]
    assert (await shop.client.post("orders", content=b"abc", headers=headers)).status_code == 422
    assert shop.done == 0


async def test_a_client_that_went_away_is_served_again(shop: Shop) -> None:
    shop.wait = asyncio.Event()
    first = asyncio.create_task(shop.client.post("orders", content=b"abc", headers=KEY))
    await shop.began.wait()
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    shop.wait = None
    assert (await shop.client.post("orders", content=b"abc", headers=KEY)).text == "2:3"


async def test_a_long_request_keeps_its_lease(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(idempotency, "LEASE_S", 0.3)
    monkeypatch.setattr(idempotency, "RENEW_S", 0.05)
    shop.wait = asyncio.Event()
    first = asyncio.create_task(shop.client.post("orders", content=b"abc", headers=KEY))
    await shop.began.wait()
    await asyncio.sleep(0.8)
    assert (await shop.client.post("orders", content=b"abc", headers=KEY)).status_code == 409
    shop.wait.set()
    assert (await first).status_code == 201


def chunked(*pieces: bytes) -> Callable[[], Awaitable[dict[str, Any]]]:
    left = list(pieces)

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": left.pop(0), "more_body": bool(left)}

    return receive


async def hashed(content_type: str, *pieces: bytes) -> str:
    scope = {"type": "http", "headers": [(b"content-type", content_type.encode())]}
    body = idempotency._Body(scope, chunked(*pieces))
    while await body.more():
        pass
    return body.hash


async def test_the_boundary_of_a_multipart_body_does_not_count_wherever_it_is_cut() -> None:
    def parts(boundary: bytes) -> bytes:
        return b"--%s\r\nab-ab\r\n--%s\r\nABAB\r\n--%s--\r\n" % (boundary, boundary, boundary)

    hashes = set()
    for boundary in (b"abcab", b"AAAAAAB"):
        whole = parts(boundary)
        for cut in range(len(whole) + 1):
            kind = f'multipart/form-data; boundary="{boundary.decode()}"'
            hashes.add(await hashed(kind, whole[:cut], whole[cut:]))
    assert len(hashes) == 1
    assert await hashed("multipart/form-data; boundary=abcab", parts(b"abcab") + b"x") not in hashes
    assert await hashed("text/plain; boundary=abcab", b"abcab") != await hashed("text/plain; boundary=abcab", b"")
