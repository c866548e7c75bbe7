"""Bytes that a submit has stored and not named yet stay, however long it takes and whatever the clock says."""

import asyncio
import io
import os
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import BinaryIO

import pytest
from tests.kit.apps import found
from tests.kit.damage import clean, sql

from penstock.app import App, open_app
from penstock.blobs.submits import OpenSubmits
from penstock.intake import Intake
from penstock.intake_items import SubmitItem
from penstock.sources.stream import StreamSource
from penstock.upkeep.prune import DAY_S


class Waiting(io.BytesIO):
    """A stream whose end comes when it is allowed to."""

    def __init__(self, data: bytes) -> None:
        super().__init__(data)
        self.reached = threading.Event()
        self.go_on = threading.Event()

    def read(self, size: int | None = -1, /) -> bytes:
        data = super().read(size)
        if not data:
            self.reached.set()
            assert self.go_on.wait(60)
        return data


@pytest.fixture
async def app(tmp_path: Path) -> AsyncIterator[App]:
    async with open_app(home=str(tmp_path / "home"), embedder="fake") as app:
        yield app


@pytest.fixture
async def later(tmp_path: Path, app: App, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[App]:
    """Another process, two days later by the clock."""
    async with open_app(home=str(tmp_path / "home"), embedder="fake") as later:
        now = later.runtime.now
        monkeypatch.setattr(later.runtime, "now", lambda: now() + 2 * DAY_S)
        yield later


async def submit(app: App, *items: SubmitItem) -> None:
    order = app.resources.run_specs.start(app.owner, "default", app.resources.run_specs.asked("default", None, None))

    async def given() -> AsyncIterator[SubmitItem]:
        for item in items:
            yield item

    async for receipts in Intake(app.ledger, app.blobs, app.runtime).submit(order, given()):
        assert all(receipt.problem is None for receipt in receipts)


def item(app: App, name: str, stream: BinaryIO) -> SubmitItem:
    source = StreamSource(name, name, stream, app.runtime)
    return SubmitItem(source, source.found)


def raws(home: Path) -> list[Path]:
    return [path for path in (home / "blobs").rglob("raw/*/*") if path.is_file()]


async def test_i1_prune_leaves_what_an_open_submit_may_name_though_the_machine_slept_for_two_days(
    app: App, later: App, tmp_path: Path
) -> None:
    last = Waiting(b"The banana is yellow.")
    submitting = asyncio.create_task(
        submit(app, item(app, "a", io.BytesIO(b"The apple is red.")), item(app, "b", last))
    )
    try:
        await asyncio.to_thread(last.reached.wait, 60)
        # One is stored, of the other there is a temporary file.
        assert len(raws(tmp_path / "home")) == 2
        assert (await later.prune()).blobs == 0
    finally:
        last.go_on.set()
        await asyncio.wait([submitting])
    await submitting
    assert (await app.run()).completed == 2
    assert await found(app, "apple banana") == {"a", "b"}
    assert clean(await app.check())
    assert list((tmp_path / "home" / "blobs" / ".submits").iterdir()) == []


async def test_what_a_submit_left_that_died_goes_after_a_day(app: App, later: App, tmp_path: Path) -> None:
    """Also while another one is open that began later."""
    home = tmp_path / "home"
    first = app.runtime.ulid()
    (home / "blobs" / ".submits").mkdir(parents=True)
    (home / "blobs" / ".submits" / first).touch()
    await app.blobs.put(f"default/raw/0000000/{app.runtime.ulid()}", b"left", durable=False)
    async with app.blobs.submitting(app.runtime.ulid()):
        await app.blobs.put(f"default/raw/0000000/{app.runtime.ulid()}", b"open", durable=False)
        assert (await app.prune()).blobs == 0
        assert (await later.prune()).blobs == 1
    assert (await later.prune()).blobs == 1
    assert raws(home) == []
    assert list((home / "blobs" / ".submits").iterdir()) == []


async def test_a_segment_that_a_living_lease_may_name_stays(app: App, later: App, tmp_path: Path) -> None:
    await app.ingest(data=b"The apple is red.", name="a", wait=False)
    sql(tmp_path / "home", "UPDATE steps SET status = 'RUNNING', lease_token = 'feed', lease_until = 9e9")
    for token in ("feed", "dead"):
        await app.blobs.put(f"default/segments/0/1-1-{token}-000000", b"pages", durable=False)
    assert (await later.prune()).blobs == 1
    sql(tmp_path / "home", "UPDATE steps SET status = 'PENDING', lease_token = NULL")
    assert (await later.prune()).blobs == 1


async def test_a_submit_that_is_looked_at_while_it_begins_is_not_taken_for_dead(tmp_path: Path) -> None:
    submits = OpenSubmits(tmp_path / "submits", Path.mkdir)
    stop = threading.Event()

    def look() -> None:
        while not stop.is_set():
            submits.oldest()

    looking = threading.Thread(target=look)
    looking.start()
    try:
        for i in range(300):
            async with submits.hold(f"{i:05d}"):
                assert submits.oldest() == f"{i:05d}"
    finally:
        stop.set()
        looking.join()


async def test_a_small_submit_pays_no_commit_for_it(app: App) -> None:
    before = app.ledger.commits
    await app.ingest(data=b"The apple is red.", name="a", wait=False)
    assert app.ledger.commits - before == 1


async def test_the_stream_of_a_caller_stays_open(app: App, tmp_path: Path) -> None:
    with (tmp_path / "a.txt").open("wb+") as file:
        file.write(b"The apple is red.")
        file.seek(0)
        await app.ingest(data=file, name="a")
        assert not file.closed
        assert file.tell() == 17
    assert await found(app, "apple") == {"a"}


@pytest.mark.parametrize("size", [10, 2 << 20])
@pytest.mark.parametrize("swap", ["pipe", "link", "inner link"])
async def test_what_takes_a_file_s_place_before_it_is_opened_is_not_read(
    app: App, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, swap: str, size: int
) -> None:
    """A pipe would never open, a link would lead out of the folder; one that stays within it is read."""
    secret, folder = tmp_path / "secret.txt", tmp_path / "folder"
    folder.mkdir()
    (folder / "inner.txt").write_text("inside " * size)
    secret.write_text("secret " * size)
    (folder / "x.txt").write_text("plain " * size)
    opened = os.open

    def swapping(path: object, flags: int, *more: int, **options: int) -> int:
        if path == folder / "x.txt" and (folder / "x.txt").is_file():
            (folder / "x.txt").unlink()
            if swap == "pipe":
                os.mkfifo(folder / "x.txt")
            else:
                (folder / "x.txt").symlink_to(secret if swap == "link" else folder / "inner.txt")
            monkeypatch.setattr(os, "open", opened)
        return opened(path, flags, *more, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "open", swapping)
    try:
        async with asyncio.timeout(30):
            summary = await app.ingest([folder], wait=False)
    finally:
        if (folder / "x.txt").is_fifo():
            # Whoever waits for a writer has one.
            os.close(opened(folder / "x.txt", os.O_RDWR))
    assert summary.submitted == (2 if swap == "inner link" else 1)
    assert len(summary.problems) == (0 if swap == "inner link" else 1)
    assert {entry.name for entry in await app.list_documents()} >= {"inner.txt"}


async def test_a_link_that_the_caller_names_is_followed(app: App, tmp_path: Path) -> None:
    (tmp_path / "real.txt").write_text("The apple is red.")
    (tmp_path / "link.txt").symlink_to(tmp_path / "real.txt")
    assert (await app.ingest([tmp_path / "link.txt"])).completed == 1
