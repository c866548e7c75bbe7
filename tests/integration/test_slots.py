"""A step that waits frees its place: quick documents run beside long ones, whatever these wait on."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import StartApp
from tests.integration import own_steps
from tests.kit.apps import until
from tests.kit.pdfs import page, pdf
from tests.kit.workflows import define

from penstock.app import App
from penstock.extractors.base import Raw
from penstock.worker.fair_queue import FlowKey
from penstock.worker.parsers.pool import ParserPool
from penstock.worker.slots import SlotHold, Slots

WAITING = """\
id: waiting
steps:
  extract:
  wait: {kind: enrich, method: tests.integration.own_steps.wait_for_others}
  clean:
  chunk:
  embed:
  index:
"""


async def completed(app: App, name: str) -> bool:
    return any(entry.status == "COMPLETED" for entry in await app.list_documents(name=name))


@pytest.mark.parametrize("with_a_child", [False, True], ids=["queued", "being read"])
async def test_a_quick_document_runs_beside_steps_that_wait_for_a_parser(
    start_app: StartApp, monkeypatch: pytest.MonkeyPatch, with_a_child: bool
) -> None:
    """Of the same owner, in a worker with room for one: it completes while no parser answers anybody."""
    app, other = await start_app(worker={"slots": 1}), await start_app()
    answer, waiting = asyncio.Event(), 0
    call = ParserPool.call

    async def held(pool: ParserPool, reader: str, arguments: dict[str, Any], **of: Any) -> bytes:
        nonlocal waiting
        source: Raw = of["source"]
        source.waiting("parser")
        if with_a_child:
            source.waiting(None)
        waiting += 1
        await answer.wait()
        return await call(pool, reader, arguments, **of)

    monkeypatch.setattr(ParserPool, "call", held)
    for i in range(3):
        await app.ingest(data=pdf(page(f"page of {i}")), name=f"{i}.pdf", wait=False)
    work = asyncio.ensure_future(app.run())
    await until(lambda: asyncio.sleep(0, waiting == 3))
    await other.ingest(data=b"a few words", name="small.txt", wait=False)
    await until(lambda: completed(other, "small.txt"))
    assert not await completed(other, "*.pdf")
    answer.set()
    assert (await work).completed == 4


async def test_a_custom_step_that_waits_frees_its_place(start_app: StartApp) -> None:
    """Each waits until three are waiting, in a worker with room for one; then they work one at a time."""
    own_steps.calls.clear()
    app = await start_app(worker={"slots": 1})
    define(app, WAITING)
    for i in range(3):
        await app.ingest(data=f"text of {i}".encode(), name=f"{i}.txt", workflow="waiting", wait=False)
    async with asyncio.timeout(20):
        assert (await app.run()).completed == 3
    assert own_steps.calls[:3] == ["waits"] * 3
    assert own_steps.calls[3:] == ["works", "worked"] * 3


def hold_in(slots: Slots, document: int = 0) -> SlotHold:
    flow = FlowKey("anna", document)
    assert slots.request(flow).done()
    return SlotHold(slots, flow, lambda: 0.0)


async def test_a_place_that_was_given_back_is_taken_again_in_turn() -> None:
    slots = Slots(1, lambda: 0.0)
    first = hold_in(slots, 1)
    first.release()
    second = hold_in(slots, 2)
    first.request()
    third = slots.request(FlowKey("anna", 3))
    second.end()
    async with asyncio.timeout(5):
        await first.reacquire()
    assert not third.done()
    first.end()
    assert third.done()


async def test_a_step_has_one_place_however_many_of_its_tasks_ask_for_it() -> None:
    slots = Slots(1, lambda: 0.0)
    hold = hold_in(slots)
    hold.release()
    await slots.acquire(None)
    asking = [asyncio.create_task(hold.reacquire()) for _ in range(3)]
    await asyncio.sleep(0)
    asking[0].cancel()
    await asyncio.sleep(0)
    slots.release()
    await asyncio.gather(*asking[1:])
    assert slots.is_full
    hold.end()
    assert slots._free == 1


async def test_a_step_that_has_ended_takes_no_place_and_leaves_no_request() -> None:
    slots = Slots(1, lambda: 0.0)
    hold = hold_in(slots)
    hold.release()
    await slots.acquire(None)
    hold.request()
    hold.end()
    hold.request()
    await hold.reacquire()
    assert not slots.is_wanted
    slots.release()
    assert slots._free == 1


async def test_a_request_that_was_granted_unseen_is_given_back() -> None:
    """The wait was over, the place granted, and the step waits again before it has noticed."""
    slots = Slots(1, lambda: 0.0)
    hold = hold_in(slots)
    hold.release()
    hold.request()
    assert slots.is_full
    hold.release()
    assert slots._free == 1


async def test_many_calls_that_wait_for_a_parser_hold_no_open_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many documents as there are runs in hand may wait, each with several calls."""
    path = tmp_path / "a.pdf"
    path.write_bytes(pdf(page("a page")))
    pool = ParserPool(children=1, memory_mb=0, timeout_s=60)
    monkeypatch.setattr(pool, "start", lambda: None)
    monkeypatch.setattr(pool, "_children", [Busy()])

    class Document:
        flow = ("anna", "document")

        def may_parse(self) -> None: ...
        def parsed(self, seconds: float) -> None: ...
        def waiting(self, on: str | None) -> None: ...

    before = len(list(Path("/proc/self/fd").iterdir()))
    source: Any = Document()
    calls = [asyncio.create_task(pool.call("pdf", {}, source=source, document=path)) for _ in range(50)]
    await asyncio.sleep(0)
    assert len(list(Path("/proc/self/fd").iterdir())) == before
    for one in calls:
        one.cancel()
    await asyncio.gather(*calls, return_exceptions=True)
    assert pool._look is not None
    pool._look.cancel()


class Busy:
    """A parser process that has as many calls as it takes."""

    calls = (None, None)

    def abandon(self, call: object) -> None: ...
