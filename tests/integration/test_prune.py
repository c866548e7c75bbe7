"""`prune` takes what nothing refers to, and nothing else."""

import os
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
from tests.kit.damage import clean, document_id, finds, kinds, sql

from penstock.app import App, open_app
from penstock.ledger.upkeep import repairs
from penstock.upkeep.prune import Pruned

NOTHING = Pruned()


def went(**counts: int) -> Pruned:
    return msgspec.structs.replace(NOTHING, **counts)


@pytest.fixture
async def app(home: Path) -> AsyncIterator[App]:
    async with open_app(home=str(home), embedder="fake") as app:
        yield app


def blobs(home: Path) -> int:
    return sum(path.is_file() for path in (home / "blobs").rglob("*"))


async def test_nothing_goes_from_a_well_home(app: App) -> None:
    assert await app.prune(older_than_s=0) == NOTHING
    assert clean(await app.check())


async def test_a_deleted_document_goes_when_its_purge_is_done(app: App, home: Path) -> None:
    before = blobs(home)
    await app.delete([await document_id(app, "1.txt")])
    assert await app.prune(older_than_s=0) == NOTHING
    assert blobs(home) == before
    sql(home, "UPDATE purges SET not_before = 0")
    gone = await app.prune(older_than_s=0)
    assert gone == went(purged=1, runs=1, documents=1, artifacts=4, blobs=5, bytes=gone.bytes)
    assert blobs(home) == before - 5
    assert clean(await app.check())
    assert await app.prune(older_than_s=0) == NOTHING


async def test_what_two_documents_share_stays_until_both_are_gone(app: App, home: Path) -> None:
    await app.delete([await document_id(app, "same.txt")])
    sql(home, "UPDATE purges SET not_before = 0")
    gone = await app.prune(older_than_s=0)
    assert (gone.purged, gone.artifacts, gone.blobs) == (1, 0, 1)
    assert clean(await app.check())
    assert await finds(app, "topic0", "0.txt")


async def test_the_old_version_goes_and_the_new_one_stays(app: App, home: Path, tmp_path: Path) -> None:
    path = tmp_path / "new.txt"
    for word in ("former", "latter"):
        path.write_text(f"This is the {word} text. " * 100)
        await app.ingest([path])
    sql(home, "UPDATE purges SET not_before = 0")
    gone = await app.prune(older_than_s=0)
    assert (gone.purged, gone.artifacts, gone.blobs) == (1, 4, 5)
    assert clean(await app.check())
    assert await finds(app, "latter", "new.txt")


async def test_i1_what_is_younger_than_a_day_stays(app: App, home: Path) -> None:
    """An open submit has stored its bytes, a running step its segment; no row names them yet."""
    folder = home / "blobs" / "default" / "raw" / "open"
    folder.mkdir()
    for name in ("bytes", "bytes.tmp-1"):
        (folder / name).write_bytes(b"just stored")
    sql(home, "INSERT INTO artifacts (owner, fingerprint, kind, state, created_at, updated_at) "
        "SELECT owner, 'f', 'extract', 'COMPLETE', created_at, updated_at FROM artifacts LIMIT 1")  # fmt: skip
    # `check` and `prune` agree.
    assert len((await app.check()).garbage) == 3
    assert await app.prune() == went(waiting=3)
    assert await app.prune(dry_run=True) == went(waiting=3)
    assert len(list(folder.iterdir())) == 2
    for path in folder.iterdir():
        os.utime(path, (1, 1))
    sql(home, "UPDATE artifacts SET updated_at = 1 WHERE fingerprint = 'f'")
    assert await app.prune() == went(artifacts=1, blobs=2, bytes=22)
    assert clean(await app.check())


async def test_an_artifact_that_is_being_built_stays(app: App, home: Path, tmp_path: Path) -> None:
    (tmp_path / "new.txt").write_text("This is new. " * 200)
    await app.ingest([tmp_path / "new.txt"], wait=False)
    sql(home, "UPDATE steps SET status = 'RUNNING', lease_token = 't' WHERE status = 'PENDING'")
    sql(home, "INSERT INTO artifacts (owner, fingerprint, kind, state, builder, token, created_at, updated_at) "
        "SELECT owner, 'f', 'extract', 'BUILDING', id, 't', 1, 1 FROM steps WHERE lease_token = 't'")  # fmt: skip
    assert await app.prune() == NOTHING
    sql(home, "UPDATE steps SET status = 'PENDING', lease_token = NULL WHERE lease_token = 't'")
    assert (await app.prune()).artifacts == 1


async def test_a_kill_between_rows_and_blobs_leaves_only_garbage(app: App, home: Path) -> None:
    await app.delete([await document_id(app, "1.txt")])
    sql(home, "UPDATE purges SET not_before = 0")
    await app.prune()
    unused = await app.ledger.read(repairs.forgettable, 0, 1000, 0.0)
    await app.ledger.write(repairs.FORGET, repairs.Forget(tuple(unused), 0.0))
    report = await app.check()
    assert report.ok
    assert kinds(report.garbage) == {"orphan_blob"}
    assert (await app.prune(older_than_s=0)).blobs == 5
    assert clean(await app.check())
