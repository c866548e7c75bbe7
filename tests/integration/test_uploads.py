"""Resumable uploads of the library, on both databases, in a folder and in a bucket."""

import asyncio
import hashlib
import random
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.conftest import StartApp
from tests.kit.s3 import BUCKET, S3Address

from penstock.app import App
from penstock.errors import ChecksumDiffers, LockHeld, NotFound, StorageError, TooMuch, UsageError, WrongOffset
from penstock.ledger.engine import uploads as rows
from penstock.verbs import uploads

DATA = random.Random(7).randbytes(3_000_001)


async def pieces(data: bytes, size: int = 70_001) -> AsyncIterator[bytes]:
    for i in range(0, len(data), size):
        yield data[i : i + size]


async def cut(data: bytes) -> AsyncIterator[bytes]:
    async for piece in pieces(data):
        yield piece
    raise ConnectionResetError


@pytest.fixture
async def app(start_app: StartApp, database_url: str, monkeypatch: pytest.MonkeyPatch) -> App:
    monkeypatch.setattr(uploads, "PART", 1 << 20)
    monkeypatch.setattr(uploads, "LEASE_S", 1.0)
    return await start_app(database=database_url)


async def parts_of(app: App) -> list[str]:
    return [info.key async for info in app.blobs.list("") if "/uploads/" in info.key]


async def _text(app: App, document: str) -> AsyncIterator[bytes]:
    """The bytes of a small document, which the ledger keeps."""
    async for info in app.blobs.list(""):
        yield await app.blobs.get(info.key)


async def raw(app: App, document: str) -> str:
    [row] = await app.list_documents()
    assert row.id == document
    infos = [info async for info in app.blobs.list("") if "/raw/" in info.key]
    return hashlib.sha256(await app.blobs.get(infos[0].key)).hexdigest()


async def test_an_upload_in_several_calls_is_one_document(app: App) -> None:
    made = await app.create_upload(len(DATA), name="a.bin", metadata={"year": 2024})
    half = len(DATA) // 2
    view = await app.append_upload(made.id, 0, pieces(DATA[:half]))
    assert (view.received, view.state, view.document) == (half, "OPEN", None)
    view = await app.append_upload(made.id, half, pieces(DATA[half:]))
    assert view.state == "ACCEPTED"
    assert view.document is not None
    assert await raw(app, view.document) == hashlib.sha256(DATA).hexdigest()
    assert (await app.status(view.document)).metadata["year"] == 2024
    assert await parts_of(app) == [], "the parts are gone"
    assert (await app.upload(made.id)).document == view.document
    again = await app.append_upload(made.id, len(DATA), pieces(b""))
    assert again.document == view.document
    assert (await app.check()).ok


async def test_what_came_before_the_connection_was_cut_is_kept(app: App) -> None:
    made = await app.create_upload(len(DATA), name="a.bin")
    with pytest.raises(ConnectionResetError):
        await app.append_upload(made.id, 0, cut(DATA[:2_500_000]))
    view = await app.upload(made.id)
    assert view.received == 2_500_000
    view = await app.append_upload(made.id, view.received, pieces(DATA[view.received :]))
    assert view.document is not None
    assert await raw(app, view.document) == hashlib.sha256(DATA).hexdigest()


async def test_a_wrong_offset_and_too_many_bytes_change_nothing(app: App) -> None:
    made = await app.create_upload(10, name="a.txt")
    for offset in (1, 11, -1):
        with pytest.raises(WrongOffset):
            await app.append_upload(made.id, offset, pieces(b"x"))
    with pytest.raises(UsageError, match="more bytes"):
        await app.append_upload(made.id, 0, pieces(b"x" * 11))
    assert (await app.upload(made.id)).received == 0


async def test_an_empty_upload_is_a_document_at_once(app: App) -> None:
    assert (await app.create_upload(0, name="empty.txt")).document is not None


async def test_nothing_counts_whose_checksum_is_wrong(app: App) -> None:
    made = await app.create_upload(len(DATA), name="a.bin")
    with pytest.raises(ChecksumDiffers):
        await app.append_upload(made.id, 0, pieces(DATA), checksum=("sha256", b"0" * 32))
    assert (await app.upload(made.id)).received == 0
    assert await parts_of(app) == []
    with pytest.raises(UsageError, match="sha256"):
        await app.append_upload(made.id, 0, pieces(DATA), checksum=("shake_128", b""))
    right = hashlib.sha1(DATA, usedforsecurity=False).digest()
    assert (await app.append_upload(made.id, 0, pieces(DATA), checksum=("sha1", right))).document is not None


async def test_two_calls_never_add_at_once(app: App, start_app: StartApp, database_url: str) -> None:
    other = await start_app(database=database_url)
    made = await app.create_upload(100, name="a.txt")
    going, goes_on = asyncio.Event(), asyncio.Event()

    async def slow() -> AsyncIterator[bytes]:
        yield b"x" * 50
        going.set()
        await goes_on.wait()
        yield b"y" * 50

    first = asyncio.create_task(app.append_upload(made.id, 0, slow()))
    await going.wait()
    # Longer than a lease: the holder renews it.
    await asyncio.sleep(1.5)
    for one in (app, other):
        with pytest.raises(LockHeld):
            await one.append_upload(made.id, 0, pieces(b"z" * 100))
        with pytest.raises(LockHeld):
            await one.delete_upload(made.id)
    goes_on.set()
    assert (await first).document is not None


async def test_the_lock_of_a_dead_process_is_taken_and_its_writes_are_refused(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = await app.create_upload(8, name="a.txt")
    going, goes_on = asyncio.Event(), asyncio.Event()

    async def stalled() -> AsyncIterator[bytes]:
        going.set()
        await goes_on.wait()
        yield b"old bytes"[:8]

    async def asleep(self: Any) -> None:
        await asyncio.sleep(3600)

    with monkeypatch.context() as patch:
        patch.setattr(uploads.Hold, "renew", asleep)
        first = asyncio.create_task(app.append_upload(made.id, 0, stalled()))
        await going.wait()
    await asyncio.sleep(1.2)
    second = await app.append_upload(made.id, 0, pieces(b"new"))
    assert second.received == 3
    goes_on.set()
    with pytest.raises(Exception, match="taken over"):
        await first
    view = await app.append_upload(made.id, 3, pieces(b"bytes"))
    assert view.document is not None
    [chunk] = [chunk async for chunk in _text(app, view.document)]
    assert chunk == b"newbytes"


@pytest.mark.parametrize("repair", ["look", "sweep"])
async def test_a_death_between_the_last_byte_and_the_document_is_repaired(
    app: App, monkeypatch: pytest.MonkeyPatch, repair: str
) -> None:
    made = await app.create_upload(5, name="a.txt")

    async def dies(*args: Any) -> None:
        raise StorageError("the process died here")

    with monkeypatch.context() as patch:
        patch.setattr(uploads, "_submitted", dies)
        with pytest.raises(StorageError):
            await app.append_upload(made.id, 0, pieces(b"words"))
    if repair == "sweep":
        assert await uploads.finish_uploads(app) == 1
    view = await app.upload(made.id)
    assert (view.received, view.state) == (5, "ACCEPTED")
    assert len(await app.list_documents()) == 1


async def test_i6_a_death_after_the_document_makes_no_second_one(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    made = await app.create_upload(5, name="a.txt")
    real = app.ledger.write

    async def dies(verb: Any, item: Any) -> Any:
        if verb is rows.END_UPLOAD:
            raise StorageError("the process died here")
        return await real(verb, item)

    with monkeypatch.context() as patch:
        patch.setattr(app.ledger, "write", dies)
        with pytest.raises(StorageError):
            await app.append_upload(made.id, 0, pieces(b"words"))
    [document] = await app.list_documents()
    view = await app.upload(made.id)
    assert view.document == document.id
    assert len(await app.list_documents()) == 1


async def test_i10_another_owner_s_upload_is_not_there(app: App) -> None:
    anna, bert = app.for_owner("anna"), app.for_owner("bert")
    made = await anna.create_upload(5, name="a.txt")
    with pytest.raises(NotFound):
        await bert.upload(made.id)
    with pytest.raises(NotFound):
        await bert.append_upload(made.id, 0, pieces(b"words"))
    with pytest.raises(NotFound):
        await bert.delete_upload(made.id)
    assert (await anna.append_upload(made.id, 0, pieces(b"words"))).document is not None
    assert await bert.list_documents() == []


async def test_a_deleted_upload_leaves_nothing(app: App) -> None:
    made = await app.create_upload(len(DATA), name="a.bin")
    await app.append_upload(made.id, 0, pieces(DATA[:2_000_000]))
    assert await parts_of(app)
    await app.delete_upload(made.id)
    assert await parts_of(app) == []
    with pytest.raises(NotFound):
        await app.upload(made.id)


async def test_prune_keeps_the_parts_of_an_upload_until_it_expires(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    made = await app.create_upload(len(DATA), name="a.bin")
    await app.append_upload(made.id, 0, pieces(DATA[:2_000_000]))
    await app.prune(older_than_s=0)
    view = await app.append_upload(made.id, 2_000_000, pieces(DATA[2_000_000:]))
    assert view.document is not None
    assert await raw(app, view.document) == hashlib.sha256(DATA).hexdigest()
    monkeypatch.setattr(uploads, "LIFE_S", -1.0)
    left = await app.create_upload(10, name="b.txt")
    monkeypatch.setattr(uploads, "LIFE_S", 0.3)
    other = await app.create_upload(len(DATA), name="c.bin")
    await app.append_upload(other.id, 0, pieces(DATA[:2_000_000]))
    await asyncio.sleep(0.4)
    assert (await app.prune(dry_run=True)).uploads == 2
    assert (await app.prune()).uploads == 2
    assert await parts_of(app) == []
    for upload in (left, other):
        with pytest.raises(NotFound):
            await app.upload(upload.id)


async def test_an_owner_has_a_limit_of_unfinished_bytes(app: App) -> None:
    await app.create_upload(60, name="a.txt", most_bytes=100)
    with pytest.raises(TooMuch):
        await app.create_upload(60, name="b.txt", most_bytes=100)
    await app.for_owner("bert").create_upload(60, name="b.txt", most_bytes=100)


@pytest.mark.parametrize("name", ["", "\0", "\ud800", "x" * 5_000])
async def test_hostile_names_are_refused(app: App, name: str) -> None:
    with pytest.raises(UsageError):
        await app.create_upload(1, name=name)


async def test_an_upload_to_a_bucket(
    start_app: StartApp, s3_server: S3Address, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in s3_server.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(uploads, "PART", 1 << 20)
    app = await start_app(blobs=f"s3://{BUCKET}/uploads-{random.randbytes(4).hex()}")
    made = await app.create_upload(len(DATA), name="a.bin")
    with pytest.raises(ConnectionResetError):
        await app.append_upload(made.id, 0, cut(DATA[:1_700_000]))
    view = await app.append_upload(made.id, 1_700_000, pieces(DATA[1_700_000:]))
    assert view.document is not None
    assert await raw(app, view.document) == hashlib.sha256(DATA).hexdigest()
