"""The index in a vector database: the whole way of a document, outages of the server, killed workers, and keys."""

import asyncio
import signal
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.conftest import StartApp
from tests.contract.test_index_contract import D, chunk_of, held, rows, vector_of
from tests.crash.harness import LONG, Picture, Player, open_home, picture, playing
from tests.crash.scenarios import write_files
from tests.kit import vector_databases
from tests.kit.apps import found, named, until
from tests.kit.qdrant_server import QdrantServer, Refused
from tests.kit.tables import TABLE
from tests.kit.vector_databases import DATABASES, KEYS, emptied, index_in, serving, setting_of

from penstock.errors import Away, ConfigError, RateLimited, Unauthorized
from penstock.indexes.base import Filter, IndexRows, TextQuery, VectorQuery
from penstock.indexes.servers import make
from penstock.runtime import Runtime

MODES: tuple[Any, ...] = ("text", "vector", "hybrid")
LARGE = {"chunk": {"unit": "characters", "size": 900, "overlap": 0}}

Serve = Callable[..., str]


@pytest.fixture(params=DATABASES)
async def setting(request: pytest.FixtureRequest, vector_databases: Serve, runtime: Runtime) -> Any:
    """The setting that names a server without tables."""
    # The vectors of an app have other dimensions than those of `rows`.
    setting = vector_databases(
        request.param, "" if {"app", "start_app", "player"} & set(request.fixturenames) else "contract"
    )
    async with emptied(lambda: index_in(setting, runtime)) as index:
        yield setting
        index()


async def test_the_whole_way_of_documents(start_app: StartApp, setting: str) -> None:
    app = await start_app(index=setting)
    for name, animal in (("a", "otter"), ("b", "heron"), ("c", "beaver")):
        text = f"# {animal}\n\n" + "".join(f"the {animal} lives here, it is said in line {n}\n\n" for n in range(40))
        await app.ingest(data=text.encode(), name=f"{name}.md", metadata={"animal": animal})
    for mode in MODES:
        assert {hit.name for hit in await app.search("lives", 200, mode=mode)} == {"a.md", "b.md", "c.md"}
        filtered = await app.search("lives", 200, mode=mode, filter={"animal": "otter"})
        assert {hit.name for hit in filtered} == {"a.md"}
    [hit] = await app.search("otter line", 1, context=1)
    assert hit.before or hit.after
    await app.ingest(data=b"the stork lives here", name="b.md")
    assert (await found(app, "heron"), await found(app, "stork")) == (set(), {"b.md"})
    assert await found(app, "storks wading") == {"b.md"}
    await app.delete([(await named(app, "c.md")).id])
    for mode in MODES:
        assert {hit.name for hit in await app.search("lives", 200, mode=mode)} == {"a.md", "b.md"}
    await app.ledger.read(lambda connection: connection.script("UPDATE purges SET not_before = 0"))
    [vacuumed] = (await app.vacuum()).collections
    assert vacuumed.rows_removed > 1
    assert (await app.check()).problems == []

    before = {hit.name: len(hit.text) for hit in await app.search("lives", 200)}
    view = await app.reindex(values=LARGE)
    assert view.state == "done"
    after = {hit.name: len(hit.text) for hit in await app.search("lives", 200)}
    assert after.keys() == before.keys()
    assert after["a.md"] > before["a.md"] or len(await app.search("lives", 200)) < 40
    assert (await app.check()).problems == []

    await app.drop_collection("default")
    await app.ledger.read(lambda connection: connection.script("UPDATE purges SET not_before = 0"))
    await app.prune(older_than_s=0)
    assert (await app.check()).problems == []
    await app.ingest(data=b"the otter is back", name="a.md")
    assert await found(app, "otter") == {"a.md"}


async def test_check_repairs_lost_and_altered_rows(start_app: StartApp, setting: str) -> None:
    app = await start_app(index=setting)
    await app.ingest(data=b"the otter lives here", name="a.txt")
    await app.ingest(data=b"the heron lives here", name="b.txt")
    table = await app.ports.index.open(TABLE._replace(owner="default"))
    assert table is not None
    [altered] = [row async for page in table.scan() for row in page if row.generation == 2]
    vectors = np.ones((1, table.dimensions), np.float32)
    document = (await named(app, "b.txt")).id
    other = IndexRows(altered.generation, altered.epoch, document, [chunk_of(2, 0)], vectors)
    await table.put([other], held, fresh=False)
    await table.delete([1], held)
    assert {problem.kind for problem in (await app.check()).problems} == {"row_missing", "row_differs"}
    assert (await app.check(repair=True)).ok
    assert (await found(app, "otter"), await found(app, "heron")) == ({"a.txt"}, {"b.txt"})


async def test_rows_of_a_later_attempt_are_not_replaced_by_those_of_an_earlier(setting: str, runtime: Runtime) -> None:
    index = index_in(setting, runtime)
    table = await index.create(TABLE, D)
    await table.put([rows(1, 3, epoch=4)], held, fresh=True)
    await table.put([rows(1, 5, epoch=2, text="of an earlier attempt")], held, fresh=False)
    seen = sorted([row async for page in table.scan() for row in page])
    assert [row[:3] for row in seen] == [(1, 0, 4), (1, 1, 4), (1, 2, 4), (1, 3, 2), (1, 4, 2)]
    await index.close()


async def test_i10_rows_and_frequencies_of_other_tables_do_not_matter(setting: str, runtime: Runtime) -> None:
    index = index_in(setting, runtime)
    mine, theirs = await index.create(TABLE, D), await index.create(TABLE._replace(owner="berta"), D)
    await mine.put([rows(1, 1, text="a rare otter"), rows(2, 1, text="a common heron")], held, fresh=True)
    alone = await mine.search(TextQuery("otter heron"), 10)
    await theirs.put([rows(3, 50, text="an otter of another owner")], held, fresh=True)
    mine._known = None
    assert await mine.search(TextQuery("otter heron"), 10) == alone
    assert len(alone) == 2
    assert await mine.count() == 2
    await mine.delete([3], held)
    assert await theirs.count() == 50
    await index.drop(TABLE)
    assert await theirs.count() == 50
    await index.close()


@pytest.fixture(params=DATABASES)
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    """A server of the test's own, and its name as `server.name`."""
    with serving(request.param, tmp_path / "server") as server:
        server.name = request.param
        yield server


async def test_i9_a_server_that_is_killed_in_the_middle_lets_documents_wait(start_app: StartApp, server: Any) -> None:
    app = await start_app(index=setting_of(server.name, server))
    await app.ingest(data=b"the otter lives here", name="first.txt")
    server.stop()
    await app.ingest(data=b"the heron lives here", name="second.txt", wait=False)
    working = asyncio.create_task(app.work())

    async def waits() -> bool:
        return any("does not answer" in str(one) for one in (await app.status()).away)

    await until(waits, 60)
    with pytest.raises(Away, match="does not answer"):
        await app.search("otter")
    server.start()

    async def done() -> bool:
        with suppress(Away):
            return await found(app, "lives") == {"first.txt", "second.txt"}
        return False

    await until(done, 120)
    app.stop()
    await working
    assert (await app.list_dead_letters()).total == 0
    assert (await app.check()).problems == []


async def test_a_wrong_key_is_named_and_never_shown(server: Any, runtime: Runtime) -> None:
    secret = "a-key-that-is-wrong"
    if server.name == "milvus":
        pytest.skip("Milvus Lite accepts every token: see test_errors_of_milvus_are_understood")
    server.key = "another-key"
    wrong = index_in(setting_of(server.name, server), runtime, dict.fromkeys(KEYS, secret))
    with pytest.raises(Unauthorized) as raised:
        await wrong.open(TABLE)
    await wrong.close()
    assert raised.value.setting in KEYS
    assert raised.value.setting in str(raised.value)
    assert secret not in str(raised.value)
    assert raised.value.__cause__ is None
    await wrong.close()


@pytest.mark.parametrize(
    "setting",
    ["qdrant://", "qdrant://key@host", "qdrant://:secret@host:1", "qdrant://host:port", "qdrant://host/path",
     "qdrant://host?api_key=secret", "qdrant://host?tls=yes", "qdrant://host?prefix=a/b", "qdrant://host#x",
     "milvus://", "milvus://root:secret@host", "milvus://host?token=secret", "pinecone://", "pinecone://name/path",
     "pinecone://name?cloud=aws", "pinecone://secret@name"],
)  # fmt: skip
def test_a_wrong_setting_is_refused_and_no_secret_is_shown(setting: str, runtime: Runtime) -> None:
    with pytest.raises(ConfigError) as raised:
        index_in(setting, runtime)
    assert "secret" not in str(raised.value)


def test_a_missing_library_names_the_command_that_installs_it(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.indexes.servers.find_spec", lambda name: None)
    for name in DATABASES:
        with pytest.raises(ConfigError, match=rf"pip install 'penstock-rag\[{name}\]'"):
            make(name, "host", {}, runtime)


POINTS = ("index.append.after", "index.create.before", "ledger.flip.before") if LONG else ("index.append.after",)


@pytest.fixture(scope="module")
def player(vector_databases: Serve) -> Iterator[Player]:
    # Its environment must name the server.
    vector_databases("pinecone")
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
    player: Player, setting: str, tmp_path: Path, reference: Picture, failpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The client of a database takes seconds to load, and more on a busy machine.
    monkeypatch.setattr("tests.crash.harness.PATIENCE_S", 120.0)
    write_files(tmp_path / "files")
    killed = player.play("brief", tmp_path / "home", f"{failpoint}=kill@1", index=setting)
    assert killed.status == -signal.SIGKILL, killed
    async with open_home(tmp_path / "home", index=setting) as app:
        await app.ingest([tmp_path / "files"])
        seen = await picture(app)
        assert (seen.documents, seen.chunks, seen.rows) == (reference.documents, reference.chunks, reference.rows)
        assert (await app.check()).problems == []


async def test_limits_and_failures_of_the_server_are_understood(tmp_path: Path, runtime: Runtime) -> None:
    server = QdrantServer(tmp_path / "server").start()
    index = index_in(f"qdrant://{server.address}", runtime)
    table = await index.create(TABLE, D)
    answers: list[int] = []

    def before(method: str, path: str) -> None:
        if answers:
            raise Refused(answers.pop(), "not now")

    server.before = before
    answers[:] = [503]
    assert await table.count() == 0, "one failure is repeated"
    answers[:] = [503] * 3
    with pytest.raises(Away, match="does not work") as away:
        await table.count()
    assert away.value.target == f"qdrant://{server.address}"
    answers[:] = [429]
    with pytest.raises(RateLimited) as limited:
        await table.put([rows(1, 2)], held, fresh=True)
    assert limited.value.retry_after == 7.0
    answers.clear()
    assert await table.count() == 0
    await index.close()
    server.stop()


async def test_both_engines_of_qdrant_find_the_same(setting: str, runtime: Runtime) -> None:
    """The client without a server is another implementation, by the same authors."""
    if not setting.startswith("qdrant"):
        pytest.skip("this is about Qdrant")
    memory = vector_databases.qdrant_in_memory()(runtime)
    served = index_in(setting, runtime)
    answers = []
    for index in (memory, served):
        table = await index.create(TABLE, D)
        await table.put([rows(g, 4, text=f"the otter of pool {g} " + "swims " * g) for g in range(1, 30)], held,
                        fresh=True)  # fmt: skip
        await table.put([rows(5, 2, epoch=0, text="stale")], held, fresh=False)
        await table.delete([7], held)
        found = []
        for where in (Filter(), Filter([3, 4]), Filter([3], [3, 5, 9]), Filter((), [])):
            for query in (VectorQuery(vector_of(9, 1)), TextQuery("otter 9 swims"), TextQuery("swims ottr", "grams")):
                hits = await table.search(query, 20, where)
                found.append({hit[:2]: hit.score for hit in hits})
        answers.append(found)
        await index.close()
    for one, other in zip(*answers, strict=True):
        # Scores differ in their last digits, and with them the order of rows that are equally good.
        assert sorted(one.values()) == pytest.approx(sorted(other.values()), abs=1e-4)
        least = min(one.values(), default=0) + 1e-3
        assert {key for key in one if one[key] > least} == {key for key in other if other[key] > least}


def test_errors_of_milvus_are_understood() -> None:
    """Milvus Lite has no keys and no limits."""
    from pymilvus import MilvusException
    from pymilvus.exceptions import ParamError

    from penstock.indexes.milvus import explain

    seen = {
        (65535, "auth check failure, please check username and password are correct"): 401,
        (1401, "not authenticated"): 401,
        (8, "rate limit exceeded"): 429,
        (9, "quota exceeded"): 429,
        (2, "Fail connecting to server on 127.0.0.1:1"): 0,
        (100, "collection not found"): 404,
        (503, "channel not available"): 503,
        (1100, "invalid parameter"): 400,
    }
    for (code, said), status in seen.items():
        fault = explain(MilvusException(code, said))
        assert fault is not None
        assert fault.status == status, said
    refused = explain(ParamError(message="wrong"))
    assert refused is not None
    assert refused.status == 400
    assert explain(ValueError("ours")) is None


async def test_i5_a_put_into_pinecone_returns_when_searches_find_its_rows(tmp_path: Path, runtime: Runtime) -> None:
    with serving("pinecone", tmp_path) as server:
        index = index_in(setting_of("pinecone", server), runtime)
        table = await index.create(TABLE, D)
        server.lag_s = 0.3
        for server.tells_position in (True, False):
            generation = 1 + server.tells_position
            await table.put([rows(generation, 450)], held, fresh=True)
            found = await table.search(VectorQuery(vector_of(generation, 449)), 1_000, Filter((), [generation]))
            assert len(found) == 450
        await index.close()


async def test_a_chunk_that_the_server_cannot_store_fails_its_document_alone(
    start_app: StartApp, vector_databases: Serve, runtime: Runtime
) -> None:
    setting = vector_databases("pinecone")
    async with emptied(lambda: index_in(setting, runtime)) as index:
        app = await start_app(index=setting, chunk={"unit": "characters", "size": 100_000, "overlap": 0})
        await app.ingest(data=b"the otter lives here", name="good.txt", wait=False)
        await app.ingest(data=b"otter " * 12_000, name="large.txt", wait=False)
        await app.run()
        assert await found(app, "otter") == {"good.txt"}
        assert (await app.list_dead_letters()).by_reason == {"chunk_too_large": 1}
        index()
