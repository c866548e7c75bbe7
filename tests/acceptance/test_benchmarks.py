"""Each benchmark of documents, made short: what `make bench` measures keeps working, and measures what it says."""

import subprocess
import sys
from itertools import product
from pathlib import Path

import pytest
from benchmarks import corpus, documents, extract, grams, latency, lists, load, memory, queue, resume
from benchmarks.peers import __main__ as peers
from benchmarks.processes import PENSTOCK, ROOT, run
from benchmarks.table import Row
from tests.kit.busy import slowness

from penstock.indexes import lance_upkeep

CHILD = "import time; held = bytearray({size}); held[::4096] = b'x' * len(held[::4096]); time.sleep(0.5)"
PARENT = "import subprocess, sys; subprocess.run([sys.executable, '-c', sys.argv[1]], check=True); print('{}')"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "documents"
    corpus.make(made, pages=(3, 2, 1), texts=2)
    return made


def test_ingests_are_timed_beside_the_plain_script_on_the_same_documents(folder: Path, tmp_path: Path) -> None:
    (folder / "broken.pdf").write_bytes(b"%PDF-1.7 and no more")
    found = documents.measure(folder, tmp_path, repeat=1)
    assert found.plain[0].answer | {"chunks": 0} == {"documents": 5, "skipped": 1, "pages": 8, "chunks": 0}
    assert (found.first[0].answer["completed"], found.first[0].answer["failed"]) == (5, 1)
    assert found.unchanged[0].answer["skipped"] == 6
    assert found.unchanged[0].seconds < found.first[0].seconds


def test_the_memory_of_children_counts() -> None:
    plain, large = (
        run([sys.executable, "-c", PARENT, CHILD.format(size=size)], memory=True).peak_mb for size in (1, 100 << 20)
    )
    assert 95 < large - plain < 110


def test_memory_is_measured_by_length(tmp_path: Path) -> None:
    peaks = memory.lengths(tmp_path, pages=(2,), repeat=1)
    assert 50 < peaks[2] < 1000


def test_the_extract_step_is_timed_beside_one_process(tmp_path: Path) -> None:
    rates = extract.measure(corpus.make_pdf(tmp_path / "made.pdf", 20), tmp_path, repeat=1)
    least = 20 / slowness()
    assert rates.alone > least
    assert rates.ours > least


def test_the_queue_is_measured_beside_the_bare_loop(tmp_path: Path) -> None:
    rounds = queue.measured(f"sqlite:///{tmp_path}/ledger.db", documents=4, repeat=2)
    assert len(rounds) == 2
    assert all(getattr(one, name) > 0 for one in rounds for name, _, _ in queue.LINES)


def test_a_failure_is_not_taken_for_a_figure(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="no such file"):
        run([*PENSTOCK, "ingest", tmp_path / "absent", "--home", tmp_path / "home"])


def test_a_row_says_whether_its_target_was_missed() -> None:
    assert "missed" not in Row("speed", 1.7, "×", 2, least=1.7).line()
    assert Row("speed", 1.69, "×", 2, least=1.7).line().endswith("missed")
    assert Row("memory", 1.31, "×", 2, most=1.3).line().endswith("missed")


def test_an_unknown_part_is_refused() -> None:
    ended = subprocess.run([sys.executable, "-m", "benchmarks", "spede"], cwd=ROOT, capture_output=True, text=True)
    assert ended.returncode == 2
    assert "no such part: spede" in ended.stderr


def test_peers_stand_beside_the_bare_loop_of_their_own_round() -> None:
    found = {"bare": [100.0, 1000.0, 200.0], "penstock": [200.0, 1000.0, 500.0], "dbos": [50.0, 50.0, 50.0]}
    lines = [row.line() for row in peers.rows(found)]
    assert [row.figure for row in peers.rows(found)] == [200, 500, 2.0, 50, 0.25]
    assert "DBOS: steps/s (50 to 50)" in lines[3]


async def test_searches_are_timed_with_every_filter() -> None:
    found, _ = await latency.measure(documents=3, chunks=2, queries=2)
    assert found.keys() == set(product(latency.FILTERS, latency.MODES))
    assert all(0 < times.p50 <= times.p99 for times in found.values())


def test_an_ingest_is_measured_with_grams_and_without() -> None:
    with_grams, without = grams.measure(documents=2, chunks=2, rounds=1)
    assert with_grams > 0 < without
    assert "grams" in lance_upkeep.TEXT


def test_lists_are_measured_in_two_ledgers(postgres_server: str) -> None:
    for dialect in ("sqlite", "postgres"):
        found = lists.measure(dialect, postgres_server, few=1_000, many=3_000, times=5)
        assert len(found) >= 8
        assert all(few > 0 and many > 0 for few, many in found.values())


async def test_no_upload_is_lost_or_there_twice_beside_kills(tmp_path: Path) -> None:
    result = await load.absorb(tmp_path / "home", files=60, kills=1)
    assert load.lost_and_twice(result) == (0, 0)
    assert len(result["told"]) == len(result["found"]) == 60


async def test_a_resumable_upload_with_kills_is_whole(tmp_path: Path) -> None:
    result = await resume.upload(tmp_path / "home", megabytes=24, kills=2)
    assert result["right"]
    assert len(result["again"]) == 2
    assert max(result["again"]) <= resume.MOST_AGAIN


async def test_streams_that_connect_again_are_told_every_end(tmp_path: Path) -> None:
    result = await load.streams(tmp_path / "home", count=8, documents=3)
    assert result["missed"] == 0
    assert len(result["lags"]) == 24
