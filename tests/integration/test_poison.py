"""Poison: whatever a step or a handler raises or answers, there is one dead letter for it and a living worker."""

import asyncio
import io
import zipfile
from collections.abc import Iterable

import pytest
from tests.conftest import StartApp
from tests.integration import poison
from tests.integration.test_workflows import define

from penstock import foreign
from penstock.app import App
from penstock.ledger.database import Statement
from penstock.worker.execute import UNWRITABLE

RETRIES, CLAIMS = 2, 3
POISONED = f"""\
id: poisoned
steps:
  validate:
  own: {{kind: enrich, method: tests.integration.poison.step, retries: {RETRIES}}}
  extract:
  clean:
  chunk:
  embed:
  index:
"""
READ = f"""\
id: read
steps:
  extract: {{method: tests.integration.poison.read, retries: {RETRIES}}}
  clean:
  chunk:
  embed:
  index:
"""
TOLD = f"""\
id: told
steps: {{validate: , extract: , clean: , chunk: , embed: , index: }}
lifecycle_events:
  item_end: [{{method: tests.integration.poison.handle, retries: {RETRIES}}}]
"""
_EPOCHS = Statement(
    "SELECT d.name, max(s.epoch) FROM steps s JOIN runs r ON r.id = s.run_id "
    "JOIN documents d ON d.id = r.document_id GROUP BY d.name"
)


@pytest.fixture
async def one(start_app: StartApp, database_url: str) -> App:
    return await start_app(database=database_url)


async def give(app: App, workflow: str, names: Iterable[str]) -> None:
    for name in names:
        await app.ingest(data=f"Some words about {name}.".encode(), name=f"{name}.txt", workflow=workflow, wait=False)
    async with asyncio.timeout(120):
        await app.run()


async def claims(app: App) -> dict[str, int]:
    """The most claims that a step of each document had."""
    return {row[0].removesuffix(".txt"): row[1] for row in await app.ledger.read(lambda c: c.run(_EPOCHS))}


async def check(app: App, poisoned: set[str], healthy: set[str]) -> None:
    letters = (await app.list_dead_letters(limit=1000))["letters"]
    assert sorted(letter.name.removesuffix(".txt") for letter in letters) == sorted(poisoned)
    for letter in letters:
        assert 0 < len(letter.error.strip()) < 5000, letter
        assert letter.reason, letter
        assert len(letter.traceback or "") < 50_000
    completed = {
        entry["name"].removesuffix(".txt") for entry in await app.list_documents(status="COMPLETED", limit=1000)
    }
    assert completed == healthy
    counted = await claims(app)
    assert {name: count for name, count in counted.items() if count > CLAIMS} == {}


async def test_i9_whatever_a_step_raises_or_answers_is_one_dead_letter(one: App) -> None:
    define(one, POISONED)
    poisoned = {*poison.RAISED, *poison.ANSWERED}
    healthy = {"healthy", *poison.HARMLESS}
    await give(one, "poisoned", [*poisoned, *healthy])
    await check(one, poisoned, healthy)


async def test_i9_whatever_a_step_hands_to_its_checkpoint_is_one_dead_letter(one: App) -> None:
    define(one, READ)
    poisoned, healthy = {*poison.CHECKPOINTS, "waits_on_object"}, {"healthy", "waits_on_nul"}
    await give(one, "read", [*poisoned, *healthy])
    await check(one, poisoned, healthy)


async def test_i8_whatever_a_handler_raises_is_one_dead_letter(one: App) -> None:
    define(one, TOLD)
    await give(one, "told", [*poison.RAISED, *poison.ANSWERED, "healthy"])
    async with asyncio.timeout(60):
        # A run does not wait for deliveries that are due later.
        while len(letters := (await one.list_dead_letters(limit=1000))["letters"]) < len(poison.RAISED):
            await asyncio.sleep(0.1)
            await one.run()
    assert sorted(letter.name.removesuffix(".txt") for letter in letters) == sorted(poison.RAISED)
    assert all(letter.error.strip() and letter.event for letter in letters)
    assert (
        len(await one.list_documents(status="COMPLETED", limit=1000)) == len(poison.RAISED) + len(poison.ANSWERED) + 1
    )


async def test_i9_an_error_with_text_that_no_database_takes_is_written_readably(one: App) -> None:
    define(one, POISONED)
    await give(one, "poisoned", ["nul", "surrogate"])
    letters = {letter.name: letter.error for letter in (await one.list_dead_letters())["letters"]}
    assert letters == {"nul.txt": r"ValueError: a\x00b", "surrogate.txt": r"ValueError: caf\udce9"}


async def test_i9_a_zip_that_calls_itself_something_with_a_nul_is_one_dead_letter(one: App) -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("mimetype", "application/\0evil")
    await one.ingest(data=buffer.getvalue(), name="evil.zip", wait=False)
    await give(one, "default", ["healthy"])
    [letter] = (await one.list_dead_letters())["letters"]
    assert r"application/\x00evil" in letter.error


async def test_i9_an_error_that_the_ledger_refuses_is_written_again_in_plain_words(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(foreign, "sentence", lambda error: object())
    define(app, POISONED)
    await give(app, "poisoned", ["panic", "healthy"])
    [letter] = (await app.list_dead_letters())["letters"]
    assert (letter.name, letter.error) == ("panic.txt", UNWRITABLE)
