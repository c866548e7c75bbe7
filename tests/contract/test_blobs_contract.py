"""What every blob store must do. Another adapter joins by adding its factory to `STORES`."""

import asyncio
import hashlib
import os
import stat
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from tests.kit import azurite, shared
from tests.kit.azurite import CONTAINER
from tests.kit.s3 import BUCKET

from penstock.blobs.base import Blobs, Copied, Stored
from penstock.blobs.local import TEMPORARY, LocalBlobs
from penstock.blobs.object import ObjectBlobs
from penstock.config_http import HttpConfig
from penstock.errors import BlobMissing, BlobUnreadable, StorageError, UsageError
from penstock.net.buckets import EMULATOR
from penstock.runtime import Runtime


class Piece(bytes):
    """Bytes that are counted while they exist."""

    alive = 0

    def __new__(cls, size: int) -> "Piece":
        cls.alive += 1
        return super().__new__(cls, size)

    def __del__(self) -> None:
        type(self).alive -= 1


async def cut(data: bytes, size: int) -> AsyncIterator[bytes]:
    for start in range(0, len(data), size):
        yield data[start : start + size]


def in_bucket(folder: Path, runtime: Runtime) -> Blobs:
    """Each folder has a prefix of its own. The environment names the server."""
    prefix = f"{BUCKET}/{hashlib.sha256(str(folder).encode()).hexdigest()[:16]}"
    http = HttpConfig(patience_s=20)
    return ObjectBlobs("s3", prefix, runtime, http, os.environ, cache=folder / "cache", cache_megabytes=100)


def in_bucket_of_google(folder: Path, runtime: Runtime) -> Blobs:
    """The requests of GCS, to a server that is another one: it shows that they are understood, not that Google answers
    alike."""
    prefix = f"{BUCKET}/{hashlib.sha256(str(folder).encode()).hexdigest()[:16]}"
    http = HttpConfig(patience_s=20)
    return ObjectBlobs("gs", prefix, runtime, http, os.environ, cache=folder / "cache", cache_megabytes=100)


def in_container_of_azure(folder: Path, runtime: Runtime) -> Blobs:
    prefix = f"{CONTAINER}/{hashlib.sha256(str(folder).encode()).hexdigest()[:16]}"
    http = HttpConfig(patience_s=20)
    return ObjectBlobs("az", prefix, runtime, http, os.environ, cache=folder / "cache", cache_megabytes=100)


def in_named_bucket(folder: Path, runtime: Runtime) -> Blobs:
    """In the bucket that the environment names, with the credentials that it names."""
    scheme, _, rest = os.environ[NAMED].partition("://")
    prefix = f"{rest}/{hashlib.sha256(f'{folder}{os.getpid()}'.encode()).hexdigest()[:16]}"
    return ObjectBlobs(scheme, prefix, runtime, HttpConfig(), os.environ, cache=folder / "cache", cache_megabytes=100)


NAMED = "BLOBS_UNDER_TEST"
STORES: dict[str, Callable[[Path, Runtime], Blobs]] = {
    "local": LocalBlobs,
    "s3": in_bucket,
    "gs": in_bucket_of_google,
    "az": in_container_of_azure,
}
if NAMED in os.environ:
    STORES["named"] = in_named_bucket


@pytest.fixture(params=sorted(STORES))
def store(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, servers: shared.Servers
) -> Callable[[Path, Runtime], Blobs]:
    if request.param == "s3":
        server = request.getfixturevalue("s3_server")
        server.store(BUCKET).put("first", b"The bucket exists.")
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
    if request.param == "gs":
        monkeypatch.setenv(EMULATOR, shared.get(servers, "s3", anonymous=True))
    if request.param == "az":
        azurite.refuse_missing()
        for name, value in azurite.environment_of(shared.get(servers, "azurite")).items():
            monkeypatch.setenv(name, value)
    return STORES[request.param]


@pytest.fixture
def blobs(store: Callable[[Path, Runtime], Blobs], tmp_path: Path, runtime: Runtime) -> Blobs:
    return store(tmp_path / "blobs", runtime)


@pytest.mark.parametrize("durable", [False, True])
@pytest.mark.parametrize("size", [0, 1, 5000, 3_000_000])
async def test_what_is_put_is_got(blobs: Blobs, size: int, durable: bool) -> None:
    data = os.urandom(size)
    await blobs.put("anna/x/1", data, durable=durable)
    assert await blobs.get("anna/x/1") == data
    assert await blobs.get("anna/x/1", size) == data


async def test_several_are_put_at_once(blobs: Blobs) -> None:
    many = [(f"anna/{i % 3}/{i}", str(i).encode()) for i in range(50)]
    await blobs.put_many(many, durable=True)
    assert [await blobs.get(key) for key, _ in many] == [data for _, data in many]


async def test_a_stream_is_hashed_as_it_is_stored(blobs: Blobs) -> None:
    data = os.urandom(2_500_000)
    for size in (1, 100_000, 1 << 20, len(data)):
        stored = await blobs.put_stream("anna/s", cut(data, size) if size > 1 else cut(data[:3000], size))
        kept = data if size > 1 else data[:3000]
        assert stored == Stored(hashlib.sha256(kept).hexdigest(), len(kept))
        assert await blobs.get("anna/s") == kept
    assert await blobs.put_stream("anna/empty", cut(b"", 1)) == Stored(hashlib.sha256(b"").hexdigest(), 0)
    assert await blobs.get("anna/empty") == b""


async def test_ranges_are_read(blobs: Blobs) -> None:
    await blobs.put("anna/x", b"0123456789", durable=False)
    assert await blobs.read_range("anna/x", 2, 3) == b"234"
    assert await blobs.read_range("anna/x", 8, 100) == b"89"
    assert await blobs.read_range("anna/x", 10, 5) == b""
    assert await blobs.read_range("anna/x", 1000, 5) == b""


async def test_what_is_not_there_is_not_found(blobs: Blobs) -> None:
    with pytest.raises(BlobMissing):
        await blobs.get("anna/none")
    with pytest.raises(BlobMissing):
        await blobs.read_range("anna/none", 0, 1)
    with pytest.raises(BlobMissing):
        async with blobs.file("anna/none"):
            pass
    await blobs.delete(["anna/none", "nobody/none"])


async def test_a_second_put_replaces_the_first(blobs: Blobs) -> None:
    await blobs.put("anna/x", b"one", durable=True)
    await blobs.put("anna/x", b"two", durable=True)
    assert await blobs.get("anna/x") == b"two"


async def test_deleted_is_gone(blobs: Blobs) -> None:
    await blobs.put_many([("anna/a", b"a"), ("anna/b", b"b")], durable=False)
    await blobs.delete(["anna/a"])
    assert [info.key async for info in blobs.list("")] == ["anna/b"]


async def test_a_list_shows_what_is_below_a_prefix(blobs: Blobs) -> None:
    await blobs.put_many(
        [(f"{owner}/x/{i}", b"12345") for owner in ("anna", "bert") for i in range(1200)], durable=False
    )
    found = [info async for info in blobs.list("anna")]
    assert len(found) == len({info.key for info in found}) == 1200
    assert all(info.key.startswith("anna/x/") and info.size == 5 and info.modified_at > 0 for info in found)
    assert [info async for info in blobs.list("nobody")] == []


@pytest.mark.parametrize("key", ["../x", "anna/../bert/x", "/etc/passwd", "anna//x", "", "anna/./x", "anna/x/", ".."])
async def test_i10_a_key_that_leads_elsewhere_is_refused(blobs: Blobs, key: str) -> None:
    with pytest.raises(UsageError, match="is not a blob key"):
        await blobs.put(key, b"x", durable=False)
    with pytest.raises(UsageError, match="is not a blob key"):
        await blobs.get(key)


async def test_a_reader_sees_one_whole_version_or_the_other(blobs: Blobs) -> None:
    one, two = b"1" * 200_000, b"2" * 300_000
    await blobs.put("anna/x", one, durable=False)

    async def write() -> None:
        for i in range(40):
            await blobs.put("anna/x", (one, two)[i % 2], durable=False)

    async def read() -> None:
        for _ in range(80):
            assert await blobs.get("anna/x") in (one, two)

    await asyncio.gather(write(), read())


async def test_a_stream_that_breaks_leaves_nothing(blobs: Blobs) -> None:
    async def broken() -> AsyncIterator[bytes]:
        yield b"x" * 1000
        yield b"x" * 100_000
        raise RuntimeError("the other end hung up")

    with pytest.raises(RuntimeError):
        await blobs.put_stream("anna/broken", broken())
    assert [info async for info in blobs.list("")] == []


async def test_an_error_of_the_stream_is_not_taken_for_one_of_the_store(blobs: Blobs) -> None:
    async def broken() -> AsyncIterator[bytes]:
        yield b"x" * 100_000
        raise OSError(5, "Input/output error")

    with pytest.raises(OSError, match="Input/output error"):
        await blobs.put_stream("anna/broken", broken())
    assert [info async for info in blobs.list("")] == []


async def test_a_stream_that_is_cancelled_in_its_fsync_leaves_nothing(
    tmp_path: Path, runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    blobs = LocalBlobs(tmp_path / "blobs", runtime)
    begun, go_on, fsync = threading.Event(), threading.Event(), os.fsync

    def slow(file: int) -> None:
        if stat.S_ISREG(os.fstat(file).st_mode):
            begun.set()
            assert go_on.wait(30)
        fsync(file)

    monkeypatch.setattr(os, "fsync", slow)
    storing = asyncio.create_task(blobs.put_stream("anna/s", cut(b"some bytes", 3)))
    assert await asyncio.to_thread(begun.wait, 30)
    storing.cancel()
    await asyncio.sleep(0)
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await storing
    assert not [path for path in (tmp_path / "blobs").rglob("*") if path.is_file()]


async def test_a_broken_stream_leaves_the_blob_of_before(blobs: Blobs) -> None:
    async def broken() -> AsyncIterator[bytes]:
        yield b"after"
        raise RuntimeError("the other end hung up")

    await blobs.put("anna/x", b"before", durable=True)
    with pytest.raises(RuntimeError):
        await blobs.put_stream("anna/x", broken())
    assert await blobs.get("anna/x") == b"before"


@pytest.mark.parametrize("after", range(8))
async def test_a_cancelled_stream_leaves_nothing(blobs: Blobs, runtime: Runtime, after: int) -> None:
    """Cancelled at some place: before the first piece, while one is awaited, while one is written."""
    running = asyncio.Event()

    async def endless() -> AsyncIterator[bytes]:
        for i in range(10_000):
            if i == after // 2:
                running.set()
                await asyncio.sleep(0.02 * (after % 2))
            yield b"x" * 300_000

    task = asyncio.create_task(blobs.put_stream("anna/x", endless()))
    await running.wait()
    await asyncio.sleep(0.005 * after)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await asyncio.sleep(0.05)
    assert [info async for info in blobs.list("")] == []


async def test_pieces_are_written_while_others_arrive_and_few_are_held(blobs: Blobs) -> None:
    """A stream of any length takes the memory of a few pieces."""
    most = 0

    async def pieces() -> AsyncIterator[bytes]:
        nonlocal most
        for _ in range(200):
            yield Piece(100_000)
            most = max(most, Piece.alive)

    assert (await blobs.put_stream("anna/x", pieces())).size == 20_000_000
    assert most <= 30


async def test_streams_are_stored_side_by_side(blobs: Blobs) -> None:
    contents = {f"anna/{i}": os.urandom(200_000 + i) for i in range(6)}
    stored = await asyncio.gather(*(blobs.put_stream(key, cut(data, 40_000)) for key, data in contents.items()))
    assert [s.sha256 for s in stored] == [hashlib.sha256(data).hexdigest() for data in contents.values()]
    assert await blobs.get_many([*contents]) == [*contents.values()]


async def test_a_blob_tells_its_size_and_its_time(blobs: Blobs) -> None:
    assert await blobs.stat("anna/x") is None
    await blobs.put("anna/x", b"12345", durable=False)
    info = await blobs.stat("anna/x")
    assert info is not None
    assert (info.key, info.size) == ("anna/x", 5)
    assert info == await anext(aiter(blobs.list("anna")))
    await blobs.delete(["anna/x"])
    assert await blobs.stat("anna/x") is None


@pytest.mark.parametrize("call", ["write", "fsync", "rename"])
async def test_i1_a_full_disk_is_reported_in_a_sentence_and_leaves_nothing(
    tmp_path: Path, runtime: Runtime, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    blobs = LocalBlobs(tmp_path / "blobs", runtime)
    await blobs.put("anna/x", b"before", durable=True)

    def full(*args: object) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, call, full)
        with pytest.raises(StorageError, match="the disk is full"):
            await blobs.put("anna/x", b"after", durable=True)
        with pytest.raises(StorageError, match="the disk is full"):
            await blobs.put_stream("anna/x", cut(b"after", 2))
    assert await blobs.get("anna/x") == b"before"
    assert not [info.key async for info in blobs.list("") if TEMPORARY in info.key]


async def test_a_blob_that_cannot_be_read_is_no_blob_that_is_missing(tmp_path: Path, runtime: Runtime) -> None:
    """A folder in the place of a blob: as with a bad sector, the store is there and the blob is not to be had."""
    blobs = LocalBlobs(tmp_path / "blobs", runtime)
    (tmp_path / "blobs" / "anna" / "x").mkdir(parents=True)
    with pytest.raises(BlobUnreadable, match="Is a directory"):
        await blobs.get("anna/x")
    with pytest.raises(BlobUnreadable):
        await blobs.read_range("anna/x", 0, 1)
    [got] = await blobs.get_many(["anna/x"])
    [summed] = await blobs.sums(["anna/x"])
    assert isinstance(got, BlobUnreadable)
    assert isinstance(summed, BlobUnreadable)
    with pytest.raises(StorageError):
        await blobs.delete(["anna/x"])


async def test_a_folder_that_is_a_file_is_reported_in_a_sentence(tmp_path: Path, runtime: Runtime) -> None:
    (tmp_path / "file").write_text("I am no folder")
    with pytest.raises(StorageError, match="could not be written"):
        await LocalBlobs(tmp_path / "file", runtime).put("anna/x", b"x", durable=True)


async def test_many_are_read_and_summed_at_once(blobs: Blobs) -> None:
    contents = {f"anna/{i}": bytes([i % 256]) * (i * 1000) for i in range(7)}
    contents["anna/large"] = os.urandom((3 << 20) + 1)
    await blobs.put_many(list(contents.items()), durable=False)
    keys = [*contents, "anna/nothing"]
    *found, gone = await blobs.get_many(keys)
    assert found == list(contents.values())
    assert isinstance(gone, BlobMissing)
    *sums, lost = await blobs.sums(keys)
    assert sums == [(len(data), hashlib.sha256(data).hexdigest()) for data in contents.values()]
    assert isinstance(lost, BlobMissing)
    *sizes, lost = await blobs.sums(keys, content=False)
    assert sizes == [(len(data), None) for data in contents.values()]
    assert isinstance(lost, BlobMissing)
    assert await blobs.get_many([]) == await blobs.sums([]) == []


async def test_blobs_are_copied_out_and_in_with_their_hashes(blobs: Blobs, tmp_path: Path) -> None:
    await blobs.put("anna/raw/1", b"one", durable=False)
    copied = await blobs.copy_out(["anna/raw/1", "anna/raw/2"], tmp_path / "out")
    assert copied == [Copied(hashlib.sha256(b"one").hexdigest(), 3), None]
    assert (tmp_path / "out" / "anna" / "raw" / "1").read_bytes() == b"one"
    await blobs.delete(["anna/raw/1"])
    assert await blobs.copy_in(["anna/raw/1", "anna/raw/2"], tmp_path / "out") == copied
    assert await blobs.get("anna/raw/1") == b"one"


async def test_a_large_stream_is_stored_in_parts(blobs: Blobs) -> None:
    """More than two parts of any store, and pieces that do not end where parts end."""
    digest, size = hashlib.sha256(), 0

    async def pieces() -> AsyncIterator[bytes]:
        nonlocal size
        for i in range(27):
            piece = bytes([i]) * 1_000_003
            digest.update(piece)
            size += len(piece)
            yield piece

    stored = await blobs.put_stream("anna/raw/large", pieces())
    assert stored == Stored(digest.hexdigest(), size)
    assert await blobs.sums(["anna/raw/large"]) == [(size, digest.hexdigest())]
    assert await blobs.read_range("anna/raw/large", size - 2, 10) == bytes([26, 26])


async def test_a_large_stream_that_breaks_leaves_nothing(blobs: Blobs) -> None:
    async def broken() -> AsyncIterator[bytes]:
        for _ in range(20):
            yield b"x" * 1_000_000
        raise RuntimeError("the other end hung up")

    with pytest.raises(RuntimeError, match="hung up"):
        await blobs.put_stream("anna/raw/broken", broken())
    assert [info async for info in blobs.list("")] == []


async def test_a_blob_is_read_as_a_file(blobs: Blobs) -> None:
    data = os.urandom(3_000_000)
    await blobs.put("anna/x", data, durable=False)
    async with blobs.file("anna/x") as one, blobs.file("anna/x") as other:
        assert one.read_bytes() == other.read_bytes() == data


async def test_a_submit_in_progress_is_known_to_all_processes(
    store: Callable[[Path, Runtime], Blobs], blobs: Blobs, tmp_path: Path, runtime: Runtime
) -> None:
    another = store(tmp_path / "blobs", runtime)
    assert await another.submitted_since() is None
    first, second = runtime.ulid(), runtime.ulid()
    async with blobs.submitting(second) as later, another.submitting(first) as earlier:
        for one in (blobs, another):
            await one.put(f"anna/raw/0/{runtime.ulid()}", b"x", durable=True)
        assert await blobs.submitted_since() == await another.submitted_since() == first
        await later.check()
        await earlier.check()
    assert await another.submitted_since() is None
    assert {info.key.split("/")[0] async for info in blobs.list("")} == {"anna"}
