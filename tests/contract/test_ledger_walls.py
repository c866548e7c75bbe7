"""Owners are walls (I10): every function that the ledger has for users, asked by another owner, finds nothing."""

from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any

import msgspec
from tests.contract.ledger_kit import ANNA, BERT, KEY, LEASE_S, Desk
from tests.unit.test_owners import CROSSING, FOR_USERS, functions

from penstock.ledger import batches, dead_letters, documents, generations, groups, locks, runs, stats
from penstock.ledger.database import Connection
from penstock.model.nouns import Owner, Step, WorkerId

GROUP = "01GROUP"
START = groups.GroupStart(GROUP, "flow")


class Anna(msgspec.Struct, frozen=True):
    """What Anna has: one of everything."""

    done: Step
    failed: Step
    running: Step
    letter: int
    letter_of_event: int


Call = Callable[[Owner, Connection, Anna], Any]
CALLS: dict[str, Call] = {
    "batches.batches": lambda o, c, a: batches.batches(o, c),
    "batches.documents_of_batch": lambda o, c, a: batches.documents_of_batch(o, c, "spring", "default", "", 9),
    "batches.documents_of_group": lambda o, c, a: batches.documents_of_group(o, c, GROUP, "FAILED", "", 9),
    "batches.get": lambda o, c, a: batches.get(o, c, GROUP),
    "batches.newest": lambda o, c, a: batches.newest(o, c, "spring", 9),
    "batches.pace": lambda o, c, a: batches.pace(o, c, GROUP),
    "batches.resolve": lambda o, c, a: batches.resolve(o, c, GROUP),
    "dead_letters.by_reason": lambda o, c, a: dead_letters.by_reason(o, c),
    "dead_letters.get": lambda o, c, a: dead_letters.get(o, c, a.letter),
    "dead_letters.last": lambda o, c, a: dead_letters.last(o, c),
    "dead_letters.named": lambda o, c, a: dead_letters.named(o, c, [a.letter]),
    "dead_letters.newest": lambda o, c, a: dead_letters.newest(o, c, 9),
    "dead_letters.page": lambda o, c, a: dead_letters.page(o, c, "bad", after=0, until=a.letter, count=9),
    "dead_letters.waiting": lambda o, c, a: dead_letters.waiting(o, c, "bad"),
    "documents.active_generation": lambda o, c, a: documents.active_generation(o, c, a.done.document_id),
    "documents.collection": lambda o, c, a: documents.collection(o, c, "default"),
    "documents.get": lambda o, c, a: documents.get(o, c, a.done.document_id),
    "documents.last_run": lambda o, c, a: documents.last_run(o, c, a.done.document_id),
    "documents.newest": lambda o, c, a: documents.newest(o, c, status="", collection="", before="", count=9),
    "documents.origins": lambda o, c, a: documents.origins(o, c, [a.failed.document_id]),
    "documents.password": lambda o, c, a: documents.password(o, c, a.failed.document_id),
    "documents.progress": lambda o, c, a: documents.progress(o, c, a.running.generation_id),
    "documents.resolve": lambda o, c, a: documents.resolve(o, c, a.done.document_id),
    "documents.statuses": lambda o, c, a: documents.statuses(o, c, [a.done.document_id]),
    "documents.steps": lambda o, c, a: documents.steps(o, c, a.failed.document_id),
    "documents.under": lambda o, c, a: documents.under(o, c, "default", "/"),
    "generations.due_purges_in": lambda o, c, a: generations.due_purges_in(o, c, "default", 1, 9),
    "generations.hidden": lambda o, c, a: generations.hidden(o, c, "default", 1, 9),
    "generations.visible": lambda o, c, a: generations.visible(o, c, [a.done.generation_id]),
    "runs.known": lambda o, c, a: runs.known(o, c, "default", ["/done"]),
    "stats.dead_letters": lambda o, c, a: stats.dead_letters(o, c),
    "stats.documents": lambda o, c, a: stats.documents(o, c),
    "stats.events": lambda o, c, a: stats.events(o, c),
    "stats.list_steps": lambda o, c, a: stats.list_steps(o, c, status=None, kind="", stuck_s=None, count=9),
    "stats.lock_releases": lambda o, c, a: stats.lock_releases(o, c, 9),
    "stats.locks": lambda o, c, a: stats.locks(o, c),
    "stats.running": lambda o, c, a: stats.running(o, c),
    "stats.steps": lambda o, c, a: stats.steps(o, c),
}
CHANGING = {"dead_letters.close"}


async def _flipped(desk: Desk, content: str, **order: Any) -> Step:
    await desk.submit("/done", content=content, **order)
    [first] = await desk.claim()
    await desk.complete(first, "index", key=KEY)
    [step] = await desk.claim_keyed()
    writing = generations.Writing(step.lease.step_id, step.lease.token, step.generation_id)
    await desk.ledger.write(generations.WRITE, writing)
    assert await desk.flip(step)
    await desk.ledger.write(locks.RELEASE, (KEY, step.lease.token))
    return step


async def _fill(desk: Desk) -> Anna:
    order: dict[str, Any] = {"batch": "spring", "password": "word", "group": START}
    await _flipped(desk, "v1", **order)
    done = await _flipped(desk, "v2", **order)
    await desk.rows("UPDATE purges SET not_before = 0")
    failed = await desk.started("/failed", **order)
    await desk.fail(failed)
    running = await desk.started("/running", **order)
    await desk.open(running)
    for _ in range(2):
        held = locks.Acquire(KEY, desk.token(), WorkerId("w1"), "vacuum", LEASE_S)
        assert await desk.ledger.write(locks.ACQUIRE, held)
        if not await desk.rows("SELECT id FROM lock_releases"):
            await desk.ledger.write(locks.FORCE, locks.Force(ANNA, KEY, "anna"))
    await desk.rows("INSERT INTO events (kind, owner, snapshot, at) VALUES ('ITEM_END', 'anna', 'snapshot', 1)")
    await desk.rows(
        "INSERT INTO deliveries (event_id, handler, name, owner, status, not_before) "
        "SELECT id, 0, 'desk', 'anna', 'PENDING', 0 FROM events"
    )
    await desk.rows(
        "INSERT INTO dead_letters (owner, event_id, handler, step, kind, reason, error, attempts, state, created_at) "
        "SELECT 'anna', id, 0, 'desk', 'ITEM_END', 'bad', 'it broke', 1, 'OPEN', 0 FROM events"
    )
    letters = await desk.rows("SELECT id FROM dead_letters ORDER BY id")
    return Anna(done, failed, running, *(row[0] for row in letters))


def test_i10_every_function_for_a_user_is_asked_here() -> None:
    there = {f"{name}.{one}" for name in FOR_USERS for one in functions(import_module(f"penstock.ledger.{name}"))}
    assert set(CALLS) | CHANGING == there - set(CROSSING)


async def test_i10_another_owner_finds_nothing_by_any_of_them(desk: Desk) -> None:
    anna = await _fill(desk)

    def ask(connection: Connection, owner: Owner, call: Call) -> bool:
        try:
            answer = call(owner, connection, anna)
        except IndexError:
            # Of a group that is not there nobody asks for its pace.
            return False
        return any(answer.values()) if isinstance(answer, dict) else bool(answer)

    finds = {name: [await desk.ledger.read(ask, who, call) for who in (ANNA, BERT)] for name, call in CALLS.items()}
    assert {name: found for name, found in finds.items() if found != [True, False]} == {}


async def test_i10_another_owner_changes_nothing(desk: Desk) -> None:
    anna = await _fill(desk)
    letters = (anna.letter, anna.letter_of_event)
    before = await desk.everything()
    connection = desk.ledger.database.connect(hot=True)
    connection.begin()
    dead_letters.close(BERT, connection, [anna.failed.document_id], "DISCARDED")
    connection.commit()
    connection.close()
    assert await desk.ledger.write(dead_letters.DISCARD, (BERT, letters)) == set()
    assert await desk.ledger.write(dead_letters.REPLAY_EVENTS, dead_letters.EventReplay(BERT, letters)) == set()
    assert await desk.ledger.write(documents.BIND, (BERT, "default", "model", 3)) is None
    assert await desk.everything() == before


async def test_i10_names_that_two_owners_share_are_two_things(desk: Desk) -> None:
    keyed = desk.document("/a", key="k1")
    [[answer]] = [await desk.ledger.write(runs.SUBMIT, desk.submission(keyed, batch="spring", group=START))]
    other = desk.document("/b", content="v2", key="k1")
    [[another]] = [await desk.ledger.write(runs.SUBMIT, desk.submission(other, owner=BERT, batch="spring"))]
    assert (answer.outcome, another.outcome) == ("submitted", "submitted")
    assert answer.document_id != another.document_id
    found = {who: await desk.ledger.read(partial(batches.batches, who)) for who in (ANNA, BERT)}
    assert [(batch.groups, batch.documents) for batch in found[ANNA]] == [(1, {"PENDING": 1})]
    assert [(batch.groups, batch.documents) for batch in found[BERT]] == [(0, {"PENDING": 1})]
