"""Four workers share many documents, and one of them is killed every second: nobody can tell afterwards. Every document
is there, each step had its effect once, and the group has ended once."""

import asyncio
import json
import random
import signal
import subprocess
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest
from tests.crash.harness import LONG, PATIENCE_S, REPOSITORY, command, environment, open_home, rows, said, sql
from tests.crash.many import PARTS

from penstock.app import App
from penstock.indexes.base import row_digest
from penstock.model.states import StepStatus

SEED = 20_261_116
WORKERS = 4
EVERY_S = 1.0
LETTERS = "abcdefghijklmnopqrstuvwxyz"
STEPS = ("validate", "extract", "clean", "chunk", "parts", "embed", "index")
EVENTS = ("group_start", "group_end", "item_end", "step_end")


class Size(NamedTuple):
    documents: int
    kills: int
    step_s: float
    """How long the step of our own takes: so that there is work for as long as there are kills."""
    patience_s: float


SIZE = Size(2000, 60, 1.0, 420) if LONG else Size(120, 7, 0.8, 90)


def word(number: int) -> str:
    """A word that only this document has."""
    return "zq" + "".join(LETTERS[number // 26**i % 26] for i in range(3)) + "mark"


def write(folder: Path, count: int) -> None:
    """Three or four chunks each."""
    folder.mkdir()
    for number in range(count):
        lines = [f"Line {i} of {word(number)} tells of sluices, weirs and gates.\n\n" for i in range(3 + number % 2)]
        (folder / f"{number:04d}.txt").write_text("".join(lines))


@dataclass
class Crew:
    """Worker processes as a user starts them, in a folder of their own."""

    folder: Path
    database: str | None
    running: "list[subprocess.Popen[bytes]]" = field(default_factory=list)
    started: int = 0

    @property
    def home(self) -> Path:
        return self.folder / "home"

    @property
    def settings(self) -> dict[str, str]:
        return {} if self.database is None else {"database": self.database}

    def open(self) -> AbstractAsyncContextManager[App]:
        return open_home(self.home, **self.settings)

    def start(self) -> None:
        settings = {name.upper(): value for name, value in self.settings.items()}
        self.started += 1
        with (self.folder / f"log-{self.started}").open("wb") as log:
            process = subprocess.Popen(
                command("worker", "--json", "--home", str(self.home)),
                cwd=REPOSITORY,
                env=environment(EMBEDDER="fake", **settings),
                stdout=subprocess.PIPE,
                stderr=log,
            )
        self.running.append(process)

    def kill(self, process: "subprocess.Popen[bytes]") -> None:
        process.kill()
        process.communicate()
        self.running.remove(process)
        assert process.returncode == -signal.SIGKILL, (process.returncode, self.logs())

    def leave(self) -> list[dict[str, Any]]:
        """All are told to stop; what they said."""
        for process in self.running:
            process.send_signal(signal.SIGTERM)
        answers = [json.loads(process.communicate(timeout=PATIENCE_S)[0]) for process in self.running]
        assert [process.returncode for process in self.running] == [0] * WORKERS
        self.running.clear()
        return answers

    def logs(self) -> str:
        return "".join(file.read_text() for file in sorted(self.folder.glob("log-*")))


@asynccontextmanager
async def crew_of(folder: Path, database: str | None) -> AsyncIterator[Crew]:
    crew = Crew(folder, database)
    try:
        yield crew
    finally:
        for process in list(crew.running):
            process.kill()
            process.communicate()


def workflow(folder: Path, step_s: float) -> str:
    step = {
        "kind": "enrich",
        "method": "tests.crash.many.parts",
        "parameters": {"seconds": step_s, "done": str(folder / "done")},
    }
    chunk = {"parameters": {"unit": "characters", "size": 60, "overlap": 0}}
    steps = {name: {"chunk": chunk, "parts": step}.get(name) for name in STEPS}
    told = {"name": "hear", "method": "tests.crash.many.hear", "parameters": {"told": str(folder / "told")}}
    path = folder / "many.yaml"
    path.write_text(json.dumps({"id": "many", "steps": steps, "lifecycle_events": {event: [told] for event in EVENTS}}))
    return str(path)


async def until(true: Callable[[], Awaitable[bool]], seconds: float, what: Callable[[], Awaitable[object]]) -> None:
    deadline = time.monotonic() + seconds
    while not await true():
        if time.monotonic() > deadline:
            raise TimeoutError(await what())
        await asyncio.sleep(0.05)


async def kill_one(app: App, crew: Crew) -> int:
    """The one that was there for the longest: the others may still be starting. Another takes its place at once. How
    many steps it had in hand."""
    victim = crew.running[0]
    crew.kill(victim)
    crew.start()
    return sum(worker.steps for worker in await app.list_workers() if worker.pid == victim.pid)


class Course(NamedTuple):
    """How it went."""

    group: str
    kills: list[int]
    """Steps that each of them hit."""
    took_s: float


async def work_off(app: App, crew: Crew, size: Size, kills: int) -> Course:
    write(crew.folder / "files", size.documents)
    path = workflow(crew.folder, size.step_s)
    submitted = await app.ingest([crew.folder / "files"], workflow=path, batch="many", wait=False)
    assert (submitted.submitted, submitted.group is None) == (size.documents, False)
    assert submitted.group is not None
    for _ in range(WORKERS):
        crew.start()

    async def all_there() -> bool:
        return await app.count_workers() == WORKERS

    async def problems() -> object:
        status = msgspec.structs.replace(await app.status(), running=[])
        pids = [process.pid for process in crew.running]
        undelivered = await sql(app, "SELECT * FROM deliveries WHERE status = 'PENDING' LIMIT 5")
        return status, await app.list_workers(), pids, undelivered, crew.logs()

    await until(all_there, PATIENCE_S, problems)
    began = time.monotonic()
    chance = random.Random(SEED)
    done = []
    for number in range(kills):
        await asyncio.sleep(max(0.0, began + (number + chance.random()) * EVERY_S - time.monotonic()))
        done.append(await kill_one(app, crew))

    async def over() -> bool:
        """All documents are done, all events told, and nobody dead is left."""
        assert all(process.poll() is None for process in crew.running), crew.logs()
        status = await app.status()
        everyone = await app.list_workers()
        return (
            sum(status.documents.get(end, 0) for end in ("COMPLETED", "FAILED")) == size.documents
            and status.events.waiting == 0
            and len(everyone) == WORKERS
            and all(worker.alive for worker in everyone)
        )

    await until(over, size.patience_s, problems)
    group = (await app.group(submitted.group)).group
    assert group.finished_at is not None
    return Course(submitted.group, done, group.finished_at - group.created_at)


async def check_documents(app: App, size: Size) -> None:
    """All are completed, and found by exactly their chunks."""
    status = await app.status()
    assert status.documents == {"COMPLETED": size.documents}
    assert (status.steps, status.dead_letters) == ({}, 0)
    done = await app.list_steps(status=StepStatus.COMPLETED, limit=10 * size.documents)
    assert len(done) == size.documents * len(STEPS)
    listed = {entry.name: entry for entry in await app.list_documents(limit=10_000)}
    assert len(listed) == size.documents
    indexed = await rows(app, {entry.id: name for name, entry in listed.items()})
    for number in range(size.documents):
        entry = listed[f"{number:04d}.txt"]
        assert (entry.searchable, entry.stale, entry.chunks) == (True, False, 3 + number % 2), entry
        chunks = [chunk async for chunk in app.show(entry.id, "chunks")]
        assert len(chunks) == entry.chunks
        assert indexed[entry.name] == [(chunk.ordinal, row_digest(chunk)) for chunk in chunks], entry
    for number in range(0, size.documents, 10):
        hits = await app.search(word(number), k=50, mode="text")
        assert [hit.name for hit in hits] == [f"{number:04d}.txt"] * (3 + number % 2)
    report = await app.check()
    assert report.ok, said(report)
    assert report.problems == []


async def check_effects(app: App, size: Size, group: str, told: Path) -> Counter[str]:
    """Each step, run and group ended once: in the outbox once, heard under one id. How often each id was heard."""
    outbox = await sql(app, "SELECT id, kind, run_id, group_id, step, completion, status FROM events")
    runs = [run for (run,) in await sql(app, "SELECT id FROM runs WHERE status = 'COMPLETED'")]
    assert len(runs) == size.documents
    of = {kind: [row for row in outbox if row[1] == kind] for kind in {row[1] for row in outbox}}
    assert set(of) == {event.upper() for event in EVENTS}
    assert Counter((row[2], row[4], row[6]) for row in of["STEP_END"]) == {
        (run, step, "COMPLETED"): 1 for run in runs for step in STEPS
    }
    assert Counter((row[2], row[6]) for row in of["ITEM_END"]) == {(run, "COMPLETED"): 1 for run in runs}
    assert [(row[3], row[5]) for row in of["GROUP_START"]] == [(group, 0)]
    assert [(row[3], row[5]) for row in of["GROUP_END"]] == [(group, 1)]
    heard = Counter(told.read_text().splitlines())
    assert set(heard) == {f"{row[1]} {row[2] or row[3]}-{row[0]}" for row in outbox}
    assert await sql(app, "SELECT DISTINCT status FROM deliveries") == [("DELIVERED",)]
    found = (await app.group(group)).group
    assert (found.status, found.total, found.completed, found.completions) == (
        "COMPLETED", size.documents, size.documents, 1,
    )  # fmt: skip
    assert (found.running, found.pending, found.failed, found.cancelled, found.not_indexable) == (0, 0, 0, 0, 0)
    return heard


async def check_artifacts(app: App, size: Size) -> None:
    """One of each step for each document, complete, without a gap and without a double."""
    made = await sql(
        app,
        "SELECT f.generation_id, count(*), min(a.items), max(a.items), min(a.state), "
        "sum((SELECT sum(p.items) FROM segments p WHERE p.artifact_id = a.id)) "
        "FROM artifact_refs f JOIN artifacts a ON a.id = f.artifact_id WHERE f.step = 'parts' GROUP BY 1",
    )
    assert [row[1:] for row in made] == [(1, PARTS, PARTS, "COMPLETE", PARTS)] * size.documents
    assert await sql(app, "SELECT count(*) FROM artifacts WHERE state <> 'COMPLETE'") == [(0,)]
    per_kind = dict(await sql(app, "SELECT kind, count(*) FROM artifacts GROUP BY kind"))
    assert set(per_kind.values()) == {size.documents}, per_kind


async def check_nothing_left(app: App, crew: Crew) -> None:
    """Nobody is there any more, and nobody left anything."""
    assert await sql(app, "SELECT count(*) FROM steps WHERE lease_token IS NOT NULL OR status <> 'COMPLETED'") == [(0,)]
    assert await sql(app, "SELECT count(*) FROM locks WHERE token IS NOT NULL") == [(0,)]
    assert await sql(app, "SELECT count(*) FROM deliveries WHERE status = 'PENDING' OR token IS NOT NULL") == [(0,)]
    assert await sql(app, "SELECT count(*) FROM workers") == [(0,)]
    if crew.database is None:
        assert list((crew.home / "workers").iterdir()) == []
    assert "Traceback" not in crew.logs(), crew.logs()


async def describe(app: App, size: Size, course: Course, crew: Crew, heard: Counter[str]) -> str:
    [(again, crashes)] = await sql(app, "SELECT sum(epoch - 1), sum(crashes) FROM steps")
    parts = (crew.folder / "done").read_text().count("\n")
    hits = [steps for steps in course.kills if steps]
    return (
        f"{size.documents} documents in {course.took_s:.1f} s ({size.documents / course.took_s:.0f}/s); "
        f"{len(course.kills)} kills, {len(hits)} of them while it worked, on {sum(hits)} steps; "
        f"{again} claims more than steps, {crashes} crashes still counted; "
        f"{parts - PARTS * size.documents} of {PARTS * size.documents} parts made twice; "
        f"{heard.total() - len(heard)} of {len(heard)} events told twice"
    )


@pytest.fixture(params=["sqlite", "postgres"])
def database(request: pytest.FixtureRequest) -> str | None:
    if request.param == "sqlite":
        return None
    url: str = request.getfixturevalue("fresh_postgres")
    return url


@pytest.mark.parametrize("kills", [SIZE.kills, 0] if LONG else [SIZE.kills])
async def test_i7_i8_many_workers_killed_one_a_second_complete_everything_once(
    database: str | None, tmp_path: Path, kills: int
) -> None:
    async with crew_of(tmp_path, database) as crew, crew.open() as app:
        course = await work_off(app, crew, SIZE, kills)
        answers = crew.leave()
        assert all(answer["interrupted"] and answer["failed"] == 0 for answer in answers)
        assert sum(answer["completed"] for answer in answers) <= SIZE.documents
        assert crew.started == WORKERS + kills
        await check_nothing_left(app, crew)
        await check_documents(app, SIZE)
        heard = await check_effects(app, SIZE, course.group, tmp_path / "told")
        await check_artifacts(app, SIZE)
        print(f"\n{'sqlite' if database is None else 'postgres'}:", await describe(app, SIZE, course, crew, heard))
        assert sum(steps > 0 for steps in course.kills) >= kills // 3, course.kills
        if not kills:
            assert (crew.folder / "done").read_text().count("\n") == PARTS * SIZE.documents
            assert set(heard.values()) == {1}
