"""Homes to crash in, processes to kill, and a picture of what is there afterwards."""

import asyncio
import json
import os
import select
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.crash.scenarios import BY_NAME, CHUNK, LARGE, WORDS, Scenario, submit, text, write_files
from tests.kit.tables import there

from penstock.app import App, open_app
from penstock.config import Config, load_config
from penstock.indexes.base import IndexRows, TableId
from penstock.ledger.engine import index_versions
from penstock.ledger.engine.leasing import SUSPECT
from penstock.model.items import Chunk
from penstock.model.nouns import DocumentId, Owner
from penstock.upkeep.report import CheckReport

LONG = os.environ.get("PENSTOCK_LONG") == "1"
REPOSITORY = Path(__file__).parents[2]
PATIENCE_S = 180.0
SMALL_BYTES = 300
"""Some blobs are in the ledger, and some are files."""
KEPT = {"keep_artifacts": "always"}
"""The files of these tests stand for files of any size; test_small_artifacts.py is about small ones."""


def settings(home: Path, **more: Any) -> dict[str, Any]:
    return {"home": str(home), "embedder": "fake", "chunk": CHUNK, "small_bytes": SMALL_BYTES, **KEPT, **more}


def configured(home: Path, **more: Any) -> Config:
    """Without the environment: PENSTOCK_LONG is no setting."""
    return load_config(settings(home, **more), environment={})


def open_home(home: Path, **more: Any) -> AbstractAsyncContextManager[App]:
    return open_app(configured(home, **more))


def environment(**variables: str) -> dict[str, str]:
    """For a `penstock` process: ours, with these settings and no others."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}
    settings = {"KEEP_ARTIFACTS": KEPT["keep_artifacts"], **variables}
    return clean | {f"PENSTOCK_{name}": value for name, value in settings.items()}


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "penstock.cli.main", *arguments]


# What is there


@dataclass(frozen=True)
class Picture:
    """All that a reader can notice. Two homes with the same picture are the same to everybody."""

    documents: dict[str, tuple[Any, ...]]
    chunks: dict[str, list[tuple[Any, ...]]]
    rows: dict[str, list[tuple[int, str]]]
    """Rows of the index that belong to active generations, doubles and all."""
    found: dict[str, list[tuple[Any, ...]]]
    scores: list[float]
    dead_letters: dict[str, int]
    told: list[tuple[Any, ...]]
    """Events of documents: what, about which, to whom, with what outcome."""


async def picture(app: App, words: tuple[str, ...] = WORDS) -> Picture:
    listed = await app.list_documents(limit=10_000)
    names = {entry.id: entry.name for entry in listed}
    chunks = {}
    for entry in listed:
        made = [(c.ordinal, c.page, c.start, c.end, c.text) async for c in app.show(entry.id, "chunks")]
        chunks[entry.name] = made
    fields = ("status", "chunks", "pages", "searchable", "stale", "media_type", "size")
    found = {}
    for word in words:
        answer = await app.search(word, k=9000, mode="text")
        found[word] = sorted((hit.name, hit.page, hit.start, hit.end, hit.text) for hit in answer)
    nearest = await app.search("the item among other things", k=20, mode="vector")
    searchable = {entry.name for entry in listed if entry.searchable}
    for word, hits in found.items():
        shown = [(n, *c[1:]) for n in searchable for c in chunks[n] if word in c[-1]]
        assert hits == sorted(shown), f"a search for {word!r} finds other chunks than those of searchable documents"
    return Picture(
        documents={entry.name: tuple(getattr(entry, name) for name in fields) for entry in listed},
        chunks=chunks,
        rows=await rows(app, names),
        found=found,
        scores=sorted(round(hit.score, 3) for hit in nearest),
        dead_letters=(await app.list_dead_letters()).by_reason,
        told=sorted(
            await sql(
                app,
                "SELECT e.kind, d.name, y.name, y.status FROM events e JOIN documents d ON d.id = e.document_id "
                "LEFT JOIN deliveries y ON y.event_id = e.id WHERE e.kind IN ('ITEM_END', 'ITEM_FAILED')",
            )
        ),
    )


async def rows(app: App, names: Mapping[DocumentId, str]) -> dict[str, list[tuple[int, str]]]:
    active = {
        generation: names[document]
        for generation, document in await sql(app, "SELECT id, document_id FROM generations WHERE state = 'ACTIVE'")
        if document in names
    }
    version = await app.ledger.read(lambda c: index_versions.current(Owner("default"), c, "default"))
    table = None if version is None else await app.ports.index.open(TableId("default", "default", version.version))
    found: dict[str, list[tuple[int, str]]] = {}
    if table is not None:
        async for batch in table.scan():
            for row in batch:
                if row.generation in active:
                    found.setdefault(active[row.generation], []).append((row.ordinal, row.digest))
    return {name: sorted(ones) for name, ones in found.items()}


TABLE = TableId("default", "default", 1)


async def sql(app: App, statement: str) -> list[tuple[Any, ...]]:
    """Behind the engine's back."""

    def run() -> list[tuple[Any, ...]]:
        connection = app.ledger.database.connect()
        try:
            answer: list[tuple[Any, ...]] = connection.script(statement)
            return answer
        finally:
            connection.close()

    return await app.runtime.run_blocking("read", run)


def said(report: CheckReport) -> str:
    return "\n".join(entry.what for entry in report.problems)


# Processes to kill


@dataclass(frozen=True)
class Outcome:
    status: int
    acknowledged: int
    """How many operations."""
    counts: dict[str, int]
    log: str


class Player:
    """Plays scenarios in children of a process that has everything imported."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-m", "tests.crash.player"],
            cwd=REPOSITORY,
            env=environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._answer()

    def close(self) -> None:
        self._process.communicate()

    def play(self, scenario: str, home: Path, failpoints: str = "", *, record: bool = False, **more: Any) -> Outcome:
        folder = home.parent
        chosen = {**BY_NAME[scenario].settings, **more}
        acks, log, counts = (folder / f"{name}-{os.urandom(4).hex()}" for name in ("acks", "log", "counts"))
        request = {
            "scenario": scenario,
            "settings": settings(home, failpoints=failpoints, **chosen),
            "acks": str(acks),
            "log": str(log),
            "counts": str(counts) if record else None,
        }
        assert self._process.stdin is not None
        print(json.dumps(request), file=self._process.stdin, flush=True)
        pid = self._answer()["pid"]
        try:
            status = self._answer()["status"]
        except TimeoutError:
            os.kill(pid, signal.SIGKILL)
            self._answer()
            raise TimeoutError(f"{scenario} with {failpoints!r} did not end: {log.read_text()}") from None
        return Outcome(
            status,
            acks.stat().st_size if acks.exists() else 0,
            json.loads(counts.read_text()) if counts.exists() else {},
            log.read_text() if log.exists() else "",
        )

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        if not select.select([self._process.stdout], [], [], PATIENCE_S)[0]:
            raise TimeoutError
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        return answer


@contextmanager
def playing() -> Iterator[Player]:
    player = Player()
    try:
        yield player
    finally:
        player.close()


# Homes to begin with


@dataclass
class Place:
    """Homes of one test session, on one kind of ledger. `database(name, template)` makes one on a server."""

    folder: Path
    player: Player
    database: Callable[[str, str | None], str] | None = None
    _prepared: dict[str, Path] = field(default_factory=dict)
    _count: int = 0

    def settings(self, home: Path) -> dict[str, Any]:
        """The database of a home, where it is not in it."""
        known = home.parent / "database"
        return {"database": known.read_text()} if known.exists() else {}

    def home(self, start: str) -> Path:
        """A fresh copy of a prepared home."""
        prepared = self.prepared(start)
        self._count += 1
        case = self.folder / f"{self._count:04d}"
        write_files(case / "files")
        if prepared.exists():
            shutil.copytree(prepared, case / "home")
        if self.database is not None:
            template = None if start == "empty" else f"prepared_{start}"
            (case / "database").write_text(self.database(f"case_{self._count}", template))
        return case / "home"

    def prepared(self, start: str) -> Path:
        if start not in self._prepared:
            case = self.folder / f"prepared-{start}"
            write_files(case / "files")
            if self.database is not None and start != "empty":
                (case / "database").write_text(self.database(f"prepared_{start}", None))
            self._prepared[start] = case / "home"
            if start != "empty":
                PREPARE[start](self, case / "home")
        return self._prepared[start]

    def run(self, home: Path, action: Callable[[App], Any], **more: Any) -> Any:
        async def opened() -> Any:
            async with open_home(home, **self.settings(home), **more) as app:
                return await action(app)

        return asyncio.run(opened())

    def kill(self, scenario: str, home: Path, failpoint: str) -> Outcome:
        outcome = self.player.play(scenario, home, failpoint, **self.settings(home))
        assert outcome.status == -signal.SIGKILL, (scenario, failpoint, outcome)
        return outcome


def _full(place: Place, home: Path) -> None:
    """Everything that ends in its own way: searchable, shared, without text, failed, replaced."""

    async def fill(app: App) -> None:
        await app.ingest([home.parent / "files" / name for name in ("alpha.txt", "same.txt", "blank.txt")])
        await app.ingest([home.parent / "files" / "binary.bin"])
        for word in ("gammaword", "deltaword"):
            await submit("gamma.txt", text(word)).do(app)

    place.run(home, fill)


def _orphaned(place: Place, home: Path) -> None:
    """Three workers died: one while embedding, one behind the first commit of a long document, one at the flip."""

    async def accept(app: App) -> None:
        await submit("huge.txt", text("hugeword", LARGE), wait=False).do(app)
        await app.ingest([home.parent / "files"], wait=False)

    place.run(home, accept)
    place.kill("orphaned", home, "provider.answer.before=kill@2")
    place.kill("orphaned", home, "ledger.checkpoint.before=kill@2")
    place.kill("orphaned", home, "ledger.flip.before=kill@1")


def _suspected(place: Place, home: Path) -> None:
    """Workers died again and again while they embedded the same documents."""

    async def accept(app: App) -> None:
        await app.ingest([home.parent / "files" / name for name in ("alpha.txt", "beta.md")], wait=False)

    place.run(home, accept)
    for _ in range(SUSPECT):
        place.kill("orphaned", home, "provider.answer.before=kill@1")


def _tombstoned(place: Place, home: Path) -> None:
    """A step of a document that is gone: what a worker meets that claims it while it is being deleted."""

    async def damage(app: App) -> None:
        for word in ("alpha", "gamma"):
            await submit(f"{word}.txt", text(f"{word}word"), wait=False).do(app)
        await sql(app, "UPDATE documents SET deleted_at = 1 WHERE name = 'gamma.txt'")

    place.run(home, damage)


def _torn(place: Place, home: Path) -> None:
    """The machine lost power: what had not been flushed of a finished artifact is gone."""

    async def accept(app: App) -> None:
        await app.ingest([home.parent / "files"], wait=False)

    place.run(home, accept)
    place.kill("orphaned", home, "provider.answer.before=kill@1")

    async def tear(app: App) -> None:
        found = await sql(app, "SELECT p.key FROM segments p JOIN artifacts a ON a.id = p.artifact_id "
                               "WHERE a.kind = 'chunk' AND a.state = 'COMPLETE'")  # fmt: skip
        assert found
        for (key,) in found:
            os.truncate(home / "blobs" / key, 10)

    place.run(home, tear)


def _damaged(place: Place, home: Path) -> None:
    """One of each trouble that `check --repair` mends in the ledger and in a table."""
    _full(place, home)

    async def damage(app: App) -> None:
        for word in ("delta", "epsilon", "zeta", "eta", "orphan"):
            await submit(f"{word}.txt", text(f"{word}word")).do(app)
        generation = {
            name: int(g)
            for g, name in await sql(
                app,
                "SELECT g.id, d.name FROM generations g JOIN documents d "
                "ON d.id = g.document_id WHERE g.state = 'ACTIVE'",
            )
        }
        await submit("stuck.txt", text("stuckword"), wait=False).do(app)
        zeta = generation["zeta.txt"]
        for statement in (
            "UPDATE steps SET status = 'CANCELLED' WHERE status = 'PENDING'",
            "DELETE FROM dead_letters",
            "DELETE FROM purges",
            "INSERT INTO purges (generation_id, owner, collection, index_version, not_before) "
            f"SELECT id, owner, collection, index_version, 9e9 FROM generations WHERE id = {generation['delta.txt']}",
            f"DELETE FROM placements WHERE generation_id = {generation['eta.txt']}",
            f"UPDATE generations SET state = 'BUILDING' WHERE id = {zeta}",
            f"UPDATE runs SET status = 'OPEN' WHERE generation_id = {zeta}",
            "UPDATE groups SET open_runs = open_runs + 1 WHERE id = (SELECT group_id FROM runs "
            f"WHERE generation_id = {zeta})",
            "UPDATE documents SET status = 'PENDING' WHERE name = 'zeta.txt'",
            "UPDATE documents SET status = 'INDEXING' WHERE name = 'zeta.txt'",
            f"UPDATE steps SET status = 'PENDING' WHERE generation_id = {zeta} AND kind = 'index'",
            "UPDATE locks SET ready = 0",
            "UPDATE documents SET parent_id = 'gone' WHERE name = 'orphan.txt'",
        ):
            await sql(app, statement)
        table = await there(app.ports.index, TABLE)
        await table.delete([generation["epsilon.txt"]], _always)
        await _append(app, generation["eta.txt"], "eta.txt")
        await _append(app, 987_654, "eta.txt")
        [(key,)] = await sql(app, "SELECT p.key FROM segments p JOIN artifacts a ON a.id = p.artifact_id "
                                  "JOIN artifact_refs f ON f.artifact_id = a.id WHERE a.kind = 'extract' "
                                  f"AND f.generation_id = {generation['delta.txt']}")  # fmt: skip
        os.truncate(home / "blobs" / key, 10)

    place.run(home, damage)


def _broken(place: Place, home: Path) -> None:
    """An index that cannot be read any more, after a vacuum."""
    _full(place, home)
    place.run(home, lambda app: app.vacuum())
    for file in (home / "index" / "default" / "default" / "v1.lance" / "data").iterdir():
        file.write_bytes(b"nonsense")


def _overwritten(place: Place, home: Path) -> None:
    """Somebody wrote into the index past its lock, after a vacuum."""
    _full(place, home)
    place.run(home, lambda app: app.vacuum())

    async def write(app: App) -> None:
        [(generation,)] = await sql(app, "SELECT g.id FROM generations g JOIN documents d ON d.id = g.document_id "
                                         "WHERE d.name = 'alpha.txt' AND g.state = 'ACTIVE'")  # fmt: skip
        table = await there(app.ports.index, TABLE)
        await table.delete([generation], _always)

    place.run(home, write)


async def _append(app: App, generation: int, name: str) -> None:
    """Rows as a stale worker leaves them."""
    document = next(entry.id for entry in await app.list_documents() if entry.name == name)
    chunks: list[Chunk] = [chunk async for chunk in app.show(document, "chunks")]
    vectors = await app.ports.embedder.embed_documents([chunk.text for chunk in chunks])
    table = await there(app.ports.index, TABLE)
    await table.put([IndexRows(generation, 1, document, chunks, vectors)], _always, fresh=True)


async def _always() -> None:
    """A lock that is always ours."""


PREPARE: dict[str, Callable[[Place, Path], None]] = {
    "full": _full,
    "orphaned": _orphaned,
    "suspected": _suspected,
    "tombstoned": _tombstoned,
    "torn": _torn,
    "damaged": _damaged,
    "broken": _broken,
    "overwritten": _overwritten,
}


# Afterwards


async def recover(app: App, scenario: Scenario, acknowledged: int) -> Picture:
    """The client goes on with the first operation that was not acknowledged; then all work is finished."""
    await intact(app, scenario, acknowledged)
    for operation in scenario.operations[acknowledged:]:
        await operation.do(app)
    await app.run()
    report = await app.check()
    assert report.ok, said(report)
    return await picture(app)


async def intact(app: App, scenario: Scenario, acknowledged: int) -> None:
    """Right after the crash, before anybody has mended anything: what was acknowledged is there, and nothing that a
    reader could notice is wrong."""
    there: Counter[str] = Counter(entry.name for entry in await app.list_documents(limit=10_000))
    assert all(count == 1 for count in there.values()), there
    wanted: set[str] = set()
    for operation in scenario.operations[:acknowledged]:
        wanted = (wanted | operation.adds) - operation.removes
    in_flight = scenario.operations[acknowledged : acknowledged + 1]
    for operation in in_flight:
        wanted -= operation.removes
    assert wanted <= set(there)
    if not scenario.damaged:
        report = await app.check()
        assert report.ok, said(report)
