"""The baselines in plain SQL, without the engine: claim and finish steps with two commits per step, insert the rows of
a submit, wait for a row and claim it."""

import asyncio
import sqlite3
import threading
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, closing

from penstock.bench.place import Place
from penstock.ledger.database.database import Database
from penstock.ledger.database.notifier import LOOK_S
from penstock.ledger.database.statements import Statement
from penstock.runtime import Runtime

TABLE = "create table bare_step(id {id} primary key, step int default 0, status text default 'todo', holder text)"
INDEX = "create index bare_todo on bare_step(id) where status='todo'"
CLAIM = """update bare_step set status='doing', holder={0} where id in (
  select id from bare_step where status='todo' order by id limit 1 {lock}) returning id, step"""
FINISH = """update bare_step set step=step+1,
  status=case when step+1>={0} then 'done' else 'todo' end where id={1} and holder={2}"""

_WORKFLOW = '{"id":"bare","name":"bare","steps":[]}'
Loop = Callable[[], Awaitable[None]]
Wait = Callable[[], Awaitable[float]]


async def claim_rate(place: Place, runtime: Runtime, documents: int, steps: int, claimers: int) -> float:
    """Steps per second. SQLite has one claimer, because several would only wait for each other."""
    if place.schema is not None:
        return await _postgres(place, runtime, documents, steps, claimers)
    stop = threading.Event()
    try:
        return await runtime.run_blocking("cpu", _sqlite, place, runtime, documents, steps, stop)
    finally:
        stop.set()


def _sqlite(place: Place, runtime: Runtime, documents: int, steps: int, stop: threading.Event) -> float:
    db = sqlite3.connect(place.folder / "bare.db", isolation_level=None, timeout=30)
    try:
        db.execute("pragma journal_mode=wal")
        db.execute("pragma synchronous=full")
        db.execute(TABLE.format(id="integer"))
        db.execute(INDEX)
        db.execute("begin")
        db.executemany("insert into bare_step(id) values(?)", [(i,) for i in range(documents)])
        db.execute("commit")
        claim, finish = CLAIM.format("?", lock=""), FINISH.format("?", "?", "?")
        began = runtime.clock()
        while not stop.is_set() and (rows := db.execute(claim, ("me",)).fetchall()):
            db.execute(finish, (steps, rows[0][0], "me"))
        return documents * steps / (runtime.clock() - began)
    finally:
        db.close()


async def _postgres(place: Place, runtime: Runtime, documents: int, steps: int, claimers: int) -> float:
    def prepare() -> None:
        with closing(Database(place.url, runtime).connect()) as connection:
            connection.script(TABLE.format(id="bigint"))
            connection.script(INDEX)
            connection.script(f"insert into bare_step select g from generate_series(1, {documents}) g")

    await runtime.run_blocking("cpu", prepare)
    async with AsyncExitStack() as stack:
        loops = [await _claimer(place, str(i), steps, stack) for i in range(claimers)]
        began = runtime.clock()
        await asyncio.gather(*(loop() for loop in loops))
        return documents * steps / (runtime.clock() - began)


async def _claimer(place: Place, name: str, steps: int, stack: AsyncExitStack) -> Loop:
    """Use asyncpg if it is installed: the faster driver makes the fairer baseline."""
    try:
        import asyncpg
    except ImportError:
        return await _psycopg_claimer(place, name, steps, stack)
    connection = await asyncpg.connect(place.url)
    stack.push_async_callback(connection.close)
    claim = CLAIM.format("$1", lock="for update skip locked")
    finish = FINISH.format("$1", "$2", "$3")

    async def loop() -> None:
        while row := await connection.fetchrow(claim, name):
            await connection.execute(finish, steps, row["id"], name)

    return loop


async def _psycopg_claimer(place: Place, name: str, steps: int, stack: AsyncExitStack) -> Loop:
    import psycopg

    connection = await psycopg.AsyncConnection.connect(place.url, autocommit=True, prepare_threshold=1)
    stack.push_async_callback(connection.close)
    claim = CLAIM.format("%s", lock="for update skip locked").encode()
    finish = FINISH.format("%s", "%s", "%s").encode()

    async def loop() -> None:
        while row := await (await connection.execute(claim, (name,))).fetchone():
            await connection.execute(finish, (steps, row[0], name))

    return loop


_ROW = "id text, n bigint"
_COMMON = "'bare', 'default'"
# The rows that a submit inserts, without lookups, ranks and results.
INSERTS = (
    Statement(
        "INSERT INTO documents (id, owner, collection, source, name, size, sha256, status, created_at, updated_at) "
        f"SELECT r.id, {_COMMON}, '/' || r.n, r.id, 0, r.id, 'PENDING', {{now}}, {{now}} FROM {{rows}} WHERE true",
        rows=_ROW,
    ),
    Statement(
        "INSERT INTO generations (id, document_id, owner, collection, index_version, state, raw_key, size, sha256, "
        f"created_at) SELECT r.n, r.id, {_COMMON}, 1, 'BUILDING', r.id, 0, r.id, {{now}} FROM {{rows}} WHERE true",
        rows=_ROW,
    ),
    Statement(
        "INSERT INTO runs (id, document_id, generation_id, owner, snapshot, settings, status, priority, rank, "
        "created_at) SELECT r.id, r.id, r.n, 'bare', 'bare', 's', 'OPEN', 0, r.n, {now} FROM {rows} WHERE true",
        rows=_ROW,
    ),
    Statement(
        "INSERT INTO steps (run_id, position, document_id, generation_id, owner, snapshot, name, kind, status, "
        "priority, rank, created_at) SELECT r.id, 0, r.id, r.n, 'bare', 'bare', 's0', 'bare', 'PENDING', 0, r.n, {now} "
        "FROM {rows} WHERE true",
        rows=_ROW,
    ),
)
FIRST = 10**9
"""The first id of these rows, above all ids of the engine."""


async def insert_rate(place: Place, runtime: Runtime, documents: int, batch: int) -> float:
    """Documents per second, inserted into the tables of the ledger with one transaction per batch. Their steps have a
    kind that no worker claims."""
    ids = [(id_, FIRST + n) for n, id_ in enumerate(runtime.ulids(documents))]

    def insert() -> float:
        with closing(Database(place.url, runtime).connect(hot=True)) as connection:
            connection.script("INSERT INTO collections (owner, name, created_at) VALUES ('bare', 'default', 0)")
            connection.script(f"INSERT INTO snapshots (hash, body) VALUES ('bare', '{_WORKFLOW}')")
            began = runtime.clock()
            for start in range(0, documents, batch):
                connection.begin()
                for statement in INSERTS:
                    connection.run(statement, ids[start : start + batch])
                connection.commit()
            return documents / (runtime.clock() - began)

    return await runtime.run_blocking("cpu", insert)


async def bare_listener(place: Place, runtime: Runtime, stack: AsyncExitStack) -> Wait:
    """Returns a function that inserts a row and returns the seconds until a listener has claimed it. The listener uses
    NOTIFY on PostgreSQL, and on SQLite polls `data_version` as often as a worker."""
    return await (_sqlite_listener if place.schema is None else _postgres_listener)(place, runtime, stack)


async def _sqlite_listener(place: Place, runtime: Runtime, stack: AsyncExitStack) -> Wait:
    here, there = (sqlite3.connect(place.folder / "bare.db", isolation_level=None) for _ in range(2))
    stack.callback(here.close)
    stack.callback(there.close)
    for db in (here, there):
        db.execute("pragma synchronous=full")
    claim = CLAIM.format("?", lock="")

    async def listen(claimed: asyncio.Future[float]) -> None:
        seen = there.execute("pragma data_version").fetchall()
        # The row arrives at a random moment of the polling interval.
        await runtime.sleep(LOOK_S * runtime.random())
        while there.execute("pragma data_version").fetchall() == seen:
            await runtime.sleep(LOOK_S)
        there.execute(claim, ("me",)).fetchall()
        claimed.set_result(runtime.clock())

    async def wait() -> float:
        claimed: asyncio.Future[float] = asyncio.get_running_loop().create_future()
        listening = asyncio.create_task(listen(claimed))
        await runtime.sleep(0)
        began = runtime.clock()
        here.execute("insert into bare_step(id) values((select max(id) + 1 from bare_step))")
        await listening
        return claimed.result() - began

    return wait


async def _postgres_listener(place: Place, runtime: Runtime, stack: AsyncExitStack) -> Wait:
    import psycopg

    here, there, ear = [
        await psycopg.AsyncConnection.connect(place.url, autocommit=True, prepare_threshold=1) for _ in range(3)
    ]
    for connection in (here, there, ear):
        stack.push_async_callback(connection.close)
    claim = CLAIM.format("%s", lock="for update skip locked").encode()
    heard = asyncio.Event()
    await ear.execute("LISTEN bare")

    def hear() -> None:
        ear.pgconn.consume_input()
        while ear.pgconn.notifies():
            heard.set()

    loop = asyncio.get_running_loop()
    loop.add_reader(ear.fileno(), hear)
    stack.callback(loop.remove_reader, ear.fileno())

    async def listen() -> float:
        await heard.wait()
        await (await there.execute(claim, ("me",))).fetchone()
        return runtime.clock()

    async def wait() -> float:
        heard.clear()
        listening = asyncio.create_task(listen())
        began = runtime.clock()
        async with here.transaction():
            await here.execute("insert into bare_step(id) values((select max(id) + 1 from bare_step))")
            await here.execute("NOTIFY bare")
        return await listening - began

    return wait
