"""Local copies of blobs: bounded, shared by processes, and none is removed while it is used."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncGenerator, Callable
from pathlib import Path

import pytest

from penstock.blobs.cache import UNUSED_S, FileCache
from penstock.runtime import Runtime

Reader = Callable[[], AsyncGenerator[bytes, None]]
KB = 1 << 10


def reading(data: bytes, reads: list[int] | None = None) -> Reader:
    async def read() -> AsyncGenerator[bytes, None]:
        if reads is not None:
            reads.append(len(data))
        for start in range(0, len(data), 100):
            yield data[start : start + 100]

    return read


@pytest.fixture
def cache(tmp_path: Path, runtime: Runtime) -> FileCache:
    return FileCache(tmp_path / "cache", 10 * KB, runtime)


def size(tmp_path: Path) -> int:
    return sum(path.stat().st_size for path in (tmp_path / "cache").iterdir())


async def test_a_blob_is_fetched_once(cache: FileCache) -> None:
    reads: list[int] = []
    for _ in range(3):
        async with cache.file("anna/x", reading(b"bytes", reads)) as path:
            assert path.read_bytes() == b"bytes"
    assert reads == [5]


async def test_many_that_want_it_at_once_fetch_it_once(cache: FileCache) -> None:
    reads: list[int] = []

    async def use() -> None:
        async with cache.file("anna/x", reading(b"b" * KB, reads)) as path:
            assert path.read_bytes() == b"b" * KB

    await asyncio.gather(*(use() for _ in range(10)))
    assert reads == [KB]


async def test_the_copies_that_were_not_used_for_longest_go_first(cache: FileCache, tmp_path: Path) -> None:
    reads: list[int] = []
    for number in range(20):
        async with cache.file(f"anna/{number}", reading(b"b" * KB, reads)):
            await asyncio.sleep(0.002)
        async with cache.file("anna/0", reading(b"b" * KB, reads)):
            await asyncio.sleep(0.002)
        assert size(tmp_path) <= 10 * KB
    assert len(reads) == 20, "the copy that is used again and again stays"
    async with cache.file("anna/1", reading(b"b" * KB, reads)):
        assert len(reads) == 21


async def test_a_copy_in_use_stays_whoever_makes_room(cache: FileCache, tmp_path: Path, runtime: Runtime) -> None:
    other = FileCache(tmp_path / "cache", 0, runtime)
    async with cache.file("anna/large", reading(b"b" * 50 * KB)) as path:
        async with other.file("anna/x", reading(b"x")):
            pass
        await other.forget(["anna/large"])
        assert path.read_bytes() == b"b" * 50 * KB
    assert not path.exists(), "it is larger than the limit"


async def test_a_deleted_blob_has_no_copy(cache: FileCache) -> None:
    async with cache.file("anna/x", reading(b"bytes")) as path:
        pass
    await cache.forget(["anna/x", "anna/never"])
    assert not path.exists()


async def test_a_copy_that_nobody_used_for_a_day_goes(cache: FileCache, runtime: Runtime) -> None:
    async with cache.file("anna/x", reading(b"bytes")) as old:
        pass
    os.utime(old, (0, runtime.now() - UNUSED_S - 1))
    async with cache.file("anna/y", reading(b"bytes")) as new:
        pass
    assert (old.exists(), new.exists()) == (False, True)


async def test_a_fetch_that_fails_leaves_nothing(cache: FileCache, tmp_path: Path) -> None:
    async def broken() -> AsyncGenerator[bytes, None]:
        yield b"part"
        raise RuntimeError("cut")

    for _ in range(2):
        with pytest.raises(RuntimeError):
            async with cache.file("anna/x", broken):
                pass
    assert list((tmp_path / "cache").iterdir()) == []


async def test_a_fetch_that_is_cancelled_leaves_nothing(cache: FileCache, tmp_path: Path) -> None:
    begun = asyncio.Event()

    async def endless() -> AsyncGenerator[bytes, None]:
        while True:
            begun.set()
            yield b"x" * KB

    async def use() -> None:
        async with cache.file("anna/x", endless):
            pass

    task = asyncio.create_task(use())
    await begun.wait()
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await asyncio.sleep(0.05)
    assert list((tmp_path / "cache").iterdir()) == []


HOLDER = """
import asyncio, sys
from pathlib import Path
from penstock.blobs.cache import FileCache
from penstock.runtime import Runtime
async def read():
    yield b"part"
    print("fetching", flush=True)
    await asyncio.sleep(600)
async def held():
    yield b"whole"
async def main():
    cache = FileCache(Path(sys.argv[1]), 10, Runtime())
    async with cache.file("anna/held", held):
        async with cache.file("anna/part", read):
            pass
asyncio.run(main())
"""


async def test_what_a_killed_process_used_and_fetched_goes(cache: FileCache, tmp_path: Path) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", HOLDER, str(tmp_path / "cache"), stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    await process.stdout.readline()
    small = FileCache(tmp_path / "cache", 0, Runtime())
    async with small.file("anna/x", reading(b"x")):
        pass
    assert len(list((tmp_path / "cache").iterdir())) == 2, "it lives, and both of its files stay"
    os.kill(process.pid, signal.SIGKILL)
    await process.wait()
    async with small.file("anna/part", reading(b"whole")) as path:
        assert path.read_bytes() == b"whole"
    assert list((tmp_path / "cache").iterdir()) == []


async def test_processes_that_fetch_and_remove_all_the_time_always_see_whole_copies(
    tmp_path: Path, runtime: Runtime
) -> None:
    caches = [FileCache(tmp_path / "cache", 3 * KB, runtime) for _ in range(4)]

    async def use(cache: FileCache, part: int) -> None:
        for number in range(60):
            name = (number * 7 + part * 3) % 8
            async with cache.file(f"anna/{name}", reading(bytes([name]) * KB)) as path:
                assert path.read_bytes() == bytes([name]) * KB

    await asyncio.gather(*(use(cache, part) for part, cache in enumerate(caches)))
    assert size(tmp_path) <= 3 * KB
