"""`check --repair` on a live system, on every index: it makes lost and altered rows again while documents are ingested,
changed and deleted, it takes nothing that is in progress for damage, and it buys nothing that is stored."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Any

import pytest
from tests.conftest import StartApp
from tests.contract.test_index_contract import held
from tests.integration.test_usage import server as server
from tests.kit.apps import found, named, text, until
from tests.kit.embedding_server import EmbeddingServer
from tests.kit.vector_databases import DATABASES, emptied, index_in

from penstock.app import App
from penstock.indexes.base import TableId
from penstock.runtime import Runtime

DOCUMENTS, BUSY, CHECKS = 4, 3, 3


@pytest.fixture(params=["Lance", "pgvector", *DATABASES])
async def stores(
    request: pytest.FixtureRequest, make_postgres: Callable[[], str], runtime: Runtime
) -> AsyncIterator[dict[str, Any]]:
    if request.param == "Lance":
        yield {}
    elif request.param == "pgvector":
        yield {"database": make_postgres(), "index": "pgvector"}
    else:
        setting = request.getfixturevalue("vector_databases")(request.param)
        async with emptied(lambda: index_in(setting, runtime)) as index:
            yield {"index": setting}
            index()


async def traffic(app: App) -> None:
    """Documents that come, change and go."""
    for number in itertools.count():
        name = f"busy{number % BUSY}.txt"
        async for _ in app.submit(data=text(8, f"wader{number}").encode(), name=name):
            pass
        await app.runtime.sleep(0.05)
        if number % 5 == 4:
            await app.delete([(await named(app, name)).id])


async def test_i9_repair_of_a_live_system_makes_lost_rows_again_and_buys_nothing(
    server: EmbeddingServer, start_app: StartApp, stores: dict[str, Any]
) -> None:
    app = await start_app(
        embedder="openai:m?dimensions=16",
        keep_artifacts="always",
        chunk={"unit": "characters", "size": 200, "overlap": 0},
        **stores,
    )
    for number in range(DOCUMENTS):
        await app.ingest(data=text(12, f"otter{number}x").encode(), name=f"{number}.txt")
    table = await app.ports.index.open(TableId("default", "default", 1))
    assert table is not None
    await table.delete([1, 3], held)
    before = len(server.texts)
    assert any("otter" in one for one in server.texts)
    working, busy = asyncio.create_task(app.work()), asyncio.create_task(traffic(app))
    try:
        reports = [await app.check(repair=True) for _ in range(CHECKS)]
        assert not working.done()
        assert not busy.done()
    finally:
        busy.cancel()
        with suppress(asyncio.CancelledError):
            await busy
    for report in reports:
        assert report.ok, report
        assert {one.kind for one in report.repaired} <= {"row_missing", "row_extra", "dead_rows"}, report
    assert sum(one.count or 1 for one in reports[0].repaired if one.kind == "row_missing") > 0

    async def ended() -> bool:
        return set((await app.status()).documents) <= {"COMPLETED"}

    await until(ended)
    working.cancel()
    with suppress(asyncio.CancelledError):
        await working
    assert (await app.check()).problems == []
    for number in range(DOCUMENTS):
        assert f"{number}.txt" in await found(app, f"otter{number}x5")
    assert not any("otter" in one for one in server.texts[before:]), "a stored vector was bought again"
