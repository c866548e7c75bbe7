"""Outages are nobody's fault: what a provider or a user's own service does while it is away, and when it is back."""

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from tests.conftest import StartApp
from tests.integration import away_steps
from tests.kit.apps import until
from tests.kit.workflows import define

from penstock.app import App
from penstock.cli.documents import counts
from penstock.embedders.fake import FakeEmbedder
from penstock.errors import Away, QuotaSpent, RateLimited, StorageError, Unauthorized
from penstock.indexes.lance import LanceTable
from penstock.ledger.database.statements import Statement
from penstock.ledger.engine import refusals, targets
from penstock.model.items import Vectors
from penstock.stages.index import INDEX as STAGE
from penstock.stages.registry import GROUPED
from penstock.worker.targets import LONGEST_S

OWN = """\
id: own
steps:
  validate:
  call: {kind: enrich, method: tests.integration.away_steps.call}
  extract:
  clean:
  chunk:
  embed:
  index:
"""
HEALTHY = """\
id: healthy
steps: {validate: , note: {kind: enrich, method: tests.integration.away_steps.note}, extract: , clean: , chunk: }
"""
_CLAIMS = Statement("SELECT coalesce(sum(epoch), 0), coalesce(max(attempts), 0), coalesce(max(errors), 0) FROM steps")
_OF_KIND = Statement("SELECT coalesce(sum(epoch), 0) FROM steps WHERE kind = :kind")
_DUE_NOW = Statement("UPDATE targets SET held_until = 0 RETURNING name")
_LONG_AGO = Statement("UPDATE targets SET since = since - :seconds, held_until = {now} RETURNING name")
_NOT_ASKED = Statement("UPDATE targets SET since = since - :seconds, held_until = {now} - :seconds RETURNING name")

Error = Callable[[], BaseException]


class Provider:
    """What stands behind the fake embedder. It fails while it has an error."""

    def __init__(self) -> None:
        self.error: Error | None = None
        self.calls = self.failed = self.at_once = self.most_at_once = 0
        self._embed = FakeEmbedder.embed_documents

    async def embed(self, embedder: FakeEmbedder, texts: Sequence[str]) -> Vectors:
        self.calls += 1
        if self.error is None:
            return await self._embed(embedder, texts)
        error = self.error()
        self.failed += 1
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            await asyncio.sleep(0.02)
        finally:
            self.at_once -= 1
        raise error


@pytest.fixture
def provider(monkeypatch: pytest.MonkeyPatch) -> Provider:
    provider = Provider()

    async def embed(self: FakeEmbedder, texts: Sequence[str]) -> Vectors:
        return await provider.embed(self, texts)

    monkeypatch.setattr(FakeEmbedder, "embed_documents", embed)
    return provider


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(targets, "LONGEST_S", 1.0)


@pytest.fixture
async def one(start_app: StartApp, database_url: str) -> App:
    return await start_app(database=database_url)


@asynccontextmanager
async def working(*apps: App) -> AsyncIterator[None]:
    tasks = [asyncio.create_task(app.work()) for app in apps]
    try:
        yield
        assert not any(task.done() for task in tasks), "a worker ended by itself"
    finally:
        for app in apps:
            app.stop()
        await asyncio.gather(*tasks)


async def give(app: App, count: int, workflow: str | None = None, first: int = 0) -> None:
    for number in range(first, first + count):
        data = f"document {number} tells of the weir".encode()
        await app.ingest(data=data, name=f"{number}.txt", workflow=workflow, wait=False)


def all_are(app: App, status: str, count: int) -> Callable[[], Awaitable[bool]]:
    async def look() -> bool:
        return len(await app.list_documents(status=status, limit=1000)) == count

    return look


async def failures(app: App) -> int:
    return max((hold.failures for hold in await app.ledger.read(targets.all_held)), default=0)


def failed(app: App, count: int) -> Callable[[], Awaitable[bool]]:
    async def look() -> bool:
        return await failures(app) >= count

    return look


async def look(app: App, statement: Statement, **values: Any) -> tuple[Any, ...]:
    return tuple((await app.ledger.read(lambda c: c.run(statement, **values)))[0])


async def nobody_is_blamed(app: App) -> None:
    assert (await app.list_dead_letters()).letters == []
    _, attempts, errors = await look(app, _CLAIMS)
    assert attempts <= 1
    assert errors == 0


KINDS: dict[str, Error] = {
    "away": lambda: Away("the embedder answered 503", target="fake"),
    "unnamed": lambda: Away("no route to host"),
    "limited": lambda: RateLimited("slow down", target="fake"),
    "retry_after": lambda: RateLimited("slow down", target="fake", retry_after=0.3),
    "refused": lambda: Unauthorized("401", target="fake", setting="FAKE_KEY"),
}


@pytest.mark.parametrize("kind", KINDS)
async def test_i7_a_provider_that_is_away_counts_for_no_step_and_the_work_goes_on_when_it_is_back(
    one: App, start_app: StartApp, provider: Provider, kind: str
) -> None:
    two = await start_app(database=one.config.database_url)
    provider.error = KINDS[kind]
    await give(one, 60)
    async with working(one, two):
        await until(failed(one, 3))
        before = provider.failed
        await nobody_is_blamed(one)
        [held] = await one.ledger.read(targets.all_held)
        assert held.name == "fake"
        # Those that were under way when it began, then one probe after the other.
        assert (await look(one, _OF_KIND, kind="embed"))[0] <= 60 + held.failures + 1
        assert before < 60, "calls that began after the first one had failed"
        provider.most_at_once = 0
        await until(failed(one, held.failures + 2))
        assert provider.most_at_once <= 1, "more than one probe at a time"
        provider.error = None
        await until(all_are(one, "COMPLETED", 60))
    assert await one.ledger.read(targets.all_held) == []
    await nobody_is_blamed(one)


async def test_a_crowd_behind_a_dead_provider_is_claimed_no_more_often_than_it_is_probed(
    one: App, provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(targets, "LONGEST_S", 2.0)
    provider.error = KINDS["away"]
    await give(one, 400)
    clock = asyncio.get_running_loop().time
    async with working(one):
        await until(failed(one, 2), 60)
        began, before = clock(), (await look(one, _OF_KIND, kind="embed"))[0]
        commits = one.ledger.commits
        await until(failed(one, 6), 60)
        seconds = clock() - began
        claims = (await look(one, _OF_KIND, kind="embed"))[0] - before
    assert claims <= 2 * (seconds / targets.FIRST_S) + 4, f"{claims} claims in {seconds:.1f} s"
    assert provider.failed <= 64
    assert one.ledger.commits - commits < 3000


async def test_healthy_work_goes_on_beside_a_target_that_is_away(one: App, provider: Provider) -> None:
    define(one, HEALTHY)
    provider.error = KINDS["away"]
    await give(one, 10)
    async with working(one):
        await until(failed(one, 2))
        await give(one, 10, "healthy", first=100)
        await until(all_are(one, "COMPLETED", 10))


async def test_a_key_that_is_refused_holds_the_work_and_says_what_to_set(
    one: App, provider: Provider, caplog: pytest.LogCaptureFixture
) -> None:
    provider.error = KINDS["refused"]
    await give(one, 40)
    async with asyncio.timeout(60):
        with pytest.raises(StorageError, match=r"401\. Set FAKE_KEY\. Completed work is kept; the rest waits for it"):
            await one.run()
    await nobody_is_blamed(one)
    [away] = (await one.status()).away
    assert (away.target, away.state, away.error, away.setting) == ("fake", "unauthorized", "401", "FAKE_KEY")
    assert any("fake: unauthorized since" in line and "Set FAKE_KEY" in line for line in counts(await one.status()))
    assert "fake" in {step.waiting_on for step in (await one.list_steps(status="ERROR"))}
    assert any("Set FAKE_KEY" in record.getMessage() for record in caplog.records)
    # A new start tries at once, however long the hold is.
    provider.error = None
    await one.ledger.read(lambda c: c.run(Statement("UPDATE targets SET held_until = {now} + 3600 RETURNING name")))
    async with asyncio.timeout(30):
        assert (await one.run()).completed == 40


async def test_a_call_ends_after_a_few_probes_when_all_that_is_left_waits(one: App, provider: Provider) -> None:
    provider.error = KINDS["away"]
    async with asyncio.timeout(60):
        with pytest.raises(StorageError, match=r"answered 503\. Completed work is kept; the rest waits for it"):
            await one.ingest(data=b"the weir", name="a.txt")
    # After each probe that failed, a small call asks whether the target works for others.
    assert targets.TRIES <= provider.failed <= 2 * targets.TRIES
    async with asyncio.timeout(30):
        with pytest.raises(StorageError, match="answered 503"):
            await one.run()
    assert provider.failed <= 2 * (targets.TRIES + 3)
    provider.error = None
    assert (await one.run()).completed == 1


async def test_a_call_does_not_wait_for_a_provider_that_asks_for_an_hour(one: App, provider: Provider) -> None:
    provider.error = lambda: RateLimited("slow down", target="fake", retry_after=3600.0)
    for _ in range(2):
        async with asyncio.timeout(30):
            with pytest.raises(StorageError, match="slow down"):
                await one.ingest(data=b"the weir", name="a.txt")
    assert provider.failed == 1, "asked before the time that it named"
    await nobody_is_blamed(one)


async def test_a_quota_that_is_spent_is_a_dead_letter(one: App, provider: Provider) -> None:
    for number, error in enumerate(
        (
            lambda: QuotaSpent("insufficient quota"),
            lambda: RateLimited("come back next week", target="fake", retry_after=7 * LONGEST_S),
        )
    ):
        provider.error = error
        assert (await one.ingest(data=b"the weir %d" % number, name=f"{number}.txt")).failed == 1
    assert {letter.reason for letter in (await one.list_dead_letters()).letters} == {"provider_quota"}
    assert await one.ledger.read(targets.all_held) == []


async def test_throttling_beyond_a_day_is_a_dead_letter(one: App, provider: Provider) -> None:
    provider.error = KINDS["limited"]
    async with asyncio.timeout(60):
        with pytest.raises(StorageError, match="slow down"):
            await one.ingest(data=b"the weir", name="a.txt")
    await look(one, _LONG_AGO, seconds=LONGEST_S)
    assert (await one.run()).failed == 1
    [letter] = (await one.list_dead_letters()).letters
    assert (letter.reason, letter.error) == ("provider_quota", "slow down")


async def test_a_document_for_which_alone_the_provider_fails_stops_no_other(
    one: App, provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def embed(self: FakeEmbedder, texts: Sequence[str]) -> Vectors:
        if any("poison" in text for text in texts):
            raise Away("answered 500", target="fake")
        return await provider.embed(self, texts)

    monkeypatch.setattr(FakeEmbedder, "embed_documents", embed)
    await one.ingest(data=b"poison", name="poison.txt", wait=False, priority=5)
    await give(one, 30)
    async with working(one):
        await until(all_are(one, "COMPLETED", 30))
    _, attempts, errors = await look(one, _CLAIMS)
    assert (attempts, errors) <= (1, 0)


# steps of one's own


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> type[away_steps.Service]:
    away_steps.Service.error = None
    away_steps.Service.calls = 0
    return away_steps.Service


async def test_a_custom_step_may_say_that_its_service_is_away(one: App, service: type[away_steps.Service]) -> None:
    define(one, OWN)
    service.error = lambda: Away("my service is down", target="my-api")
    await give(one, 40, "own")
    async with working(one):
        await until(failed(one, 4))
        await nobody_is_blamed(one)
        assert service.calls <= 32 + 10
        await give(one, 5, first=100)
        await until(all_are(one, "COMPLETED", 5))
        service.error = None
        await until(all_are(one, "COMPLETED", 45))
    await nobody_is_blamed(one)


async def test_a_step_that_names_a_new_target_at_each_error_does_not_spin(
    one: App, service: type[away_steps.Service]
) -> None:
    define(one, OWN)
    service.error = lambda: Away("down", target=f"api-{service.calls}")
    await give(one, 2, "own")
    async with asyncio.timeout(30):
        with pytest.raises(StorageError, match="Completed work is kept"):
            await one.run()
    assert service.calls <= 2 * (targets.TRIES + 2)
    await nobody_is_blamed(one)
    assert len(await one.ledger.read(targets.all_held)) <= 2
    service.error = None
    assert (await one.run()).completed == 2


@pytest.mark.parametrize("name", sorted(away_steps.RUBBISH))
async def test_i9_whatever_a_step_says_about_its_target_it_waits_and_affects_no_other(
    one: App, service: type[away_steps.Service], name: str
) -> None:
    define(one, OWN)
    service.error = away_steps.RUBBISH[name]
    await give(one, 2, "own")
    async with asyncio.timeout(60):
        with pytest.raises(StorageError, match="Completed work is kept"):
            await one.run()
    await nobody_is_blamed(one)
    [held] = await one.ledger.read(targets.all_held)
    assert 0 < len(held.name) <= 300
    # No name of ours is taken: the provider of all others is not held.
    assert (await one.ingest(data=b"the weir", name="other.txt")).completed == 1
    service.error = None
    assert (await one.run()).completed == 2


@pytest.mark.parametrize("name", [None, "fake", "service"])
async def test_i10_what_one_owner_s_step_says_holds_no_other_owner(
    one: App, service: type[away_steps.Service], name: str | None
) -> None:
    define(one, "id: own\nsteps: {validate: , call: {kind: enrich, method: tests.integration.away_steps.call}}\n")
    service.error = lambda: RateLimited("come back", target=name, retry_after=3600)
    mine, other = one.for_owner("ann"), one.for_owner("bob")
    await mine.ingest(data=b"the weir", name="a.txt", workflow="own", wait=False)
    async with working(one):
        await until(failed(one, 1))
        service.error = None
        # The provider that everybody needs is known only now: no workflow had an embed step before.
        await other.ingest(data=b"the weir", name="b.txt", wait=False)
        await other.ingest(data=b"the mill", name="c.txt", workflow="own", wait=False)

        async def is_done() -> bool:
            return len(await other.list_documents(status="COMPLETED")) == 2

        await until(is_done)
    assert (await other.status()).away == []
    [away] = (await mine.status()).away
    assert away.target == (name or "enrich:tests.integration.away_steps.call")
    assert away.error == "come back"


async def test_a_target_that_is_not_needed_any_more_is_forgotten(
    one: App, service: type[away_steps.Service], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(targets, "FORGET_S", 3.0)
    define(one, OWN)
    service.error = lambda: Away("my service is down")
    await give(one, 1, "own")
    async with working(one):
        await until(failed(one, 1))
        [document] = await one.list_documents()
        await one.delete([document.id])

        async def is_forgotten() -> bool:
            return not await one.ledger.read(targets.all_held)

        await until(is_forgotten, 20)


async def test_throttling_that_nobody_asked_about_for_a_day_is_no_dead_letter(one: App, provider: Provider) -> None:
    provider.error = KINDS["limited"]
    async with asyncio.timeout(60):
        with pytest.raises(StorageError, match="slow down"):
            await one.ingest(data=b"the weir", name="a.txt")
        await look(one, _NOT_ASKED, seconds=LONGEST_S)
        with pytest.raises(StorageError, match="slow down"):
            await one.run()
    await nobody_is_blamed(one)


async def test_an_index_that_says_itself_that_it_is_away_is_tried_again(
    one: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    put, puts = LanceTable.put, 0

    async def fails_once(self: LanceTable, *arguments: Any, **named: Any) -> None:
        nonlocal puts
        puts += 1
        if puts == 1:
            raise Away("no answer")
        await put(self, *arguments, **named)

    monkeypatch.setattr(LanceTable, "put", fails_once)
    await give(one, 1)
    async with working(one):
        await until(all_are(one, "COMPLETED", 1))
    await nobody_is_blamed(one)


async def test_bytes_that_cannot_be_read_for_an_index_step_are_tried_again(
    one: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    load, loads = STAGE.load, 0

    async def fails_once(ctx: Any) -> Any:
        nonlocal loads
        loads += 1
        if loads == 1:
            raise Away("no answer")
        return await load(ctx)

    monkeypatch.setitem(GROUPED, "index", dataclasses.replace(STAGE, load=fails_once))
    await give(one, 1)
    async with working(one):
        await until(all_are(one, "COMPLETED", 1))
    await nobody_is_blamed(one)


# a document for which alone the target fails


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """A refused step is tried again soon."""
    monkeypatch.setattr(refusals, "AGAIN_S", 0.05)
    monkeypatch.setattr(refusals, "AGAIN_LONGEST_S", 0.1)
    monkeypatch.setattr(targets, "FIRST_S", 0.05)
    monkeypatch.setattr(targets, "LONGEST_S", 0.1)


@pytest.fixture
def picky(monkeypatch: pytest.MonkeyPatch) -> Provider:
    """A provider that answers 503 for each call with the word `poison`, and fails for all while it has an error."""
    provider = Provider()

    async def embed(self: FakeEmbedder, texts: Sequence[str]) -> Vectors:
        if any("poison" in text for text in texts):
            raise Away("answered 503")
        return await provider.embed(self, texts)

    monkeypatch.setattr(FakeEmbedder, "embed_documents", embed)
    return provider


@pytest.mark.usefixtures("soon")
@pytest.mark.parametrize("beside", [0, 6], ids=["alone", "beside others"])
async def test_a_document_that_a_provider_alone_refuses_becomes_a_dead_letter(
    one: App, picky: Provider, beside: int
) -> None:
    await one.ingest(data=b"this is poison", name="poison.txt", wait=False)
    await give(one, beside)
    async with working(one):
        await until(all_are(one, "FAILED", 1))
        await until(all_are(one, "COMPLETED", beside))
    [letter] = (await one.list_dead_letters()).letters
    assert (letter.reason, letter.step) == ("provider_rejects", "embed")
    assert "answered 503" in letter.error
    assert (await one.status()).away == []
    refused = Statement("SELECT coalesce(max(refused), 0) FROM steps WHERE status = 'COMPLETED'")
    assert (await look(one, refused))[0] <= 1, "a document beside it may be suspected once, but nothing counts"


@pytest.mark.usefixtures("soon")
async def test_an_outage_that_lasts_for_many_probes_counts_for_no_document(one: App, picky: Provider) -> None:
    picky.error = lambda: Away("answered 503")
    await give(one, 3)
    async with working(one):
        await until(failed(one, 12))
        assert (await look(one, Statement("SELECT max(refused), max(errors) FROM steps"))) == (0, 0)
        picky.error = None
        await until(all_are(one, "COMPLETED", 3))
    await nobody_is_blamed(one)
