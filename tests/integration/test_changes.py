"""The change feed of the library: what changes, by whichever process, is told within a second and never lost."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, suppress
from typing import Any

import pytest
from tests.conftest import StartApp
from tests.kit.apps import fast, slow, text

from penstock.app import App
from penstock.events import feed
from penstock.ledger.database.connection import Connection
from penstock.ledger.database.statements import Statement
from penstock.ledger.engine.reindexes import _PENDING
from penstock.ledger.reads import feed as rows
from penstock.ledger.reads.feed import Position
from penstock.verbs.following import Change
from penstock.verbs.owner import OwnerScope

ENDS = ("COMPLETED", "FAILED", "CANCELLED")


async def until(stream: AsyncIterator[Change], document: str, event: str, *statuses: str) -> list[Change]:
    seen = []
    async with asyncio.timeout(20):
        async for change in stream:
            seen.append(change)
            if change.document == document and change.event == event and (not statuses or change.status in statuses):
                return seen
    raise AssertionError(seen)


async def submitted(app: OwnerScope, name: str, data: bytes = b"some words") -> str:
    [receipt] = [r async for r in app.submit(data=data, name=name)]
    assert receipt.id is not None
    return receipt.id


@pytest.fixture
async def app(start_app: StartApp, database_url: str) -> App:
    return await start_app(database=database_url)


async def test_changes_of_another_process_are_told_until_the_end(
    app: App, start_app: StartApp, database_url: str
) -> None:
    other = await start_app(database=database_url)
    slow(other, 0.8)
    stream = app.changes()
    first = asyncio.ensure_future(anext(stream))
    working = asyncio.create_task(other.ingest(data=text(600).encode(), name="a.txt"))
    change = await first
    assert change.document is not None
    seen = [change, *await until(stream, change.document, "changed", "COMPLETED")]
    last = seen[-1]
    assert (last.name, last.searchable, last.collection) == ("a.txt", True, "default")
    told = [(c.document, c.changed_at) for c in seen if c.event == "changed"]
    assert len(told) == len(set(told)), "no change is told twice while the stream lives"
    made = [c for c in seen if c.event == "progress"]
    assert any(c.step for c in made)
    assert all(c.id is None for c in made)
    await working
    fast(other)
    await stream.aclose()  # type: ignore[attr-defined]


async def test_a_deletion_is_told(app: App) -> None:
    stream = app.changes()
    document = await submitted(app, "a.txt")
    await until(stream, document, "changed", "PENDING")
    await app.delete([document])
    await until(stream, document, "deleted")


async def test_what_changed_since_an_id_comes_first(app: App) -> None:
    stream = app.changes()
    first = await submitted(app, "first.txt")
    place = (await until(stream, first, "changed"))[-1].id
    await stream.aclose()  # type: ignore[attr-defined]
    await asyncio.sleep(feed.OVERLAP_S + 0.1)
    others = [await submitted(app, f"{i}.txt") for i in range(3)]
    await app.delete([first])
    resumed = app.changes(after=place)
    seen = await until(resumed, first, "deleted")
    assert {c.document for c in seen} == {first, *others}
    assert all(c.event != "reset" for c in seen)


@pytest.mark.parametrize("after", ["", "7", "0-1.000000-", "9-1795000000.0-X", "0-99999999999.0-", "x" * 100, "0-1-1"])
async def test_an_id_of_another_time_is_a_reset(app: App, after: str) -> None:
    stream = app.changes(after=after)
    change = await anext(stream)
    assert change.event == "reset"
    document = await submitted(app, "a.txt")
    await until(app.changes(after=change.id), document, "changed")


async def test_filters(app: App) -> None:
    streams = {"c": app.changes(collection="two"), "d": app.changes(document="01NONE"), "g": app.changes(group="none")}
    firsts = {name: asyncio.ensure_future(anext(stream)) for name, stream in streams.items()}
    await submitted(app, "a.txt")
    [two] = [r async for r in app.submit(data=b"words", name="b.txt", collection="two")]
    assert (await firsts["c"]).document == two.id
    await asyncio.sleep(0.6)
    assert not firsts["d"].done()
    assert not firsts["g"].done()
    for task in firsts.values():
        task.cancel()
        with suppress(asyncio.CancelledError, StopAsyncIteration):
            await task


async def test_i10_another_owner_s_changes_are_not_told(app: App) -> None:
    stream = app.for_owner("bert").changes()
    first = asyncio.ensure_future(anext(stream))
    await submitted(app.for_owner("anna"), "secret.txt")
    mine = await submitted(app.for_owner("bert"), "mine.txt")
    assert (await first).document == mine


async def test_200_streams_cost_one_reader(app: App) -> None:
    tasks = [asyncio.ensure_future(anext(app.changes())) for _ in range(200)]
    await asyncio.sleep(1)
    assert app.resources.feed.streams == 200
    before, began = app.resources.feed.looks, asyncio.get_running_loop().time()
    await submitted(app, "a.txt")
    assert len({(await task).document for task in tasks}) == 1
    elapsed = asyncio.get_running_loop().time() - began
    assert app.resources.feed.looks - before <= elapsed / feed.POLL_S + 1


async def test_a_stream_that_is_read_slowly_loses_nothing(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed, "HELD", 5)
    stream = app.changes()
    task = asyncio.ensure_future(anext(stream))
    first = await submitted(app, "first.txt")
    assert (await task).document == first
    many = [await submitted(app, f"{i}.txt") for i in range(40)]
    await asyncio.sleep(0.6)
    assert all(len(s.waiting) <= 5 for r in app.resources.feed._readers.values() for s in r.streams)
    seen: set[Any] = set()
    async with asyncio.timeout(10):
        async for change in stream:
            seen.add(change.document)
            if seen.issuperset(many):
                break


async def test_streams_end_when_the_app_stops(app: App) -> None:
    task = asyncio.ensure_future(anext(app.changes(), None))
    await asyncio.sleep(0.3)
    app.stop()
    async with asyncio.timeout(1):
        assert await task is None


async def test_a_reader_that_fails_goes_on(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed, "AGAIN_S", 0.1)
    real, failures = rows.running, [ValueError("once"), OSError("twice")]

    def running(owner: Any, connection: Connection) -> Any:
        if failures:
            raise failures.pop()
        return real(owner, connection)

    monkeypatch.setattr(rows, "running", running)
    stream = app.changes()
    task = asyncio.ensure_future(anext(stream))
    await asyncio.sleep(0.5)
    assert not failures
    document = await submitted(app, "a.txt")
    assert (await task).document == document


_SLEEP = Statement("SELECT pg_sleep(:seconds)")
_TOUCH = Statement("UPDATE documents SET updated_at = {now} WHERE id = :id")


async def test_what_is_committed_late_is_told(app: App) -> None:
    """PostgreSQL commits out of order: the time of a change may be long before it can be read."""
    if app.ledger.database.dialect == "sqlite":
        pytest.skip("SQLite commits in the order of its clock")
    late, other = await submitted(app, "late.txt"), await submitted(app, "other.txt")
    await asyncio.sleep(feed.OVERLAP_S + 0.5)
    async with aclosing(app.changes()) as stream:  # type: ignore[type-var]
        task = asyncio.ensure_future(anext(stream))
        await asyncio.sleep(0.5)
        connection = app.ledger.database.connect()
        connection.begin()
        connection.run(_TOUCH, id=late)
        for _ in range(4):
            await asyncio.sleep(1)
            await app.set_metadata(other, {"n": 1})
        connection.commit()
        connection.close()
        seen = [await task, *await until(stream, late, "changed")]
        assert other in {c.document for c in seen}


def test_a_reindex_bumps_the_time_of_the_change() -> None:
    assert "updated_at" in _PENDING.text
    assert Position(1.0, "A") < Position(1.0, "B") < Position(2.0)
