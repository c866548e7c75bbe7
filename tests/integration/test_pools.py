"""Typed pools: what a worker works on, how much of it at once, and what it leaves to others."""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import StartApp
from tests.kit.apps import text, until

from penstock.app import App
from penstock.errors import UsageError
from penstock.ledger.database.connection import Connection
from penstock.ledger.database.statements import Statement
from penstock.ledger.database.writer import Verb
from penstock.verbs.working import pool_sizes
from penstock.worker import pool
from penstock.worker.claiming import Claiming

Files = Callable[..., Path]


def test_pools_are_read_from_a_line() -> None:
    assert pool_sizes("extract=2, embed=4,index=1,*=4") == {"extract": 2, "embed": 4, "index": 1, "*": 4}
    assert pool_sizes("route=1,index=0") == {"route": 1, "index": 0}
    assert pool_sizes("gpu=2,*=1") == {"gpu": 2, "*": 1}


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("", "NAME=NUMBER"),
        ("extract", "'extract' is not NAME=NUMBER"),
        ("extract=two", "NAME=NUMBER"),
        ("extract=-1", "NAME=NUMBER"),
        ("extract=1001", "NAME=NUMBER"),
        ("=3", "NAME=NUMBER"),
        ("extract=1,", "'' is not"),
        ("extrakt=1", "Use validate, extract, clean, chunk, embed, index, enrich, route"),
        ("GPU=1", "there is no kind of step 'GPU'"),
        ("*=1,*=2", "named twice"),
        ("extract=0,*=0", "all pools have size 0"),
    ],
)
def test_a_bad_line_is_refused_with_a_sentence(line: str, says: str) -> None:
    with pytest.raises(UsageError) as refused:
        pool_sizes(line)
    assert says in str(refused.value)


async def steps(app: App) -> dict[tuple[str, str], int]:
    def count(connection: Connection) -> dict[tuple[str, str], int]:
        rows = connection.run(Statement("SELECT kind, status, count(*) FROM steps GROUP BY kind, status"))
        return {(row[0], row[1]): row[2] for row in rows}

    return await app.ledger.read(count)


async def work_until(app: App, pools: str, wanted: tuple[str, str], count: int) -> dict[tuple[str, str], int]:
    """Work in these pools until so many steps have that kind and status; the steps then."""
    work = asyncio.create_task(app.work(pools=pools))

    async def reached() -> bool:
        assert not work.done(), work
        return (await steps(app)).get(wanted) == count

    await until(reached, 10)
    await asyncio.sleep(0.3)
    app.stop()
    await work
    return await steps(app)


def some(files: Files, count: int) -> Path:
    return files(**{f"{i}.txt": text(3, f"word{i}x") for i in range(count)})


async def test_a_pool_takes_only_its_kind_and_what_nobody_names_is_left_alone(app: App, files: Files) -> None:
    await app.ingest([some(files, 5)], wait=False)
    left = await work_until(app, "validate=2", ("validate", "COMPLETED"), 5)
    assert left == {("validate", "COMPLETED"): 5, ("extract", "PENDING"): 5}


async def test_the_rest_leaves_out_what_is_named(app: App, files: Files) -> None:
    await app.ingest([some(files, 5)], wait=False)
    left = await work_until(app, "embed=0,*=3", ("chunk", "COMPLETED"), 5)
    assert left[("embed", "PENDING")] == 5
    assert not any(kind == "index" for kind, _ in left)


async def test_without_a_pool_for_it_nothing_is_indexed(app: App, files: Files) -> None:
    await app.ingest([some(files, 5)], wait=False)
    left = await work_until(app, "index=0,*=3", ("embed", "COMPLETED"), 5)
    assert left[("index", "PENDING")] == 5


@pytest.mark.parametrize("pools", ["*=2", "index=2,*=2", "extract=1,embed=1,*=1"])
async def test_all_kinds_together_make_documents_searchable(app: App, files: Files, pools: str) -> None:
    await app.ingest([some(files, 12)], wait=False)
    left = await work_until(app, pools, ("index", "COMPLETED"), 12)
    assert {status for _, status in left} == {"COMPLETED"}
    assert (await app.status()).documents == {"COMPLETED": 12}


async def test_a_pool_never_holds_more_steps_than_its_size(
    app: App, files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    embed, inside, most, held = app.ports.embedder.embed_documents, 0, 0, 0

    async def counted(texts: Sequence[str]) -> Any:
        nonlocal inside, most, held
        inside += 1
        most = max(most, inside)
        await asyncio.sleep(0.03)
        held = max(held, (await steps(app)).get(("embed", "RUNNING"), 0))
        inside -= 1
        return await embed(texts)

    monkeypatch.setattr(app.ports.embedder, "embed_documents", counted)
    await app.ingest([some(files, 16)], wait=False)
    await work_until(app, "embed=2,*=8", ("index", "COMPLETED"), 16)
    assert (most, held) == (2, 2)


async def test_a_step_goes_on_in_its_run_where_the_next_pool_has_room(
    app: App, files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    claimed: list[str] = []
    claim = Claiming._claim_for

    async def noted(self: Claiming, *of: Any) -> Any:
        got = await claim(self, *of)
        claimed.extend(step.kind for group in got for step in group)
        return got

    monkeypatch.setattr(Claiming, "_claim_for", noted)
    await app.ingest([some(files, 1)], wait=False)
    await work_until(app, "extract=1,embed=1,index=1,*=1", ("index", "COMPLETED"), 1)
    assert claimed == ["validate", "index"], "the others came with the completion of the one before"


async def test_a_run_that_moves_on_makes_room_for_the_next(
    start_app: StartApp, files: Files, postgres: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "POLL_S", 600.0)
    app = await start_app(database=postgres)
    go_on = asyncio.Event()
    embed = app.ports.embedder.embed_documents

    async def later(texts: Sequence[str]) -> Any:
        await go_on.wait()
        return await embed(texts)

    monkeypatch.setattr(app.ports.embedder, "embed_documents", later)
    await app.ingest([some(files, 5)], wait=False)
    await work_until(app, "validate=1,*=8", ("embed", "RUNNING"), 5)


@pytest.mark.parametrize("dialect", ["sqlite", "postgres"])
async def test_workers_of_different_kinds_hand_on_to_each_other_at_once(
    start_app: StartApp, files: Files, dialect: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "POLL_S", 600.0)
    database = None if dialect == "sqlite" else request.getfixturevalue("postgres")
    kinds = ["validate=1,extract=1", "embed=1,index=1", "validate=0,extract=0,embed=0,index=0,*=1"]
    apps = [await start_app(database=database) for _ in kinds]
    working = [asyncio.create_task(app.work(pools=pools)) for app, pools in zip(apps, kinds, strict=True)]
    await asyncio.sleep(0.5)
    await apps[0].ingest([some(files, 4)], wait=False)

    async def done() -> bool:
        return bool((await apps[0].status()).documents == {"COMPLETED": 4})

    await until(done, 10)
    for app in apps:
        app.stop()
    made = [summary.made for summary in await asyncio.gather(*working)]
    assert [(m["pages"], m["chunks"], m["embedded"]) for m in made] == [(4, 0, 0), (0, 0, 4), (0, 4, 0)]


async def test_i7_a_suspect_has_all_pools_to_itself(app: App, files: Files) -> None:
    await app.ingest([some(files, 3)], wait=False)

    def suspect(connection: Connection, _: Sequence[None]) -> list[None]:
        connection.run(Statement("UPDATE steps SET crashes = 2"))
        return [None]

    await app.ledger.write(Verb("suspect", suspect), None)
    await work_until(app, "extract=2,validate=2,*=2", ("index", "COMPLETED"), 3)
    alone = await app.ledger.read(lambda c: c.run(Statement("SELECT DISTINCT alone FROM steps WHERE crashes = 2")))
    assert alone == [(1,)]
