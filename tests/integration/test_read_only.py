"""A home that can only be read, such as one in an image: what reads works, what writes says so."""

import json
import os
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

MOUNT = 'mount --bind "$1" "$1" && mount -o remount,bind,ro "$1" && shift && exec "$@"'
PLAYER = """
import io, json, sys
from penstock.cli.main import run
from penstock.cli.signals import Signals
Signals.install = lambda signals: None
answers = []
for arguments in json.load(sys.stdin):
    out = sys.stdout = io.TextIOWrapper(io.BytesIO(), "utf-8")
    code = run([*arguments, "--json"])
    out.flush()
    answers.append([code, json.loads(out.buffer.getvalue())])
sys.__stdout__.write(json.dumps(answers))
"""
READS = (
    ["status"], ["list"], ["search", "topic1"], ["show", "0.txt", "--pages"], ["check"], ["steps"], ["workers"],
    ["collection", "list"], ["lock", "list"], ["dlq", "list"], ["group", "list"],
)  # fmt: skip
WRITES = (
    ["ingest", "."], ["ingest", ".", "--no-wait"], ["run"], ["worker"], ["delete", "0.txt"], ["cancel", "0.txt"],
    ["prune"], ["vacuum"], ["check", "--repair"], ["meta", "0.txt", "a=1"], ["collection", "drop", "default", "--yes"],
)  # fmt: skip


def can_mount() -> bool:
    if shutil.which("unshare") is None or os.geteuid() != 0:
        return False
    return (
        subprocess.run(["unshare", "-m", "sh", "-c", MOUNT, "sh", "/tmp", "true"], capture_output=True).returncode == 0
    )


def play(home: Path, *calls: list[str]) -> list[tuple[int, dict[str, Any]]]:
    """Run commands in one process that cannot write to the home. Root ignores permissions, so root mounts it."""
    environment = {**os.environ, "PENSTOCK_EMBEDDER": "fake", "PENSTOCK_HOME": str(home)}
    command = [sys.executable, "-c", PLAYER]
    if os.geteuid() == 0:
        if not can_mount():
            pytest.skip("mounting is not allowed here")
        command = ["unshare", "-m", "sh", "-c", MOUNT, "sh", str(home), *command]
    else:
        for path in (home, *home.rglob("*")):
            path.chmod(path.stat().st_mode & ~0o222)
    done = subprocess.run(
        command, input=json.dumps(calls).encode(), capture_output=True, cwd=home.parent, env=environment, timeout=300
    )
    for path in (home, *home.rglob("*")):
        path.chmod(path.stat().st_mode | 0o200)
    assert done.returncode == 0, done.stderr.decode()
    return [(code, answer) for code, answer in json.loads(done.stdout)]


def listing(home: Path) -> list[tuple[str, int, int]]:
    return sorted((str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in home.rglob("*"))


def test_a_read_only_home_is_read_and_never_written(home: Path) -> None:
    before = listing(home)
    answers = play(home, *READS, *WRITES)
    for call, (code, answer) in zip(READS, answers, strict=False):
        assert code == 0, (call, answer)
    [(_, status), (_, listed), (_, searched), (_, shown), (_, checked), *_] = answers
    assert sum(status["documents"].values()) == len(listed["documents"]) == 8
    assert searched["hits"]
    assert shown["pages"]
    assert checked["ok"]
    for call, (code, answer) in zip(WRITES, answers[len(READS) :], strict=True):
        assert code == 1, (call, answer)
        assert answer["error"].startswith(f"the home {home} is read-only"), (call, answer)
    assert listing(home) == before


@pytest.mark.parametrize("with_shm", [False, True])
def test_i1_commits_that_are_only_in_the_wal_are_read(home: Path, tmp_path: Path, with_shm: bool) -> None:
    """A home that was copied while a process had it open."""
    ledger = home / "ledger.db"
    ends = ["", "-wal", *(["-shm"] if with_shm else [])]
    database = sqlite3.connect(ledger, isolation_level=None)
    database.execute("UPDATE documents SET name = 'in the WAL'")
    for end in ends:
        shutil.copy(f"{ledger}{end}", tmp_path / f"kept{end}")
    database.close()
    for end in ends:
        shutil.copy(tmp_path / f"kept{end}", f"{ledger}{end}")
    assert (home / "ledger.db-wal").stat().st_size > 0
    before = listing(home)
    [(code, listed)] = play(home, ["list"])
    assert code == 0
    assert {d["name"] for d in listed["documents"]} == {"in the WAL"}
    assert listing(home) == before


def test_an_old_ledger_is_not_migrated_on_a_read_only_home(home: Path) -> None:
    database = sqlite3.connect(home / "ledger.db", isolation_level=None)
    database.execute("DELETE FROM schema_versions WHERE version > 10")
    database.close()
    [(code, answer)] = play(home, ["list"])
    assert code == 1
    assert "cannot be migrated because it is read-only" in answer["error"]
