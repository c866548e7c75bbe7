"""A second grouped kind beside `index`: it is declared as a stage, and the worker needs no code for it."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import StartApp
from tests.kit.apps import found
from tests.kit.workflows import define

from penstock.app import App
from penstock.errors import TableFailed
from penstock.ledger.database.connection import Connection
from penstock.ledger.database.statements import Statement
from penstock.stages.base import GroupedStage, Member, Ports, StepResult
from penstock.stages.registry import GROUPED
from penstock.worker import claiming, pool, runner
from penstock.workflows import read

Files = Callable[..., Path]
WORKFLOW = "id: x\nsteps:\n  validate:\n  extract:\n  fetch:\n  clean:\n  chunk:\n  embed:\n  index:\n"


class Recorded:
    """A grouped stage of kind `fetch` that records its calls."""

    def __init__(self) -> None:
        self.groups: list[list[tuple[str, str]]] = []
        self.running = self.most_running = 0
        self.failures: list[BaseException] = []

    async def run_group(self, target: Any, members: Sequence[Member[Any]], loaded: Sequence[Any]) -> None:
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        try:
            await members[0].ctx.runtime.sleep(0.01)
            if self.failures:
                raise self.failures.pop()
            self.groups.append([(m.ctx.document.collection, m.ctx.document.name) for m in members])
        finally:
            self.running -= 1

    def stage(self, exclusive: bool) -> GroupedStage:
        return GroupedStage(
            "fetch",
            self.run_group,
            group_key=lambda document, generation: document.collection,
            exclusive=lambda ports, generation: exclusive,
            shared=lambda ports: not exclusive,
            load=self.load,
            result=lambda ctx: StepResult({"fetched": ctx.document.name}),
        )

    async def load(self, ctx: Any) -> Any:
        if ctx.document.name == "bad.txt":
            raise ValueError("it cannot be loaded")
        return ctx.document.name

    @property
    def names(self) -> list[str]:
        return sorted(name for group in self.groups for _, name in group)


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch, exclusive: bool) -> Recorded:
    stage = Recorded()
    monkeypatch.setitem(GROUPED, "fetch", stage.stage(exclusive))
    monkeypatch.setattr(read, "KINDS", (*read.KINDS, "fetch"))
    return stage


async def step_rows(app: App) -> list[tuple[str, str | None]]:
    def read(connection: Connection) -> list[tuple[str, str | None]]:
        rows = connection.run(Statement("SELECT status, resource_key FROM steps WHERE kind = 'fetch'"))
        return [(row[0], row[1]) for row in rows]

    return await app.ledger.read(read)


@pytest.mark.parametrize("exclusive", [False, True], ids=["shared", "exclusive"])
@pytest.mark.parametrize("dialect", ["sqlite", "postgres"])
async def test_a_second_grouped_kind_is_claimed_executed_and_completed_like_the_first(
    start_app: StartApp, files: Files, recorded: Recorded, exclusive: bool, dialect: str, request: pytest.FixtureRequest
) -> None:
    database = None if dialect == "sqlite" else request.getfixturevalue("postgres")
    app = await start_app(**({} if database is None else {"database": database}))
    define(app, WORKFLOW)
    folder = files(**{f"{i}.txt": f"Document {i} describes subject{i}x." for i in range(12)})
    for collection in ("a", "b"):
        await app.ingest([folder], workflow="x", collection=collection, wait=False)
    (folder / "bad.txt").write_text("Something else.")
    summary = await app.ingest([folder], workflow="x", collection="a")
    await app.run()
    assert summary.failed == 1, "a step that cannot be loaded fails alone"
    assert recorded.names == sorted([f"{i}.txt" for i in range(12)] * 2)
    assert all(len({collection for collection, _ in group}) == 1 for group in recorded.groups)
    assert len(recorded.groups) < 20, "the steps were claimed in groups"
    if exclusive:
        assert recorded.most_running == 1, "one worker has one place for the groups of a kind"
    keys = {key for _, key in await step_rows(app)}
    assert keys == ({"group:default/fetch/a", "group:default/fetch/b"} if exclusive else {None})
    assert await found(app, "subject3x", collection="b") == {"3.txt"}
    assert (await app.check()).ok


@pytest.mark.parametrize("exclusive", [True])
async def test_a_target_that_fails_pauses_the_lock_of_its_group_and_no_document_fails(
    app: App, files: Files, recorded: Recorded
) -> None:
    define(app, WORKFLOW)
    recorded.failures = [TableFailed("the target does not answer"), TableFailed("the target does not answer")]
    summary = await app.ingest([files(**{"a.txt": "One.", "b.txt": "Two."})], workflow="x")
    assert (summary.completed, summary.failed) == (2, 0)
    assert recorded.names == ["a.txt", "b.txt"]
    assert (await app.status()).away == []


@pytest.mark.parametrize("exclusive", [True])
async def test_pools_and_warm_up_apply_to_a_second_grouped_kind(
    app: App, files: Files, recorded: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    warmed: list[str] = []

    async def warm_up(ports: Ports, runtime: object) -> None:
        warmed.append("fetch")

    monkeypatch.setitem(GROUPED, "fetch", replace(GROUPED["fetch"], warm_up=warm_up))
    monkeypatch.setattr(pool, "WARM_UP_AFTER_S", 0.0)
    define(app, WORKFLOW)
    await app.ingest([files(**{"a.txt": "One."})], workflow="x")
    assert recorded.names == ["a.txt"]
    assert warmed == ["fetch"]


def test_no_kind_is_named_where_steps_are_claimed_and_executed() -> None:
    for module in (claiming, runner, pool):
        source = Path(str(module.__file__)).read_text()
        assert not any(f'"{kind}"' in source for kind in ("index", "embed", "chunk"))
        assert "INDEX" not in source
        assert "EMBED" not in source
