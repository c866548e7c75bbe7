"""The index in PostgreSQL: the whole way of a document, with the ledger in the same database and in another one."""

import asyncio
import os
import random
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.conftest import StartApp
from tests.contract.test_index_contract import D, held, rows, vector_of
from tests.crash.harness import Picture, Player, open_home, picture, playing
from tests.crash.scenarios import write_files
from tests.kit.apps import found, named
from tests.kit.tables import TABLE

from penstock.errors import Away, ConfigError
from penstock.indexes import pg_text, pgvector
from penstock.indexes.base import Filter, IndexRows, TextQuery, VectorQuery
from penstock.indexes.pgvector import PgIndex, PgTable
from penstock.ledger.database.statements import Statement
from penstock.model.items import Chunk
from penstock.runtime import Runtime

ROOT = Path(__file__).parents[2]
_SOONER = "UPDATE purges SET not_before = not_before - 55"
_LOCKS = Statement("SELECT count(*) FROM locks WHERE resource_key LIKE 'index:%'")
MODES: tuple[Any, ...] = ("text", "vector", "hybrid")


@pytest.fixture(params=["shared", "separate"])
def places(request: pytest.FixtureRequest, make_postgres: Callable[[], str]) -> dict[str, str]:
    """The settings of the ledger and the index."""
    database = make_postgres()
    return {"database": database, "index": "pgvector" if request.param == "shared" else make_postgres()}


async def test_ingest_search_change_delete_purge_check(start_app: StartApp, places: dict[str, str]) -> None:
    app = await start_app(**places)
    for name, animal in (("a", "otter"), ("b", "heron"), ("c", "beaver")):
        await app.ingest(data=f"the {animal} lives here".encode(), name=name, metadata={"animal": animal})
    for mode in MODES:
        assert {hit.name for hit in await app.search("lives", 10, mode=mode)} == {"a", "b", "c"}
        filtered = await app.search("lives", 10, mode=mode, filter={"animal": "otter"})
        assert [hit.name for hit in filtered] == ["a"]
    await app.ingest(data=b"the stork lives here", name="b")
    assert (await found(app, "heron"), await found(app, "stork")) == (set(), {"b"})
    await app.delete([(await named(app, "c")).id])
    for mode in MODES:
        assert {hit.name for hit in await app.search("lives", 10, mode=mode)} == {"a", "b"}
    await app.ledger.read(lambda connection: connection.script("UPDATE purges SET not_before = 0"))
    [vacuumed] = (await app.vacuum()).collections
    assert (vacuumed.rows, vacuumed.rows_removed) == (2, 2)
    assert (await app.check()).problems == []
    assert (await app.ledger.read(lambda connection: connection.run(_LOCKS)))[0][0] == 0


async def test_check_repairs_a_lost_table(start_app: StartApp, places: dict[str, str]) -> None:
    app = await start_app(**places)
    await app.ingest(data=b"the otter lives here", name="a.txt")
    await app.ports.index.drop(app_table := TABLE._replace(owner="default"))
    assert await app.ports.index.open(app_table) is None
    assert (await app.check(repair=True)).ok
    assert await found(app, "otter") == {"a.txt"}


async def test_pgvector_without_a_ledger_in_postgresql_is_refused(start_app: StartApp) -> None:
    app = await start_app(index="pgvector")
    with pytest.raises(ConfigError, match="set `database: postgresql"):
        _ = app.ports.index.traits


async def test_a_server_that_does_not_answer_is_away(runtime: Runtime) -> None:
    with pytest.raises(Away, match="does not answer") as raised:
        await PgIndex("postgresql://someone:secret@127.0.0.1:1/x", runtime).open(TABLE)
    assert "secret" not in str(raised.value)
    assert raised.value.target == "postgresql://127.0.0.1/x"


async def made(url: str, runtime: Runtime) -> PgTable:
    return await PgIndex(url, runtime, schema=f"t{runtime.token()}").create(TABLE, D)


async def test_a_large_table_gets_an_hnsw_index_and_filters_miss_nothing(
    index_database: str, runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pgvector, "HNSW_ROWS", 1000)
    table = await made(index_database, runtime)
    await table.put([rows(generation, 30) for generation in range(1, 41)], held, fresh=True)
    await table.put([rows(41, 30)], held, fresh=True)
    built = await table._index.read("SELECT 1 FROM pg_indexes WHERE indexdef LIKE '%hnsw%' AND schemaname = $1",
                                    [table._index.schema])  # fmt: skip
    assert len(built) == 1
    # All near rows are hidden: the scan of the index goes on until it has k others.
    hits = await table.search(VectorQuery(vector_of(41, 3)), 20, Filter(list(range(3, 42))))
    assert len(hits) == 20
    assert {hit.generation for hit in hits} <= {1, 2}
    assert (await table.search(VectorQuery(vector_of(41, 3)), 1))[0][:2] == (41, 3)


async def test_text_that_postgresql_cannot_store_comes_back_as_it_was(index_database: str, runtime: Runtime) -> None:
    table = await made(index_database, runtime)
    odd = Chunk(0, "an otter\0 and \ud800 a 🙂", 1, 1, 0, 9, ("Pa\0rt",))
    await table.put([IndexRows(1, 1, "doc", [odd], np.stack([vector_of(1, 0)]))], held, fresh=True)
    [hit] = await table.search(TextQuery("otter"), 5)
    assert (hit.text, hit.headings) == (odd.text, odd.headings)


async def test_rare_words_count_more_than_frequent_ones(
    index_database: str, runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With and without statistics of the server, which limit the rows that are compared."""
    table = await made(index_database, runtime)
    parts = [rows(n, 1, text="the water of the dam " + ("turbine" if n == 7 else f"filler{n}")) for n in range(1, 400)]
    await table.put(parts, held, fresh=True)
    for candidates in (pg_text.CANDIDATES, 20):
        monkeypatch.setattr(pg_text, "CANDIDATES", candidates)
        hits = await table.search(TextQuery("the water turbine of the dam"), 10)
        assert hits[0].generation == 7
        assert len(hits) == 10
        assert len(await table.search(TextQuery("the turbine"), 1000)) == 399, "no row is missed"
        await table._index.write(f"ANALYZE {table._name}")
        table._known.clear()


POINTS = ("index.create.before", "index.append.before", "index.append.after", "ledger.flip.before", "ledger.flip.after")


@pytest.fixture(scope="module")
def player() -> Any:
    with playing() as player:
        yield player


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Picture:
    """What a home with a Lance index shows."""
    folder = tmp_path_factory.mktemp("reference")
    write_files(folder / "files")

    async def make() -> Picture:
        async with open_home(folder / "home") as app:
            await app.ingest([folder / "files"])
            return await picture(app)

    return asyncio.run(make())


@pytest.mark.parametrize("failpoint", POINTS)
async def test_i12_a_worker_killed_between_index_and_ledger_ends_as_without(
    player: Player, make_postgres: Callable[[], str], tmp_path: Path, reference: Picture, failpoint: str
) -> None:
    settings: dict[str, Any] = {"database": make_postgres(), "index": "pgvector"}
    write_files(tmp_path / "files")
    killed = player.play("brief", tmp_path / "home", f"{failpoint}=kill@1", **settings)
    assert killed.status == -signal.SIGKILL, killed
    async with open_home(tmp_path / "home", **settings) as app:
        await app.ingest([tmp_path / "files"])
        seen = await picture(app)
        assert (seen.documents, seen.chunks, seen.rows) == (reference.documents, reference.chunks, reference.rows)
        assert (await app.check()).problems == []


SEARCHER = """
import asyncio, sys
from penstock.app import open_app
async def main():
    home, database, index = sys.argv[1:]
    searched = 0
    async with open_app(home=home, database=database, index=index, embedder="fake") as app:
        print("open", flush=True)
        while True:
            for mode in ("text", "vector", "hybrid"):
                hits = await app.search("subject", 60, mode=mode)
                ids = [(hit.name, hit.ordinal) for hit in hits]
                assert len(ids) == len(set(ids)), "a chunk was repeated"
                versions = {}
                for hit in hits:
                    versions.setdefault(hit.name, set()).add(hit.text.split("version")[1].split()[0])
                mixed = {name: seen for name, seen in versions.items() if len(seen) > 1}
                assert not mixed, f"generations were mixed: {mixed}"
                if mode != "vector":
                    for name in versions:
                        assert sum(one[0] == name for one in ids) == 4, f"half of {name} was shown: {ids}"
                assert "kept.txt" in versions, "a document that is always there was not shown"
                searched += 1
                print(searched, flush=True)
asyncio.run(main())
"""


INGESTER = """
import asyncio, sys
from penstock.app import open_app
from tests.integration.test_pgvector import document
async def main():
    home, database, index = sys.argv[1:]
    async with open_app(home=home, database=database, index=index, embedder="fake") as app:
        for version in range(100, 1000):
            print(version, flush=True)
            await app.ingest(data=document(version), name="a.txt")
asyncio.run(main())
"""


def document(version: int) -> bytes:
    return "\n\n".join(f"subject version{version} paragraph {i} ".ljust(950, "x") for i in range(4)).encode()


async def test_i5_a_search_never_mixes_generations_while_documents_change(
    start_app: StartApp, places: dict[str, str], tmp_path: Path
) -> None:
    """Another process searches all the time, while documents are added, changed and deleted, and a worker is killed in
    the middle of an ingest, which another one then ends."""
    chance = random.Random(20_261_118)
    app = await start_app(**places)
    await app.ingest(data=document(0), name="kept.txt")
    pipe = asyncio.subprocess.PIPE
    arguments = [str(tmp_path / "home"), places["database"], places["index"]]
    searching = await asyncio.create_subprocess_exec(
        sys.executable, "-c", SEARCHER, *arguments, cwd=ROOT, stdout=pipe, stderr=pipe
    )
    assert searching.stdout is not None
    assert searching.stderr is not None
    ingesting = await asyncio.create_subprocess_exec(
        sys.executable, "-c", INGESTER, *arguments, cwd=ROOT, stdout=pipe, stderr=pipe
    )
    assert ingesting.stdout is not None
    await searching.stdout.readline()
    # It prints a version before it ingests it: the second line says that the first version is searchable.
    lines = [await ingesting.stdout.readline() for _ in range(2)]
    await asyncio.sleep(chance.random() * 0.05)
    os.kill(ingesting.pid, signal.SIGKILL)
    rest, failed = await ingesting.communicate()
    assert ingesting.returncode == -signal.SIGKILL, failed.decode()[-600:]
    begun = int([*lines, *rest.split()][-1])
    await app.run()
    [shown] = {hit.text.split()[1] for hit in await app.search("subject", 60) if hit.name == "a.txt"}
    assert shown in (f"version{begun - 1}", f"version{begun}"), "the last one that was accepted"
    for version in range(1, 9):
        name = chance.choice(["a.txt", "b.txt", "kept.txt"])
        await app.ingest(data=document(version), name=name)
        if name != "kept.txt" and chance.random() < 0.4:
            await app.delete([(await named(app, name)).id])
        if version % 4 == 0:
            await app.ledger.read(lambda connection: connection.script(_SOONER))
    while (await searching.stdout.readline()).strip() == b"":
        assert searching.returncode is None
    alive = searching.returncode is None
    if alive:
        os.kill(searching.pid, signal.SIGKILL)
    output, errors = await searching.communicate()
    assert b"AssertionError" not in errors, errors.decode()[-600:]
    assert alive, errors.decode()[-600:]
    assert len(output.split()) >= 3, "it has searched meanwhile"
