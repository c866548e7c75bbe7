"""The connection to PostgreSQL is cut before, during and after the commit of every verb. Each write that took answers
as it would have; each that did not is run again; and the ledger looks as if nothing had been cut. How it should look,
SQLite tells, which has no connection to lose."""

import asyncio
import dataclasses
import importlib
import os
import pkgutil
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import psycopg
import pytest
from tests.kit.cuts import MOMENTS, CutDatabase, Moment
from tests.kit.ledger import KEY, LEASE_S, TABLES, Desk, output
from tests.ledger.outcomes import SCENARIOS

from penstock import ledger
from penstock.ledger.database import writer
from penstock.ledger.database.connection import Connection
from penstock.ledger.database.database import Database
from penstock.ledger.database.store import Ledger
from penstock.ledger.engine import (
    cancellations,
    checkpoints,
    claims,
    completions,
    failures,
    locks,
    releases,
    runs,
    submits,
)
from penstock.model.nouns import WorkerId
from penstock.runtime import Runtime

# Quicker than TRUNCATE for a few rows.
WIPE = (
    "DO $$ BEGIN SET LOCAL session_replication_role = replica; "
    + " ".join(f"DELETE FROM {table};" for table in (*TABLES, "snapshots"))
    + " PERFORM setval(oid::regclass, 1, false) FROM pg_class WHERE relkind = 'S'; END $$"
)
LONG = os.environ.get("PENSTOCK_LONG") == "1"


class Counting(Runtime):
    """The same names in each run."""

    def __init__(self) -> None:
        super().__init__()
        self._names = 0

    def token(self) -> str:
        self._names += 1
        return f"{self._names:016x}"

    def ulids(self, count: int) -> Sequence[str]:
        return [f"ULID{self.token()}" for _ in range(count)]


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An SQLite ledger that was just made."""
    path = tmp_path_factory.mktemp("empty") / "ledger.db"

    async def make() -> None:
        runtime = Runtime()
        ledger = Ledger(Database(f"sqlite:///{path}", runtime))
        await ledger.open()
        await ledger.close()
        runtime.close()

    asyncio.run(make())
    return path


@asynccontextmanager
async def _desk(make: Callable[[Runtime], Database]) -> AsyncIterator[Desk]:
    runtime = Counting()
    ledger = Ledger(make(runtime))
    ledger.database.outage_wait.limit_s = 30.0
    try:
        yield Desk(ledger)
    finally:
        await ledger.close()
        runtime.close()


Written = tuple[writer.Verb[Any, Any], Any]
Prepare = Callable[[Desk], Awaitable[list[Written]]]


class Worlds:
    """Runs the same on SQLite, undisturbed, and on PostgreSQL, where connections are cut."""

    def __init__(self, empty: Path, folder: Path, url: str) -> None:
        self._empty, self._folder, self._url = empty, folder, url

    async def undisturbed(self, prepare: Prepare) -> Any:
        path = self._folder / "ledger.db"
        shutil.copy(self._empty, path)
        async with _desk(lambda runtime: Database(f"sqlite:///{path}", runtime)) as desk:
            outcome = await _outcome(desk, await prepare(desk))
        for file in self._folder.glob("ledger.db*"):
            file.unlink()
        return outcome

    async def cut(self, prepare: Prepare, *moments: Moment) -> Any:
        async with _desk(lambda runtime: CutDatabase(self._url, runtime)) as desk:
            database = desk.ledger.database
            assert isinstance(database, CutDatabase)
            await desk.rows(WIPE)
            written = await prepare(desk)
            database.cuts.extend(moments)
            outcome = await _outcome(desk, written)
            assert database.made == len(moments), "it was cut as often as it was to be"
            return outcome


async def _outcome(desk: Desk, written: Sequence[Written]) -> Any:
    """The answers, and all rows, without what no two runs have in common."""
    answers = await asyncio.gather(*(desk.ledger.write(verb, item) for verb, item in written))
    rows = await desk.ledger.read(_rows)
    return [_plain(msgspec.to_builtins(answer), "") for answer in answers], rows


def _rows(connection: Connection) -> dict[str, list[str]]:
    found = {}
    for table in TABLES:
        if connection.dialect == "sqlite":
            names = [row[1] for row in connection.script(f"PRAGMA table_info({table})")]
        else:
            names = [
                row[0]
                for row in connection.script(
                    f"SELECT attname FROM pg_attribute WHERE attrelid = '{table}'::regclass AND attnum > 0 "
                    "AND NOT attisdropped ORDER BY attnum"
                )
            ]
        if table == "holdings":
            # On PostgreSQL, each change is a row of its own.
            names = ["owner", "documents", "bytes"]
            rows = connection.script(
                "SELECT owner, CAST(sum(documents) AS BIGINT), CAST(sum(bytes) AS BIGINT) FROM holdings GROUP BY owner"
            )
        else:
            rows = connection.script(f"SELECT {', '.join(names)} FROM {table}")
        found[table] = sorted(repr(_plain(dict(sorted(zip(names, row, strict=True))), "")) for row in rows)
    return found


def _plain(value: Any, name: str) -> Any:
    if isinstance(value, dict):
        return {key: _plain(part, key) for key, part in value.items()}
    if isinstance(value, list | tuple | set):
        plain = [_plain(part, name) for part in value]
        return sorted(plain, key=repr) if isinstance(value, set) else plain
    if isinstance(value, float):
        return "a time"
    if isinstance(value, int) and (name.endswith("id") or name in ("builder", "last", "first_generation")):
        return "a number"
    return value


@pytest.fixture
def worlds(empty: Path, tmp_path: Path, postgres: str) -> Worlds:
    return Worlds(empty, tmp_path, postgres)


def _only(name: str) -> Prepare:
    verb, prepare_item = SCENARIOS[name]

    async def prepare(desk: Desk) -> list[Written]:
        return [(verb, await prepare_item(desk))]

    return prepare


@pytest.mark.parametrize("name", SCENARIOS)
async def test_i6_a_write_whose_answer_was_lost_counts_once(worlds: Worlds, name: str) -> None:
    """In the short form after the commit, which is what matters; the groups below take the other moments."""
    wanted = await worlds.undisturbed(_only(name))
    # A sequence that is set stays set where its transaction is rolled back.
    for moment in MOMENTS if LONG or name == "notice" else MOMENTS[-1:]:
        assert await worlds.cut(_only(name), moment) == wanted, moment


OF_THE_SERVICE = {
    *("create_key", "revoke_key", "used_key", "audit", "enter_request", "renew_request", "store_answer"),
    *("forget_request", "allot_numbers", "create_batch", "set_sync_state", "create_upload", "hold_upload", "add_parts"),
    *("let_upload_go", "end_upload", "remove_upload", "start_action", "take_action", "choose", "act", "discard_of"),
    *("let_action_go", "end_action", "cancel_action", "expire_uploads"),
    *("set_store", "forget_store", "add_file_batch", "cancel_file_batch"),
    *("create_webhook", "change_webhook", "delete_webhook", "redeliver", "tested_webhook"),
    *("take_webhooks", "settle_webhook", "pause_intake", "resume_intake", "set_quota", "settle_holdings"),
}
"""Verbs of the service, of actions, vector stores and webhooks. They have no scenario yet: the writer treats them as
all."""


def test_every_verb_has_a_scenario() -> None:
    """A new verb without one fails here, whatever else was imported."""
    for module in pkgutil.walk_packages(ledger.__path__, "penstock.ledger."):
        importlib.import_module(module.name)
    ours = {verb.name for verb in writer.verbs if verb.function.__module__.startswith("penstock.")}
    assert {verb.name for verb, _ in SCENARIOS.values()} == ours - OF_THE_SERVICE


def test_every_verb_that_is_one_statement_can_recall_what_it_answered() -> None:
    ours = [verb for verb in writer.verbs if verb.function.__module__.startswith("penstock.")]
    never = {field.name: field.default for field in dataclasses.fields(writer.Verb)}["single_statement"]
    single = [verb for verb in ours if verb.single_statement is not never]
    assert {verb.name for verb in single} == {"complete", "flip", "submit"}
    assert all(verb.recall is not None for verb in single)


async def _many(desk: Desk) -> list[Written]:
    """Writes of many verbs, which the writer commits as one group."""
    await desk.submit(*(f"/{i}" for i in range(7)))
    steps = await desk.claim(7)
    made = [(await desk.open(step, f"fp{i}")).artifact.id for i, step in enumerate(steps[:3])]
    return [
        (checkpoints.CHECKPOINT, desk.flush(steps[0], made[0], 0)),
        (checkpoints.CHECKPOINT, desk.flush(steps[1], made[1], 0)),
        (completions.COMPLETE, desk.completion(steps[2], chain=True, output=output(made[2], 1))),
        (completions.COMPLETE, desk.completion(steps[3], "index", key="index:anna/default/2")),
        (failures.ERROR, failures.StepFailure(steps[4], "bad", "it broke")),
        (releases.RELEASE, releases.Release(steps[5], True)),
        (submits.SUBMIT, desk.submission(desk.document("/new", key="k"))),
        (locks.ACQUIRE, locks.Acquire(KEY, desk.token(), WorkerId("w1"), "test", LEASE_S)),
        (claims.CLAIM, claims.ClaimRequest(WorkerId("w1"), ("parse",), 1, desk.token(), LEASE_S)),
        (cancellations.CANCEL, runs.Selected(steps[6].owner, (steps[6].document_id,))),
    ]


async def _completions(desk: Desk) -> list[Written]:
    """One statement on PostgreSQL; one of them has lost its lease."""
    await desk.submit(*(f"/{i}" for i in range(4)))
    steps = await desk.claim(4)
    await desk.rows(f"UPDATE steps SET lease_token = 'x' WHERE id = {steps[1].lease.step_id} RETURNING 1")
    return [(completions.COMPLETE, desk.completion(step, chain=True)) for step in steps]


@pytest.mark.parametrize("prepare", [_many, _completions])
@pytest.mark.parametrize("moments", [*((moment,) for moment in MOMENTS), ("before", "after")])
async def test_i6_a_group_whose_answer_was_lost_counts_once(
    worlds: Worlds, prepare: Prepare, moments: tuple[Moment, ...]
) -> None:
    wanted = await worlds.undisturbed(prepare)
    assert await worlds.cut(prepare, *moments) == wanted


SLOW = """
CREATE FUNCTION slowly() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(0.8); RETURN NULL; END $$;
CREATE CONSTRAINT TRIGGER slow AFTER UPDATE ON steps DEFERRABLE INITIALLY DEFERRED FOR EACH ROW
WHEN (NEW.status = 'COMPLETED') EXECUTE FUNCTION slowly();
"""


@pytest.mark.parametrize("alone", [True, False])
async def test_i6_what_the_server_still_works_on_is_waited_for(worlds: Worlds, alone: bool, postgres: str) -> None:
    """Run again at once, the write would wait for its own first run, and then find its lease gone."""

    async def prepare(desk: Desk) -> list[Written]:
        await desk.submit("/a", "/b")
        steps = await desk.claim(2)
        more: list[Written] = [] if alone else [(releases.RELEASE, releases.Release(steps[1], True))]
        return [(completions.COMPLETE, desk.completion(steps[0], chain=True)), *more]

    with psycopg.connect(postgres, autocommit=True) as connection:
        connection.execute(SLOW)
        try:
            answers, _ = await worlds.cut(prepare, "during")
        finally:
            connection.execute("DROP TRIGGER slow ON steps; DROP FUNCTION slowly")
    assert answers[0]["took"]
    assert answers[0]["next"]["lease"]["token"]
