"""I/O faults: whatever write fails, what was accepted is done once the disk is well again, and nothing spins."""

import asyncio
import os
from pathlib import Path

import pytest
from tests.conftest import StartApp
from tests.crash.io_faults import HARM, Faults
from tests.kit.apps import text, until

from penstock.app import App
from penstock.errors import PenstockError
from penstock.worker import outage

LONG = os.environ.get("PENSTOCK_LONG") == "1"
SEEDS = range(12) if LONG else range(1)
DOCUMENTS = 60 if LONG else 12
ONE_IN = 15
FAULTY_S = 10.0 if LONG else 1.5
COMMITS_A_SECOND = 600
"""More than these, and somebody tries again and again without a pause."""


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PENSTOCK_LONG", raising=False)
    monkeypatch.setattr(outage, "FIRST_S", 0.05)
    monkeypatch.setattr(outage, "LONGEST_S", 0.2)


async def submit(app: App, accepted: set[str]) -> None:
    """A user who tries until each file is accepted; what was told to be, counts."""
    for i in range(DOCUMENTS):
        name = f"{i}.txt"
        while name not in accepted:
            try:
                summary = await app.ingest(data=text(20, f"w{i}x").encode(), name=name, wait=False)
            except PenstockError:
                await asyncio.sleep(0.02)
                continue
            if summary.refused == 0:
                accepted.add(name)


@pytest.mark.parametrize("volume", HARM)
@pytest.mark.parametrize("seed", SEEDS)
async def test_i1_i9_a_volume_that_fails_loses_nothing_and_nothing_spins(
    start_app: StartApp, volume: str, seed: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    faults = Faults(seed, ONE_IN)
    HARM[volume](faults, monkeypatch)
    app, user = await start_app(), await start_app()
    accepted: set[str] = set()
    said: list[str] = []
    working = asyncio.create_task(app.work(report=said.append))
    faults.on = True
    before = app.ledger.commits
    submitting = asyncio.create_task(submit(user, accepted))
    await asyncio.sleep(FAULTY_S)
    assert not working.done(), "a worker waits for its disk"
    assert app.ledger.commits - before < COMMITS_A_SECOND * FAULTY_S
    faults.on = False
    await asyncio.wait_for(submitting, 120)

    async def all_done() -> bool:
        return bool((await user.status()).documents.get("COMPLETED") == DOCUMENTS)

    await until(all_done, 120)
    app.stop()
    await working
    assert sum(faults.seen.values()) > 0
    assert len(accepted) == DOCUMENTS
    assert (await user.status()).dead_letters == 0, await user.list_dead_letters()
    report = await user.check()
    assert report.ok, report.problems
    for i in range(DOCUMENTS):
        assert f"{i}.txt" in {hit.name for hit in await user.search(f"w{i}x1", 30, mode="text")}
