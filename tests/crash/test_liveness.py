"""Liveness: while something fails nothing spins, and when the faults stop the work ends.

Claims and commits are counted, not seconds: a machine under load does fewer of them, never more. Seeded; with
PENSTOCK_LONG=1 there are many seeds, and several faults at once."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
from tests.conftest import StartApp
from tests.crash.harness import LONG
from tests.integration import poison
from tests.integration.poison import PanicException
from tests.kit.apps import until
from tests.kit.workflows import define

from penstock.app import App
from penstock.blobs.local import LocalBlobs
from penstock.embedders.fake import FakeEmbedder
from penstock.errors import RateLimited, StorageError, Transient
from penstock.indexes.lance import LanceIndex, LanceTable
from penstock.ledger.database.statements import Statement
from penstock.ledger.engine import targets
from penstock.worker import outage

DOCUMENTS, RETRIES = 12, 2
FAULT_S = 2.0 if LONG else 0.8
CLAIMS_A_STEP = RETRIES + 8
"""Its own attempts, and what a table or the storage that fails for FAULT_S may cost: the pauses grow."""
COMMITS_A_SECOND = 30
"""Heartbeats and upkeep, of a worker that waits."""
SEEDS = range(40) if LONG else range(2)

WORKFLOW = f"""\
id: alive
steps:
  validate: {{retries: {RETRIES}}}
  own: {{kind: enrich, method: tests.crash.test_liveness.step, retries: {RETRIES}}}
  extract: {{retries: {RETRIES}}}
  clean: {{retries: {RETRIES}}}
  chunk: {{retries: {RETRIES}}}
  embed: {{retries: {RETRIES}}}
  index: {{retries: {RETRIES}}}
"""
_CLAIMS = Statement("SELECT sum(epoch), max(epoch) FROM steps")
_OPEN = Statement("SELECT count(*) FROM runs WHERE status = 'OPEN'")


def raised() -> None:
    """What the step of this workflow does. A fault replaces it."""


async def step(ctx: Any) -> None:
    raised()


@dataclass(frozen=True)
class Fault:
    """Where something is raised, what, and whether documents may be blamed for it."""

    place: str
    error: Callable[[], BaseException]
    blames: bool

    def __str__(self) -> str:
        return f"{self.place}-{type(self.error()).__name__}"

    @contextmanager
    def inject(self) -> Iterator[None]:
        with pytest.MonkeyPatch.context() as patch:
            if self.place == "step":
                patch.setattr(f"{__name__}.raised", self._raise)
            else:
                owner, *names = PLACES[self.place]
                for name in names:
                    patch.setattr(owner, name, self._raising)
            yield

    async def _raising(self, *_: Any, **__: Any) -> Any:
        self._raise()

    def _raise(self) -> None:
        raise self.error()


PLACES: dict[str, tuple[Any, ...]] = {
    "open": (LanceIndex, "open"),
    "append": (LanceTable, "put"),
    "optimize": (LanceTable, "optimize"),
    "embed": (FakeEmbedder, "embed_documents"),
    "put": (LocalBlobs, "put"),
    "get": (LocalBlobs, "get"),
}


def faults() -> Iterator[Fault]:
    def full() -> BaseException:
        return StorageError("the disk is full")

    for place in ("open", "append"):
        yield Fault(place, lambda: NotADirectoryError(20, "Not a directory"), blames=False)
        yield Fault(place, full, blames=False)
    # A table that can be read, and yet refuses: that may be the document.
    yield Fault("open", lambda: KeyError("embedder"), blames=False)
    yield Fault("append", lambda: PanicException("index out of bounds"), blames=True)
    for error in (full, lambda: KeyError("x"), lambda: PanicException("x")):
        yield Fault("optimize", error, blames=False)
    for error in (lambda: Transient("busy"), lambda: PanicException("x"), lambda: RateLimited("x", retry_after=0.2)):
        yield Fault("embed", error, blames=True)
    yield Fault("put", full, blames=False)
    yield Fault("get", full, blames=False)
    for name in ("exit", "panic", "cancelled", "cancels_itself", "budget", "storage", "interrupt", "base_group"):
        yield Fault("step", partial(_caught, poison.RAISED[name]), blames=True)


def _caught(take: Callable[[], Any]) -> BaseException:
    try:
        take()
    except BaseException as error:
        return error
    return asyncio.CancelledError()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(targets, "LONGEST_S", 1.0)
    monkeypatch.setattr(outage, "LONGEST_S", 1.0)


@asynccontextmanager
async def working(app: App) -> AsyncIterator[None]:
    work = asyncio.create_task(app.work())
    try:
        yield
        assert not work.done(), "the worker ended by itself"
    finally:
        app.stop()
        await work


async def give(app: App, seed: int) -> None:
    for number in range(DOCUMENTS):
        words = f"seed {seed}, document {number}, words of the weir. " * 3
        await app.ingest(data=words.encode(), name=f"{seed}-{number}.txt", workflow="alive", wait=False)


async def ended(app: App) -> bool:
    return not (await app.ledger.read(lambda c: c.run(_OPEN)))[0][0]


async def endure(app: App, seed: int, chosen: list[Fault]) -> None:
    """Work while the faults last; then the work ends, and there were no more claims and commits than progress and
    pauses explain."""
    await give(app, seed)
    before = app.ledger.commits
    clock = asyncio.get_running_loop().time
    began = clock()
    async with working(app):
        for fault in chosen:
            with fault.inject():
                await asyncio.sleep(FAULT_S)
        await until(lambda: ended(app), 90)
        claims, most = (await app.ledger.read(lambda c: c.run(_CLAIMS)))[0]
        commits = app.ledger.commits - before
    assert most <= CLAIMS_A_STEP * len(chosen), f"{most} claims of one step: it spins"
    assert commits <= 8 * claims + COMMITS_A_SECOND * (clock() - began + 1), f"{commits} commits for {claims} claims"
    letters = (await app.list_dead_letters(limit=1000)).letters
    assert len(letters) == len({letter.document_id for letter in letters})
    if not any(fault.blames for fault in chosen):
        assert letters == [], "a document is blamed for a fault of the storage"
    ends = {entry.status for entry in await app.list_documents(limit=1000)}
    assert ends <= {"COMPLETED", "FAILED"}


@pytest.fixture
async def one(start_app: StartApp, database_url: str, monkeypatch: pytest.MonkeyPatch) -> App:
    # No setting.
    monkeypatch.delenv("PENSTOCK_LONG", raising=False)
    app = await start_app(database=database_url, worker={"lease_s": 3.0})
    define(app, WORKFLOW)
    return app


@pytest.mark.parametrize("seed", SEEDS)
async def test_i9_nothing_spins_while_something_fails_and_the_work_ends_when_it_stops(one: App, seed: int) -> None:
    chance = random.Random(seed)
    await endure(one, seed, chance.sample(list(faults()), 5 if LONG else 3))


if LONG:

    @pytest.mark.parametrize(
        "fault", list(faults()), ids=lambda fault: f"{fault.place}-{fault.error().__class__.__name__}"
    )
    async def test_i9_each_fault_alone(one: App, fault: Fault) -> None:
        await endure(one, 0, [fault])
