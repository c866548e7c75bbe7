"""Who goes first, seen from outside: small and urgent documents beside a bulk load."""

import asyncio
from collections.abc import Callable
from pathlib import Path

from tests.conftest import StartApp
from tests.integration.kit import text, until
from tests.integration.test_workflows import define

from penstock.app import App
from penstock.model.events import EventKind

Files = Callable[..., Path]
BULK = 300
SLOW = """\
id: slow
steps:
  extract:
  clean:
  chunk:
  count: {kind: enrich, method: tests.integration.own_steps.count, parameters: {slow: true}}
  summed: {kind: enrich, method: tests.integration.own_steps.summed}
  embed:
  index:
"""


async def test_three_documents_start_beside_a_bulk_load_of_another(app: App, files: Files) -> None:
    folder = files(**{f"{i}.txt": text(1, f"word{i}x") for i in range(BULK)})
    await app.ingest([folder], owner="anna", wait=False)
    for i in range(3):
        await app.ingest(data=b"a few words", name=f"{i}.txt", owner="bert", wait=False)
    starts: list[str] = []
    work = asyncio.ensure_future(app.run())
    async for event in app.events(until=work):
        starts += [event.owner] if event.kind == EventKind.ITEM_START else []
    assert len(starts) == BULK + 3
    assert starts[:12].count("bert") == 3


async def test_an_urgent_document_overtakes_a_bulk_load_in_the_middle_of_its_runs(
    start_app: StartApp, files: Files
) -> None:
    """Its steps would be chained, and a worker holds as many runs as it can: it takes no more of them."""
    app, other = await start_app(worker={"slots": 1}), await start_app()
    define(app, SLOW)
    await app.ingest([files(**{f"{i}.txt": text(1, f"w{i}x") for i in range(80)})], workflow="slow", wait=False)
    order: list[tuple[str, str | None]] = []
    work = asyncio.ensure_future(app.run())

    async def listen() -> None:
        async for event in app.events(until=work):
            if event.kind in (EventKind.STEP_START, EventKind.ITEM_END):
                order.append((event.name, event.step))

    listening = asyncio.ensure_future(listen())

    async def begun() -> bool:
        return len({name for name, _ in order}) > 6

    await until(begun)
    await other.ingest(data=b"an urgent word", name="urgent", workflow="slow", priority=1, wait=False)
    before = len(order)
    await until(lambda: asyncio.sleep(0, ("urgent", None) in order))
    meanwhile = {name for name, _ in order[before : order.index(("urgent", None))]} - {"urgent"}
    fresh = meanwhile - {name for name, _ in order[:before]}
    app.stop()
    await work
    await listening
    assert len(fresh) <= 8, "no more than it had in hand"
