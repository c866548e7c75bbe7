"""Collections, and deletes that choose their documents."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.conftest import StartApp
from tests.kit.apps import found, until

from penstock import App
from penstock.errors import NotFound, UsageError
from penstock.ledger.engine import collections
from penstock.model.nouns import WorkerId
from penstock.upkeep import drop as drop_module
from penstock.upkeep.drop import finish_drop
from penstock.upkeep.purge import purge
from penstock.verbs import ingest, selection
from penstock.worker import periodic

PLAYER = """
import sys
from penstock.upkeep import drop
from penstock.cli.main import run
drop.BATCH = 2
sys.exit(run(["collection", "drop", "herons", "--yes"]))
"""


def write(folder: Path, *names: str) -> Path:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(f"the heron of {name}")
    return folder


async def test_a_collection_tells_what_it_holds(start_app: StartApp, database_url: str, tmp_path: Path) -> None:
    app = await start_app(database=database_url)
    folder = write(tmp_path / "files", "a.txt", "b.txt", "c.txt")
    (folder / "empty.txt").write_text("")
    await app.ingest(folder, collection="herons")
    await app.ingest(folder / "a.txt", collection="owls", wait=False)
    herons, owls = await app.list_collections()
    assert (herons.name, herons.documents, herons.chunks) == ("herons", 4, 3)
    assert herons.statuses == {"COMPLETED": 3, "NOT_INDEXABLE": 1}
    assert herons.bytes == sum(path.stat().st_size for path in folder.iterdir())
    assert (herons.index_version, herons.dimensions) == (1, app.ports.embedder.model.dimensions)
    assert herons.embedder == app.ports.embedder.model.fingerprint
    assert (owls.statuses, owls.chunks, owls.embedder) == ({"PENDING": 1}, 0, None)
    assert await app.collection("herons") == herons
    assert await app.for_owner("anna").list_collections() == []
    with pytest.raises(NotFound, match="collection list"):
        await app.for_owner("anna").collection("herons")


async def test_i5_nothing_of_a_dropped_collection_is_found(
    start_app: StartApp, database_url: str, tmp_path: Path
) -> None:
    app = await start_app(database=database_url)
    folder = write(tmp_path / "files", "a.txt", "b.txt")
    await app.ingest(folder, collection="herons")
    await app.ingest(folder, collection="owls")
    await app.for_owner("anna").ingest(folder, collection="herons")
    dropped = await app.drop_collection("herons")
    assert (dropped.documents, dropped.existed) == (2, True)
    with pytest.raises(NotFound, match="there is no collection 'herons'"):
        await app.search("heron", collection="herons")
    assert [one.name for one in await app.list_collections()] == ["owls"]
    assert await found(app, "heron", collection="owls") == {"a.txt", "b.txt"}
    assert await found(app.for_owner("anna"), "heron", collection="herons") == {"a.txt", "b.txt"}
    again = await app.drop_collection("herons")
    assert (again.documents, again.existed) == (0, False)
    assert (await app.check()).ok
    # The name can be used again.
    assert (await app.ingest(folder / "a.txt", collection="herons")).completed == 1
    assert await found(app, "heron", collection="herons") == {"a.txt"}
    assert (await app.check()).ok


@pytest.mark.parametrize("point", ["begin_drop.after", "delete.after", "end_drop.before"])
async def test_i9_a_drop_that_was_killed_is_completed(
    start_app: StartApp, database_url: str, tmp_path: Path, point: str
) -> None:
    app = await start_app(database=database_url)
    folder = write(tmp_path / "files", *(f"{i}.txt" for i in range(5)))
    await app.ingest(folder, collection="herons")
    killed = subprocess.run(
        [sys.executable, "-c", PLAYER],
        env={
            **os.environ, "PENSTOCK_HOME": str(tmp_path / "home"), "PENSTOCK_DATABASE": database_url,
            "PENSTOCK_EMBEDDER": "fake", "PENSTOCK_FAILPOINTS": f"ledger.{point}=kill",
        },
        capture_output=True,
        timeout=60,
    )  # fmt: skip
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    left = {"begin_drop.after": 5, "delete.after": 3, "end_drop.before": 0}[point]
    assert len(await app.list_documents(collection="herons")) == left
    # What is ingested afterwards stays, also what the drop had not reached yet.
    summary = await app.ingest(folder / "4.txt", collection="herons")
    assert summary.completed == 1
    assert [one.name for one in await app.list_documents(collection="herons")] == ["4.txt"]
    await app.run()
    assert await found(app, "heron", collection="herons") == {"4.txt"}
    assert (await app.check()).ok


async def test_a_dropped_collection_can_be_filled_with_vectors_of_another_model(
    start_app: StartApp, database_url: str, tmp_path: Path
) -> None:
    folder = write(tmp_path / "files", "a.txt", "b.txt")
    first = await start_app(database=database_url, embedder="wordllama")
    await first.ingest(folder, collection="herons")
    await first.drop_collection("herons")
    app = await start_app(database=database_url)
    assert (await app.ingest(folder, collection="herons")).completed == 2
    herons = await app.collection("herons")
    assert (herons.index_version, herons.embedder) == (2, app.ports.embedder.model.fingerprint)
    assert await found(app, "heron", collection="herons") == {"a.txt", "b.txt"}
    assert (await app.check()).ok
    # The table of the dropped documents is removed as soon as it is empty.
    await app.prune()
    assert [table.version for table in await app.ports.index.tables()] == [1, 2]
    await purge(app.ledger, app.ports.index, WorkerId("w"), ahead_s=120)
    await app.prune()
    assert [table.version for table in await app.ports.index.tables()] == [2]
    assert (await app.check()).ok
    assert await found(app, "heron", collection="herons") == {"a.txt", "b.txt"}
    # The number of a removed version is not given away while a later one is in use.
    await app.ingest(write(tmp_path / "more", "c.txt"), collection="herons")
    assert (await app.collection("herons")).index_version == 2


async def test_documents_that_came_during_a_drop_keep_their_version(
    start_app: StartApp, database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = await start_app(database=database_url)
    await app.ingest(write(tmp_path / "files", "a.txt"), collection="herons")
    drop = await app.ledger.write(collections.BEGIN_DROP, (app.owner, "herons"))

    async def seen_too_early(*_: object) -> None: ...

    monkeypatch.setattr(ingest, "finish_drops_of", seen_too_early)
    assert (await app.ingest(write(tmp_path / "later", "b.txt"), collection="herons")).completed == 1
    # Perhaps the worker of the ingest has done so already.
    await finish_drop(app.ledger, drop)
    assert (await app.collection("herons")).index_version == 1
    assert await found(app, "heron", collection="herons") == {"b.txt"}
    assert (await app.check()).ok


async def test_prune_completes_a_drop(start_app: StartApp, database_url: str, tmp_path: Path) -> None:
    app = await start_app(database=database_url)
    await app.ingest(write(tmp_path / "files", "a.txt", "b.txt"), collection="herons")
    await app.ledger.write(collections.BEGIN_DROP, (app.owner, "herons"))
    assert (await app.collection("herons")).dropping
    await app.ingest(write(tmp_path / "more", "c.txt"))
    await app.prune()
    assert [one.name for one in await app.list_collections()] == ["default"]


async def test_i9_an_idle_worker_completes_a_drop_that_was_interrupted(
    start_app: StartApp, database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drop_module, "BATCH", 2)
    monkeypatch.setattr(periodic, "UPKEEP_S", 0.05)
    app = await start_app(database=database_url)
    await app.ingest(write(tmp_path / "files", *(f"{i}.txt" for i in range(5))), collection="herons")
    await app.ledger.write(collections.BEGIN_DROP, (app.owner, "herons"))
    working = asyncio.create_task(app.work())

    async def dropped() -> bool:
        return not await app.list_collections()

    await until(dropped)
    app.stop()
    await working
    assert await app.list_documents() == []
    assert await app.ledger.read(collections.begun) == []
    with pytest.raises(NotFound):
        await app.search("heron", collection="herons")
    assert (await app.check()).ok


async def test_deletes_by_pattern_collection_and_filter(
    start_app: StartApp, database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(selection, "PAGE", 2)
    app = await start_app(database=database_url)
    folder = write(tmp_path / "files", "a.txt", "b.md", "drafts/a.txt", "drafts/b.txt", "drafts/old/c.txt", "d[1].txt")
    for collection in ("herons", "owls"):
        await app.ingest(folder, collection=collection, metadata={"of": collection}, wait=False)
    await app.ingest(data=b"by name", name="pipe.txt", wait=False)
    monkeypatch.chdir(folder)

    async def names(**where: object) -> list[str]:
        shown = await app.delete_matching(**where, dry_run=True)  # type: ignore[arg-type]
        assert shown.count == len(shown.documents)
        paths = {os.path.relpath(d.source, folder) if d.source.startswith("/") else d.source for d in shown.documents}
        return sorted(paths)

    assert await names(path="*.txt") == ["a.txt", "d[1].txt", "pipe.txt"]
    assert await names(path="drafts/*.txt") == ["drafts/a.txt", "drafts/b.txt"]
    assert await names(path="./drafts/../drafts/?.txt") == ["drafts/a.txt", "drafts/b.txt"]
    assert await names(path="drafts/**") == ["drafts/a.txt", "drafts/b.txt", "drafts/old/c.txt"]
    assert await names(path="**/c.txt") == ["drafts/old/c.txt"]
    assert await names(path=f"{folder}/[ab].*") == ["a.txt", "b.md"]
    assert await names(path="[!b]*.txt") == ["a.txt", "d[1].txt", "pipe.txt"]
    assert await names(name="b.*", filter={"of": "owls"}) == ["b.md", "drafts/b.txt"]
    assert await names(path="drafts/*", filter={"of": "owls"}, collection="herons") == []
    assert (await app.count_documents()).count == 13
    assert (await app.delete_matching(path="drafts/**", collection="owls")).count == 3
    assert (await app.delete_matching(path="drafts/**", collection="owls")).count == 0
    assert (await app.delete_matching(filter={"of": "owls"})).count == 3
    assert (await app.delete_matching(collection="herons", status="PENDING")).count == 6
    assert [d.name for d in await app.list_documents()] == ["pipe.txt"]
    for nothing in ({}, {"collection": None}):
        with pytest.raises(UsageError, match="choose what to delete"):
            await app.delete_matching(**nothing)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="brackets"):
        await app.delete_matching(path="[z-a]*")
    assert (await app.for_owner("anna").delete_matching(path="**")).count == 0


async def test_a_count_stops_and_says_so(
    start_app: StartApp, database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = await start_app(database=database_url)
    await app.ingest(write(tmp_path / "files", *(f"{i}.txt" for i in range(6))), collection="herons", wait=False)
    await app.ingest(write(tmp_path / "more", "a.txt"), collection="owls", wait=False)

    async def counted(most: int, **where: object) -> tuple[int, bool]:
        answer = await selection.counted(app, selection.selection(**where), most)  # type: ignore[arg-type]
        return answer.count, answer.exact

    for where in ({}, {"status": "PENDING"}):
        assert await counted(7, **where) == (7, True)
        assert await counted(6, **where) == (6, False)
    assert await counted(6, collection="herons") == (6, True)
    assert await counted(5, collection="herons") == (5, False)
    assert await counted(3, collection="owls", status="PENDING") == (1, True)
    assert await counted(5, collection="herons", status="PENDING") == (5, False)
    assert await counted(7, collection="herons", status="FAILED") == (0, True)
    third = (await app.list_documents(limit=3))[-1].id
    assert await counted(7, after=third) == (4, True)
    monkeypatch.setattr(selection, "PAGE", 2)
    assert await counted(7, name="*.txt") == (7, True)
    # The first statement looks at one page, and the following ones at ten each.
    assert await counted(1, name="*.txt") == (2, False)


async def test_status_names_the_workers(start_app: StartApp, database_url: str, tmp_path: Path) -> None:
    app = await start_app(database=database_url)
    assert (await app.status()).workers == []
    worker: App = await start_app(database=database_url)
    working = asyncio.create_task(worker.work())

    async def runs() -> bool:
        return bool((await app.status()).workers)

    await until(runs)
    [one] = (await app.status()).workers
    assert (one.host, one.pid) == (os.uname().nodename, os.getpid())
    worker.stop()
    await working
    assert (await app.status()).workers == []
