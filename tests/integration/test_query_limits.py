"""Queries use the limits of their provider, which they share with workers and other processes."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import StartApp
from tests.integration.test_usage import server as server
from tests.kit.embedding_server import Answer, EmbeddingServer

from penstock.errors import PenstockError, RateLimited, Unauthorized

Files = Callable[..., Path]
REMOTE = "openai:m?dimensions=64"


def count_in_flight(server: EmbeddingServer) -> list[int]:
    """How many calls were in flight when each of them began."""
    in_flight, seen, plain = 0, [], server.answer

    def counted(path: str, headers: Any, body: dict[str, Any]) -> Answer:
        nonlocal in_flight
        with server.lock:
            in_flight += 1
            seen.append(in_flight)
        try:
            return plain(path, headers, body)
        finally:
            with server.lock:
                in_flight -= 1

    vars(server)["answer"] = counted
    return seen


@pytest.mark.parametrize("limit", [1, None])
async def test_queries_of_several_apps_share_the_calls_in_flight(
    server: EmbeddingServer, start_app: StartApp, files: Files, limit: int | None
) -> None:
    settings: dict[str, Any] = {"embedder": REMOTE, **({"targets": {"openai": {"calls": limit}}} if limit else {})}
    one = await start_app(**settings)
    await one.ingest(files(**{"a.txt": "The river turns the turbine."}))
    other = await start_app(**settings)
    seen = count_in_flight(server)
    server.latency_s = 0.1
    queries = [app.search(f"river {n}", mode="vector") for n in range(3) for app in (one, other)]
    assert all(len(hits) == 1 for hits in await asyncio.gather(*queries))
    assert len(seen) == 6
    assert max(seen) == 1 if limit else max(seen) > 1


@pytest.mark.parametrize(
    ("answer", "error"),
    [(Answer(401, {}), Unauthorized), (Answer(429, {}, {"Retry-After": "3600"}), RateLimited)],
)
async def test_a_query_does_not_call_a_provider_that_is_on_hold(
    server: EmbeddingServer, start_app: StartApp, files: Files, answer: Answer, error: type[Exception]
) -> None:
    app = await start_app(embedder=REMOTE)
    await app.ingest(files(**{"a.txt": "The river turns the turbine."}))
    server.odd = lambda body: answer
    await app.ingest(files(**{"b.txt": "The gate is closed at night."}), wait=False)
    with pytest.raises(PenstockError):
        await app.run()
    calls = server.calls
    assert calls >= 2
    for searching in (app, await start_app(embedder=REMOTE)):
        with pytest.raises(error, match="search with --mode text"):
            await searching.search("turbine")
        assert len(await searching.search("turbine", mode="text")) == 1
    assert server.calls == calls
