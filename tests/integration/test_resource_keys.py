"""`resource_key` and `pool` in a workflow: who may run a step, and who else at the same time."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import StartApp
from tests.kit.apps import only, text, until
from tests.kit.workflows import OWN, define, ending

from penstock.app import App
from penstock.ledger.database.statements import Statement
from penstock.ledger.database.writer import Verb
from penstock.ledger.engine.locks import own_key
from penstock.model.states import StepStatus
from penstock.worker import periodic
from penstock.worker.claiming import Claiming

Files = Callable[..., Path]


def press(folder: Path, more: str = "", seconds: float = 0.03) -> str:
    options = f"retries: 1, parameters: {{folder: {folder}, seconds: {seconds}}}{more}"
    return ending(f"{{kind: enrich, method: {OWN}.press, resource_key: 'press of {{collection}}', {options}}}")


def some(files: Files, count: int) -> Path:
    return files(**{f"{i}.txt": text(3, f"word{i}x") for i in range(count)})


@pytest.mark.parametrize("dialect", ["sqlite", "postgres"])
async def test_two_workers_are_never_behind_one_key_at_once(
    start_app: StartApp, files: Files, tmp_path: Path, dialect: str, request: pytest.FixtureRequest
) -> None:
    database = None if dialect == "sqlite" else request.getfixturevalue("postgres")
    app, other = await start_app(database=database), await start_app(database=database)
    define(app, press(tmp_path))
    await app.ingest([some(files, 12)], workflow="x", wait=False)
    await asyncio.gather(app.run(), other.run())
    assert (await app.status()).documents == {"COMPLETED": 12}, await app.list_dead_letters()


async def test_a_key_is_held_with_a_lease_and_shown(app: App, files: Files, tmp_path: Path) -> None:
    define(app, press(tmp_path, seconds=1.2))
    work = asyncio.create_task(app.ingest([some(files, 2)], workflow="x"))

    async def held() -> bool:
        return bool((await app.list_locks()).locks)

    await until(held, 10)
    [lock] = (await app.list_locks()).locks
    assert (lock.key, lock.purpose, lock.steps) == ("step:default/press of default", "step", 1)

    async def waits() -> bool:
        steps = [step for step in await app.list_steps(status=StepStatus.PENDING) if step.name == "own"]
        shown = [one for step in steps for one in (await app.status(step.document_id)).steps if one.name == "own"]
        return [step.waiting_on for step in steps] == [one.waiting_on for one in shown] == ["lock"]

    await until(waits, 10)
    await asyncio.sleep(0.8)
    [later] = (await app.list_locks()).locks
    assert later.until > lock.until, "the heart keeps it"
    assert (await work).completed == 2
    assert (await app.list_locks()).locks == []


async def test_who_loses_the_key_stops(start_app: StartApp, files: Files, tmp_path: Path) -> None:
    """However it was lost: here the lock alone, with its lease still there."""
    app = await start_app(worker={"lease_s": 2.0})
    define(app, press(tmp_path, seconds=600))
    work = asyncio.create_task(app.work())
    await app.ingest([some(files, 1)], workflow="x", wait=False)

    async def inside() -> bool:
        return (tmp_path / "inside").exists()

    async def outside() -> bool:
        return not await inside()

    await until(inside, 10)

    def steal(connection: Any, _: Any) -> list[None]:
        connection.run(Statement("UPDATE locks SET token = 'another', lease_until = lease_until + 600"))
        return [None]

    await app.ledger.write(Verb("steal", steal), None)
    await until(outside, 3)
    app.stop()
    await work


async def test_a_workflow_may_begin_behind_a_key(app: App, files: Files, tmp_path: Path) -> None:
    define(app, press(tmp_path).replace("  validate:\n", ""))
    assert (await app.ingest([some(files, 3)], workflow="x")).completed == 3


async def queues(app: App) -> set[tuple[str, str]]:
    steps = "SELECT name, status FROM steps"
    return {(row[0], row[1]) for row in await app.ledger.read(lambda c: c.run(Statement(steps)))}


POOLED = """\
id: x
steps:
  validate:
  extract: {pool: gpu}
  clean:
  chunk:
  embed:
  index: {pool: disk}
"""


async def work_until(start_app: StartApp, pools: str | None, wanted: tuple[str, str]) -> set[tuple[str, str]]:
    app = await start_app()
    work = asyncio.create_task(app.work(pools=pools))

    async def reached() -> bool:
        assert not work.done(), work
        return wanted in await queues(app)

    await until(reached, 10)
    await asyncio.sleep(0.3)
    app.stop()
    await work
    return await queues(app)


async def test_a_step_with_a_pool_is_left_to_that_pool(app: App, start_app: StartApp, files: Files) -> None:
    define(app, POOLED)
    await app.ingest([some(files, 3)], workflow="x", wait=False)
    found = await work_until(start_app, "gpu=0,*=4", ("validate", "COMPLETED"))
    assert found == {("validate", "COMPLETED"), ("extract", "PENDING")}
    found = await work_until(start_app, "gpu=2", ("extract", "COMPLETED"))
    assert ("clean", "PENDING") in found
    assert {status for name, status in found if name == "clean"} == {"PENDING"}
    found = await work_until(start_app, "disk=0,*=4", ("embed", "COMPLETED"))
    assert {status for name, status in found if name == "index"} == {"PENDING"}
    await work_until(start_app, "disk=1", ("index", "COMPLETED"))
    assert (await app.status()).documents == {"COMPLETED": 3}


@pytest.mark.parametrize("pools", [None, "*=4"])
async def test_who_takes_everything_takes_what_has_a_pool(
    app: App, start_app: StartApp, files: Files, pools: str | None
) -> None:
    define(app, POOLED)
    await app.ingest([some(files, 3)], workflow="x", wait=False)
    found = await work_until(start_app, pools, ("index", "COMPLETED"))
    assert {status for _, status in found} == {"COMPLETED"}


async def test_a_worker_learns_of_a_pool_while_it_works(
    app: App, files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(periodic, "UPKEEP_S", 0.2)
    define(app, POOLED.replace("  validate:\n", ""))
    work = asyncio.create_task(app.work())
    await asyncio.sleep(0.5)
    await app.ingest([some(files, 1)], workflow="x", wait=False)

    async def done() -> bool:
        return bool((await only(app)).status == "COMPLETED")

    await until(done, 5)
    app.stop()
    await work


async def test_i11_who_has_no_such_workflow_claims_as_ever(
    app: App, files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    claim = Claiming.claim_keyed

    async def noted(self: Claiming, queue: str, name: str) -> Any:
        asked.append(queue)
        return await claim(self, queue, name)

    monkeypatch.setattr(Claiming, "claim_keyed", noted)
    await app.ingest([some(files, 3)])
    assert set(asked) == {"index"}
    assert own_key("anna", "c", None) is None
