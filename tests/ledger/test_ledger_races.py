"""Two at the same moment: what one of them does between the look and the write of the other."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec
import pytest
from tests.kit.ledger import ANNA, Desk, sha
from tests.ledger.test_ledger_retention import counts, searchable

from penstock.ledger.database.connection import Connection, Row
from penstock.ledger.database.database import Database
from penstock.ledger.database.statements import Statement
from penstock.ledger.database.store import Ledger
from penstock.ledger.database.writer import Verb
from penstock.ledger.engine import (
    cancellations,
    checkpoints,
    completions,
    deletions,
    groups,
    leasing,
    locks,
    restarts,
    runs,
    submissions,
    submits,
    work,
)
from penstock.ledger.upkeep import retention
from penstock.ledger.upkeep.retention import Dropped
from penstock.model.nouns import WorkerId
from penstock.runtime import Runtime


class Open:
    """A transaction that stays open until told: the moment between a verb's statements and its commit."""

    def __init__(self, desk: Desk) -> None:
        self.connection: Connection = desk.ledger.database.connect(hot=True)
        self.connection.begin()

    def do(self, verb: Verb[Any, Any], item: Any) -> Any:
        return verb.function(self.connection, [item])[0]

    def commit(self) -> None:
        self.connection.commit()
        self.connection.close()


async def meanwhile(first: Open, second: Callable[[], Any]) -> Any:
    """`second` begins while the first is open, and ends when it has committed."""
    answers: list[Any] = []
    thread = threading.Thread(target=lambda: answers.append(second()))
    thread.start()
    thread.join(0.3)
    first.commit()
    thread.join(10)
    assert not thread.is_alive()
    return answers[0]


@pytest.fixture
async def both(postgres: str, runtime: Runtime) -> AsyncIterator[Desk]:
    """On PostgreSQL only: SQLite has one writer at a time, and nothing to race."""
    ledger = Ledger(Database(postgres, runtime))
    yield Desk(ledger)
    await ledger.close()


async def test_a_cancel_that_meets_a_chain_stops_the_chained_step_too(both: Desk) -> None:
    step = await both.started()
    worker = Open(both)
    assert worker.do(completions.COMPLETE, both.completion(step, "chunk", chain=True)).took

    def cancel() -> Any:
        user = Open(both)
        answer = user.do(cancellations.CANCEL, runs.Selected(ANNA, (step.document_id,)))
        user.commit()
        return answer

    assert await meanwhile(worker, cancel) == {step.document_id}
    assert await both.rows("SELECT position, status FROM steps ORDER BY position") == [
        (0, "COMPLETED"),
        (1, "CANCELLED"),
    ]
    assert not (await both.ledger.read(work.left)).anything


async def test_i2_a_heartbeat_does_not_wait_and_takes_nothing_for_lost(both: Desk) -> None:
    busy, idle = await both.started("/a"), await both.started("/b")
    worker = Open(both)
    assert worker.do(completions.COMPLETE, both.completion(busy)).took
    signs = tuple(leasing.StepSignal(step.lease.step_id, "limit", moved=False) for step in (busy, idle))
    beat = leasing.Beat(WorkerId("w1"), (busy.lease, idle.lease), (), signs, 500.0)
    async with asyncio.timeout(5):
        beaten = await both.ledger.write(leasing.HEARTBEAT, beat)
    assert beaten.alive == {busy.lease.step_id, idle.lease.step_id}
    assert beaten.passed == {busy.lease.step_id}
    assert await both.step(idle, "waiting_on") == "limit"
    worker.commit()
    beaten = await both.ledger.write(leasing.HEARTBEAT, beat)
    assert beaten.alive == {idle.lease.step_id}
    assert not beaten.passed


async def test_i1_new_bytes_that_meet_a_delete_are_a_new_document(both: Desk) -> None:
    step = await both.flipped("/a", "old")
    user = Open(both)
    user.do(deletions.DELETE, runs.Selected(ANNA, (step.document_id,)))

    def submit() -> Any:
        other = Open(both)
        answer = other.do(submits.SUBMIT, both.submission(both.document("/a", "new")))
        other.commit()
        return answer[0]

    answer = await meanwhile(user, submit)
    assert answer.outcome == "submitted"
    assert answer.document_id != step.document_id
    found = await both.rows("SELECT id, sha256 FROM documents WHERE deleted_at IS NULL")
    assert found == [(answer.document_id, sha("new"))]


@pytest.mark.parametrize("others", [(), ("/new",)])
async def test_i1_bytes_that_come_while_their_source_is_being_deleted_are_entered(
    both: Desk, others: tuple[str, ...]
) -> None:
    """The delete has only taken hold of the document when they come."""
    old = await both.submit("/a")
    user = Open(both)
    chosen = runs.Selected(ANNA, (old.document_id,))
    runs.hold(ANNA, user.connection, chosen.documents)
    order = both.submission(
        *map(both.document, (*others, "/a")), group=groups.GroupStart("01GROUP", "short", None, True)
    )
    task = asyncio.create_task(both.ledger.write(submits.SUBMIT, order))
    await both.runtime.sleep(0.3)
    assert not task.done()
    user.do(deletions.DELETE, chosen)
    user.commit()
    answers = await task
    assert [answer.outcome for answer in answers] == ["submitted"] * (len(others) + 1)
    assert not any(answer.needs_bytes for answer in answers)
    live = await both.rows("SELECT source FROM documents WHERE deleted_at IS NULL ORDER BY source")
    assert live == [(source,) for source in sorted((*others, "/a"))]
    count = len(others) + 1
    assert await both.rows("SELECT sealed, open_runs, total_runs FROM groups WHERE id = '01GROUP'") == [
        (1, count, count)
    ]


async def test_i8_a_submitter_that_is_back_keeps_its_group_open(both: Desk) -> None:
    def order(source: str) -> submissions.Submission:
        return both.submission(both.document(source), group=groups.GroupStart("01GROUP", "short"))

    await both.ledger.write(submits.SUBMIT, order("/a"))
    await both.rows("UPDATE groups SET submitting_until = 1")
    submitter = Open(both)
    submitter.do(submits.SUBMIT, order("/b"))

    def reap() -> Any:
        other = Open(both)
        answer = other.do(leasing.REAP, leasing.Reap(frozenset(), (), 5))
        other.commit()
        return answer

    await meanwhile(submitter, reap)
    assert await both.rows("SELECT sealed, open_runs, completions FROM groups") == [(0, 2, 0)]


async def test_two_submits_of_one_new_file_are_one_document(both: Desk) -> None:
    first = Open(both)
    [answer] = first.do(submits.SUBMIT, both.submission(both.document("/a")))
    # Through the writer, which runs a group again where somebody was quicker.
    second = asyncio.create_task(both.submit("/a"))
    await both.runtime.sleep(0.3)
    first.commit()
    other = await second
    assert (answer.outcome, other.outcome) == ("submitted", "resumed")
    assert other.document_id == answer.document_id


async def test_a_worker_that_leaves_hands_over_what_it_still_holds(desk: Desk) -> None:
    step = await desk.started()
    other = await desk.started("/b", worker="w2")
    await desk.to_index("/c")
    [keyed] = await desk.claim_keyed()
    await desk.ledger.write(leasing.LEAVE, WorkerId("w1"))
    assert (await desk.step(step, "status, lease_token, crashes")) == ("PENDING", None, 0)
    assert (await desk.step(other, "status")) == "RUNNING"
    assert not await desk.ledger.read(locks.held, keyed.lease.resource_key or "", keyed.lease.token)
    assert len(await desk.claim_keyed(worker="w3")) == 1


async def test_i2_a_step_that_was_claimed_anew_after_a_reaper_saw_its_old_lease_is_not_reaped(
    both: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = await both.started()
    connection = both.ledger.database.connect(hot=True)
    run, anew = connection.run, both.token()

    def overtaken(statement: Statement, *arguments: Any, **values: Any) -> list[Row]:
        found = run(statement, *arguments, **values)
        if statement is leasing._OF_THE_DEAD:
            assert found
            other = both.ledger.database.connect()
            other.script(f"UPDATE steps SET lease_token = '{anew}', worker_id = 'w2'")
            other.close()
        return found

    monkeypatch.setattr(connection, "run", overtaken)
    connection.begin()
    [reaped] = leasing.REAP.function(connection, [leasing.Reap(frozenset(), (WorkerId("w1"),), 5)])
    connection.commit()
    connection.close()
    assert reaped.reset == ()
    assert await both.step(step, "status, lease_token, crashes") == ("RUNNING", anew, 0)


async def test_a_step_whose_document_is_gone_is_dropped_by_its_holder_alone(desk: Desk) -> None:
    step = await desk.started()
    stale = msgspec.structs.replace(step.lease, token=desk.token())
    await desk.ledger.write(leasing.DROP, stale)
    assert await desk.step(step, "status") == "RUNNING"
    await desk.ledger.write(leasing.DROP, step.lease)
    assert await desk.step(step, "status") == "CANCELLED"


async def test_a_retry_with_new_settings_takes_the_bytes_that_the_ledger_holds_now(desk: Desk) -> None:
    step = await desk.started("/a", content="old")
    await desk.fail(step)
    seen_long_ago = desk.document("/a", "old")
    later = await desk.started("/a", content="new")
    await desk.fail(later)
    asked = msgspec.structs.replace(seen_long_ago, id=step.document_id, raw_key=None)
    await desk.ledger.write(restarts.RETRY, restarts.Retry(desk.submission(asked, settings="tomorrow")))
    assert await desk.one("SELECT sha256 FROM documents") == sha("new")
    newest = "SELECT sha256, raw_key FROM generations ORDER BY id DESC LIMIT 1"
    raw = await desk.one("SELECT raw_key FROM generations WHERE id = (SELECT max(id) - 1 FROM generations)")
    assert await desk.one(newest) == (sha("new"), raw)


async def test_i3_a_drop_that_meets_a_step_which_takes_the_artifact_leaves_it(both: Desk) -> None:
    step, reader = await searchable(both, "/a"), await both.started("/b")
    worker = Open(both)
    assert worker.do(checkpoints.OPEN, checkpoints.Open(reader, "fp")).artifact.complete

    def dropping() -> Dropped:
        other = Open(both)
        answer: Dropped = other.do(retention.DROP_ARTIFACTS, (step.generation_id,))
        other.commit()
        return answer

    assert await meanwhile(worker, dropping) == Dropped(1, 0, ())
    assert await counts(both, "segments", "artifact_refs") == [2, 1]


async def test_i3_a_step_that_meets_a_drop_makes_the_artifact_itself(both: Desk) -> None:
    step, reader = await searchable(both, "/a"), await both.started("/b")
    upkeep = Open(both)
    assert upkeep.do(retention.DROP_ARTIFACTS, (step.generation_id,)).artifacts == 1

    def take() -> checkpoints.Opened:
        other = Open(both)
        answer: checkpoints.Opened = other.do(checkpoints.OPEN, checkpoints.Open(reader, "fp"))
        other.commit()
        return answer

    opened = await meanwhile(upkeep, take)
    assert opened.mine
    assert (opened.artifact.complete, opened.artifact.segments) == (False, 0)
    assert await both.rows("SELECT artifact_id FROM artifact_refs") == [(opened.artifact.id,)]
