"""The bare SQL bound: claim and finish no-op steps by hand, two commits a step, with no engine around it."""

import asyncio
import sqlite3
import threading
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, closing

from penstock.bench.place import Place
from penstock.ledger.database import PostgresConnection
from penstock.runtime import Runtime

TABLE = "create table bare_step(id {id} primary key, step int default 0, status text default 'todo', holder text)"
INDEX = "create index bare_todo on bare_step(id) where status='todo'"
CLAIM = """update bare_step set status='doing', holder={0} where id in (
  select id from bare_step where status='todo' order by id limit 1 {lock}) returning id, step"""
FINISH = """update bare_step set step=step+1,
  status=case when step+1>={0} then 'done' else 'todo' end where id={1} and holder={2}"""

Loop = Callable[[], Awaitable[None]]


async def claim_rate(place: Place, runtime: Runtime, documents: int, steps: int, claimers: int) -> float:
    """Steps a second. SQLite has one claimer: more would only wait for each other."""
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
        with closing(PostgresConnection(place.url, runtime)) as connection:
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
    """With asyncpg, where it is installed: the quicker of the two is the fairer bound."""
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
