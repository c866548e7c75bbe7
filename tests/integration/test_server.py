"""A PostgreSQL server that stops, hangs, is demoted or refuses everybody: whoever needs it waits, says so, and goes on
when it is back."""

import asyncio
import os
import re
import signal
import subprocess
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.kit.apps import until
from tests.kit.cli import Cli, finish
from tests.kit.ledger import Desk
from tests.kit.postgres import Server, a_server

from penstock.errors import ConfigError, LedgerAway, UsageError
from penstock.ledger.database import workers
from penstock.ledger.database.connection import Connection
from penstock.ledger.database.database import Database
from penstock.ledger.database.liveness import AdvisoryLiveness
from penstock.ledger.database.store import Ledger
from penstock.ledger.database.writer import Verb
from penstock.ledger.engine import work
from penstock.metrics.base import NULL_METRICS
from penstock.model.nouns import WorkerId
from penstock.net import postgres_away as away
from penstock.runtime import Runtime
from penstock.worker.heartbeat import RETURN_S, reap

LONG = os.environ.get("PENSTOCK_LONG") == "1"


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with a_server() as server:
        yield server


@asynccontextmanager
async def opened(url: str, limit_s: float | None = 30.0) -> AsyncIterator[tuple[Ledger, list[str]]]:
    """A ledger, and what is said meanwhile."""
    runtime, said = Runtime(), list[str]()
    ledger = Ledger(Database(url, runtime))
    ledger.database.outage_wait.limit_s = limit_s
    ledger.database.outage_wait.say = said.append
    try:
        await ledger.open()
        yield ledger, said
    finally:
        await ledger.close()
        runtime.close()


def _slow(connection: Connection, items: Sequence[None]) -> list[str]:
    connection.script("SELECT pg_sleep(0.05)")
    return ["slept" for _ in items]


SLOW = Verb("test_slow", _slow)


async def _said(said: list[str]) -> None:
    async def something() -> bool:
        return bool(said)

    await until(something, 20)


async def _read_on(ledger: Ledger) -> None:
    """Reads that are answered are no reason to think that writes will be."""
    while True:
        await ledger.read(work.paces)
        await asyncio.sleep(0.05)


Fault = tuple[Callable[[Server], None], Callable[[Server], None], str]
FAULTS: dict[str, Fault] = {
    "stopped": (Server.stop, Server.start, "does not answer|closed the connection"),
    "read only": (
        lambda server: server.configure("default_transaction_read_only", "on"),
        lambda server: server.configure("default_transaction_read_only", None),
        "refuses to work: cannot execute .* in a read-only transaction",
    ),
    "statement_timeout": (
        lambda server: server.configure("statement_timeout", "20ms"),
        lambda server: server.configure("statement_timeout", None),
        "refuses to work: canceling statement due to statement timeout",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
async def test_reads_and_writes_wait_for_a_server_and_say_so_once(server: Server, name: str) -> None:
    spoil, mend, sentence = FAULTS[name]
    async with opened(server.url) as (ledger, said):
        await ledger.write(work.KEEP_PACES, {"extract": 1.0})
        await ledger.read(work.paces)
        spoil(server)
        try:
            reading = asyncio.ensure_future(_read_on(ledger))
            waiting = [
                asyncio.ensure_future(ledger.write(SLOW, None)),
                asyncio.ensure_future(ledger.write(work.KEEP_PACES, {"extract": 2.0})),
                asyncio.ensure_future(ledger.read(work.paces)),
            ]
            await _said(said)
        finally:
            mend(server)
            reading.cancel()
        async with asyncio.timeout(20):
            assert (await asyncio.gather(*waiting))[0] == "slept"
        assert await ledger.read(work.paces) == {"extract": 2.0}
    assert len(said) == 2, said
    assert re.search(sentence, said[0]), said
    assert "Waiting for it; what is done is kept." in said[0]
    assert said[1] == "The database is back."


async def test_a_server_without_a_free_connection_is_waited_for(server: Server) -> None:
    server.admin("CREATE ROLE guest LOGIN CONNECTION LIMIT 0", "CREATE DATABASE guests OWNER guest")
    url = server.url.replace("//postgres", "//guest").replace("/postgres?", "/guests?")
    opening = asyncio.ensure_future(_once(url))
    await asyncio.sleep(0.3)
    assert not opening.done()
    server.admin("ALTER ROLE guest CONNECTION LIMIT -1")
    async with asyncio.timeout(20):
        await opening


async def _once(url: str) -> None:
    async with opened(url) as (ledger, _):
        await ledger.write(work.KEEP_PACES, {"extract": 1.0})


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(away, "HANG_S", 0.5)
    monkeypatch.setattr(away, "LOOK_S", 0.1)
    monkeypatch.setattr(away, "PROBE_S", 2)


async def test_i6_a_server_that_stands_still_is_noticed_and_nothing_is_done_twice(server: Server, hasty: None) -> None:
    url = server.url + "&connect_timeout=2"
    async with opened(url, None) as (ledger, said):
        await ledger.write(SLOW, None)
        await ledger.read(work.paces)
        with server.frozen():
            asking = [asyncio.ensure_future(ledger.write(_COUNT, None)) for _ in range(3)]
            reading = asyncio.ensure_future(ledger.read(work.paces))
            await _said(said)
            assert not any(task.done() for task in (*asking, reading))
        async with asyncio.timeout(30):
            await asyncio.gather(*asking, reading)
        assert (await ledger.read(work.paces))["counted"] == 3


_ADD_ONE = (
    "INSERT INTO paces (kind, seconds) VALUES ('counted', 1) "
    "ON CONFLICT (kind) DO UPDATE SET seconds = paces.seconds + 1"
)


def _count(connection: Connection, items: Sequence[None]) -> list[None]:
    for _ in items:
        connection.script(_ADD_ONE)
    return [None for _ in items]


_COUNT = Verb("test_count", _count)


async def test_a_slow_statement_of_a_server_that_answers_is_left_alone(server: Server, hasty: None) -> None:
    async with opened(server.url) as (ledger, said):
        assert await ledger.read(lambda c: c.script("SELECT 7, pg_sleep(1.2)")) == [(7, "")]
        assert said == []


async def test_a_call_gives_up_when_its_patience_is_over(server: Server) -> None:
    async with opened(server.url, 2.0) as (ledger, said):
        server.stop()
        try:
            began = time.monotonic()
            with pytest.raises(LedgerAway):
                await asyncio.gather(*(ledger.write(SLOW, None) for _ in range(50)))
            with pytest.raises(LedgerAway):
                await ledger.read(work.paces)
            assert time.monotonic() - began < 15.0, "together, not each in turn"
        finally:
            server.start()
        assert await ledger.write(SLOW, None) == "slept"
    assert len(said) == 2, said


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda url: url.replace("/postgres?", "/nowhere?"), 'database "nowhere" does not exist'),
        (lambda url: url.replace("//postgres", "//nobody"), 'role "nobody" does not exist'),
    ],
)
async def test_what_is_wrong_with_the_url_is_said_at_once(
    server: Server, change: Callable[[str], str], said: str
) -> None:
    with pytest.raises(UsageError, match=said):
        async with opened(change(server.url), None):
            pass


def test_parameters_of_the_url_win_over_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = Database("postgresql://h/db", Runtime()).server.parameters
    assert (ours["connect_timeout"], ours["tcp_user_timeout"], ours["keepalives_idle"]) == ("10", "20000", "10")
    given = Database(
        "postgresql://h/db?connect_timeout=3&keepalives_idle=77&application_name=mine", Runtime()
    ).server.parameters
    assert (given["connect_timeout"], given["keepalives_idle"], given["application_name"]) == ("3", "77", "mine")
    monkeypatch.setenv("PGCONNECT_TIMEOUT", "4")
    assert "connect_timeout" not in Database("postgresql://h/db", Runtime()).server.parameters
    with pytest.raises(ConfigError, match="…@h"):
        _ = Database("postgresql://me:secret@h/db?nonsense=1", Runtime()).server.parameters


async def test_i7_a_worker_that_lost_its_connection_too_is_not_reaped_before_it_could_return(postgres: str) -> None:
    async with opened(postgres) as (ledger, _):
        desk = Desk(ledger)
        step = await desk.started(worker="w2")
        await ledger.write(workers.REGISTER, workers.Worker(WorkerId("w2"), "there", 1))
        clock = ledger.database.runtime.clock

        async def reap_once() -> int:
            return await reap(ledger, AdvisoryLiveness(), WorkerId("w1"), frozenset(), 5, NULL_METRICS)

        ledger.database.outage_wait.lost_at = clock()
        assert await reap_once() == 0
        ledger.database.outage_wait.lost_at = clock() - 2 * RETURN_S
        assert await reap_once() == 1
        assert await desk.step(step, "crashes") == 1


# The command line


@pytest.fixture
def cli(server: Server, tmp_path: Path) -> Cli:
    server.admin("DROP SCHEMA public CASCADE", "CREATE SCHEMA public")
    return Cli(tmp_path / "home", tmp_path, {"PENSTOCK_DATABASE": server.url})


def test_a_command_waits_for_its_server_and_says_so(cli: Cli, server: Server) -> None:
    assert cli("status").code == 0
    server.stop()
    try:
        process = cli.start("status", "--json", stdin=subprocess.DEVNULL)
        assert process.stderr is not None
        line = process.stderr.readline().decode()
    finally:
        server.start()
    result = finish(process)
    assert "Waiting for it; what is done is kept." in line
    assert (result.code, result.json["documents"]) == (0, {})


def _write(folder: Path, count: int) -> Path:
    folder.mkdir()
    for i in range(count):
        (folder / f"{i}.txt").write_text(f"{folder.name} number {i}\n" * 400)
    return folder


def test_a_worker_waits_for_its_server_from_the_start_and_over_restarts(
    cli: Cli, server: Server, tmp_path: Path
) -> None:
    """Without a traceback, a crash that is counted, or a new name."""
    assert cli("ingest", _write(tmp_path / "files", 60), "--no-wait").code == 0
    server.stop()
    worker = cli.start("worker", stdin=subprocess.DEVNULL)
    try:
        assert worker.stderr is not None
        assert b"does not answer" in worker.stderr.readline()
        server.start()
        for _ in range(6 if LONG else 2):
            time.sleep(1.0)
            server.stop()
            server.start()
        deadline = time.monotonic() + 60
        while (done := cli("status", "--json").json["documents"].get("COMPLETED")) != 60:
            assert time.monotonic() < deadline, done
            assert worker.poll() is None
            time.sleep(0.2)
        assert _ask(server, "SELECT count(*) FROM workers") == 1
        assert _ask(server, "SELECT max(crashes) FROM steps") == 0
        worker.send_signal(signal.SIGTERM)
        result = finish(worker)
    finally:
        worker.kill()
    assert result.code == 0
    assert "Traceback" not in result.err
    assert "never retrieved" not in result.err
    assert cli("check", "--json").json["ok"]


def test_a_worker_that_waits_for_its_server_is_stopped(cli: Cli, server: Server) -> None:
    server.stop()
    try:
        worker = cli.start("worker", stdin=subprocess.DEVNULL)
        assert worker.stderr is not None
        assert b"does not answer" in worker.stderr.readline()
        worker.send_signal(signal.SIGTERM)
        began = time.monotonic()
        result = finish(worker)
        assert time.monotonic() - began < 5.0
    finally:
        server.start()
    assert result.code == 0
    assert "Traceback" not in result.err


def _ask(server: Server, text: str) -> Any:
    import psycopg

    with psycopg.connect(server.url) as connection:
        row = connection.execute(text.encode()).fetchone()
        assert row is not None
        return row[0]
