"""A reader searches all the time, while other processes ingest, change, delete and re-index documents and are killed at
any instant. No search fails, and none shows half a document, a chunk twice, two versions, or a deleted document."""

import asyncio
import random
import re
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest
from tests.crash.harness import LONG, REPOSITORY, command, environment, open_home, said
from tests.kit.apps import until

from penstock.app import App
from penstock.errors import UsageError

DOCUMENTS, OPERATIONS, KILLS = (30, 400, 25) if LONG else (5, 16, 1)
PAUSE_S = 0.1
LETTERS = "abcdefghijklmnopqrstuvwxyz"
MARK = re.compile(r"item (\d+) of version (\d+) with (\d+) items")
MODES: list[Literal["text", "hybrid", "vector"]] = ["text", "hybrid", "text"]


def word(number: int) -> str:
    return "zq" + LETTERS[number // 26] + LETTERS[number % 26] + "mark"


def text(number: int, version: int, items: int) -> bytes:
    """Each sentence names the document, the version and how many sentences there are."""
    return "\n\n".join(
        f"The {word(number)} has item {i} of version {version} with {items} items." for i in range(items)
    ).encode()


@dataclass
class Known:
    """What the client knows of one document."""

    submitted: int = 0
    """The newest version that was submitted; 0: it was deleted, or never submitted."""
    least: int = 0
    """The newest version that a search has shown since the document was submitted first."""
    epoch: int = 0
    """Counts deletes: what a search shows that began before one says nothing."""


@dataclass
class World:
    chance: random.Random
    documents: list[Known] = field(default_factory=lambda: [Known() for _ in range(DOCUMENTS)])
    versions: int = 0
    searches: int = 0
    seen: int = 0
    indexes: set[int] = field(default_factory=set)
    during: int = 0
    """Searches that showed a document while a re-index was building."""
    building: bool = False


async def search(app: App, world: World) -> None:
    number = world.chance.randrange(DOCUMENTS)
    known = world.documents[number]
    newest_before, least, epoch = known.submitted, known.least, known.epoch
    answer = await app.search(word(number), k=400, mode=world.chance.choice(MODES))
    hits = [hit for hit in answer if hit.name == f"{number}.txt"]
    world.searches += 1
    if newest_before == 0 and known.submitted == 0:
        assert hits == [], "a deleted document is shown"
    if not hits:
        assert least == 0 or known.epoch != epoch, "a searchable document is not found"
        return
    places = [(hit.page, hit.start) for hit in hits]
    assert len(places) == len(set(places)), "a chunk is shown twice"
    marks = [tuple(map(int, mark)) for hit in hits for mark in MARK.findall(hit.text)]
    assert len({(version, items) for _, version, items in marks}) == 1, "two versions are mixed"
    _, version, items = marks[0]
    assert sorted(item for item, _, _ in marks) == list(range(items)), "half a document, or two sizes of chunks"
    if known.epoch == epoch:
        assert version >= least, "an older version came back"
        known.least = max(known.least, version)
    world.seen += 1
    world.during += world.building


async def read_on(app: App, world: World) -> None:
    while True:
        await search(app, world)


async def operate(app: App, world: World) -> None:
    number = world.chance.randrange(DOCUMENTS)
    known, what = world.documents[number], world.chance.random()
    if what < 0.55 or known.submitted == 0:
        world.versions += 1
        data = text(number, world.versions, world.chance.randrange(3, 40))
        async for _ in app.submit(data=data, name=f"{number}.txt"):
            known.submitted = world.versions
        if world.chance.random() < 0.6:
            # Otherwise a change often supersedes what no search has shown yet.
            await until(lambda: is_done(app, number), 60)
    elif what < 0.7:
        [document] = await app.list_documents(name=f"{number}.txt")
        known.epoch += 1
        await app.delete([document.id])
        known.epoch, known.submitted, known.least = known.epoch + 1, 0, 0
    else:
        await reindex(app, world)
    world.building = (await app.reindex_status()).state == "building"
    world.indexes.add((await app.collection("default")).index_version)


async def is_done(app: App, number: int) -> bool:
    [document] = await app.list_documents(name=f"{number}.txt")
    return document.status == "COMPLETED"


async def reindex(app: App, world: World) -> None:
    """Whatever can be asked for now."""
    status, size = await app.reindex_status(), world.chance.choice([60, 150, 400, 900])
    try:
        if status.state == "done" and world.chance.random() < 0.3:
            await app.undo_reindex(wait=False)
        elif status.state == "building" and world.chance.random() < 0.2:
            await app.cancel_reindex()
        elif status.state in ("none", "done"):
            await app.reindex(values={"chunk": {"size": size}}, again=True, wait=False)
    except UsageError:
        # A worker has ended it in between.
        assert (await app.reindex_status()).state in ("none", "done", "building")


@contextmanager
def workers(folder: Path, variables: dict[str, str]) -> Iterator[list["subprocess.Popen[bytes]"]]:
    running: list[subprocess.Popen[bytes]] = []
    try:
        yield running
    finally:
        for process in running:
            process.kill()
            process.wait()


def start(folder: Path, variables: dict[str, str]) -> "subprocess.Popen[bytes]":
    with (folder / "log").open("ab") as log:
        return subprocess.Popen(
            command("worker", "--home", str(folder / "home")),
            cwd=REPOSITORY,
            env=environment(EMBEDDER="fake", **variables),
            stdout=log,
            stderr=log,
        )


STORES = ("Lance, SQLite", "Lance, PostgreSQL", "pgvector")


@pytest.fixture(params=STORES)
def stores(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, Any]:
    if request.param == "Lance, SQLite":
        return {"database": f"sqlite:///{tmp_path / 'ledger.db'}"}
    make: Callable[[], str] = request.getfixturevalue("make_postgres")
    return {"database": make()} | ({"index": "pgvector"} if request.param == "pgvector" else {})


@pytest.mark.parametrize("seed", range(3 if LONG else 1))
async def test_i5_no_search_during_a_re_index_fails_or_shows_anything_but_whole_documents(
    tmp_path: Path, stores: dict[str, Any], seed: int
) -> None:
    await play(tmp_path, random.Random(20_261_118 + seed), stores)


async def play(folder: Path, chance: random.Random, settings: dict[str, Any]) -> None:
    world, variables = World(chance), {name.upper(): str(value) for name, value in settings.items()}
    async with open_home(folder / "home", **settings) as app, open_home(folder / "home", **settings) as reader:
        await app.ingest(data=b"A first document.", name="first.txt")
        with workers(folder, variables) as running:
            running += [start(folder, variables)]
            reading = asyncio.create_task(read_on(reader, world))
            kill_at = set(chance.sample(range(3, OPERATIONS), KILLS))
            for number in range(OPERATIONS):
                await operate(app, world)
                await asyncio.wait([reading], timeout=PAUSE_S * chance.random() * 2)
                assert not reading.done(), reading.result()
                if number in kill_at:
                    running[-1].kill()
                    running[-1].wait()
                    running[-1] = start(folder, variables)
            await settle(app, world, reading)
        assert world.searches > OPERATIONS
        assert world.seen > 0
        assert world.during > 0, "no search was made during a re-index"
        assert world.indexes - {1}, "no re-index has ended"


async def settle(app: App, world: World, reading: "asyncio.Task[None]") -> None:
    """The end: one more re-index, and everything is there at its newest content."""
    await app.reindex(wait=False) if (await app.reindex_status()).state == "building" else None

    async def over() -> bool:
        assert not reading.done(), reading.result()
        state = (await app.reindex_status()).state
        world.building = state == "building"
        return state in ("none", "done")

    await until(over, 60)
    await app.reindex(values={"chunk": {"size": 200}}, again=True, wait=False)
    await until(over, 60)
    assert not reading.done(), reading.result()
    reading.cancel()
    world.indexes.add((await app.collection("default")).index_version)
    for number, known in enumerate(world.documents):
        hits = [hit for hit in await app.search(word(number), k=400, mode="text") if hit.name == f"{number}.txt"]
        shown = {int(version) for hit in hits for _, version, _ in MARK.findall(hit.text)}
        assert shown == ({known.submitted} if known.submitted else set())
    report = await app.check()
    assert report.ok, said(report)
