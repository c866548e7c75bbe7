"""A worker is stopped for longer than its lease lasts, others finish its work, and then it wakes up. Nothing that it
still does is ever read (I3).

Inside a transaction a stopped process holds the write lock of an SQLite ledger: everybody waits for it, and nobody can
take its work. So on SQLite it must be stopped between two transactions; on PostgreSQL the server ends it."""

import asyncio
import os
import signal
import sqlite3
import subprocess
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from tests.crash.harness import LONG, PATIENCE_S, Outcome, Picture, Place, command, environment, picture, said
from tests.crash.scenarios import CHUNK, LARGE, text

from penstock.app import App

LEASE_S = 1.0
WORDS = ("alphaword", "betaword", "hugeword")
NAMES = ("alpha.txt", "beta.md", "huge.txt")


class Zombie:
    """`penstock run` in a process of its own, which stops itself at a failpoint."""

    def __init__(self, place: Place, home: Path, failpoint: str) -> None:
        more = {name.upper(): value for name, value in place.settings(home).items()}
        self._process = subprocess.Popen(
            command("run", "--json", "--home", str(home)),
            env=environment(
                EMBEDDER="fake",
                CHUNK__SIZE=str(CHUNK["size"]),
                CHUNK__OVERLAP=str(CHUNK["overlap"]),
                FAILPOINTS=f"{failpoint}=stop@1",
                WORKER__LEASE_S=str(LEASE_S),
                **more,
            ),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    async def stopped(self) -> None:
        for _ in range(2000):
            state = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()[0]
            if state == "T":
                return
            assert state != "Z", self._process.communicate()[0]
            await asyncio.sleep(0.01)
        raise AssertionError("it was never stopped")

    def wake(self) -> Outcome:
        """It ends by itself."""
        os.kill(self._process.pid, signal.SIGCONT)
        output, _ = self._process.communicate(timeout=PATIENCE_S)
        return Outcome(self._process.returncode, 0, {}, output)

    def bury(self) -> None:
        self._process.kill()
        self._process.communicate()


async def accept(app: App) -> None:
    folder = app.config.home_path.parent / "files"
    (folder / "huge.txt").write_bytes(text("hugeword", LARGE))
    await app.ingest([folder / name for name in NAMES], wait=False)


async def finish(app: App) -> Picture:
    await app.run()
    return await picture(app, WORDS)


@pytest.fixture(scope="module")
def undisturbed(on_sqlite: Place) -> Picture:
    home = on_sqlite.home("empty")
    on_sqlite.run(home, accept)
    end: Picture = on_sqlite.run(home, finish)
    assert set(end.documents) == set(NAMES)
    return end


def stop(place: Place, failpoint: str, killed_before: str) -> tuple[Path, Zombie]:
    """A zombie that holds no lock on the ledger. Its writer may be in a transaction by chance: then try another."""
    for _ in range(20):
        home = place.home("empty")
        place.run(home, accept)
        if killed_before:
            place.kill("orphaned", home, f"{killed_before}=kill@1")
        zombie = Zombie(place, home, failpoint)
        asyncio.run(zombie.stopped())
        if place.database is not None or not locked(home):
            return home, zombie
        zombie.bury()
    raise AssertionError("it was in a transaction each time")


def locked(home: Path) -> bool:
    connection = sqlite3.connect(home / "ledger.db", timeout=0.2, isolation_level=None)
    try:
        connection.execute("BEGIN IMMEDIATE")
        return False
    except sqlite3.OperationalError:
        return True
    finally:
        connection.close()


def haunt(place: Place, failpoint: str, undisturbed: Picture, *, killed_before: str = "") -> Picture:
    """Stop, let another finish, wake. Returns what there is then, before anything is mended."""
    home, zombie = stop(place, failpoint, killed_before)
    try:
        assert place.run(home, finish, worker={"lease_s": LEASE_S}) == undisturbed
        outcome = zombie.wake()
    finally:
        zombie.bury()
    assert outcome.status in (0, 1), outcome
    after: Picture = place.run(home, partial(picture, words=WORDS))
    assert replace(after, rows={}) == replace(undisturbed, rows={})
    place.run(home, partial(mended, undisturbed=undisturbed))
    return after


async def mended(app: App, undisturbed: Picture) -> None:
    report = await app.check()
    assert report.ok, said(report)
    assert {entry.kind for entry in report.garbage} <= {"row_double", "dead_rows", "orphan_blob"}
    report = await app.check(repair=True)
    assert report.ok, said(report)
    assert await picture(app, WORDS) == undisturbed


AT_THE_INDEX = ["index.append.before", "index.append.after"]
BETWEEN = ["provider.answer.after", "ledger.checkpoint.after"]
INSIDE = ["ledger.checkpoint.before", "ledger.flip.before"]
if LONG:
    BETWEEN += ["blob.put.after", "ledger.write.after", "ledger.claim_keyed.after", "ledger.flip.after"]
    INSIDE += ["ledger.complete.before", "ledger.write.before", "ledger.claim_keyed.before"]


@pytest.mark.parametrize("failpoint", AT_THE_INDEX + BETWEEN)
def test_i3_no_search_reads_what_a_zombie_writes(on_sqlite: Place, undisturbed: Picture, failpoint: str) -> None:
    after = haunt(on_sqlite, failpoint, undisturbed)
    if failpoint == "index.append.before":
        assert after.rows != undisturbed.rows, "its append came late, and is there"
    if failpoint in BETWEEN:
        assert after.rows == undisturbed.rows, "it asks for its lock before it commits, and has lost it"


def test_i3_no_search_reads_what_a_zombie_merges(on_sqlite: Place, undisturbed: Picture) -> None:
    haunt(on_sqlite, "index.merge.before", undisturbed, killed_before="index.append.after")


@pytest.mark.parametrize("failpoint", INSIDE)
def test_i3_a_zombie_in_a_transaction_delays_no_other_transaction(
    on_postgres: Place, undisturbed: Picture, failpoint: str
) -> None:
    haunt(on_postgres, failpoint, undisturbed)
