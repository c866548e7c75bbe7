"""What every source must do. Another adapter joins by adding its shelf to `SHELVES`."""

import asyncio
import os
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import ExitStack, aclosing
from pathlib import Path
from typing import Protocol

import pytest
from tests.kit import s3, web
from tests.kit.s3 import S3Address

from penstock.config_http import HttpConfig
from penstock.errors import SourceChanged, SourceError, UsageError
from penstock.runtime import Runtime
from penstock.sources import folder
from penstock.sources.base import NOTHING, Change, Closable, Found, Known, Local, Remembered, Revised, Source, compared
from penstock.sources.bucket import BucketSource
from penstock.sources.folder import FolderSource
from penstock.sources.http import HttpSource
from penstock.sources.stream import StreamSource

LARGE = os.urandom(3_000_000)


class Shelf(Protocol):
    """Where documents of a source lie, to be changed by a test."""

    def __init__(self, place: Path, runtime: Runtime) -> None: ...

    def open(self) -> Source: ...

    def close(self) -> None: ...

    def put(self, name: str, data: bytes) -> None: ...

    def remove(self, name: str) -> None: ...


class FolderShelf:
    def __init__(self, place: Path, runtime: Runtime) -> None:
        self._place = place / "shelf"
        self._place.mkdir()
        self._runtime = runtime

    def open(self) -> Source:
        return FolderSource([self._place], self._runtime)

    def put(self, name: str, data: bytes) -> None:
        path = self._place / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)

    def remove(self, name: str) -> None:
        (self._place / name).unlink()

    def close(self) -> None: ...


class MemorySource:
    """The smallest source there is."""

    problems: Sequence[str] = ()
    repeatable = True

    def __init__(self, contents: dict[str, tuple[int, bytes]]) -> None:
        self._contents = contents

    async def discover(self, known: Known) -> AsyncGenerator[Found, None]:
        for name, (revision, _) in sorted(self._contents.items()):
            found = Found(f"memory://{name}", name.rpartition("/")[2], str(revision), place=name)
            for one in compared([found], await known.revisions([found.uri])):
                yield one
        async for uri in known.under("memory://"):
            if uri.removeprefix("memory://") not in self._contents:
                yield Found(uri, uri.rpartition("/")[2], change=Change.GONE)

    async def read(self, found: Found) -> AsyncGenerator[bytes, None]:
        if found.place not in self._contents:
            raise SourceError("it is gone")
        _, data = self._contents[found.place]
        for start in range(0, len(data), 100_000):
            await asyncio.sleep(0)
            yield data[start : start + 100_000]


class MemoryShelf:
    def __init__(self, place: Path, runtime: Runtime) -> None:
        self._contents: dict[str, tuple[int, bytes]] = {}
        self._revision = 0

    def open(self) -> Source:
        return MemorySource(self._contents)

    def put(self, name: str, data: bytes) -> None:
        self._revision += 1
        self._contents[name] = (self._revision, data)

    def remove(self, name: str) -> None:
        del self._contents[name]

    def close(self) -> None: ...


class WebShelf:
    """Pages of a web server. What was put once stays in the list of URLs."""

    def __init__(self, place: Path, runtime: Runtime) -> None:
        self._stack = ExitStack()
        self._site = self._stack.enter_context(web.serving())
        self._runtime = runtime
        self._urls: dict[str, str] = {}

    def open(self) -> Source:
        quick = HttpConfig(allow_private=True, requests_per_s=10_000, patience_s=0.2)
        return HttpSource([*self._urls.values()], self._runtime, quick, megabytes=100)

    def put(self, name: str, data: bytes) -> None:
        self._urls[name] = self._site.put(f"/{name}", data)

    def remove(self, name: str) -> None:
        del self._site.pages[f"/{name}"]

    def close(self) -> None:
        self._stack.close()


class BucketShelf:
    """A prefix in a bucket of a real S3 server."""

    server: S3Address

    def __init__(self, place: Path, runtime: Runtime) -> None:
        self._prefix = s3.Prefix(self.server)
        self._runtime = runtime
        self._patch = pytest.MonkeyPatch()
        for name, value in self.server.environment.items():
            self._patch.setenv(name, value)

    def open(self) -> Source:
        rest = self._prefix.url.removeprefix("s3://")
        return BucketSource("s3", rest, self._runtime, HttpConfig(), os.environ, megabytes=100)

    def put(self, name: str, data: bytes) -> None:
        self._prefix.put(name, data)

    def remove(self, name: str) -> None:
        self._prefix.remove(name)

    def close(self) -> None:
        self._patch.undo()


SHELVES: dict[str, type[Shelf]] = {
    "bucket": BucketShelf,
    "folder": FolderShelf,
    "memory": MemoryShelf,
    "web": WebShelf,
}


@pytest.fixture(params=sorted(SHELVES))
async def shelf(request: pytest.FixtureRequest, tmp_path: Path, runtime: Runtime) -> AsyncIterator[Shelf]:
    if request.param == "bucket":
        BucketShelf.server = request.getfixturevalue("s3_server")
    shelf = SHELVES[request.param](tmp_path, runtime)
    open_source, opened = shelf.open, list[Source]()

    def noting() -> Source:
        opened.append(open_source())
        return opened[-1]

    vars(shelf)["open"] = noting
    yield shelf
    for source in opened:
        if isinstance(source, Closable):
            await source.close()
    shelf.close()


async def discover(source: Source, known: Known = NOTHING) -> dict[str, Found]:
    async with aclosing(source.discover(known)) as discovered:
        found = [one async for one in discovered]
    assert len({one.uri for one in found}) == len(found), "every document once"
    return {one.name: one for one in found}


async def read(source: Source, found: Found) -> bytes:
    async with aclosing(source.read(found)) as pieces:
        return b"".join([piece async for piece in pieces])


async def test_what_is_there_is_found_and_read(shelf: Shelf) -> None:
    contents = {"a.txt": b"one", "deep/er/b.txt": b"two", "empty.txt": b"", "large.bin": LARGE}
    for name, data in contents.items():
        shelf.put(name, data)
    source = shelf.open()
    found = await discover(source)
    assert {name: await read(source, one) for name, one in found.items()} == {
        name.rpartition("/")[2]: data for name, data in contents.items()
    }
    assert {one.change for one in found.values()} == {Change.NEW}
    assert list(source.problems) == []


async def test_many_are_found_as_they_come(shelf: Shelf) -> None:
    for i in range(700):
        shelf.put(f"{i % 7}/{i}.txt", b"x")
    async with aclosing(shelf.open().discover(NOTHING)) as discovered:
        first = await anext(discovered)
    assert first.change is Change.NEW
    assert len(await discover(shelf.open())) == 700


async def test_nothing_is_found_where_nothing_is(shelf: Shelf) -> None:
    assert await discover(shelf.open()) == {}


async def test_revisions_tell_new_changed_unchanged_and_gone(shelf: Shelf) -> None:
    for name in ("same.txt", "changed.txt", "gone.txt"):
        shelf.put(name, b"before")
    before = await discover(shelf.open())
    known = Remembered({one.uri: one.revision for one in before.values()})
    assert {one.change for one in (await discover(shelf.open(), known)).values()} == {Change.UNCHANGED}
    shelf.put("changed.txt", b"after, and longer")
    shelf.put("new.txt", b"new")
    shelf.remove("gone.txt")
    after = await discover(shelf.open(), known)
    assert {name: one.change for name, one in after.items()} == {
        "same.txt": Change.UNCHANGED,
        "changed.txt": Change.CHANGED,
        "new.txt": Change.NEW,
        "gone.txt": Change.GONE,
    }
    assert after["gone.txt"].uri == before["gone.txt"].uri
    assert after["changed.txt"].revision != before["changed.txt"].revision


async def test_what_is_known_without_a_revision_may_have_changed(shelf: Shelf) -> None:
    shelf.put("a.txt", b"one")
    found = await discover(shelf.open())
    known = Remembered({found["a.txt"].uri: ""})
    assert (await discover(shelf.open(), known))["a.txt"].change is Change.CHANGED


async def test_what_vanished_is_a_source_error(shelf: Shelf) -> None:
    shelf.put("a.txt", b"one")
    source = shelf.open()
    found = await discover(source)
    shelf.remove("a.txt")
    with pytest.raises(SourceError):
        await read(source, found["a.txt"])


async def test_a_repeatable_source_reads_the_same_again_also_after_it_was_left(shelf: Shelf) -> None:
    shelf.put("large.bin", LARGE)
    source = shelf.open()
    assert source.repeatable
    found = (await discover(source))["large.bin"]
    async with aclosing(source.read(found)) as pieces:
        await anext(pieces)
    assert await read(source, found) == await read(source, found) == LARGE


async def test_a_local_source_reads_small_documents_at_once(shelf: Shelf) -> None:
    shelf.put("a.txt", b"12345")
    source = shelf.open()
    found = (await discover(source))["a.txt"]
    if isinstance(source, Local):
        assert source.read_now(found, 5) == b"12345"
        assert source.read_now(found, 4) is None
        shelf.remove("a.txt")
        with pytest.raises(SourceError):
            source.read_now(found, 5)


async def test_a_revision_belongs_to_the_bytes_that_were_read(shelf: Shelf) -> None:
    shelf.put("a.txt", b"before")
    source = shelf.open()
    found = (await discover(source))["a.txt"]
    shelf.put("a.txt", b"after, and longer")
    if isinstance(source, Revised):
        assert await read(source, found) == b"after, and longer"
        known = Remembered({found.uri: source.learned(found).revision})
        assert (await discover(shelf.open(), known))["a.txt"].change is Change.UNCHANGED
        known = Remembered({found.uri: found.revision})
        assert (await discover(shelf.open(), known))["a.txt"].change is Change.CHANGED


# the folder


async def test_a_file_with_its_old_time_and_size_has_another_revision(tmp_path: Path, runtime: Runtime) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"before")
    times = path.stat()
    source = FolderSource([path], runtime)
    before = (await discover(source))["a.txt"]
    await asyncio.sleep(0.02)
    path.write_bytes(b"after!")
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert (await discover(source))["a.txt"].revision != before.revision


async def test_nothing_is_gone_where_a_folder_could_not_be_read(
    tmp_path: Path, runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "a.txt").write_text("a")
    scandir = os.scandir

    def broken(path: str) -> object:
        if str(path).endswith("deep"):
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", broken)
    source = FolderSource([tmp_path], runtime)
    known = Remembered({f"{tmp_path}/gone.txt": "1", f"{tmp_path}/deep/b.txt": "2"})
    assert {name: one.change for name, one in (await discover(source, known)).items()} == {"a.txt": Change.NEW}
    assert source.problems == [f"{tmp_path}/deep: Permission denied"]


async def test_what_a_pattern_leaves_out_is_not_gone(tmp_path: Path, runtime: Runtime) -> None:
    (tmp_path / "a.txt").write_text("a")
    (tmp_path / "b.log").write_text("b")
    source = FolderSource([tmp_path], runtime, exclude=["*.log"])
    known = Remembered({f"{tmp_path}/b.log": "1", f"{tmp_path}/c.txt": "2"})
    found = await discover(source, known)
    assert {name: one.change for name, one in found.items()} == {"a.txt": Change.NEW, "c.txt": Change.GONE}


async def test_a_file_that_changes_while_it_is_read_says_so(
    tmp_path: Path, runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.bin"
    path.write_bytes(LARGE)
    source = FolderSource([path], runtime)
    found = (await discover(source))["a.bin"]
    for growth in (b"more", b""):
        async with aclosing(source.read(found)) as pieces:
            await anext(pieces)
            with path.open("ab") as file:
                file.write(growth)
            os.utime(path)
            with pytest.raises(SourceChanged):
                [piece async for piece in pieces]
    monkeypatch.setattr(folder, "_same", lambda before, after: False)
    with pytest.raises(SourceChanged):
        source.read_now(found, 1 << 30)


async def test_a_link_that_was_put_in_the_place_of_a_file_leads_nowhere(tmp_path: Path, runtime: Runtime) -> None:
    (tmp_path / "shelf").mkdir()
    (tmp_path / "secret").write_text("secret")
    path = tmp_path / "shelf" / "a.txt"
    path.write_text("a")
    source = FolderSource([tmp_path / "shelf"], runtime)
    found = (await discover(source))["a.txt"]
    path.unlink()
    path.symlink_to(tmp_path / "secret")
    with pytest.raises(SourceError, match="leads out of the folder"):
        await read(source, found)
    with pytest.raises(SourceError, match="leads out of the folder"):
        source.read_now(found, 100)


async def test_a_path_that_is_not_there_is_the_caller_s_mistake(tmp_path: Path, runtime: Runtime) -> None:
    with pytest.raises(UsageError, match="no such file or folder"):
        await discover(FolderSource([tmp_path / "none"], runtime))


# a stream


async def test_a_stream_is_one_document_and_read_once(runtime: Runtime) -> None:
    source = StreamSource("notes", "notes.txt", LARGE, runtime)
    found = await discover(source)
    assert [*found] == ["notes.txt"]
    assert await read(source, found["notes.txt"]) == LARGE
    assert not source.repeatable
    with pytest.raises(SourceError, match="only once"):
        await read(source, found["notes.txt"])
