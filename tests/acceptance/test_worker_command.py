"""`penstock worker` from the outside: it works while others submit, and goes without leaving anything behind."""

import os
import signal
import sqlite3
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from scripts.reference import SHAPES
from tests.acceptance.test_cli_work import counts, large_text
from tests.kit.busy import Stopwatch, slowness
from tests.kit.cli import Cli, finish, write


def until(true: Callable[[], object], what: str, seconds: float = 90) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def wait_for_documents(cli: Cli, count: int) -> None:
    until(lambda: cli("status", "--json").json["documents"] == {"COMPLETED": count}, "they are not done")


def ask(cli: Cli, query: str) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(cli.home / "ledger.db", timeout=5)) as ledger:
        return ledger.execute(query).fetchall()


def pids(cli: Cli) -> list[int]:
    return sorted(row[0] for row in ask(cli, "SELECT pid FROM workers"))


def is_alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", "rb") as stat:
            return stat.read().rsplit(b")", 1)[1].split()[0] != b"Z"
    except FileNotFoundError:
        return False


@contextmanager
def started(cli: Cli, *options: str) -> Iterator[subprocess.Popen[bytes]]:
    process = cli.start("worker", *options, "--json", start_new_session=True)
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


@pytest.mark.parametrize("dialect", ["sqlite", "postgres"])
def test_it_works_while_others_submit(cli: Cli, tmp_path: Path, dialect: str, request: pytest.FixtureRequest) -> None:
    if dialect == "postgres":
        cli.settings["PENSTOCK_DATABASE"] = request.getfixturevalue("postgres")
    cli("db", "migrate")
    with started(cli, "--pools", "extract=2,embed=2,index=1,*=2") as process:
        for number in range(3):
            docs = write(tmp_path / f"docs{number}", a__txt=f"text {number}", b__md=f"# more {number}")
            accepted = counts(cli("ingest", docs, "--no-wait", "--json"))
            # The worker may be as fast as the command.
            assert accepted["submitted"] == 2 == accepted.get("pending", 0) + accepted.get("completed", 0)
            wait_for_documents(cli, 2 * (number + 1))
        process.send_signal(signal.SIGTERM)
        result = finish(process, timeout=4 * slowness())
    assert (result.code, counts(result), result.json["interrupted"]) == (0, {"completed": 6}, True)
    assert result.json["made"]["pages"] == 6
    assert set(result.json) == set(SHAPES["worker"][""] or ())
    assert cli("workers", "--json").json["workers"] == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_worker_that_is_stopped_releases_its_steps_and_exits_with_0(
    cli: Cli, tmp_path: Path, number: signal.Signals
) -> None:
    cli("ingest", large_text(tmp_path / "large.txt", 2), "--no-wait")
    with started(cli) as process:
        until(lambda: ask(cli, "SELECT 1 FROM steps WHERE status = 'COMPLETED'"), "no step was completed")
        watch = Stopwatch()
        process.send_signal(number)
        result = finish(process)
        assert watch.seconds() < 2.5
    assert result.code == 0
    assert (ask(cli, "SELECT 1 FROM steps WHERE status = 'RUNNING'"), pids(cli)) == ([], [])
    assert counts(cli("run", "--json")) == {"completed": 1}


def test_pools_that_make_no_sense_are_refused(cli: Cli) -> None:
    for options in (["--pools", "extrakt=2"], ["--pools", "extrakt=2", "--processes", "2"]):
        result = cli("worker", *options, "--json")
        assert (result.code, set(result.json)) == (2, {"error"})
        assert "'extrakt'" in result.err


def test_processes_that_cannot_start_end_the_command(cli: Cli) -> None:
    cli.settings["PENSTOCK_EMBEDDER"] = "nonsense"
    result = cli.process("worker", "--processes", "2", "--json")
    assert result.code == 2
    assert "nonsense" in result.json["error"]


def test_several_processes_share_the_work_and_one_that_dies_is_replaced(cli: Cli, tmp_path: Path) -> None:
    cli("db", "migrate")
    with started(cli, "--processes", "2") as process:
        until(lambda: len(pids(cli)) == 2, "they did not start")
        first, second = pids(cli)
        assert process.pid not in (first, second)
        os.kill(first, signal.SIGKILL)
        until(lambda: len({*pids(cli)} - {first}) == 2, "nobody replaced it")
        assert second in pids(cli)
        docs = write(tmp_path / "docs", **{f"{i}__txt": f"text number {i}" for i in range(20)})
        cli("ingest", docs, "--no-wait")
        wait_for_documents(cli, 20)
        everyone = pids(cli)
        process.send_signal(signal.SIGTERM)
        result = finish(process, timeout=5 * slowness())
    assert result.code == 0
    assert counts(result) == {"completed": 20}
    assert (result.json["processes"], result.json["restarts"]) == (2, 1)
    assert f"the worker process {first} ended (SIGKILL): it is restarted in 1 s" in result.err
    assert not any(map(is_alive, everyone))
    assert pids(cli) == []


def test_no_process_outlives_a_supervisor_that_is_killed(cli: Cli) -> None:
    cli("db", "migrate")
    with started(cli, "--processes", "2") as process:
        until(lambda: len(pids(cli)) == 2, "they did not start")
        everyone = pids(cli)
        process.kill()
        until(lambda: not any(map(is_alive, everyone)), "somebody is still there", 5)
    assert pids(cli) == [], "they handed over and left"
