"""Progress forgives failures (I7), but only what is progress, and not without end."""

import asyncio

import pytest
from tests.conftest import StartApp
from tests.integration import own_steps
from tests.kit.workflows import define

from penstock.app import App
from penstock.ledger.engine import checkpoints

RETRIES = 3
FLOW = "id: {0}\nsteps: {{{0}: {{kind: enrich, method: tests.integration.own_steps.{0}, retries: {1}}}}}\n"


@pytest.fixture
async def app(start_app: StartApp, database_url: str, monkeypatch: pytest.MonkeyPatch) -> App:
    app = await start_app(database=database_url)
    # No back-off: it is the number of attempts that counts here.
    monkeypatch.setattr(app.runtime, "random", lambda: 0.0)
    own_steps.calls.clear()
    return app


async def work(app: App, step: str) -> int:
    """How often the step was called until there was nothing left to do."""
    define(app, FLOW.format(step, RETRIES))
    await app.ingest(data=b"some words", name="a.txt", workflow=step, wait=False)
    async with asyncio.timeout(120):
        await app.run()
    return own_steps.calls.count(step)


async def fails(app: App) -> None:
    [letter] = (await app.list_dead_letters()).letters
    assert (letter.reason, letter.error) == ("error", "RuntimeError: it always fails here")


async def test_i7_a_step_that_ignores_its_cursor_is_not_forgiven(app: App) -> None:
    # The first attempt is progress; from then on it comes to the same cursors again.
    assert await work(app, "rewind") == 1 + RETRIES - 1
    await fails(app)


async def test_i7_a_step_whose_cursor_goes_round_in_a_circle_is_not_forgiven(app: App) -> None:
    # Once round, and the attempts that it has without progress.
    assert await work(app, "cycle") <= 5 + RETRIES
    await fails(app)


async def test_i7_a_step_that_makes_up_a_new_cursor_each_time_ends_all_the_same(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoints, "FORGIVEN", 7)
    assert await work(app, "invent") == 1 + 7 + RETRIES - 1
    await fails(app)
    [document] = await app.list_documents()
    await app.retry([document.id])
    async with asyncio.timeout(120):
        await app.run()
    assert own_steps.calls.count("invent") == 2 * (1 + 7 + RETRIES - 1), "a retry by a person begins anew"


async def test_i7_a_healthy_step_that_fails_a_hundred_times_completes(app: App) -> None:
    assert await work(app, "stumble") == 101
    assert (await app.status()).documents == {"COMPLETED": 1}
