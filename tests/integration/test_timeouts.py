"""`timeout` in a workflow: a step that works without progress is ended; one that waits, or gets on, is not."""

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.conftest import StartApp
from tests.integration import own_steps
from tests.kit.apps import metas, only, text, until
from tests.kit.workflows import OWN, define, ending

from penstock.app import App
from penstock.stages.index import INDEX
from penstock.stages.registry import GROUPED

Files = Callable[..., Path]


@pytest.fixture(autouse=True)
def no_calls() -> Iterator[None]:
    own_steps.calls.clear()
    yield
    own_steps.calls.clear()


async def test_a_step_that_hangs_is_ended_by_its_own_worker_and_tried_again(app: App, files: Files) -> None:
    define(app, ending(f"{{kind: enrich, method: {OWN}.hang, timeout: 0.4, parameters: {{times: 1}}}}"))
    assert (await app.ingest([files(**{"a.txt": text(3)})], workflow="x")).completed == 1
    assert own_steps.calls == ["hang"] * 2


async def test_i9_one_that_hangs_every_time_is_a_dead_letter_that_says_so(app: App, files: Files) -> None:
    define(app, ending(f"{{kind: enrich, method: {OWN}.hang, timeout: 0.4, retries: 2, parameters: {{times: 9}}}}"))
    assert (await app.ingest([files(**{"a.txt": text(3)})], workflow="x")).failed == 1
    letters = await app.list_dead_letters()
    assert letters.by_reason == {"timeout": 1}
    assert "no progress for 0.4 s" in letters.letters[0].error
    assert own_steps.calls == ["hang"] * 2


@pytest.mark.parametrize("how", ["waits", "appends", "says so"])
async def test_one_that_waits_or_gets_on_is_left_alone(start_app: StartApp, files: Files, how: str) -> None:
    app, other = await start_app(), await start_app()
    step = f"{{kind: enrich, method: {OWN}.linger, timeout: 0.6, retries: 1, parameters: {{how: {how}}}}}"
    define(app, ending(step))
    working = asyncio.create_task(other.work(pools="route=1"))
    ingest = asyncio.create_task(app.ingest([files(**{"a.txt": text(3)})], workflow="x"))

    async def shown() -> bool:
        return any(step.waiting_on == "limit" for step in await app.list_steps(kind="enrich"))

    if how == "waits":
        await until(shown, 5)
        [own] = [step for step in (await app.status((await only(app)).id)).steps if step.name == "own"]
        assert own.waiting_on == "limit"
    assert (await ingest).completed == 1
    assert own_steps.calls == ["linger"]
    other.stop()
    await working
    if how != "waits":
        [own] = [step for step in (await app.status((await only(app)).id)).steps if step.name == "own"]
        assert (own.started_at or 0) < (own.last_progress or 0) < (own.finished_at or 0)


async def test_one_that_waits_for_room_in_its_worker_is_left_alone(
    start_app: StartApp, files: Files, tmp_path: Path
) -> None:
    app = await start_app(worker={"slots": 1})
    options = f"timeout: 0.7, retries: 1, parameters: {{folder: {tmp_path}, seconds: 0.5}}"
    define(app, ending(f"{{kind: enrich, method: {OWN}.press, {options}}}"))
    done = await app.ingest([files(**{f"{i}.txt": text(3, f"word{i}x") for i in range(3)})], workflow="x")
    assert done.completed == 3, done.remarks


async def test_an_index_step_that_hangs_is_tried_again_and_its_loop_goes_on(
    app: App, files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    define(app, "id: x\nsteps:\n  validate:\n  extract:\n  clean:\n  chunk:\n  embed:\n  index: {timeout: 0.4}\n")
    tries = 0

    async def slow(*arguments: object) -> None:
        nonlocal tries
        tries += 1
        if tries == 1:
            await asyncio.sleep(600)
        await INDEX.run_group(*arguments)  # type: ignore[arg-type]

    monkeypatch.setitem(GROUPED, "index", replace(INDEX, run_group=slow))
    assert (await app.ingest([files(**{"a.txt": text(3), "b.txt": text(3, "b")})], workflow="x")).completed == 2
    assert tries >= 2


@pytest.mark.parametrize("dialect", ["sqlite", "postgres"])
async def test_i3_a_worker_that_stands_still_loses_its_step_to_another(
    start_app: StartApp, files: Files, tmp_path: Path, dialect: str, request: pytest.FixtureRequest
) -> None:
    database = None if dialect == "sqlite" else request.getfixturevalue("postgres")
    app = await start_app(database=database, worker={"lease_s": 4.0})
    mark = tmp_path / "marks"
    mark.mkdir()
    define(app, ending(f"{{kind: enrich, method: {OWN}.block, timeout: 0.5, parameters: {{folder: {mark}}}}}"))
    await app.ingest([files(**{"a.txt": text(3)})], workflow="x", wait=False)
    environment = {**os.environ, "PENSTOCK_EMBEDDER": "fake"}
    if database is not None:
        environment["PENSTOCK_DATABASE"] = database
    command = [sys.executable, "-m", "penstock.cli.main", "--home", str(app.config.home_path), "worker"]
    hung = await asyncio.create_subprocess_exec(*command, env=environment)
    try:

        async def blocked() -> bool:
            return (mark / "blocked").exists()

        async def written() -> bool:
            return (mark / "written").exists()

        await until(blocked, 20)
        assert (await app.run()).completed == 1
        document = (await only(app)).id
        assert (await metas(app, document))["own"] == {"pid": os.getpid()}
        assert {worker.pid: worker.alive for worker in await app.list_workers()} == {hung.pid: True}
        (mark / "go").touch()
        hung.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(hung.wait(), 10) in (0, 130, 143)
        assert not await written(), "what it wrote was refused"
        assert (await metas(app, document))["own"] == {"pid": os.getpid()}
        assert (await app.status()).documents == {"COMPLETED": 1}
    finally:
        if hung.returncode is None:
            hung.kill()
            await hung.wait()
