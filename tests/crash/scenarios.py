"""What a client does, step by step, so that every failpoint is passed by somebody.

An operation may be done twice: a client whose process died does not know whether its last one took, and asks again.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from tests.kit.archives import make_zip

from penstock.app import App
from penstock.embedders.fake import FakeEmbedder
from penstock.errors import Away, LeaseLost, Transient
from penstock.indexes.lance import LanceTable
from penstock.ledger.engine import refusals
from penstock.model.items import Vectors
from penstock.upkeep import drop
from penstock.worker import admission

LARGE = 2300
"""Sentences, each of them a chunk: more than one commit to the index."""
CHUNK = {"unit": "characters", "size": 60, "overlap": 0}


@dataclass(frozen=True)
class Operation:
    do: Callable[[App], Awaitable[object]]
    adds: frozenset[str] = frozenset()
    """Documents that are there for ever once this is acknowledged, by name."""
    removes: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Scenario:
    name: str
    operations: Sequence[Operation]
    start: str = "empty"
    """The prepared home that it begins with."""
    damaged: bool = False
    """There is something to mend at the start, so `check` complains until it is mended."""
    settings: Mapping[str, Any] = field(default_factory=dict)


def text(word: str, sentences: int = 12) -> bytes:
    """Sentences that all name the document's word, so that one search finds every chunk of it."""
    return "".join(f"The {word} has item {i} among other things here.\n\n" for i in range(sentences)).encode()


FILES = {
    "alpha.txt": text("alphaword"),
    "beta.md": b"# Beta\n\n" + text("betaword") + b"\n## More\n\n" + text("betaword", 5),
    "same.txt": text("alphaword"),
    "blank.txt": b" \n\n ",
    "binary.bin": b"%PDF-1.7\n" + bytes(range(256)) * 8,
}
WORDS = (
    "oneword",
    "twoword",
    "newword",
    "oldword",
    "deepword",
    "alphaword",
    "betaword",
    "gammaword",
    "deltaword",
    "hugeword",
    "lateword",
)


def submit(name: str, data: bytes, *, wait: bool = True) -> Operation:
    return Operation(lambda app: app.ingest(data=data, name=name, wait=wait), adds=frozenset({name}))


def submit_folder(names: Sequence[str] = tuple(FILES), *, wait: bool = True, again: bool = False) -> Operation:
    async def do(app: App) -> None:
        folder = app.config.home_path.parent / "files"
        await app.ingest([folder / name for name in names], wait=wait, again=again)

    return Operation(do, adds=frozenset(names))


def submit_told() -> Operation:
    """Somebody is told of the end of each, and somebody else refuses to hear of it."""

    async def do(app: App) -> None:
        folder = app.config.home_path.parent / "files"
        await app.ingest([folder], workflow=str(Path(__file__).with_name("told.yaml")))

    return Operation(do, adds=frozenset(FILES))


async def submit_nothing(app: App) -> None:
    folder = app.config.home_path.parent / "nothing"
    folder.mkdir(exist_ok=True)
    await app.ingest([folder])


async def replay_events(app: App) -> None:
    await app.replay(reason="refused")


def write_files(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in FILES.items():
        (folder / name).write_bytes(data)


async def ids(app: App, *names: str) -> list[str]:
    return [entry.id for entry in await app.list_documents(limit=1000) if entry.name in names]


def cancel(name: str) -> Operation:
    async def do(app: App) -> None:
        await app.cancel(await ids(app, name))

    return Operation(do)


def retry(name: str) -> Operation:
    async def do(app: App) -> None:
        await app.retry(await ids(app, name))

    return Operation(do)


def delete(name: str, *, forget: bool = False) -> Operation:
    async def do(app: App) -> None:
        await app.delete(await ids(app, name), forget=forget)

    return Operation(do, removes=frozenset({name}))


async def submit_forgotten(app: App) -> None:
    """What was forgotten stays away."""
    folder = app.config.home_path.parent / "files"
    await app.ingest([folder / "alpha.txt", folder / "same.txt"])
    assert await ids(app, "alpha.txt") == []


async def drop_collection(app: App) -> None:
    with pytest.MonkeyPatch.context() as patch:
        # Several transactions.
        patch.setattr(drop, "BATCH", 2)
        await app.drop_collection("default")


LARGER = {"chunk": {"size": 120}}


async def begin_reindex(app: App) -> None:
    await app.reindex(values=LARGER, wait=False)


async def cancel_reindex(app: App) -> None:
    if (await app.reindex_status()).state not in ("none", "done"):
        await app.cancel_reindex()


async def reindex(app: App) -> None:
    assert (await app.reindex(values=LARGER)).state in ("done", "unchanged")


async def undo_reindex(app: App) -> None:
    """Repeated, it would go forward again."""
    status = await app.reindex_status()
    if status.state == "done" and status.version != 1:
        await app.undo_reindex()
    elif status.state == "building":
        await app.reindex()


async def reindex_again(app: App) -> None:
    assert (await app.reindex(values={"chunk": {"size": 180}})).state in ("done", "unchanged")


def submit_archive(contents: Mapping[str, bytes], *gone: str) -> Operation:
    """An archive of these, and of another archive. `gone`: what a former version had."""

    async def do(app: App) -> None:
        await app.ingest(
            data=make_zip({**contents, "inner.zip": make_zip({"deep.txt": text("deepword")})}), name="a.zip"
        )

    return Operation(do, adds=frozenset({"a.zip", *contents, "inner.zip", "deep.txt"}), removes=frozenset(gone))


async def work(app: App) -> None:
    await app.run()


async def discard(app: App) -> None:
    await app.discard([letter.id for letter in (await app.list_dead_letters()).letters])


async def change_metadata(app: App) -> None:
    for document in await ids(app, "beta.md"):
        await app.set_metadata(document, {"year": 2024})


async def end_grace(app: App) -> None:
    """As if the readers' minute were over."""

    def update() -> None:
        connection = app.ledger.database.connect()
        connection.script("UPDATE purges SET not_before = 0")
        connection.close()

    await app.runtime.run_blocking("read", update)


async def prune(app: App) -> None:
    await app.prune(older_than_s=0)


async def age(app: App) -> None:
    """As if a forced release and a replaced version were long ago: there is history to clear away."""
    await seize(app)
    await end_grace(app)


async def remake(app: App) -> None:
    """What was dropped is wanted again."""
    await app.retry(await ids(app, *FILES, "gamma.txt"), dropped=True)


async def repair(app: App) -> None:
    await app.check(repair=True)


async def vacuum(app: App) -> None:
    report = await app.vacuum()
    assert [entry.collection for entry in report.collections] == ["default"]


async def seize(app: App) -> None:
    """Somebody takes a lock away while its holder still has it."""
    with contextlib.suppress(LeaseLost):
        async with app.hold_index():
            [lock] = (await app.list_locks()).locks
            await app.release_lock(lock.key, force=True)


async def submit_batch(app: App) -> None:
    folder = app.config.home_path.parent / "files"
    await app.ingest([folder / name for name in ("alpha.txt", "beta.md", "binary.bin")], batch="spring")


async def hold_batch(app: App) -> None:
    folder = app.config.home_path.parent / "files"
    names = ("alpha.txt", "beta.md", "binary.bin")
    await app.ingest([folder / name for name in names], batch="spring", hold=True)


async def start_held(app: App) -> None:
    await app.start_batch("spring", values={"chunk": {"size": 300}})


async def start_batch(app: App) -> None:
    await app.start_batch("spring", again=True)


async def cancel_groups(app: App) -> None:
    for group in await app.list_groups():
        await app.cancel_group(group.id)


async def retry_groups(app: App) -> None:
    for group in await app.list_groups():
        await app.retry_group(group.id, cancelled=True)


async def work_in_bits(app: App) -> None:
    """A budget that is spent at once: each call does one batch and hands over."""
    for _ in range(200):
        summary = await app.run(budget_s=0.001)
        assert "RUNNING" not in (await app.status()).steps, "a step was left behind"
        if not summary.budget_spent:
            return
    raise AssertionError("200 budgets were not enough")


async def stumble(app: App) -> None:
    """The embedder answers slowly, and fails the first time."""
    embedder = app.ports.embedder
    assert isinstance(embedder, FakeEmbedder)
    answer, calls = embedder.embed_documents, 0

    async def embed(texts: Sequence[str]) -> Vectors:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise Transient("the provider is busy", reason="busy")
        await asyncio.sleep(0.3)
        return await answer(texts)

    vars(embedder)["embed_documents"] = embed
    try:
        await app.run()
    finally:
        del vars(embedder)["embed_documents"]


async def crowd(app: App) -> None:
    """The first call of the embedder takes long, and runs hold all places meanwhile: others are let in besides."""
    embedder = app.ports.embedder
    assert isinstance(embedder, FakeEmbedder)
    answer, calls = embedder.embed_documents, 0

    async def embed(texts: Sequence[str]) -> Vectors:
        nonlocal calls
        calls += 1
        if calls == 1:
            await asyncio.sleep(1.5)
        return await answer(texts)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(admission, "FULL_S", 0.1)
        patch.setitem(vars(embedder), "embed_documents", embed)
        await app.run()


async def falter(app: App) -> None:
    """The index table fails the first time that rows come, and the first time that some are to go."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("put", "delete"):
            patch.setattr(LanceTable, name, _failing_once(getattr(LanceTable, name)))
        # First, so that no index step removes the rows.
        await app.prune()
        await app.ingest(data=text("lateword"), name="late.txt")


async def outage(app: App) -> None:
    """The embedder is away, then a probe of it finds out nothing, then it answers."""
    embedder = app.ports.embedder
    assert isinstance(embedder, FakeEmbedder)
    answer = embedder.embed_documents
    errors: list[Exception] = [Transient("busy"), Away("answered 503", target="fake")]

    async def embed(texts: Sequence[str]) -> Vectors:
        if errors:
            raise errors.pop()
        return await answer(texts)

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(vars(embedder), "embed_documents", embed)
        await app.ingest(data=text("lateword"), name="late.txt")


async def refused(app: App) -> None:
    """The embedder refuses a document twice, and answers a small call in between. Then it accepts the document."""
    embedder = app.ports.embedder
    assert isinstance(embedder, FakeEmbedder)
    answer, refusals_left = embedder.embed_documents, 2

    async def embed(texts: Sequence[str]) -> Vectors:
        nonlocal refusals_left
        if refusals_left and any("lateword" in one for one in texts):
            refusals_left -= 1
            raise Away("answered 503", target="fake")
        return await answer(texts)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(refusals, "AGAIN_S", 0.1)
        patch.setitem(vars(embedder), "embed_documents", embed)
        await app.ingest(data=text("lateword"), name="late.txt")


def _failing_once(function: Callable[..., Awaitable[None]]) -> Callable[..., Awaitable[None]]:
    failed = False

    async def once(*arguments: Any, **options: Any) -> None:
        nonlocal failed
        if not failed:
            failed = True
            raise OSError("the volume is full")
        await function(*arguments, **options)

    return once


SCENARIOS = (
    Scenario("brief", [submit_folder()]),
    Scenario(
        "ingest",
        [
            submit_folder(),
            submit("gamma.txt", text("gammaword")),
            submit("gamma.txt", text("deltaword", 20)),
        ],
    ),
    Scenario(
        "archive",
        [
            submit_archive({"one.txt": text("oneword"), "two.txt": text("twoword"), "old.txt": text("oldword")}),
            submit_archive({"one.txt": text("oneword"), "two.txt": text("newword")}, "old.txt"),
        ],
    ),
    Scenario("large", [submit("huge.txt", text("hugeword", LARGE))]),
    Scenario(
        "changes",
        [
            submit_folder(("beta.md",), wait=False),
            submit("late.txt", text("lateword"), wait=False),
            cancel("late.txt"),
            retry("late.txt"),
            retry("binary.bin"),
            Operation(work),
            Operation(discard),
            Operation(change_metadata),
            submit("never.txt", text("neverword"), wait=False),
            cancel("never.txt"),
            delete("alpha.txt"),
            Operation(end_grace),
            Operation(prune),
        ],
        start="full",
    ),
    Scenario(
        "groups",
        [
            Operation(submit_batch, adds=frozenset({"alpha.txt", "beta.md", "binary.bin"})),
            Operation(start_batch),
            Operation(cancel_groups),
            Operation(retry_groups),
            Operation(work),
        ],
    ),
    Scenario(
        "held",
        [
            Operation(hold_batch, adds=frozenset({"alpha.txt", "beta.md", "binary.bin"})),
            Operation(start_held),
            Operation(work),
        ],
    ),
    Scenario(
        "retention",
        [Operation(age), Operation(prune), Operation(remake), Operation(work)],
        start="full",
        settings={"keep_artifacts": "until_completed"},
    ),
    Scenario("told", [submit_told(), Operation(replay_events), Operation(work), Operation(submit_nothing)]),
    Scenario("bits", [submit_folder(wait=False), Operation(work_in_bits)]),
    Scenario(
        "stumbling",
        [submit_folder(("alpha.txt",), wait=False), Operation(stumble)],
        settings={"worker": {"lease_s": 0.4}},
    ),
    Scenario(
        "crowded",
        [*(submit(f"{i}.txt", text("gammaword", 3 + i), wait=False) for i in range(8)), Operation(crowd)],
        settings={"worker": {"slots": 1}},
    ),
    Scenario("faltering", [Operation(end_grace), Operation(falter, adds=frozenset({"late.txt"}))], start="full"),
    Scenario("outage", [Operation(outage, adds=frozenset({"late.txt"}))], start="full"),
    Scenario("refused", [Operation(refused, adds=frozenset({"late.txt"}))], start="full"),
    Scenario(
        "forgotten",
        [
            submit_folder(("alpha.txt", "beta.md")),
            delete("alpha.txt", forget=True),
            Operation(submit_forgotten, adds=frozenset({"same.txt"})),
            submit_folder(("alpha.txt", "beta.md"), again=True),
        ],
    ),
    Scenario(
        "dropped",
        [
            submit_folder(),
            Operation(drop_collection, removes=frozenset(FILES)),
            Operation(end_grace),
            Operation(prune),
            submit_folder(("alpha.txt",)),
        ],
    ),
    Scenario(
        "reindexed",
        [
            Operation(begin_reindex),
            Operation(cancel_reindex),
            Operation(reindex),
            Operation(undo_reindex),
            submit("gamma.txt", text("deltaword", 20)),
            Operation(reindex_again),
            Operation(end_grace),
            Operation(prune),
        ],
        start="full",
    ),
    Scenario("orphaned", [Operation(work)], start="orphaned"),
    Scenario("suspected", [Operation(work)], start="suspected"),
    Scenario("torn", [Operation(work)], start="torn", damaged=True),
    Scenario("tombstoned", [Operation(work), Operation(repair)], start="tombstoned", damaged=True),
    Scenario(
        "tidy",
        [Operation(end_grace), Operation(vacuum), Operation(seize), submit_folder(("beta.md",)), Operation(vacuum)],
        start="full",
    ),
    Scenario("repair", [Operation(repair)], start="damaged", damaged=True),
    Scenario("rebuild", [Operation(repair)], start="broken", damaged=True),
    Scenario("restore", [Operation(repair)], start="overwritten", damaged=True),
)
BY_NAME = {scenario.name: scenario for scenario in SCENARIOS}
