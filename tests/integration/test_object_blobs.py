"""Blobs in a bucket of a real S3 server, which is killed and refuses: the whole way of a document, and the seams
between blobs and rows."""

import asyncio
import io
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import StartApp
from tests.crash.harness import Picture, Player, open_home, picture, playing
from tests.crash.scenarios import FILES, write_files
from tests.integration.test_open_submits import Waiting, item, submit
from tests.kit import s3
from tests.kit.apps import found, named, text, until
from tests.kit.damage import clean
from tests.kit.pdfs import numbered, pdf
from tests.kit.s3 import S3Server

from penstock.app import App
from penstock.blobs import object_submits
from penstock.blobs.object_submits import SUBMITS
from penstock.errors import Away, StorageError, Unauthorized
from penstock.ledger.database.statements import Statement

_PURGE_NOW = "UPDATE purges SET not_before = 0"
_HELD = Statement("SELECT name, state FROM targets")


@pytest.fixture(scope="module")
def own_server() -> Iterator[S3Server]:
    """A server that these tests may kill."""
    with s3.serving() as server:
        server.store(s3.BUCKET).put("first", b"The bucket exists.")
        yield server


@pytest.fixture
def shelf(own_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> s3.Prefix:
    for name, value in own_server.environment.items():
        monkeypatch.setenv(name, value)
    return s3.Prefix(own_server)


def keys(shelf: s3.Prefix) -> list[str]:
    store = shelf.server.store(s3.BUCKET)
    found = [one["path"] for page in store.list(shelf.name) for one in page]
    return sorted(key.removeprefix(f"{shelf.name}/") for key in found)


async def start(start_app: StartApp, shelf: s3.Prefix, **more: Any) -> App:
    return await start_app(blobs=shelf.url, http={"patience_s": 0.3, "timeout_s": 5}, **more)


async def test_the_whole_way_of_a_document(start_app: StartApp, shelf: s3.Prefix) -> None:
    app = await start(start_app, shelf)
    await app.ingest(data=pdf(*numbered(12, "heron")), name="a.pdf")
    await app.ingest(data=text(300, "otter").encode(), name="b.txt")
    assert await found(app, "heron3") == {"a.pdf"}
    assert await found(app, "otter5") == {"b.txt"}
    assert {key.split("/")[0] for key in keys(shelf)} == {"default"}, "keys begin with the owner; no mark is left"
    cache = app.config.home_path / "cache" / "blobs"
    assert len(list(cache.iterdir())) == 1, "the parser processes read a copy"
    assert not (app.config.home_path / "blobs").exists()
    assert clean(await app.check())
    await app.delete([(await named(app, name)).id for name in ("a.pdf", "b.txt")])
    await app.ledger.read(lambda connection: connection.script(_PURGE_NOW))
    await app.prune(older_than_s=0)
    assert [key for key in keys(shelf) if not key.startswith(SUBMITS)] == []
    assert list(cache.iterdir()) == []


async def test_lost_and_damaged_objects_are_found_and_repaired(start_app: StartApp, shelf: s3.Prefix) -> None:
    app = await start(start_app, shelf)
    await app.ingest(data=text(300, "otter").encode(), name="b.txt")
    shelf.remove(next(key for key in keys(shelf) if "/segments/" in key))
    assert {one.kind for one in (await app.check()).problems} == {"segment_broken"}
    assert (await app.check(repair=True)).problems == []
    assert await found(app, "otter5") == {"b.txt"}
    shelf.put(next(key for key in keys(shelf) if "/raw/" in key), b"other bytes")
    assert {one.kind for one in (await app.check()).problems} == {"raw_broken"}


async def test_i1_prune_leaves_what_another_process_submits_whatever_its_clock_says(
    start_app: StartApp, shelf: s3.Prefix, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = await start(start_app, shelf)
    later = await start(start_app, shelf)
    now = later.runtime.now
    monkeypatch.setattr(later.runtime, "now", lambda: now() + 2 * 86_400)
    last = Waiting(b"The banana is yellow. ")
    submitting = asyncio.create_task(
        submit(app, item(app, "a", io.BytesIO(b"The apple is red.")), item(app, "b", last))
    )
    try:
        await asyncio.to_thread(last.reached.wait, 60)
        assert any(key.startswith(SUBMITS) for key in keys(shelf))
        assert (await later.prune()).blobs == 0
    finally:
        last.go_on.set()
        await asyncio.wait([submitting])
    await submitting
    assert [key for key in keys(shelf) if key.startswith(SUBMITS)] in ([], [f"{SUBMITS}.clock"])
    assert (await app.run()).completed == 2
    assert clean(await app.check())


async def test_i1_a_submit_that_was_taken_for_dead_is_not_told_that_it_was_accepted(
    start_app: StartApp, shelf: s3.Prefix, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if the machine had slept for two days, and its mark had been removed meanwhile."""
    app, other = await start(start_app, shelf), await start(start_app, shelf)
    last = Waiting(b"The banana is yellow.")
    submitting = asyncio.create_task(
        submit(app, item(app, "a", io.BytesIO(b"The apple is red.")), item(app, "b", last))
    )
    await asyncio.to_thread(last.reached.wait, 60)
    try:
        with monkeypatch.context() as patch:
            patch.setattr(object_submits, "DEAD_S", -60.0)
            assert (await other.prune(older_than_s=0)).blobs == 1
    finally:
        last.go_on.set()
    with pytest.raises(StorageError, match="submit the same files again"):
        await submitting
    await app.run()
    await submit(app, item(app, "a", io.BytesIO(b"The apple is red.")), item(app, "b", io.BytesIO(b"The banana.")))
    await app.run()
    assert await found(app, "apple banana") == {"a", "b"}


async def test_the_mark_of_a_dead_submit_is_removed(
    start_app: StartApp, shelf: s3.Prefix, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = await start(start_app, shelf)
    since = app.runtime.ulid()
    shelf.put(f"{SUBMITS}{since}", b"")
    shelf.put(f"{SUBMITS}{since}.alive", b"")
    assert await app.blobs.submitted_since() == since
    monkeypatch.setattr(object_submits, "DEAD_S", -60.0)
    assert await app.blobs.submitted_since() is None
    assert keys(shelf) == [f"{SUBMITS}.clock"]


async def test_a_long_submit_renews_its_mark(
    start_app: StartApp, shelf: s3.Prefix, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = await start(start_app, shelf)
    monkeypatch.setattr(object_submits, "RENEWED_S", 0.0)
    since = app.runtime.ulid()
    async with app.blobs.submitting(since):
        for _ in range(2):
            await app.blobs.put(f"default/raw/0/{app.runtime.ulid()}", b"x", durable=True)
        assert f"{SUBMITS}{since}.alive" in keys(shelf)
        shelf.remove(f"{SUBMITS}{since}")
        assert await app.blobs.submitted_since() is None, "what renews a mark is not a mark"
    assert not [key for key in keys(shelf) if since in key]


async def test_i9_steps_wait_while_the_server_is_away_and_none_fails(
    start_app: StartApp, shelf: s3.Prefix, own_server: S3Server
) -> None:
    app = await start(start_app, shelf)
    await app.ingest(data=text(200, "otter").encode(), name="a.txt", wait=False)
    await app.ingest(data=pdf(*numbered(9, "heron")), name="b.pdf", wait=False)
    own_server.kill()
    try:
        with pytest.raises(Away, match="cannot be reached"):
            await app.ingest(data=text(200).encode(), name="c.txt")
        working = asyncio.create_task(app.work())

        async def held() -> bool:
            rows = await app.ledger.read(lambda connection: connection.run(_HELD))
            return [tuple(row) for row in rows] == [(f"blobs:{shelf.url}", "away")]

        await until(held)
        app.stop()
        await working
        # A document that is small enough for the ledger needs no bucket.
        other = await start(start_app, shelf, home="other", small_bytes=4096)
        assert (await other.ingest(data=b"The apple is red.", name="a")).completed == 1
    finally:
        own_server.start()
    again = await start(start_app, shelf)
    assert (await again.run()).completed == 2
    assert await found(again, "otter5") == {"a.txt"}
    assert (await again.list_dead_letters()).total == 0
    assert clean(await again.check())


async def test_a_wrong_secret_holds_the_steps_and_names_the_setting(
    start_app: StartApp, shelf: s3.Prefix, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "a-wrong-secret-0123")
    app = await start(start_app, shelf)
    with pytest.raises(Unauthorized, match="AWS_SECRET_ACCESS_KEY") as raised:
        await app.blobs.get("default/raw/x")
    assert "a-wrong-secret" not in str(raised.value)


async def test_a_bucket_is_listed_page_by_page(start_app: StartApp, shelf: s3.Prefix) -> None:
    app = await start(start_app, shelf)
    await app.blobs.put_many([(f"default/raw/0/{i:05d}", b"x") for i in range(1500)], durable=True)
    listing = aiter(app.blobs.list("default"))
    assert (await anext(listing)).key == "default/raw/0/00000"
    # What is removed behind the first page is not listed: the second page is not asked for before it is needed.
    await app.blobs.delete([f"default/raw/0/{i:05d}" for i in range(1000, 1500)])
    assert len([info async for info in listing]) == 999


POINTS = (
    "blob.put.before=kill@1",
    "blob.put.after=kill@1",
    "blob.put.before=kill@4",
    "blob.put.after=kill@4",
    "ledger.submit.before=kill@1",
    "ledger.submit.after=kill@1",
    "ledger.complete.before=kill@1",
    "ledger.flip.before=kill@1",
)


@pytest.fixture(scope="module")
def player(own_server: S3Server) -> Iterator[Player]:
    before = {name: os.environ.get(name) for name in own_server.environment}
    os.environ.update(own_server.environment)
    try:
        with playing() as player:
            yield player
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Picture:
    """What a home with local blobs shows."""
    folder = tmp_path_factory.mktemp("reference")
    write_files(folder / "files")

    async def make() -> Picture:
        async with open_home(folder / "home") as app:
            await app.ingest([folder / "files"])
            return await picture(app)

    return asyncio.run(make())


@pytest.mark.parametrize("failpoint", POINTS)
async def test_i12_a_worker_killed_between_blob_and_row_ends_as_without(
    shelf: s3.Prefix,
    player: Player,
    tmp_path: Path,
    reference: Picture,
    failpoint: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    write_files(tmp_path / "files")
    killed = player.play("brief", tmp_path / "home", failpoint, blobs=shelf.url)
    assert killed.status == -9, killed
    async with open_home(tmp_path / "home", blobs=shelf.url) as app:
        await app.ingest([tmp_path / "files"])
        seen = await picture(app)
        assert (seen.documents, seen.chunks, seen.rows) == (reference.documents, reference.chunks, reference.rows)
        assert set(seen.documents) == set(FILES)
        report = await app.check()
        assert report.problems == []
        # As a day later: the mark of the killed submit counts no more.
        monkeypatch.setattr(object_submits, "DEAD_S", -60.0)
        await app.prune(older_than_s=0)
        assert {entry.kind for entry in (await app.check()).garbage} <= {"orphan_artifact"}


async def test_a_bucket_that_does_not_exist_is_not_a_blob_that_is_missing(
    start_app: StartApp, shelf: s3.Prefix
) -> None:
    app = await start_app(blobs="s3://nowhere/x", http={"patience_s": 0.3})
    with pytest.raises(Away, match="there is no such bucket: create it"):
        await app.blobs.get("default/raw/x")
