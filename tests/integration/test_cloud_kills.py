"""Worker processes that read with Azure Document Intelligence, and are killed: what was paid for is not paid again."""

import os
import random
import signal
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from tests.kit.cli import Cli, finish
from tests.kit.document_servers import KEY, AzureHandler, Desk, serving, throttling
from tests.kit.pdfs import numbered, pdf

LONG = bool(os.environ.get("PENSTOCK_LONG"))
PAGES, PER_CALL = (200 if LONG else 40), 5
KILLS = 10 if LONG else 5
PATIENCE_S = 1200 if LONG else 300
"""A provider that refuses half of all calls is called about once in two seconds."""
pytestmark = pytest.mark.timeout(PATIENCE_S + 100)


@pytest.fixture
def desk() -> Iterator[Desk]:
    with serving(AzureHandler, Desk(retry_after="0.2", polls=2, latency_s=0.02)) as desk:
        yield desk


def cli(tmp_path: Path, desk: Desk, **settings: str) -> Cli:
    environment = {
        "AZURE_DOCUMENT_INTELLIGENCE_ENDPOINT": desk.url, "AZURE_DOCUMENT_INTELLIGENCE_KEY": KEY,
        "PENSTOCK_EXTRACTOR": "azure", "PENSTOCK_WORKER__LEASE_S": "2",
    }  # fmt: skip
    (tmp_path / "folder").mkdir(exist_ok=True)
    given = {f"PENSTOCK_{name}": value for name, value in settings.items()}
    return Cli(tmp_path / "home", tmp_path / "folder", {**environment, **given})


def submit(command: Cli, count: int, pages: int) -> None:
    for i in range(count):
        (command.folder / f"{i}.pdf").write_bytes(pdf(*numbered(pages, f"subject{i}n")))
    small = command.home.parent / "small.yaml"
    small.write_text(f"id: small\nconfig:\n  extract: {{pages_per_call: {PER_CALL}}}\n")
    result = command.process("ingest", ".", "--no-wait", "--params", small)
    assert result.code in (0, 3), result


def test_four_processes_keep_to_three_calls_though_half_are_refused(tmp_path: Path, desk: Desk) -> None:
    desk.fault = throttling(0.5)
    command = cli(tmp_path, desk)
    submit(command, 4, PAGES // 4)
    workers = [command.start("run") for _ in range(4)]
    for worker in workers:
        finish(worker, timeout=PATIENCE_S)
    assert {document["status"] for document in command.documents().values()} == {"COMPLETED"}
    assert desk.throttled > 5
    assert desk.paid_pages <= 1.05 * 4 * (PAGES // 4)
    assert desk.most_running <= 3
    assert desk.most_in_flight <= 3


def test_i4_a_kill_buys_at_most_one_operation_again(tmp_path: Path, desk: Desk) -> None:
    command = cli(tmp_path, desk)
    submit(command, 1, PAGES)
    chance = random.Random(3)
    killed = 0
    while killed < KILLS:
        before = len(desk.operations)
        worker = command.start("run")
        deadline = time.monotonic() + 60
        while len(desk.operations) == before and worker.poll() is None and time.monotonic() < deadline:
            time.sleep(0.005)
        time.sleep(0.15 * chance.random())
        ended = worker.poll() is not None
        worker.kill()
        finish(worker)
        if ended:
            break
        killed += 1
    assert killed >= (KILLS if LONG else 3)
    result = finish(command.start("run"), timeout=PATIENCE_S)
    assert result.code == 0, result
    assert {document["status"] for document in command.documents().values()} == {"COMPLETED"}
    assert desk.paid_pages <= PAGES + killed * PER_CALL
    # Most kills cost nothing: the operation was stored, and is polled.
    assert desk.paid_pages < PAGES + killed * PER_CALL


@pytest.mark.parametrize(
    "failpoint", ["ledger.start_operation.before", "ledger.start_operation.after", "ledger.keep_answers.before",
                  "ledger.keep_answers.after", "ledger.forget_answers.before", "ledger.forget_answers.after",
                  "ledger.lease_limit.before", "ledger.lease_limit.after", "ledger.refuse_limit.before",
                  "ledger.refuse_limit.after"],
)  # fmt: skip
def test_i4_what_is_stored_is_not_bought_again(tmp_path: Path, desk: Desk, failpoint: str) -> None:
    if failpoint.startswith("ledger.refuse"):
        desk.fault = throttling(0.5)
    command = cli(tmp_path, desk)
    submit(command, 1, 4 * PER_CALL)
    killed = cli(tmp_path, desk, FAILPOINTS=f"{failpoint}=kill@2").start("run")
    finish(killed, timeout=60)
    assert killed.returncode == -signal.SIGKILL
    assert finish(command.start("run"), timeout=120).code == 0
    assert {document["status"] for document in command.documents().values()} == {"COMPLETED"}
    # Operations that other tasks of the killed process had begun, and not stored, are lost: one at a time is begun.
    assert desk.paid_pages <= 5 * PER_CALL
    if failpoint.startswith("ledger.forget"):
        assert desk.paid_pages == 4 * PER_CALL


@pytest.mark.parametrize("failpoint", ["ledger.touch_answers.before", "ledger.touch_answers.after"])
def test_i4_an_answer_that_is_used_again_after_a_long_time_is_not_bought_again(
    tmp_path: Path, desk: Desk, failpoint: str
) -> None:
    command = cli(tmp_path, desk)
    submit(command, 1, 4 * PER_CALL)
    for point in ("ledger.keep_answers.after=kill@2", f"{failpoint}=kill@1"):
        killed = cli(tmp_path, desk, FAILPOINTS=point).start("run")
        finish(killed, timeout=60)
        assert killed.returncode == -signal.SIGKILL, point
        with closing(sqlite3.connect(command.home / "ledger.db")) as ledger, ledger:
            assert ledger.execute("UPDATE answer_segments SET used_at = 1").rowcount >= 1
    assert finish(command.start("run"), timeout=120).code == 0
    assert {document["status"] for document in command.documents().values()} == {"COMPLETED"}
    assert desk.paid_pages <= 5 * PER_CALL
