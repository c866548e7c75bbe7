"""Who goes first, seen from outside: small and urgent documents beside a bulk load."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import StartApp
from tests.kit.apps import slow, text, until
from tests.kit.workflows import define

from penstock.app import App
from penstock.indexes.lance import LanceTable
from penstock.model.events import EventKind
from penstock.model.states import StepStatus
from penstock.stages import index as stage
from penstock.verbs import working
from penstock.worker import groups, slots
from penstock.worker.fair_queue import FlowKey
from penstock.worker.pools import SMALL_DOCUMENT
from penstock.worker.slots import Slots

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
    await app.for_owner("anna").ingest([folder], wait=False)
    for i in range(3):
        await app.for_owner("bert").ingest(data=b"a few words", name=f"{i}.txt", wait=False)
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


async def ends_beside(app: App, other: App, owner: str, files: Files) -> list[tuple[str, str]]:
    """Who ended, in order: long documents of anna that hold all places of a worker, and a small one that came later."""
    slow(app, 0.4)
    big = text(24_000)
    assert len(big) > SMALL_DOCUMENT
    for i in range(6):
        await app.for_owner("anna").ingest(data=big.encode() + f" {i}".encode(), name=f"big{i}.txt", wait=False)
    ends: list[tuple[str, str]] = []
    work = asyncio.ensure_future(app.run())

    async def listen() -> None:
        async for event in app.events(until=work):
            if event.kind == EventKind.ITEM_END:
                ends.append((event.owner, event.name))

    listening = asyncio.ensure_future(listen())

    async def is_full() -> bool:
        return bool((await app.for_owner("anna").status()).documents.get("EMBEDDING"))

    await until(is_full, 60)
    assert ends == []
    await other.for_owner(owner).ingest(data=b"a few words", name="small.txt", wait=False)
    await until(lambda: asyncio.sleep(0, (owner, "small.txt") in ends), 120)
    app.stop()
    await work
    await listening
    return ends


@pytest.mark.parametrize(("owner", "pools"), [("bert", None), ("anna", None), ("bert", "extract=1,index=1,*=1")])
async def test_a_small_document_does_not_wait_for_the_end_of_long_ones(
    start_app: StartApp, files: Files, owner: str, pools: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither for a place in the worker, nor for room to run, nor for its turn in between; of another owner, or of the
    same."""
    if pools is not None:
        start = working.start_worker
        monkeypatch.setattr(
            working,
            "start_worker",
            lambda resources, budget, began, **more: start(resources, budget, began, working.pool_sizes(pools), **more),
        )
    app, other = await start_app(worker={"slots": 1}), await start_app()
    assert (await ends_beside(app, other, owner, files))[0] == (owner, "small.txt")


async def test_a_long_step_lets_others_into_its_room_between_two_batches(app: App) -> None:
    room = Slots(1, app.runtime.clock)
    order: list[str] = []

    async def work(name: str, batches: int, seconds: float) -> None:
        hold = await room.hold(FlowKey(name, name))
        for _ in range(batches):
            await asyncio.sleep(seconds)
            order.append(name)
            if hold.should_yield:
                await hold.yield_slot()
        hold.end()

    monkey = pytest.MonkeyPatch()
    monkey.setattr(slots, "QUANTUM_S", 0.0)
    try:
        long = asyncio.create_task(work("anna", 20, 0.01))
        await asyncio.sleep(0)
        await work("bert", 1, 0.0)
        assert order.count("anna") <= 3
        await long
    finally:
        monkey.undo()
    assert order.count("anna") == 20
    assert not room.is_full


async def test_whoever_gives_up_waiting_for_room_leaves_none_behind(app: App) -> None:
    room = Slots(1, app.runtime.clock)
    anna, bert = FlowKey("anna", 1), FlowKey("bert", 1)
    await room.acquire(anna)
    waiting = [asyncio.create_task(room.acquire(flow)) for flow in (bert, None, bert)]
    await asyncio.sleep(0)
    waiting[0].cancel()
    await asyncio.sleep(0)
    room.release()
    # It has its turn, but was cancelled before it knew.
    waiting[1].cancel()
    await asyncio.gather(*waiting[:2], return_exceptions=True)
    await waiting[2]
    assert room.is_full
    assert not room.is_wanted
    room.release()
    assert room._free == 1


async def test_one_table_is_not_written_for_long_while_another_waits(
    start_app: StartApp, files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A group of documents of many commits hands over what it has not begun, and goes on where it was."""
    monkeypatch.setattr(groups, "TURN_S", 0.2)
    monkeypatch.setattr(stage, "COMMIT_ROWS", 10)
    app, other = await start_app(), await start_app()
    await app.for_owner("anna").ingest([files(**{f"{i}.txt": text(200, f"w{i}x") for i in range(8)})], wait=False)
    embedding = asyncio.create_task(app.work(pools="index=0,*=4"))

    async def all_wait() -> bool:
        return len(await app.for_owner("anna").list_steps(kind="index", status=StepStatus.PENDING)) == 8

    await until(all_wait, 60)
    app.stop()
    await embedding
    put = LanceTable.put
    written = 0

    async def slowly(table: LanceTable, rows: Any, fence: Any, *, fresh: bool) -> None:
        nonlocal written
        await asyncio.sleep(0.1)
        await put(table, rows, fence, fresh=fresh)
        written += 1

    monkeypatch.setattr(LanceTable, "put", slowly)
    working = await start_app()
    ends: list[str] = []
    work = asyncio.ensure_future(working.run())

    async def listen() -> None:
        async for event in working.events(until=work):
            if event.kind == EventKind.ITEM_END:
                ends.append(event.owner)

    listening = asyncio.ensure_future(listen())
    await until(lambda: asyncio.sleep(0, written >= 1), 60)
    await other.for_owner("bert").ingest(data=b"a few words", name="small.txt", wait=False)
    await work
    await listening
    assert ends.count("anna") == 8
    assert ends.index("bert") <= 3, ends
    assert (await other.check()).ok
    assert (await other.for_owner("anna").status()).dead_letters == 0
