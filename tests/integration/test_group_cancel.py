"""A group is cancelled while workers are in the middle of it, and taken up again."""

import asyncio
from collections import Counter
from pathlib import Path

import pytest
from tests.conftest import StartApp
from tests.integration import own_handlers, own_steps
from tests.kit.apps import until
from tests.kit.busy import Stopwatch

DOCUMENTS = 200
OWN = "tests.integration"
WORKFLOW = f"""\
id: dozing
steps:
  validate:
  extract:
  doze: {{kind: enrich, method: {OWN}.own_steps.doze}}
  clean:
  chunk:
  embed:
  index:
lifecycle_events:
  item_end: [{{name: hear, method: {OWN}.own_handlers.hear}}]
  group_end: [{{name: hear, method: {OWN}.own_handlers.hear}}]
"""


@pytest.fixture(autouse=True)
def fresh() -> None:
    own_steps.calls.clear()
    own_handlers.heard.clear()


async def test_i8_a_cancelled_group_stops_within_two_seconds_and_can_be_taken_up_again(
    start_app: StartApp, tmp_path: Path, database_url: str
) -> None:
    app, *workers = [await start_app(database=database_url) for _ in range(3)]
    (tmp_path / "dozing.yaml").write_text(WORKFLOW)
    files = tmp_path / "files"
    files.mkdir()
    for number in range(DOCUMENTS):
        (files / f"{number}.txt").write_text(f"document number {number}")
    submitted = await app.ingest([files], workflow=str(tmp_path / "dozing.yaml"), wait=False)
    assert submitted.group is not None
    work = [asyncio.create_task(worker.work()) for worker in workers]

    async def both_work() -> bool:
        everyone = await app.list_workers()
        return len(everyone) == 2 and all(w.steps for w in everyone) and own_steps.calls.count("doze") >= 12

    await until(both_work)
    watch = Stopwatch()
    assert await app.cancel_group(submitted.group) == DOCUMENTS

    async def all_stopped() -> bool:
        counts = Counter(own_steps.calls)
        return counts["stopped"] == counts["doze"] and not any(w.steps for w in await app.list_workers())

    await until(all_stopped, 2.0)
    assert watch.seconds() < 2.0
    assert own_steps.calls.count("slept") == 0
    group = (await app.group(submitted.group)).group
    assert (group.status, group.cancelled, group.running, group.completions) == ("CANCELLED", DOCUMENTS, 0, 1)
    assert (await app.status()).documents == {"CANCELLED": DOCUMENTS}

    async def heard_end(completion: int) -> bool:
        waiting: int = (await app.status()).events.waiting
        return waiting == 0 and [e.completion for e in own_handlers.heard if e.kind == "GROUP_END"][-1:] == [completion]

    await until(lambda: heard_end(1))
    begun = own_steps.calls.count("doze")
    own_steps.calls.append("awake")
    assert await app.retry_group(submitted.group) == 0
    assert await app.retry_group(submitted.group, cancelled=True) == DOCUMENTS
    await until(lambda: heard_end(2))
    assert (await app.status()).documents == {"COMPLETED": DOCUMENTS}
    assert own_steps.calls.count("doze") - begun == own_steps.calls.count("slept") == DOCUMENTS
    group = (await app.group(submitted.group)).group
    assert (group.status, group.completed, group.cancelled, group.completions) == ("COMPLETED", DOCUMENTS, 0, 2)
    for worker in workers:
        worker.stop()
    await asyncio.gather(*work)
    ends = [(e.completion, e.counts) for e in own_handlers.heard if e.kind == "GROUP_END"]
    assert ends == [(1, {"CANCELLED": DOCUMENTS}), (2, {"COMPLETED": DOCUMENTS})]
    items = Counter(event.status for event in own_handlers.heard if event.kind == "ITEM_END")
    assert items == {"CANCELLED": DOCUMENTS, "COMPLETED": DOCUMENTS}
    assert len({event.id for event in own_handlers.heard}) == len(own_handlers.heard) == 2 * DOCUMENTS + 2
    assert (await app.check()).ok
