"""`steps`, `workers`, `lock`, `bench`: what a person sees of the engine, and what nothing is left of."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from scripts.reference import SHAPES
from tests.acceptance.test_json import fits
from tests.kit.cli import Cli, finish, write

from penstock.bench.queue import targets

KEY = "index:default/default/1"
HOLDER = """
import asyncio
from penstock.app import open_app
async def main():
    async with open_app() as app, app.hold_index():
        print("held", flush=True)
        await asyncio.sleep(60)
asyncio.run(main())
"""


@pytest.fixture
def home(cli: Cli) -> None:
    cli("db", "migrate")


@contextmanager
def holder(cli: Cli) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER], cwd=cli.folder, env=cli.environment(), stdout=subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        yield process
    finally:
        process.kill()
        process.communicate()


def test_steps_are_listed_by_status_and_kind(cli: Cli) -> None:
    folder = write(cli.folder / "files", a__txt="some words")
    (folder / "noise.bin").write_bytes(b"%PDF-1.7\n" + bytes(range(256)) * 40)
    cli("ingest", folder)
    [failed] = cli("steps", "--status", "failed", "--json").json["steps"]
    assert (failed["document"], failed["name"], failed["status"]) == ("noise.bin", "extract", "FAILED")
    assert "noise.bin: " + failed["error"] in cli("steps", "--status", "FAILED").out
    names = [step["name"] for step in cli("steps", "--json").json["steps"] if step["document"] == "a.txt"]
    assert names == ["index", "embed", "chunk", "clean", "extract", "validate"]
    assert [step["name"] for step in cli("steps", "--kind", "chunk", "--json").json["steps"]] == ["chunk"]
    assert len(cli("steps", "--limit", "2", "--json").json["steps"]) == 2
    assert cli("steps", "--stuck", "1h", "--json").json == {"steps": []}
    assert cli("steps", "--stuck", "1h").out == "no such steps\n"


@pytest.mark.usefixtures("home")
@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--status", "DONE"], "status 'DONE': use one of PENDING, RUNNING"),
        (["--stuck", "long"], "--stuck 'long': use a time as in 60s, 5m or 1h30m"),
    ],
)
def test_a_wrong_question_is_refused_with_a_sentence(cli: Cli, arguments: list[str], sentence: str) -> None:
    answer = cli("steps", *arguments, "--json")
    assert answer.code == 2
    assert answer.json["error"].startswith(sentence)


@pytest.mark.usefixtures("home")
def test_nobody_works_and_no_lock_is_held(cli: Cli) -> None:
    assert cli("workers").out == "no workers\n"
    assert cli("workers", "--json").json == {"workers": []}
    assert cli("lock", "list").out == "no locks are held\n"
    assert cli("lock", "list", "--json").json == {"locks": [], "released": []}
    for force in ([], ["--force"]):
        answer = cli("lock", "release", KEY, *force, "--json")
        assert answer.code == 2
        assert answer.json == {"error": f"the lock '{KEY}' is not held: `penstock lock list` shows the held locks"}


def test_a_lock_is_shown_refused_and_taken_away(cli: Cli) -> None:
    with holder(cli) as process:
        workers = cli("workers", "--json").json
        assert fits(SHAPES["workers"][""], workers)
        [worker] = workers["workers"]
        assert (worker["pid"], worker["alive"], worker["steps"]) == (process.pid, True, 0)
        [lock] = cli("lock", "list", "--json").json["locks"]
        assert (lock["key"], lock["purpose"], lock["pid"], lock["worker"]) == (KEY, "hold", process.pid, worker["id"])
        refused = cli("lock", "release", KEY)
        assert refused.code == 2
        assert f"pid {process.pid} (for: hold): wait, or take it with --force" in refused.err
        assert cli("lock", "release", KEY, "--owner", "bert", "--force").code == 2
        assert len(cli("lock", "list", "--json").json["locks"]) == 1
        released = cli("lock", "release", KEY, "--force", "--json")
        assert released.code == 0
        assert fits(SHAPES["lock release"][""], released.json)
        shown = cli("lock", "list", "--json").json
        assert shown["locks"] == []
        [written] = shown["released"]
        assert written["worker"] == worker["id"]
        assert "@" in written["released_by"]
        assert written["released_at"].endswith("Z")
        assert written["released_by"] in cli("lock", "list").out
        with holder(cli):
            assert fits(SHAPES["lock list"][""], cli("lock", "list", "--json").json)


@pytest.mark.usefixtures("home")
def test_a_vacuum_names_the_holder_of_a_lock_and_takes_it_away_on_request(cli: Cli) -> None:
    assert cli("vacuum").out == "nothing to vacuum\n"
    cli("ingest", write(cli.folder / "files", a__txt="some words"))
    with holder(cli) as process:
        answer = cli("vacuum", "--wait", "0", "--json")
        assert answer.code == 1
        assert answer.json["collections"] == []
        [busy] = answer.json["busy"]
        assert (busy["collection"], busy["pid"], busy["purpose"]) == ("default", process.pid, "hold")
        assert busy["until"].endswith("Z")
        said = cli("vacuum", "--wait", "0.2s")
        assert said.code == 1
        assert f"busy: default is held by worker {busy['worker']} on " in said.out
        assert f"pid {process.pid} (for: hold)" in said.out
        forced = cli("vacuum", "--force", "--json")
        assert forced.code == 0
        assert fits(SHAPES["vacuum"][""], forced.json)
        [released] = cli("lock", "list", "--json").json["released"]
        assert (released["worker"], released["purpose"]) == (busy["worker"], "hold")
    assert cli("check", "--json").json["ok"] is True


@pytest.mark.usefixtures("home")
@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--wait", "long"], "--wait 'long': use a time as in 60s, 5m or 1h30m"),
        (["--collection", "nope"], "no collection 'nope'"),
        (["--collection", "../nope"], "collection '../nope': use at most 100 letters"),
    ],
)
def test_a_wrong_vacuum_is_refused_with_a_sentence(cli: Cli, arguments: list[str], sentence: str) -> None:
    answer = cli("vacuum", *arguments, "--json")
    assert answer.code == 2
    assert answer.json["error"].startswith(sentence)


def test_a_dead_worker_is_marked_until_somebody_takes_its_place(cli: Cli) -> None:
    with holder(cli) as process:
        process.kill()
        process.wait()
        assert [worker["alive"] for worker in cli("workers", "--json").json["workers"]] == [False]
        answer = cli("workers")
        assert answer.out.splitlines()[1].endswith("dead")
        assert "1 worker died" in answer.err
        cli("run")
        assert cli("workers", "--json").json == {"workers": []}


def test_the_queue_is_measured_on_sqlite_and_nothing_stays(cli: Cli) -> None:
    cli.home.mkdir()
    answer = cli("bench", "queue", "--documents", "4", "--workers", "2", "--json")
    assert answer.code == 0, answer.err
    figures = answer.json
    missed = figures.pop("missed")
    assert all(figure > 0 for figure in figures.values())
    assert set(missed) <= set(targets("sqlite"))
    assert ("transactions_per_step" in missed) == (figures["transactions_per_step"] > 1.3)
    assert figures["ratio"] == pytest.approx(figures["drain_steps_per_s"] / figures["bare_claim_steps_per_s"], abs=0.01)
    assert figures["latency_p50_ms"] <= figures["latency_p99_ms"]
    assert list(cli.home.iterdir()) == []


def schemas(url: str) -> list[str]:
    import psycopg

    with psycopg.connect(url) as connection:
        found = connection.execute("SELECT nspname FROM pg_namespace WHERE nspname LIKE 'penstock_bench_%'").fetchall()
    return [row[0] for row in found]


def test_the_queue_is_measured_on_postgres_and_nothing_stays(cli: Cli, empty_postgres: str) -> None:
    answer = cli("bench", "queue", "--database", empty_postgres, "--documents", "4", "--json")
    assert answer.code == 0, answer.err
    assert answer.json["transactions_per_step"] > 0
    assert schemas(empty_postgres) == []
    assert not cli.home.exists()


@pytest.mark.parametrize("dialect", ["sqlite", "postgres"])
def test_an_interrupted_bench_leaves_nothing_behind(cli: Cli, dialect: str, request: pytest.FixtureRequest) -> None:
    cli.home.mkdir()
    database = request.getfixturevalue("empty_postgres") if dialect == "postgres" else f"sqlite:///{cli.home}/x.db"

    def places() -> list[str] | list[Path]:
        return schemas(database) if dialect == "postgres" else list(cli.home.iterdir())

    process = cli.start("bench", "queue", "--database", database, "--documents", "100000", "--json")
    limit = time.monotonic() + 20
    while not places() and time.monotonic() < limit:
        time.sleep(0.05)
    assert len(places()) == 1
    time.sleep(0.5)
    os.kill(process.pid, signal.SIGINT)
    answer = finish(process)
    assert answer.code == 130
    assert answer.json == {"error": "interrupted"}
    assert places() == []


@pytest.mark.parametrize(
    ("url", "sentence"),
    [
        ("mysql://x", "use sqlite:///FILE or postgresql://"),
        ("postgresql://me:secret@127.0.0.1:1/none", "does not answer"),
    ],
)
def test_a_database_that_cannot_be_measured_is_named(cli: Cli, url: str, sentence: str) -> None:
    answer = cli("bench", "queue", "--database", url, "--json")
    assert answer.code in (1, 2)
    assert sentence in answer.json["error"]
    assert "secret" not in answer.out + answer.err
